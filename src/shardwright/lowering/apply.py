"""A plan as runnable JAX: the function is traced again and every step is pinned.

The walk goes over the jaxpr in the order of program/tracing.py and counts ops as it does, so
that the n-th op here is the n-th op there. Calls with derivatives of their own, remat bodies,
loops and branches are rebuilt with constrained bodies; everything else is evaluated as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.lowering.convolution import convolve
from shardwright.lowering.partial import add_up, in_first_part, over_leading, split_dims
from shardwright.lowering.steps import Partial, Spec, Step, Steps, partition_spec
from shardwright.program.tracing import CALLS, CUSTOM, REMATS
from shardwright.program.types import format_type

# Calls that carry derivative rules or metadata (or hide their body from the optimiser): kept.
KEPT_CALLS = (*CUSTOM, *REMATS, "xla_metadata_call")


# Ops whose operands a compiler gathers although every part can be computed where it is.
STUBBORN = ("fft", "top_k", "triangular_solve")


class Slot(NamedTuple):
    """An array in the walk, and whether the program text has it as a number."""

    array: Any
    literal: bool = False
    partial: Partial | None = None  # leading dims that still have to be summed
    recipe: Recipe | None = None  # of what is made of numbers alone


class Recipe(NamedTuple):
    """How to make an array of numbers again: any device can make any part of it."""

    eqn: Any
    operands: list[Slot]
    dims: tuple[tuple[int | None, ...], ...]  # per operand and dim, the dim of the result


def apply_steps(closed: Any, steps: Steps, mesh: Any, arrays: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr on these arrays, with every placement pinned."""
    _check_types(steps, closed)
    walk = _Walk(steps, mesh)
    inputs = [Slot(walk.pin(a, (spec,))) for a, spec in zip(arrays, steps.inputs, strict=True)]
    outputs = walk.jaxpr(closed.jaxpr, [*map(Slot, closed.consts), *inputs])
    results = []
    for out, spec in zip(outputs, steps.outputs, strict=True):
        if out.literal:
            results.append(out.array)
            continue
        step = walk.next_step()
        array = walk.moved(out, step, 0) if step else out.array
        results.append(walk.pin(array, step.makes[0] if step else (spec,)))
    if walk.serial != steps.count:
        raise ShardwrightError(
            f"the function has {walk.serial} ops, the plan was made for {steps.count}",
            try_="plan again: the function or its arguments have changed",
        )
    return results


def _check_types(steps: Steps, closed: Any) -> None:
    """The arguments must have the shapes the plan was made for."""
    now = [v.aval for v in closed.jaxpr.invars]
    check_types(steps.types, [format_type(aval) for aval in now])


def check_types(planned: Mapping[str, str], now: Sequence[str]) -> None:
    """Raises unless the leaves of a call have the planned types, {path: type}."""
    rows = zip(planned.items(), now, strict=True)
    changes = [f"{path}: was {was}, is {is_}" for (path, was), is_ in rows if was != is_]
    if changes:
        more = f"\n... and {len(changes) - 8} more" if len(changes) > 8 else ""
        raise ShardwrightError(
            "the arguments have other types than this plan was made for",
            changed="\n".join(changes[:8]) + more,
            try_="plan again for these arguments",
        )


