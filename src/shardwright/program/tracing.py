"""Function -> Program: one walk over the jaxpr, with calls inlined and loops as regions."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.program.arguments import Signature, asks_which, sign
from shardwright.program.regions import REGION_OPS
from shardwright.program.source import is_user_code
from shardwright.program.ties import CARRIES, Kind, Tie
from shardwright.program.types import (
    LITERAL,
    NO_CALL,
    NO_OP,
    NO_REMAT,
    TOP,
    Op,
    Program,
    Region,
    UserPin,
    Value,
    format_type,
)  # fmt: skip
from shardwright.rules.registry import lookup
from shardwright.rules.rule import NOTHING, OpShape, Rule, TensorShape, einsum

# Call-like primitives and the parameter that holds what they call.
CALLS = {
    "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call",
    "custom_lin": "call_jaxpr", "linear_call": "callee", "composite": "jaxpr",
    "remat_opt": "fwd_jaxpr", "xla_metadata_call": "jaxpr",
    "remat2": "jaxpr", "checkpoint": "jaxpr", "remat": "jaxpr",
}  # fmt: skip
MOST_BYTES = 2**53  # of one array before it is split: 9 PB, more than any cluster holds
# Primitives that only say how a value is split: the parameter, and what the user wrote.
PINS = {
    "sharding_constraint": ("sharding", "with_sharding_constraint"),
    "reshard": ("dst_sharding", "reshard"),
}
OUT_SHARDINGS = ("out_sharding", "sharding")  # parameters of any other op under explicit axes
REMATS = ("remat2", "checkpoint", "remat")
# Calls with derivatives or batching of their own, which expect the arguments and results they had.
CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vmap_call")


@asks_which
def trace(
    fn: Callable[..., Any],
    /,
    *args: Any,
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
    **kwargs: Any,
) -> Program:
    """The Program of `fn` called with these arguments; nothing is executed or allocated.

    >>> print(trace(jnp.dot, jax.ShapeDtypeStruct((8, 4), "float32"), np.ones((4, 2), "float32")))
    """
    return trace_call(fn, args, kwargs, static_argnums, donate_argnums)


def trace_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
    mesh: Mesh | None = None,
) -> Program:
    """The Program of one call, planned for `mesh`: its axes may be named in the function."""
    planned = None if mesh is None else _jax.abstract_mesh(mesh.sizes, mesh.names)
    signature = sign(fn, args, kwargs, static_argnums, donate_argnums, planned)
    return build(trace_jaxpr(fn, signature, signature.leaves(args, kwargs)), signature)


def trace_jaxpr(fn: Callable[..., Any], signature: Signature, leaves: Sequence[Any]) -> Any:
    """The closed jaxpr of the flat function; errors in the user's code name the user's line.

    The ops must be the same when the plan is made and when it is run. So only the types of the
    leaves count, not where they are; and which are weakly typed, and the meshes that may be around
    the function, is as in the signature.
    """

    def flat(*arrays: Any) -> list[Any]:
        args, kwargs = signature.call(arrays)
        return signature.output.record(fn(*args, **kwargs))

    flat.__name__ = signature.name
    types = [_jax.bare(a, weak) for a, weak in zip(leaves, signature.weak, strict=True)]
    failures: list[Exception] = []
    for mesh in _meshes_around(signature):
        try:
            with jax.sharding.use_abstract_mesh(mesh):
                traced = _jax.trace(jax.jit(flat), tuple(types), {})
                return _jax.without_refs(traced.jaxpr)
        except ShardwrightError:
            raise
        except Exception as error:  # the user's function may raise anything
            failures.append(error)
    failed = next((e for e in failures if not _jax.wants_another_mesh(e)), failures[-1])
    try_ = "call it under jax.make_jaxpr with the same arguments to see the full traceback"
    if _jax.wants_another_mesh(failed) and signature.mesh.empty:
        try_ = "give the mesh whose axes it names: under jax.set_mesh(mesh)"
        if signature.planned is None:
            try_ += ", or with mesh=... of partition(), check() or analyze()"
    raise ShardwrightError(
        f"{signature.name} failed while being traced: {type(failed).__name__}: {failed}",
        at=_user_line(failed),
        try_=try_,
    ) from failed


def _meshes_around(signature: Signature) -> list[Any]:
    """The meshes to trace under, until one will do.

    The user's own comes first, and alone if there is one: its axes are automatic unless the
    function cannot do without explicit ones. Without one, a function that names axes is traced
    under the mesh of the plan.
    """
    around, planned = signature.mesh, signature.planned
    if not around.empty:
        return list(dict.fromkeys((_jax.automatic(around), around)))
    return [around] if planned is None else [around, planned, _jax.explicit(planned)]


def _user_line(error: BaseException | None) -> str | None:
    """The innermost line of the user's code in a traceback."""
    found = None
    for frame in traceback.extract_tb(error.__traceback__ if error else None):
        if is_user_code(frame.filename):
            found = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} `{frame.line}`"
    return found


