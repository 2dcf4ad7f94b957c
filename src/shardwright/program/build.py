"""Jaxpr -> Program: the handlers of the walk that number values and list ops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import jax

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.program.arguments import Signature
from shardwright.program.buffers import price_filled_rows
from shardwright.program.dead import drop_dead
from shardwright.program.interpret import (
    CUSTOM,
    OUTSIDE,
    REMAT,
    RETYPED,
    Key,
    Place,
    enter,
    interpret,
    op_name,
)  # fmt: skip
from shardwright.program.own_rows import let_devices_sort_their_own
from shardwright.program.pins import shard_map_pins, user_pins
from shardwright.program.regions import Borders, Split
from shardwright.program.rule_cache import NO_CONSTANTS, RuleCache
from shardwright.program.ties import CONSTS, MANUAL, Tie
from shardwright.program.types import (
    LITERAL,
    NO_CALL,
    NO_OP,
    NO_REMAT,
    TOP,
    Number,
    Op,
    Program,
    Region,
    UserPin,
    Value,
    format_type,
)  # fmt: skip
from shardwright.program.uniform import fills, keeps_uniform
from shardwright.rules.rule import NOTHING, Rule, TensorShape

MOST_BYTES = 2**53  # of one array before it is split: 9 PB, more than any cluster holds

# A loop or branch itself: its dims are joined by ties, not by a rule.
_NO_DIMS = Rule((), (), (), (), NOTHING, 0.0)
_SCALAR = Rule(((),), (), (), (), NOTHING, 0.0)


def build(closed: Any, signature: Signature) -> Program:
    """The Program of a closed jaxpr whose inputs are the signature's array leaves."""
    builder = Builder()
    consts = builder.constants(closed.consts)
    inputs = tuple(
        builder.new_value(var.aval, path=path)
        for var, path in zip(closed.jaxpr.invars, signature.paths, strict=True)
    )
    outputs = builder.returns(interpret(builder, closed.jaxpr, (*consts, *inputs)))
    all_consts = tuple(v for _, v in builder.consts.values())
    top = builder.regions[TOP]
    top.inputs, top.outputs = (*all_consts, *inputs), tuple(outputs)
    program = Program(
        signature.name, builder.values, builder.ops, builder.regions, inputs, all_consts,
        top.outputs, signature.output.paths, frozenset(), {}, {}, builder.pins, signature,
    )  # fmt: skip
    let_devices_sort_their_own(program)
    drop_dead(program)
    price_filled_rows(program)
    program.pins += shard_map_pins(program)
    program.donated = frozenset(program.inputs[i] for i in signature.donated_leaves)
    program.aliases = donated_aliases(program)
    program.updates = program.aliases | {
        position: program.inputs[source]
        for position, source in signature.output.sources.items()
        if position not in program.aliases and program.outputs[position] != LITERAL
    }
    _check_sizes(program)
    return program