class _Walk:
    def __init__(self, steps: Steps, mesh: Any) -> None:
        self.steps = steps
        self.mesh = mesh
        self.serial = 0
        self.backward = False
        self._shardings: dict[Spec, NamedSharding] = {}
        self._copies: dict[tuple[int, tuple[Spec, ...], bool], tuple[Any, Any]] = {}

    def next_step(self) -> Step | None:
        step = self.steps.by_serial.get(self.serial)
        self.serial += 1
        return step

    def pin(self, array: Any, specs: Sequence[Spec]) -> Any:
        """The array led through these placements."""
        for spec in specs:
            if not spec:
                continue
            if spec not in self._shardings:
                self._shardings[spec] = NamedSharding(self.mesh, partition_spec(spec))
            array = jax.lax.with_sharding_constraint(array, self._shardings[spec])
        return array

    def moved(self, slot: Slot, step: Step, operand: int) -> Any:
        """An operand as the op needs it; one copy serves all uses in the same place.

        What is moved for the forward pass is moved again for the backward pass: the barrier keeps
        the compiler from holding the first copy in between.
        """
        array, way = slot.array, step.needs[operand]
        if not way:
            return array
        key = (id(array), way, self.backward)
        if key not in self._copies:
            held = self.made(slot, way[-1], {})
            if self.backward and step.travels[operand]:
                held = jax.lax.optimization_barrier(held)
            self._copies[key] = (array, self.pin(held, way))  # keeps `array`, and so its id
        return self._copies[key][1]

    def made(self, slot: Slot, spec: Spec, known: dict[tuple[int, Spec], Any]) -> Any:
        """An array of numbers made anew, placed like this all the way; others as they are."""
        if slot.recipe is None:
            return slot.array
        key = (id(slot.array), spec)
        if key not in known:
            eqn, operands, dims = slot.recipe
            specs = [tuple(() if d is None else spec[d] for d in row) for row in dims]
            args = [self.made(s, one, known) for s, one in zip(operands, specs, strict=True)]
            known[key] = self.pin(_jax.bind(eqn, args)[0], (spec,))
        return known[key]

    def jaxpr(self, jaxpr: Any, inputs: Sequence[Slot]) -> list[Slot]:
        env: dict[Any, Slot] = dict(zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True))

        def read(v: Any) -> Slot:
            return Slot(v.val, True) if type(v) is _jax.Literal else env[v]

        for eqn in jaxpr.eqns:
            operands = [read(v) for v in eqn.invars]
            name = eqn.primitive.name
            saved = self.backward
            self.backward = saved or _jax.is_transposed(eqn.source_info)
            if name in CALLS and CALLS[name] in eqn.params:
                results = self.call(eqn, name, operands)
            elif name in _REGIONS:
                results = [Slot(a) for a in _REGIONS[name](self, eqn, operands)]
            elif name == "custom_linear_solve":
                results = self.linear_solve(eqn, operands)
            elif (inner := _jax.opened(eqn)) is not None:
                results = self.jaxpr(inner.jaxpr, [*map(Slot, inner.consts), *operands])
            else:
                results = self.op(eqn, operands)
            self.backward = saved
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def op(self, eqn: Any, operands: list[Slot]) -> list[Slot]:
        step = self.next_step()
        if step is None:  # nothing needs it, or nothing is known of it
            return [Slot(a) for a in _jax.bind(eqn, [s.array for s in operands])]
        if step.numbers is not None:
            (array,) = _jax.bind(eqn, [s.array for s in operands])
            return [Slot(array, recipe=Recipe(eqn, operands, step.numbers))]
        args = [
            s.array if s.literal or s.partial else self.moved(s, step, i)
            for i, s in enumerate(operands)
        ]
        carried = next((s.partial for s in operands if s.partial), None)
        if carried and step.order:
            carried = carried.in_order(step.order)
        partial = step.partial or carried
        if partial is None:
            if step.convolution:
                results = [convolve(eqn, args, step.convolution, self.mesh)]
            elif eqn.primitive.name in STUBBORN:
                results = self.in_parts(eqn, args, step)
            else:
                results = _jax.bind(eqn, args)
            return [Slot(self.pin(a, way)) for a, way in zip(results, step.makes, strict=True)]
        if step.partial:
            args = [
                split_dims(a, step.partial.sizes, dims, self.pin_leading(step.partial, dims))
                for a, dims in zip(args, step.partial.dims, strict=True)
            ]
            leading = [[d is not None for d in dims] for dims in step.partial.dims]
            if step.partial.onto:
                args[0] = in_first_part(args[0], partial.sizes)
                leading[0] = [True] * len(partial.axes)
        else:
            leading = [[s.partial is not None] * len(partial.axes) for s in operands]
        (array,) = over_leading(lambda *xs: _jax.bind(eqn, list(xs)), leading, args)
        array = self.pin(array, (partial.spec,))
        if step.defer:
            return [Slot(array, partial=partial)]
        return [Slot(self.summed(array, partial, step))]

    def summed(self, array: Any, partial: Partial, step: Step) -> Any:
        """Partial sums reduced, and brought to where the result is kept."""
        merged = array.reshape(-1, *array.shape[len(partial.axes) :])
        merged = self.pin(merged, ((partial.axes, *partial.way[0]),))
        way = tuple(dict.fromkeys((*partial.way, step.makes[0][-1])))
        if partial.scatter is not None:
            return self.pin(self.scatter(merged, partial), way[1:])
        return self.pin(add_up(merged), way)

    def scatter(self, merged: Any, partial: Partial) -> Any:
        """The sum over the leading dim, each device keeping its part of another dim."""
        produced, scattered = partial.way[:2]

        def local(part: Any) -> Any:
            return jax.lax.psum_scatter(
                part[0], partial.axes, scatter_dimension=partial.scatter, tiled=True
            )

        return jax.shard_map(
            local, mesh=self.mesh, check_vma=False,
            in_specs=partition_spec((partial.axes, *produced)), out_specs=partition_spec(scattered),
        )(merged)  # fmt: skip

    def in_parts(self, eqn: Any, args: list[Any], step: Step) -> list[Any]:
        """A stubborn op computed on each device's part, by hand."""
        mapped = jax.shard_map(
            lambda *xs: tuple(_jax.bind(eqn, list(xs))), mesh=self.mesh, check_vma=False,
            in_specs=tuple(partition_spec(spec) for spec in step.reads),
            out_specs=tuple(partition_spec(way[0]) for way in step.makes),
        )  # fmt: skip
        return list(mapped(*args))

    def pin_leading(self, partial: Partial, dims: Sequence[int | None]) -> Any:
        """Pins the leading dims of a split operand to their axes, and leaves the rest open."""
        axes = [a for a, d in zip(partial.axes, dims, strict=True) if d is not None]

        def pin(array: Any) -> Any:
            open_dims = [PartitionSpec.UNCONSTRAINED] * (array.ndim - len(axes))
            sharding = NamedSharding(self.mesh, PartitionSpec(*axes, *open_dims))
            return jax.lax.with_sharding_constraint(array, sharding)

        return pin

    def call(self, eqn: Any, name: str, operands: list[Slot]) -> list[Slot]:
        inner, consts = _jax.open_jaxpr(eqn.params[CALLS[name]])
        if name not in KEPT_CALLS:
            with _jax.name_scope(str(eqn.params.get("name", name))):
                return self.jaxpr(inner, [*map(Slot, consts), *operands])
        about: list[tuple[bool, Partial | None]] = []  # the results

        def body(*arrays: Any) -> list[Any]:
            given = [s._replace(array=a) for s, a in zip(operands, arrays, strict=True)]
            out = self.jaxpr(inner, [*map(Slot, consts), *given])
            about.extend((s.literal, s.partial) for s in out)
            return [s.array for s in out]

        partial = [s.partial for s in operands]
        closed = _jax.retrace(body, _with_parts([v.aval for v in inner.invars], partial))
        args = [s.array for s in operands]
        if isinstance(eqn.params[CALLS[name]], _jax.ClosedJaxpr):
            results = _jax.bind(eqn, args, **{CALLS[name]: closed})
        else:  # an open jaxpr has no constants of its own
            opened, extra = _jax.without_consts(closed)
            results = _jax.bind(eqn, [*extra, *args], **{CALLS[name]: opened})
        return [Slot(a, *of) for a, of in zip(results, about, strict=True)]

    def linear_solve(self, eqn: Any, operands: list[Slot]) -> list[Slot]:
        lengths = eqn.params["const_lengths"]
        solve, consts = _jax.open_jaxpr(eqn.params["jaxprs"].solve)
        start = lengths.matvec + lengths.vecmat
        right = operands[start + lengths.solve + lengths.transpose_solve :]
        own = operands[start : start + lengths.solve]
        return self.jaxpr(solve, [*map(Slot, consts), *own, *right])

    def enter(self, outer: Slot) -> tuple[Any, Step | None]:
        """(operand as the region needs it, its step) for one entry tie."""
        if outer.literal:
            return outer.array, None
        step = self.next_step()
        array = self.moved(outer, step, 0) if step else outer.array
        if step and step.carry:  # one device starts from it
            array = self.pin(in_first_part(array, step.carry.sizes), (step.carry.spec,))
        return array, step

    def body(
        self, jaxpr: Any, entries: Sequence[tuple[Step | None, int]]
    ) -> tuple[Any, list[bool]]:
        """(constrained body, which outputs are literals); entries: (tie, its result) per input."""
        inner, consts = _jax.open_jaxpr(jaxpr)
        literal: list[bool] = []

        def run(*arrays: Any) -> list[Any]:
            given = [self.inside(a, *tie) for a, tie in zip(arrays, entries, strict=True)]
            out = self.jaxpr(inner, [*map(Slot, consts), *given])
            literal.extend(s.literal for s in out)
            return [
                jax.lax.convert_element_type(s.array, v.aval.dtype) if s.literal else s.array
                for s, v in zip(out, inner.outvars, strict=True)
            ]

        carries = [step.carry if step else None for step, _ in entries]
        avals = _with_parts([v.aval for v in inner.invars], carries)
        return _jax.retrace(run, avals), literal

    def inside(self, array: Any, step: Step | None, result: int) -> Slot:
        """What a body gets through a tie."""
        if step and step.carry:
            return Slot(self.pin(array, (step.carry.spec,)), partial=step.carry)
        return Slot(self.pin(array, step.makes[result][-1:]) if step else array)

    def leave(self, array: Any, has_tie: bool) -> Any:
        """A loop's result where it is stored, after its exit tie."""
        step = self.next_step() if has_tie else None
        if step and step.carry:
            return self.summed(array, step.carry, step)
        return self.pin(array, step.makes[0][-1:]) if step else array