def build(closed: Any, signature: Signature) -> Program:
    """The Program of a closed jaxpr whose inputs are the signature's array leaves."""
    walk = Walk()
    consts = walk.constants(closed.consts)
    inputs = tuple(
        walk.new_value(var.aval, path=path)
        for var, path in zip(closed.jaxpr.invars, signature.paths, strict=True)
    )
    outputs = walk.returns(closed, walk.jaxpr(closed.jaxpr, (*consts, *inputs)))
    count, length = len(walk.consts), len(walk.ops)
    walk.regions[TOP].inputs = (*(v for _, v in walk.consts.values()), *inputs)
    walk.regions[TOP].outputs = tuple(outputs)
    walk.drop_dead(outputs)
    inputs = walk.regions[TOP].inputs[count:]
    program = Program(
        signature.name, walk.values, walk.ops, walk.regions, inputs,
        walk.regions[TOP].inputs[:count],
        walk.regions[TOP].outputs, signature.output.paths,
        frozenset(i for i, gone in zip(inputs, signature.donated, strict=True) if gone),
        {}, walk.pins, length, signature,
    )  # fmt: skip
    program.aliases = donated_aliases(program)
    _check_sizes(program)
    return program


def _check_sizes(program: Program) -> None:
    """Raises for an array larger than all memory there is: sums of bytes would overflow."""
    most = max(program.values, key=lambda v: v.bytes, default=None)
    if most is not None and most.bytes > MOST_BYTES:
        raise ShardwrightError(
            f"{program.name} has an array of {most.bytes:.3g} bytes, {format_type(most.type)}",
            at=program.where(most.index),
            try_=f"smaller shapes: at most {MOST_BYTES:.3g} bytes in one array",
        )


