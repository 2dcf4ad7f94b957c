"""What lowering must do at each op: plain data made from a state, keyed by the op's number."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import prod
from typing import NamedTuple

from jax.sharding import PartitionSpec

from shardwright.cost.model import CostModel, partitioned
from shardwright.program.fingerprint import argument_types
from shardwright.program.ties import EXITS
from shardwright.program.types import LITERAL, Op, Program
from shardwright.spmd.decisions import Decisions
from shardwright.spmd.follow import Choice, split_by
from shardwright.spmd.ir import reduction_of
from shardwright.spmd.layout import WHOLE, Layout, Placement
from shardwright.spmd.moves import REDUCE_SCATTER, SLICE, Move
from shardwright.spmd.opclass import NO_CLASS, OpClass, adds_entries
from shardwright.spmd.sums import Order, Sum, find_sums, passing_order

Spec = tuple[tuple[str, ...], ...]  # axes per dim: hashable, JAX-free


@dataclass(frozen=True, slots=True)
class Partial:
    """How an op's partial sums are made explicit: one leading dim per axis."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    dims: tuple[tuple[int | None, ...], ...]  # [operands][axes] the operand's dim that is split
    way: tuple[Spec, ...]  # of the result once it is summed: as produced, ..., as stored
    # (axes, dim) of one reduce-scatter after the other, from the first placement to the second.
    scatter: tuple[tuple[tuple[str, ...], int], ...] = ()
    onto: bool = False  # entries are added to the first operand: one part starts from it

    @property
    def spec(self) -> Spec:
        """Where the parts are: the leading dims on their axes, the rest as produced."""
        return (*((axis,) for axis in self.axes), *self.way[0])

    def in_order(self, order: Order) -> Partial:
        """Of the same sums with their dims in another order."""
        way = tuple(tuple(() if d is None else spec[d] for d in order) for spec in self.way)
        scatter = tuple((axes, order.index(dim)) for axes, dim in self.scatter)
        return replace(self, way=way, scatter=scatter)


class Exchange(NamedTuple):
    """Rows that neighbours send each other along a split dim of an op's first operand."""

    dim: int
    axes: tuple[str, ...]
    before: int  # rows of the part before
    after: int  # rows of the part behind


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution computed on each device's part, after neighbours have exchanged rows."""

    operands: tuple[Spec, ...]
    result: Spec
    exchanges: tuple[Exchange, ...]
    partial: tuple[str, ...]  # axes over which the results are summed


@dataclass(frozen=True, slots=True)
class Step:
    """One op: where its operands must be, and how its results travel to where they are kept."""

    needs: tuple[tuple[Spec, ...] | None, ...]  # per operand: placements on the way; None: literal
    travels: tuple[bool, ...]  # per operand: whether it is sent to other devices on the way
    reads: tuple[Spec, ...]  # per operand: where it is in the end
    makes: tuple[tuple[Spec, ...], ...]  # per result: as produced, ..., as stored
    partial: Partial | None = None
    defer: bool = False  # the result is added to others before it is reduced
    order: Order | None = None  # of dims, for an op that partial sums pass
    carry: Partial | None = None  # of a loop's tie: what passes is still to be summed
    convolution: Convolution | None = None
    # Of an op on numbers alone: per operand and dim, the dim of the result, or None if it has none.
    numbers: tuple[tuple[int | None, ...], ...] | None = None


class Exit(NamedTuple):
    """How what a loop or branch gives back leaves its body."""

    step: Step
    slots: tuple[int | None, ...]  # [bodies] which operand of the step comes from it; None: literal


@dataclass(frozen=True, slots=True)
class Steps:
    """The whole program."""

    by_serial: dict[int, Step]
    exits: dict[int, dict[int, Exit]]  # {loop or branch, by its number: {position: exit}}
    count: int  # of ops in the walk, dead ones included
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    types: dict[str, str]  # {argument path: type}
    program: Program = field(compare=False, repr=False)  # what they are the steps of


def spec_of(layout: Layout, placement: Placement, rank: int, names: tuple[str, ...]) -> Spec:
    """The axes on each dim, major to minor."""
    dims: list[list[tuple[int, int]]] = [[] for _ in range(rank)]
    for axis, j in enumerate(placement):
        if j >= 0:
            dims[layout.atoms[j].dim].append((layout.atoms[j].place, axis))
    return tuple(tuple(names[a] for _, a in sorted(d)) for d in dims)