class Builder:
    """What has been built so far, and the region and calls around the next op."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.regions: list[Region] = [Region(TOP, "function", TOP, 1)]
        self.pins: list[UserPin] = []
        self.consts: dict[int, tuple[Any, int]] = {}  # id -> (array, value)
        self.uniform: set[int] = set()  # values whose entries are all one number
        self.known = RuleCache()
        self.home = TOP
        self.remat = NO_REMAT
        self.custom = NO_CALL
        self.calls = count(1)

    def new_value(self, aval: Any, op: int = NO_OP, path: str | None = None) -> int:
        """A new value of this abstract type."""
        index = len(self.values)
        self.values.append(Value(index, self.known.type_of(aval), op, path))
        return index

    def literal(self, number: Any) -> int:
        return Number(number)

    def constants(self, arrays: Sequence[Any]) -> list[int]:
        """Values for arrays that a jaxpr closes over: one per array, however often it is met."""
        for a in arrays:
            if id(a) not in self.consts:
                self.consts[id(a)] = (a, self.new_value(jax.typeof(a)))
        return [self.consts[id(a)][1] for a in arrays]

    def arrays(self, operands: Sequence[int]) -> dict[int, Any]:
        """{operand: array} of those that the function closes over, through loops and shard_maps."""
        of_value = {value: array for array, value in self.consts.values()}
        out = {}
        for i, v in enumerate(operands):
            while v != LITERAL and v not in of_value and self.values[v].op != NO_OP:
                op = self.ops[self.values[v].op]
                if op.tie not in (*CONSTS, *MANUAL):
                    break
                v = op.operands[0]
            if v in of_value and of_value[v].shape == self.values[operands[i]].shape:
                out[i] = of_value[v]
        return out

    def op(self, eqn: Any, operands: list[int], place: Place) -> list[int]:
        """Appends the op of one equation."""
        if eqn.primitive.name in RETYPED:
            return operands
        index = len(self.ops)
        results = [self.new_value(v.aval, index) for v in eqn.outvars]
        kernel = eqn.primitive.name == "pallas_call"
        if fills(eqn, operands, self.uniform):
            operands, rule = [LITERAL] * len(operands), self.known.filled_rule(eqn)
        else:
            rule = self.known.rule(eqn, self.arrays(operands) if kernel else NO_CONSTANTS)
        if keeps_uniform(rule, operands, self.uniform):
            self.uniform.update(results)
        self.append(place.key, op_name(eqn), operands, results, rule, eqn, place)
        self.pins += user_pins(eqn, results, transposed=place.transposed)
        return results

    def append(
        self, key: Key, name: str, operands: Sequence[int], results: Sequence[int], rule: Rule,
        eqn: Any, place: Place, **more: Any,
    ) -> int:  # fmt: skip
        """The index of a new op in the current region."""
        index = len(self.ops)
        self.ops.append(Op(
            index, key, name, tuple(operands), tuple(results), rule, region=self.home,
            remat=self.remat, custom=self.custom, transposed=place.transposed, eqn=eqn,
            caller=place.caller, **more,
        ))  # fmt: skip
        return index

    def call(self, eqn: Any, called: Any, operands: list[int], place: Place) -> list[int]:
        """Inlines a call; ops remember the remat body and the function with own derivatives."""
        saved = self.remat, self.custom
        if eqn.primitive.name == REMAT:
            self.remat = next(self.calls)
        if eqn.primitive.name in CUSTOM:
            self.custom = next(self.calls)
        results = enter(self, called, operands, place)
        self.remat, self.custom = saved
        return results

    def region(self, eqn: Any, borders: Borders, operands: list[int], place: Place) -> list[int]:
        """Appends a loop, branch or shard_map, its entry ties, its bodies and its exit ties."""
        first, index = len(self.regions), len(self.ops)
        for body in borders.bodies:
            self.regions.append(Region(
                len(self.regions), body.kind, self.home, body.trips, op=index,
                manual=body.manual, mesh=body.mesh, partial=body.partial,
            ))  # fmt: skip
        results = [self.new_value(v.aval, index) for v in eqn.outvars]
        inner = [_jax.open_jaxpr(body.jaxpr)[0] for body in borders.bodies]
        reads, rule = list[int](), _NO_DIMS
        if borders.branches_on is not None:
            reads, rule = [operands[borders.branches_on]], _SCALAR
        bodies = tuple(range(first, first + len(inner)))
        self.append(place.key, eqn.primitive.name, reads, [], rule, eqn, place, body=bodies)
        inputs = [[self.new_value(v.aval) for v in jaxpr.invars] for jaxpr in inner]
        for entry in borders.entries:
            into = [inputs[b][i] for b, i in entry.inputs]
            around = [first + b for b, _ in entry.inputs]
            outer = [operands[entry.operand]]
            self.tie(entry.tie, entry.operand, outer, into, eqn, place, around, entry.split)
        outputs = [
            self.body(first + b, body.jaxpr, inputs[b], place.body(b))
            for b, body in enumerate(borders.bodies)
        ]
        for leaves in borders.exits:
            given = [outputs[b][i] for b, i in leaves.outputs]
            given += [inputs[b][i] for b, i in leaves.next_trip[:1]]
            around = [first + b for b, _ in leaves.outputs]
            outer = [results[leaves.result]]
            self.tie(leaves.tie, leaves.result, given, outer, eqn, place, around, leaves.split)
        return results

    def body(self, region: int, jaxpr: Any, inputs: Sequence[int], place: Place) -> list[int]:
        """Walks a body inside its region; `inputs` are values of the region."""
        saved, self.home = self.home, region
        outputs = enter(self, jaxpr, inputs, place)
        self.home = saved
        self.regions[region].inputs = tuple(inputs)
        self.regions[region].outputs = tuple(outputs)
        return outputs

    def returns(self, outputs: Sequence[int]) -> list[int]:
        """One `return` tie per result: what is handed back may be stored otherwise than used."""
        returned = []
        for i, value in enumerate(outputs):
            if value == LITERAL:
                returned.append(LITERAL)
                continue
            returned.append(len(self.values))
            self.values.append(Value(returned[-1], self.values[value].type, NO_OP))
            self.tie(Tie.RETURN, i, [value], returned[-1:], None, OUTSIDE)
        return returned

    def tie(
        self, tie: Tie, position: int, operands: Sequence[int], results: Sequence[int],
        eqn: Any, place: Place, body: Sequence[int] = (), split: Split | None = None,
    ) -> None:  # fmt: skip
        """Appends a tie, unless all that it would join are literals."""
        operands = [v for v in operands if v != LITERAL]
        if not operands or not results:
            return
        before = [self.values[v].type for v in operands]
        rule = self.known.tie_rule(tie, before, [self.values[v].type for v in results], split)
        index = self.append(
            place.tie(tie, position), tie.value, operands, results, rule, eqn, place,
            tie=tie, body=tuple(body),
        )  # fmt: skip
        for v in results:
            self.values[v].op = index


def donated_aliases(program: Program) -> dict[int, int]:
    """Which donated input each output takes the place of: same shape and dtype, in order."""
    free: dict[TensorShape, list[int]] = {}
    for value in reversed(program.inputs):
        if value in program.donated:
            free.setdefault(program.values[value].type, []).append(value)
    aliases: dict[int, int] = {}
    for position, value in enumerate(program.outputs):
        if value != LITERAL and free.get(program.values[value].type):
            aliases[position] = free[program.values[value].type].pop()
    return aliases


def _check_sizes(program: Program) -> None:
    """Raises for an array larger than all memory there is: sums of bytes would overflow."""
    most = max(program.values, key=lambda v: v.bytes, default=None)
    if most is not None and most.bytes > MOST_BYTES:
        raise ShardwrightError(
            f"{program.name} has an array of {most.bytes:.3g} bytes, {format_type(most.type)}",
            at=program.where(most.index),
            try_=f"smaller shapes: at most {MOST_BYTES:.3g} bytes in one array",
        )
