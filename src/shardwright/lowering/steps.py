"""What lowering must do at each op: plain data made from decisions, by the key of the op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from shardwright.cost.model import CostModel, partitioned
from shardwright.lowering import actions as do
from shardwright.lowering.actions import Action, Actions
from shardwright.lowering.convolution import convolution
from shardwright.lowering.own_rows import own_rows, sorted_blocks
from shardwright.lowering.ragged import GROUPED, ragged_dot
from shardwright.lowering.reductions import Deferred, find_deferred, partial_sums, scatters
from shardwright.lowering.specs import Shardings, Spec, Way
from shardwright.lowering.workarounds import (
    WORKAROUNDS,
    needs_clamp,
    picked_dims,
    takes_one_by_stride,
)
from shardwright.program.fingerprint import argument_types
from shardwright.program.interpret import Key
from shardwright.program.printing import format_call
from shardwright.program.ties import CONSTS, ENTRIES, EXITS, INITS
from shardwright.program.types import LITERAL, TOP, Op, Program
from shardwright.program.uniform import REDUCES, is_filled
from shardwright.spmd.decisions import Decisions
from shardwright.spmd.follow import Choice
from shardwright.spmd.ir import Partitioned
from shardwright.spmd.layout import REPLICATED
from shardwright.spmd.moves import SLICE
from shardwright.spmd.opclass import NO_CLASS
from shardwright.spmd.sums import passing_order


@dataclass(frozen=True, slots=True)
class Steps:
    """The whole program."""

    actions: dict[Key, Actions]  # of every live op that some axis may split
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    types: dict[str, str]  # {argument path: type}
    program: Program = field(compare=False, repr=False)  # what they are the steps of

    def __str__(self) -> str:
        done = {op: self.actions[op.key] for op in self.program.ops if op.key in self.actions}
        return "\n".join(
            f"{format_call(self.program, op)}: {'; '.join(map(str, actions))}"
            for op, actions in done.items()
        )


class _Given(NamedTuple):
    """All that the actions of an op depend on."""

    partitioned: Partitioned
    shardings: Shardings
    deferred: Deferred
    blocks: dict[Key, int]  # in which a sort sorts its rows

    def choice(self, op: Op) -> Choice:
        """How the op is computed."""
        return self.partitioned.computed(op.index)[1]


def make_steps(model: CostModel, decisions: Decisions) -> Steps:
    """The actions of every live op of the program as decided."""
    decided, shardings = partitioned(model, decisions), Shardings(model, decisions)
    program, classes = decided.program, decided.classes.of_op.tolist()
    given = _Given(decided, shardings, find_deferred(decided), sorted_blocks(decided))
    on_shards = _all_manual(program)
    return Steps(
        {
            op.key: tuple(_actions(given, op)) for op in program.ops
            if classes[op.index] != NO_CLASS and not on_shards[op.region]
        },
        tuple(shardings.stored(v) for v in program.inputs),
        tuple(shardings.stored(v) for v in program.outputs),
        argument_types(program), program,
    )  # fmt: skip


def _all_manual(program: Program) -> list[bool]:
    """[regions] whether shard_maps around leave no axis automatic: it runs as the user wrote it."""
    left: list[bool] = []
    for region in program.regions:
        left.append(not region.partial if region.mesh else bool(left) and left[region.parent])
    return left


def _actions(given: _Given, op: Op) -> Iterator[Action]:
    """On operands, computing, on results."""
    ways = _result_ways(given, op)
    if () in ways and not op.tie:
        yield do.Fill(op.name in REDUCES) if is_filled(op) else _rematerialize(op)
        return
    yield from _constrain(given, op)
    if op.tie in ENTRIES:
        yield from _enter(given, op, ways)
        return
    unreduced = not given.deferred.values.isdisjoint(op.operands)
    if not op.tie:
        reduced_later = not given.deferred.values.isdisjoint(op.results)
        if op.region != TOP and not reduced_later and _moves_results(given.choice(op)):
            yield do.StayInLoop()
        if needs_clamp(op):
            yield do.ClampStarts()
        computing = _pass_sums(op) if unreduced else _compute(given, op, ways)
        unreduced = unreduced or isinstance(computing, do.PartialSums)
        yield computing
        if isinstance(computing, do.OnShards) and computing.scatter:
            rows = zip(ways, computing.scatter, strict=True)
            ways = [way[1:] if scattered else way for way, scattered in rows]
        elif isinstance(computing, do.RaggedDot) and computing.scatter:
            ways = [ways[0][1:]]
    if not unreduced:
        yield from (do.Store(i, way) for i, way in enumerate(ways))
    elif op.results[0] not in given.deferred.values:
        yield do.Reduce(ways[0][-1])


def _moves_results(choice: Choice) -> bool:
    """Whether computing an op, or storing its results, moves data between devices."""
    moves = (*choice.exchanges, *(m for route in choice.result_moves for m in route))
    return bool(choice.partial) or any(m.kind != SLICE for m in moves)


def _constrain(given: _Given, op: Op) -> Iterator[do.Constrain]:
    """Operands that are not yet where the op needs them; partial sums stay where they are made."""
    choice, numbers = given.choice(op), _operand_numbers(given.partitioned.program, op)
    rows = zip(numbers, op.arrays, choice.operand_moves, choice.needs, strict=False)
    for i, v, moves, need in rows:
        if given.shardings.layout(v).rematerialised:
            way: Way = (given.shardings.of(v, need),)
        else:
            way = given.shardings.way(v, moves)
        if way and v not in given.deferred.values:
            yield do.Constrain(i, way, any(m.kind != SLICE for m in moves))


def _operand_numbers(program: Program, op: Op) -> list[int]:
    """The numbers of the operands that are arrays: as `Constrain` has them.

    What a trip began with, the last operand of a carry, is where it is.
    """
    if op.tie in EXITS:
        outputs = [program.regions[r].outputs[op.position] for r in op.body]
        return [n for n, v in enumerate(outputs) if v != LITERAL]
    return [i for i, v in enumerate(op.operands) if v != LITERAL]


def _result_ways(given: _Given, op: Op) -> list[Way]:
    """Per result its shardings: as produced, ..., as stored; none if each use makes it again."""
    choice, shardings = given.choice(op), given.shardings
    ways: list[Way] = []
    for v, produced, moves in zip(op.results, choice.produced, choice.result_moves, strict=True):
        if shardings.layout(v).rematerialised:
            ways.append(())
        elif not moves:
            ways.append((shardings.stored(v),))
        else:
            way = (shardings.of(v, produced), *shardings.way(v, moves), shardings.stored(v))
            ways.append(tuple(dict.fromkeys(way)))
    return ways


def _compute(given: _Given, op: Op, ways: list[Way]) -> Action:
    """How the op itself is computed."""
    decided, choice = given.partitioned, given.choice(op)
    reads, produced = _reads(given, op), tuple(way[0] for way in ways)
    if op.rule.own is not None:
        return own_rows(decided, op, given.blocks, reads, produced) or do.Compute()
    if ways and (deferred := partial_sums(decided, op, ways[0], given.deferred)):
        return deferred
    if op.name in WORKAROUNDS["gathers what is in place"].primitives:
        return do.OnShards(reads, produced)
    if op.name in WORKAROUNDS["convolutions"].primitives:
        return convolution(decided, op, reads, produced[0]) or do.Compute()
    split = any(c != REPLICATED for c in choice.claims)
    if split and (op.name == "pallas_call" or op.rule.kernel):  # compilers cannot split it
        names = decided.prices.axis_names
        sums = tuple(
            tuple(tuple(names[a] for a in axes) for axes in one) for one in choice.sum_axes
        )
        scatter = tuple(scatters(decided, op, n) for n in range(len(op.results)))
        return do.OnShards(reads, produced, sums, scatter)
    if op.name in GROUPED:  # no compiler knows where a group begins
        return ragged_dot(decided, op, given.blocks, reads, produced[0]) or do.Compute()
    if op.name in WORKAROUNDS["entry held alone"].primitives:
        dims = picked_dims(decided, op, reads[0])
        return do.PickEntries(dims) if dims or takes_one_by_stride(op) else do.Compute()
    return do.Compute()


def _pass_sums(op: Op) -> do.PassSums:
    order = passing_order(op.rule)
    assert order is not None  # see find_sums
    return do.PassSums(order)


def _reads(given: _Given, op: Op) -> tuple[Spec, ...]:
    """Per operand its sharding where the op reads it."""
    needs = iter(given.choice(op).needs)
    return tuple(() if v == LITERAL else given.shardings.of(v, next(needs)) for v in op.operands)


def _rematerialize(op: Op) -> do.Rematerialize:
    after = op.rule.results[0]
    return do.Rematerialize(
        tuple(tuple(after.index(d) if d else None for d in dims) for dims in op.rule.operands)
    )


def _enter(given: _Given, tie: Op, ways: list[Way]) -> Iterator[Action]:
    """What is only read or carried by a loop moves before it, the rest inside the body."""
    if tie.index in given.deferred.loops:
        leaf = given.deferred.loops[tie.index]
        op = given.partitioned.program.ops[leaf.op]
        sums = partial_sums(given.partitioned, op, _result_ways(given, op)[0], given.deferred)
        assert sums is not None  # see find_deferred
        yield do.StartSum(sums.result.in_order(leaf.order))
        return
    if tie.tie in (*CONSTS, *INITS):
        yield do.BeforeLoop(ways[-1])
        ways = [way[-1:] for way in ways]
    for i, way in enumerate(ways):
        yield do.Store(i, way)