def partition_spec(spec: Spec) -> PartitionSpec:
    """As JAX writes it: P('data', None, ('data', 'model'))."""
    parts = [dim[0] if len(dim) == 1 else (dim or None) for dim in spec]
    while parts and parts[-1] is None:
        parts.pop()
    return PartitionSpec(*parts)


def make_steps(model: CostModel, decisions: Decisions) -> Steps:
    """The steps of every live op of the program as decided."""
    program, names = model.analysis.program, model.mesh.names
    stored, choices = model.stored(decisions), model.choices(decisions)
    layout_of = model.layouts.of_value.tolist()
    table = model.layouts.table

    cache: dict[tuple[int, int, Placement], Spec] = {}

    def spec(value: int, placement: Placement) -> Spec:
        key = (layout_of[value], len(program.values[value].type.shape), placement)
        known = cache.get(key)
        if known is None:
            known = cache[key] = spec_of(table[key[0]], placement, key[1], names)
        return known

    def stored_spec(value: int) -> Spec:
        return spec(value, stored[layout_of[value]])

    def path(value: int, moves: list[Move]) -> tuple[Spec, ...]:
        reached = [
            m.after for m, after in zip_longest(moves, moves[1:])
            if after is None or not m.kind == after.kind == REDUCE_SCATTER
        ]  # fmt: skip
        return tuple(dict.fromkeys([spec(value, placement) for placement in reached]))

    deferred, after_loops = _deferred(model, decisions)
    by_serial: dict[int, Step] = {}
    for op in program.ops:
        c = int(model.classes.of_op[op.index])
        if c == NO_CLASS:
            continue
        choice, slot = choices[c], 0
        needs: list[tuple[Spec, ...] | None] = []
        travels: list[bool] = []
        reads: list[Spec] = []
        for v in op.operands:
            if v == LITERAL:
                needs.append(None)
                travels.append(False)
                reads.append(())
                continue
            moves = choice.operand_moves[slot]
            reads.append(spec(v, choice.needs[slot]))
            needs.append((reads[-1],) if table[layout_of[v]].made_up else path(v, moves))
            travels.append(any(m.kind != SLICE for m in moves))
            slot += 1
        makes: list[tuple[Spec, ...]] = []
        for v, produced, moves in zip(
            op.results, choice.produced, choice.result_moves, strict=True
        ):
            if table[layout_of[v]].made_up:
                makes.append(())  # made again for each use
            elif not moves:
                makes.append((stored_spec(v),))
            else:
                way = (spec(v, produced), *path(v, moves), stored_spec(v))
                makes.append(tuple(dict.fromkeys(way)))
        by_serial[op.serial] = Step(
            tuple(needs), tuple(travels), tuple(reads), tuple(makes),
            _partial(model, op, choice, makes[0] if makes else (), op.index in deferred),
            op.index in deferred, passing_order(op.rule), None,
            _convolution(model, op, choice), _numbers(op) if () in makes else None,
        )  # fmt: skip
    for one in after_loops:
        assert one.loop is not None
        leaf = one.leaves[0]
        partial = by_serial[program.ops[leaf.op].serial].partial
        assert partial is not None
        for tie in (program.ops[i].serial for i in one.loop):
            by_serial[tie] = replace(by_serial[tie], carry=partial.in_order(leaf.order))
    return Steps(
        by_serial, _exits(program, by_serial), program.walk_length,
        tuple(stored_spec(v) for v in program.inputs),
        tuple(() if v == LITERAL else stored_spec(v) for v in program.outputs),
        argument_types(program), program,
    )  # fmt: skip


def _exits(program: Program, by_serial: dict[int, Step]) -> dict[int, dict[int, Exit]]:
    """The exits of every loop and branch."""
    out: dict[int, dict[int, Exit]] = {}
    for tie in program.ops:
        if tie.tie not in EXITS:
            continue
        slots: list[int | None] = []
        for r in tie.body:
            literal = program.regions[r].outputs[tie.position] == LITERAL
            slots.append(None if literal else sum(s is not None for s in slots))
        loop = program.ops[program.regions[tie.body[0]].op].serial
        out.setdefault(loop, {})[tie.position] = Exit(by_serial[tie.serial], tuple(slots))
    return out