def _with_parts(avals: Sequence[Any], partial: Sequence[Partial | None]) -> list[Any]:
    """Abstract types, with the leading dims of those that are partial sums."""
    structs = [_jax.struct(aval) for aval in avals]
    return [
        s.update(shape=(*p.sizes, *s.shape)) if p else s
        for s, p in zip(structs, partial, strict=True)
    ]


def _scan(walk: _Walk, eqn: Any, operands: list[Slot]) -> list[Any]:
    walk.next_step()  # the scan itself
    args, ties = zip(*map(walk.enter, operands), strict=True) if operands else ((), ())
    closed, literal = walk.body(eqn.params["jaxpr"], [(tie, 0) for tie in ties])
    results = _jax.bind(eqn, list(args), jaxpr=closed)
    carries = eqn.params["num_carry"]
    return [walk.leave(a, i < carries or not literal[i]) for i, a in enumerate(results)]


def _while(walk: _Walk, eqn: Any, operands: list[Slot]) -> list[Any]:
    walk.next_step()
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    args, ties = zip(*map(walk.enter, operands), strict=True)
    carried = list(ties[n_cond + n_body :])
    cond, _ = walk.body(
        eqn.params["cond_jaxpr"],
        [*((t, 0) for t in ties[:n_cond]), *((t, 0) for t in carried)],
    )
    body, _ = walk.body(
        eqn.params["body_jaxpr"],
        [*((t, 0) for t in ties[n_cond : n_cond + n_body]), *((t, 1) for t in carried)],
    )
    results = _jax.bind(eqn, list(args), cond_jaxpr=cond, body_jaxpr=body)
    return [walk.leave(a, True) for a in results]


def _cond(walk: _Walk, eqn: Any, operands: list[Slot]) -> list[Any]:
    walk.next_step()
    branches = eqn.params["branches"]
    entered = [walk.enter(s) for s in operands[1:]]
    bodies, literals = [], []
    for n, branch in enumerate(branches):
        closed, literal = walk.body(branch, [(tie, n) for _, tie in entered])
        bodies.append(closed)
        literals.append(literal)
    args = [operands[0].array, *(a for a, _ in entered)]
    results = _jax.bind(eqn, args, branches=tuple(bodies))
    return [
        walk.leave(a, not all(lit))
        for a, lit in zip(results, zip(*literals, strict=True), strict=True)
    ]


_REGIONS = {"scan": _scan, "while": _while, "cond": _cond}