class Walk:
    """The state of the walk: what has been built so far, and where we stand."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.regions: list[Region] = [Region(TOP, "function", TOP, 1)]
        self.pins: list[UserPin] = []
        self.consts: dict[int, tuple[Any, int]] = {}  # id -> (array, value)
        self.region = TOP
        self.remat = NO_REMAT
        self.remats = 0
        self.custom = NO_CALL
        self.customs = 0
        self.transposed = False  # inside a backward pass
        self.caller: Any = None  # the user's equation that called JAX's own code
        self._types: dict[Any, TensorShape] = {}
        self._rules: dict[Any, Rule] = {}
        self._backward: dict[Any, bool] = {}

    def new_value(self, aval: Any, op: int = NO_OP, path: str | None = None) -> int:
        """A new value of this abstract type."""
        index = len(self.values)
        self.values.append(Value(index, self.type_of(aval), op, path))
        return index

    def type_of(self, aval: Any) -> TensorShape:
        key = (getattr(aval, "shape", ()), getattr(aval, "dtype", None))
        type_ = self._types.get(key)
        if type_ is None:
            shape, dtype = key
            type_ = self._types[key] = TensorShape(tuple(shape), dtype or np.dtype(np.float32))
        return type_

    def jaxpr(self, jaxpr: Any, inputs: Sequence[int]) -> list[int]:
        """Walks one jaxpr in the current region; returns its outputs."""
        env: dict[Any, int] = dict(zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True))
        literal = _jax.Literal
        for eqn in jaxpr.eqns:
            operands = [LITERAL if type(v) is literal else env[v] for v in eqn.invars]
            name = eqn.primitive.name
            outside, self.transposed = self.transposed, self.backward(eqn)
            if name in CALLS and CALLS[name] in eqn.params:
                results = self.call(eqn, name, operands)
            elif (inner := _jax.opened(eqn)) is not None:
                results = self.inlined(eqn, inner, operands, by_jax=True)
            elif name in REGION_OPS:
                results = REGION_OPS[name](self, eqn, operands)
            elif name == "custom_linear_solve":
                results = self.linear_solve(eqn, operands)
            else:
                results = self.op(eqn, name, operands)
            self.transposed = outside
            env.update(zip(eqn.outvars, results, strict=True))
        return [LITERAL if type(v) is literal else env[v] for v in jaxpr.outvars]

    def op(self, eqn: Any, name: str, operands: list[int]) -> list[int]:
        """Appends the op of one equation."""
        index = len(self.ops)
        results = [self.new_value(v.aval, index) for v in eqn.outvars]
        rule = self.rule(eqn, name)
        self.append(eqn, name, operands, results, rule)
        self.pins += self.user_pins(eqn, name, results)
        return results

    def user_pins(self, eqn: Any, name: str, results: Sequence[int]) -> Iterator[UserPin]:
        """What an equation says of how its result is split; a backward pass only repeats it."""
        if name in PINS:
            parameter, by = PINS[name]
            yield UserPin(results[0], eqn.params[parameter], by)
        elif not self.transposed:
            for parameter in OUT_SHARDINGS:
                sharding = eqn.params.get(parameter)
                if isinstance(sharding, jax.sharding.NamedSharding):
                    yield UserPin(results[0], sharding, "out_sharding")

    def append(
        self, eqn: Any, name: str, operands: Sequence[int], results: Sequence[int], rule: Rule,
        **more: Any,
    ) -> int:  # fmt: skip
        index = len(self.ops)
        self.ops.append(
            Op(
                index,
                name,
                tuple(operands),
                tuple(results),
                rule,
                region=self.region,
                remat=self.remat,
                custom=self.custom,
                transposed=self.transposed,
                eqn=eqn,
                caller=self.caller,
                **more,
            )
        )
        return index

    def backward(self, eqn: Any) -> bool:
        """Whether an equation runs in a backward pass; names inside a call or loop start afresh."""
        if self.transposed:
            return True
        stack = eqn.source_info.name_stack
        known = self._backward.get(stack)
        if known is None:
            known = self._backward[stack] = _jax.is_transposed(eqn.source_info)
        return known

    def rule(self, eqn: Any, name: str) -> Rule:
        """The op's rule, computed once for all ops of the same shapes and parameters."""
        types = tuple([(v.aval.shape, v.aval.dtype) for v in eqn.invars])
        try:
            key = (name, types, tuple(eqn.params.items()))
            rule = self._rules.get(key)
        except (TypeError, AttributeError):  # unhashable parameters, tokens
            key, rule = None, None
        if rule is None:
            shape = OpShape(
                name,
                tuple(self.type_of(v.aval) for v in eqn.invars),
                tuple(self.type_of(v.aval) for v in eqn.outvars),
                eqn.params,
            )
            rule = lookup(shape)
            if key is not None:
                self._rules[key] = rule
        return rule

    def call(self, eqn: Any, name: str, operands: list[int]) -> list[int]:
        """Inlines a call."""
        saved = self.remat, self.custom
        if name in REMATS:
            self.remats += 1
            self.remat = self.remats
        if name in CUSTOM:
            self.customs += 1
            self.custom = self.customs
        inner = eqn.params[CALLS[name]]
        by_jax = _jax.written_by_jax(_jax.open_jaxpr(inner)[0])
        results = self.inlined(eqn, inner, operands, by_jax=by_jax)
        self.remat, self.custom = saved
        return results

    def inlined(self, eqn: Any, jaxpr: Any, operands: list[int], *, by_jax: bool) -> list[int]:
        """Walks a jaxpr in the place of an equation; what JAX wrote is said to be its caller's."""
        inner, consts = _jax.open_jaxpr(jaxpr)
        saved = self.caller
        if self.caller is None and by_jax:
            self.caller = eqn
        results = self.jaxpr(inner, [*self.constants(consts), *operands])
        self.caller = saved
        return results

    def constants(self, consts: Sequence[Any]) -> list[int]:
        """Values for arrays that a jaxpr closes over: one per array, however often it is met."""
        for c in consts:
            if id(c) not in self.consts:
                self.consts[id(c)] = (c, self.new_value(jax.typeof(c)))
        return [self.consts[id(c)][1] for c in consts]

    def linear_solve(self, eqn: Any, operands: list[int]) -> list[int]:
        """custom_linear_solve computes what its `solve` says."""
        lengths = eqn.params["const_lengths"]
        solve, consts = _jax.open_jaxpr(eqn.params["jaxprs"].solve)
        start = lengths.matvec + lengths.vecmat
        right = operands[start + lengths.solve + lengths.transpose_solve :]
        own = operands[start : start + lengths.solve]
        return self.jaxpr(solve, [*self.constants(consts), *own, *right])

    def enter(self, kind: Kind, trips: int) -> int:
        """A new region inside the current one."""
        index = len(self.regions)
        self.regions.append(Region(index, kind, self.region, trips))
        return index

    def body(self, region: int, jaxpr: Any, inputs: Sequence[int]) -> list[int]:
        """Walks a body inside its region; `inputs` are values of the region."""
        inner, consts = _jax.open_jaxpr(jaxpr)
        saved, self.region = self.region, region
        outputs = self.jaxpr(inner, [*self.constants(consts), *inputs])
        self.region = saved
        self.regions[region].inputs = tuple(inputs)
        self.regions[region].outputs = tuple(outputs)
        return outputs

    def returns(self, closed: Any, outputs: Sequence[int]) -> list[int]:
        """One `return` tie per result: what is handed back may be stored otherwise than used."""
        returned = []
        for value, var in zip(outputs, closed.jaxpr.outvars, strict=True):
            if value == LITERAL:
                returned.append(LITERAL)
                continue
            returned.append(self.new_value(var.aval))
            self.tie(None, Tie.RETURN, [value], [returned[-1]])
        return returned

    def drop_dead(self, outputs: Sequence[int]) -> None:
        """Drops ops that nothing needs and values that nothing names, and renumbers both."""
        self.ops = live_ops(self.ops, self.regions, outputs, len(self.values))
        self._drop_regions()
        named = [False] * (len(self.values) + 1)  # the last entry stands for literals
        for op in self.ops:
            for v in op.operands:
                named[v] = True
            for v in op.results:
                named[v] = True
        for v in (*self.regions[TOP].inputs, *self.regions[TOP].outputs):
            named[v] = True
        named.pop()
        place = [LITERAL] * (len(self.values) + 1)
        live = [v for v, yes in zip(self.values, named, strict=True) if yes]
        for i, value in enumerate(live):
            place[value.index] = i
            value.index = i
        op_place = {op.index: i for i, op in enumerate(self.ops)}
        for op in self.ops:
            op.index = op_place[op.index]
            op.operands = tuple([place[v] for v in op.operands])
            op.results = tuple([place[v] for v in op.results])
        for value in live:
            value.op = op_place.get(value.op, NO_OP)
        for region in self.regions:
            region.op = op_place.get(region.op, NO_OP)
            region.inputs = tuple(place[v] for v in region.inputs)
            region.outputs = tuple(place[v] for v in region.outputs)
        self.pins = [replace(p, value=place[p.value]) for p in self.pins if place[p.value] >= 0]
        self.values = live

    def _drop_regions(self) -> None:
        """Drops the bodies of loops and branches that are gone, and renumbers the others."""
        used = {r for op in self.ops for r in op.body}
        self.regions = [r for r in self.regions if r.index == TOP or r.index in used]
        number = {r.index: i for i, r in enumerate(self.regions)}
        for region in self.regions:
            region.index, region.parent = number[region.index], number[region.parent]
        for op in self.ops:
            op.region, op.body = number[op.region], tuple([number[r] for r in op.body])

    def tie(
        self, eqn: Any, tie: Tie, operands: Sequence[int], results: Sequence[int], *,
        body: Sequence[int] = (), stacked: int = -1, position: int = 0,
    ) -> None:  # fmt: skip
        """An op that says these values are one array; `stacked` has an extra leading dim.

        The leading dim of a scan's xs and ys is its own factor, and is never split inside.
        """
        operands = [v for v in operands if v != LITERAL]
        if not operands or not results:
            return
        types = [self.values[v].type for v in (*operands, *results)]
        rank = min(len(t.shape) for t in types)
        same = list(range(rank))
        dims = [["layer", *same] if i == stacked else same for i in range(len(types))]
        leader = len(operands) - 1 if tie in CARRIES else None  # what came into the round
        key = ("tie", tuple(types), stacked, len(operands), leader)
        rule = self._rules.get(key)
        if rule is None:
            shape = OpShape(
                tie.value, tuple(types[: len(operands)]), tuple(types[len(operands) :]), {}
            )
            rule = self._rules[key] = einsum(
                shape, dims[: len(operands)], dims[len(operands) :], replicate=["layer"],
                unit=NOTHING, work=0.0, fusible=True, leader=leader,
            )  # fmt: skip
        index = self.append(
            eqn, tie.value, operands, results, rule, tie=tie, body=tuple(body), position=position
        )
        for v in results:
            self.values[v].op = index