def _deferred(model: CostModel, decisions: Decisions) -> tuple[set[int], list[Sum]]:
    """(ops whose results stay partial sums, sums that are reduced after their loops)."""
    program, given = model.analysis.program, partitioned(model, decisions)
    uses = program.uses()
    out: set[int] = set()
    after_loops: list[Sum] = []
    for one in find_sums(program):
        once = reduction_of(given, one)
        if once is None:
            continue
        last = program.values[one.value].op
        for leaf in one.leaves:
            op = leaf.op
            while op != last:
                out.add(op)
                (op,) = uses[program.ops[op].results[0]]
        if once.after_loop:
            out.add(last)
            after_loops.append(one)
    return out, after_loops


def _partial(
    model: CostModel, op: Op, choice: Choice, way: tuple[Spec, ...], deferred: bool
) -> Partial | None:
    """The explicit form of an op's partial sums, where the plain form would reduce otherwise."""
    op_class = model.classes.table[int(model.classes.of_op[op.index])]
    if not choice.partial or not op_class.at_once:
        return None
    axes = tuple(model.mesh.names[a] for a in choice.partial)
    scatter = _scatter(model, op_class, choice)
    atoms = {choice.claims[a] for a in choice.partial}
    if not (deferred or len(atoms) > 1 or scatter):
        return None
    dims = []
    slots = iter(op_class.operands)
    for v in op.operands:
        slot = None if v == LITERAL else next(slots)
        row: list[int | None] = []
        for a in choice.partial:
            if slot is None or choice.claims[a] not in slot.to_op:
                row.append(None)
            else:
                row.append(slot.layout.atoms[slot.to_op.index(choice.claims[a])].dim)
        dims.append(tuple(row))
    sizes = tuple(model.mesh.sizes[a] for a in choice.partial)
    return Partial(axes, sizes, tuple(dims), way, scatter, adds_entries(op.rule))


def _numbers(op: Op) -> tuple[tuple[int | None, ...], ...]:
    after = op.rule.results[0]
    return tuple(
        tuple(after.index(dim) if dim else None for dim in dims) for dims in op.rule.operands
    )


def _convolution(model: CostModel, op: Op, choice: Choice) -> Convolution | None:
    """How a convolution is computed in parts; None for other ops, whole ones and uneven parts."""
    if op.name != "conv_general_dilated" or all(c == WHOLE for c in choice.claims):
        return None
    op_class, names = model.classes.table[int(model.classes.of_op[op.index])], model.mesh.names
    for atom, size in enumerate(op_class.sizes):
        if size % prod(
            n for n, c in zip(model.mesh.sizes, choice.claims, strict=True) if c == atom
        ):
            return None
    exchanges = []
    for halo in op.rule.halos:
        axes = split_by(op_class, choice.claims, halo.factor)
        if axes:
            dim = op.rule.operands[0].index((halo.factor,))
            on = tuple(names[a] for a in axes)
            exchanges.append(Exchange(dim, on, halo.before, halo.after))
    placed = zip(op_class.slots, (*choice.needs, *choice.produced), strict=True)
    *operands, result = [
        spec_of(slot.layout, placement, len(dims), names)
        for (slot, placement), dims in zip(placed, op.rule.slots, strict=True)
    ]
    partial = tuple(names[a] for a in choice.partial)
    return Convolution(tuple(operands), result, tuple(exchanges), partial)


def _scatter(
    model: CostModel, op_class: OpClass, choice: Choice
) -> tuple[tuple[tuple[str, ...], int], ...]:
    """(axes, dim) of the reduce-scatters of a sum over several axes, as `Partial` has them.

    Compilers turn an all-reduce over one axis and a slice into a reduce-scatter by themselves.
    """
    if len(choice.partial) < 2:
        return ()
    atoms, names, found = op_class.results[0].layout.atoms, model.mesh.names, []
    for m in choice.result_moves[0]:
        if m.kind == REDUCE_SCATTER:
            on = [atoms[m.after[a]] for a in m.axes]
            axes = sorted(zip([atom.place for atom in on], m.axes, strict=True))
            found.append((tuple(names[a] for _, a in axes), on[0].dim))
    return tuple(found)


def border_specs(model: CostModel, decisions: Decisions) -> tuple[list[Spec], list[Spec]]:
    """The placements of the arguments and of the results."""
    program, stored = model.analysis.program, model.stored(decisions)

    def spec(value: int) -> Spec:
        if value == LITERAL:
            return ()
        index = int(model.layouts.of_value[value])
        rank = len(program.values[value].shape)
        return spec_of(model.layouts.table[index], stored[index], rank, model.mesh.names)

    return [spec(v) for v in program.inputs], [spec(v) for v in program.outputs]