def live_ops(
    ops: list[Op], regions: Sequence[Region], outputs: Sequence[int], count: int
) -> list[Op]:
    """The ops that a result or an effect needs; of a loop that is needed all that it carries."""
    needed = [False] * (count + 1)  # the last entry stands for literals
    for v in outputs:
        needed[v] = True
    running: set[int] = {NO_OP}  # loops and branches that are needed, and the function itself
    kept: list[Op] = []
    before = 0
    while len(running) > before:  # what a loop needs of its next round stands behind its use
        before = len(running)
        kept = []
        for op in reversed(ops):
            home = [regions[r].op for r in op.body[:1]]  # of a tie; of a loop or branch itself
            effect = op.eqn is not None and op.eqn.effects and not op.tie
            live = any(needed[v] for v in op.results) or effect or op.index in running
            if not live and not (op.tie in CARRIES and running.issuperset(home)):
                continue
            kept.append(op)
            running.update(home)
            region = op.region
            while effect and region != TOP:
                running.add(regions[region].op)
                region = regions[region].parent
            for v in op.operands:
                needed[v] = True
        for r in regions:
            if r.kind == "while_cond" and r.op in running:
                for v in r.outputs:
                    needed[v] = True
    kept.reverse()
    return kept


def donated_aliases(program: Program) -> dict[int, int]:
    """Which donated input each output takes the place of: same shape and dtype, in order."""
    free: dict[TensorShape, list[int]] = {}
    for value in program.inputs:
        if value in program.donated:
            free.setdefault(program.values[value].type, []).append(value)
    for queue in free.values():
        queue.reverse()
    aliases: dict[int, int] = {}
    for position, value in enumerate(program.outputs):
        if value != LITERAL and free.get(program.values[value].type):
            aliases[position] = free[program.values[value].type].pop()
    return aliases
