"""Deferred sums: partial results that are only added up, so that one reduction follows them all.

Addition is linear: all-reduce(a) + all-reduce(b) = all-reduce(a + b). XLA reassociates so for
the gradients of a value that several dots use: Megatron's q, k and v give one all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from shardwright.program.ties import Tie
from shardwright.program.types import LITERAL, NO_OP, Op, Program, itemsize
from shardwright.rules.rule import MATRIX, PASS, Rule
from shardwright.spmd.follow import Choice, Prices
from shardwright.spmd.layout import REPLICATED, Placement
from shardwright.spmd.moves import ALL_REDUCE, SLICE, Move
from shardwright.spmd.opclass import OpClass, adds_entries, sums_at_once

Order = tuple[int | None, ...]  # [dims] the dim of the source; None: a new dim of size 1


class Leaf(NamedTuple):
    """An op whose partial result is added to others."""

    op: int
    order: Order  # [dims of the sum] dim of the op's result


class Loop(NamedTuple):
    """A scan that adds to one of its carries in every trip, and does nothing else with it."""

    init: int  # the tie through which the carry enters
    carry: int  # the tie through which it returns for the next trip, and leaves


class Sizes(NamedTuple):
    """Bytes that are reduced for each element of a leaf."""

    here: int  # where the leaves are
    hoisted: int  # after the loop; what inner scans have stacked counts all their trips


class Hoist(NamedTuple):
    """How a sum can go on over the trips of a loop around it."""

    value: int  # what the last addition in the loop gives: the new carry
    loop: Loop
    orders: tuple[Order, ...]  # [leaves] as `Leaf.order`, in dims of that value
    stacks: tuple[int, ...]  # ties through which it leaves inner scans, stacked


class Sum(NamedTuple):
    """What some partial results are added up to."""

    value: int  # the result of the last addition in their region; of one leaf, its result
    leaves: tuple[Leaf, ...]
    hoist: Hoist | None = None

    def hoisted_past(self, program: Program) -> tuple[int, ...]:
        """The ops that must move nothing, or the reduction cannot be hoisted out of its loop.

        First the ties through which it enters and leaves the loop: outside it may be sliced.
        """
        if self.hoist is None:
            return ()
        passed = [program.uses()[v][0] for v in self._terms(program, self.hoist)]
        return tuple(dict.fromkeys((*self.hoist.loop, *passed)))

    def in_loop(self, program: Program) -> list[int]:
        """The values in the loop that are terms or totals of what is added up over its trips."""
        if self.hoist is None:
            return []
        carried = (self.hoist.value, *program.ops[self.hoist.loop.init].results)
        return [*self._terms(program, self.hoist), *carried]

    def _terms(self, program: Program, hoist: Hoist) -> list[int]:
        """The values on the way from the leaves to the carry."""
        return [v for leaf in self.leaves for v in path(program, leaf.op, hoist.value)]

    def sizes(self, program: Program) -> Sizes:
        """Bytes that are reduced for each element of a leaf."""
        here = itemsize(program.values[self.value].dtype)
        if self.hoist is None:
            return Sizes(here, here)
        inner = [program.regions[program.ops[tie].body[0]].trips for tie in self.hoist.stacks]
        return Sizes(here, itemsize(program.values[self.hoist.value].dtype) * prod(inner))


class Reduction(NamedTuple):
    """How a sum is reduced."""

    moves: list[Move]
    after_loop: bool


class _Carried(NamedTuple):
    """A value that is a sum, scaled, transposed or stacked."""

    sum: Sum
    order: Order  # [dims] dim of the sum
    stacks: tuple[int, ...] = ()  # ties through which it has left inner scans


def find_sums(program: Program) -> list[Sum]:
    """The sums whose partial results are only added up, scaled and transposed.

    Each has at least two leaves in one region, or goes on over the trips of a loop.
    """
    uses, loops = program.uses(), _accumulators(program)
    carried: dict[int, _Carried] = {}
    absorbed: set[int] = set()
    over_trips: list[Sum] = []
    for op in program.ops:
        if op.tie is Tie.SCAN_YS:
            (v,), (result,) = op.operands, op.results
            if v in carried and _only_use(program, uses, v, op):
                one, before, stacks = carried[v]
                stacked = None, *before  # a new dim in front
                carried[result] = _Carried(one, stacked, (*stacks, op.index))
                absorbed.add(v)
        if op.tie or len(op.results) != 1:
            continue
        result = op.results[0]
        if _makes_sums(program, op):
            straight = tuple(range(len(program.values[result].shape)))
            one = Sum(result, (Leaf(op.index, straight),))
            carried[result] = _Carried(one, straight)
            continue
        order = passing_order(op.rule)
        if order is None:
            continue
        inside = [op.operands[i] for i in op.rule.linear if op.operands[i] != LITERAL]
        spread = [
            v for v in inside if not program.values[v].shape and order
        ]  # a scalar that is broadcast
        terms = [
            v for v in inside
            if v in carried and v not in spread and _only_use(program, uses, v, op)
        ]  # fmt: skip
        if op.rule.additive:
            if len(inside) != 2 or len(set(inside)) != 2:
                continue
            if len(terms) == 2 and not any(carried[v].stacks for v in terms):
                leaves = [
                    Leaf(leaf.op, _then(leaf.order, carried[v].order))
                    for v in terms for leaf in carried[v].sum.leaves
                ]  # fmt: skip
                carried[result] = _Carried(Sum(result, tuple(leaves)), order)
            elif len(terms) == 1 and result in loops:
                one, before, stacks = carried[terms[0]]
                orders = tuple([_then(leaf.order, before) for leaf in one.leaves])
                hoist = Hoist(result, loops[result], orders, stacks)
                over_trips.append(one._replace(hoist=hoist))
            else:
                continue
        else:
            if len(terms) != 1 or len(op.arrays) != 1:
                continue
            one, before, stacks = carried[terms[0]]
            carried[result] = _Carried(one, _then(before, order), stacks)
        absorbed.update(terms)
    here = [
        one for v, (one, *_) in carried.items() if v not in absorbed and len(one.leaves) > 1
    ]  # fmt: skip
    return over_trips + [one for one in here if not _has_small_leaf(program, one)]


def find_summed(program: Program, sums: Sequence[Sum]) -> set[int]:
    """The values inside loops that are terms or totals of what is added up over their trips."""
    return {v for one in sums for v in one.in_loop(program)}


def path(program: Program, op: int, last: int) -> Iterator[int]:
    """The values from the result of an op to another, which is not among them.

    Each is only used to make the next.
    """
    value = program.ops[op].results[0]
    while value != last:
        yield value
        (use,) = program.uses()[value]
        (value,) = program.ops[use].results


def find_trips(program: Program, sums: Sequence[Sum]) -> dict[int, int]:
    """{op: trips of the loop over which its partial results are only added up}"""
    return {
        leaf.op: program.regions[program.ops[one.hoist.loop.carry].body[0]].trips
        for one in sums if one.hoist for leaf in one.leaves
    }  # fmt: skip


def _accumulators(program: Program) -> dict[int, Loop]:
    """{what an addition to a carry of a scan gives: the loop}, if nothing else uses either."""
    uses, found = program.uses(), {}
    for tie in program.ops:
        if tie.tie is not Tie.SCAN_CARRY or len(tie.operands) < 2:  # the next trip gets a literal
            continue
        after, before = tie.operands
        add = program.values[after].op
        if (
            add != NO_OP
            and program.values[before].op != NO_OP  # it starts from a literal: nothing to enter by
            and uses[after] == [tie.index]
            and set(uses[before]) == {add, tie.index}
            and program.ops[add].custom == tie.custom
        ):
            found[after] = Loop(program.values[before].op, tie.index)
    return found


def _has_small_leaf(program: Program, one: Sum) -> bool:
    """Whether some leaf is a plain sum, no dot or scatter-add: small, left to the compiler."""
    rules = [program.ops[leaf.op].rule for leaf in one.leaves]
    return any(rule.unit != MATRIX and not adds_entries(rule) for rule in rules)


def passing_order(rule: Rule) -> Order | None:
    """[result dims] the operand's dim, for an op that partial sums pass; None for all others."""
    if not rule.linear or any(kind != PASS for kind in rule.kinds) or len(rule.results) != 1:
        return None
    before, after = rule.operands[rule.linear[0]], rule.results[0]
    if rule.fusible and all(rule.operands[i] in (after, ()) for i in rule.linear):
        return tuple(range(len(after)))
    split = [dim for dim in before if dim]
    if len(rule.linear) > 1 or sorted(split) != sorted(dim for dim in after if dim):
        return None
    return tuple([before.index(dim) if dim else None for dim in after])


def _then(first: Order, second: Order) -> Order:
    """The order that comes of one transpose after another."""
    return tuple([None if d is None else first[d] for d in second])


def reduced_once(
    terms: Sequence[tuple[OpClass, Choice, Order]], hoisted_past: Sequence[Choice],
    sizes: Sizes, prices: Prices,
) -> Reduction | None:  # fmt: skip
    """How a sum is reduced after the additions; None: before them.

    Before them when its terms are split or reduced differently, or when reducing each of them takes
    less (elements may be smaller before they are added). Out of a loop only an all-reduce is
    hoisted: the unreduced sum is carried with the shape of the reduced one, so a sum that would be
    scattered is scattered in every trip.
    """
    op, first, _ = terms[0]
    same = _dataflow(*terms[0])
    if not first.partial or any(_dataflow(*term) != same for term in terms[1:]):
        return None
    own, reduce = op.results[0].layout.itemsize, first.result_moves[0]
    all_reduced = all(m.kind == ALL_REDUCE for m in reduce)
    if all_reduced and hoisted_past and _in_place(*hoisted_past):
        return Reduction([m._replace(bytes=m.bytes * sizes.hoisted // own) for m in reduce], True)
    moves = [m._replace(bytes=m.bytes * sizes.here // own) for m in reduce]
    apart_s = sum([choice.result_s[0] for _, choice, _ in terms])
    if len(terms) < 2 or sum(map(prices.move_s, moves)) > apart_s:
        return None
    return Reduction(moves, False)


def _in_place(init: Choice, carry: Choice, *inside: Choice) -> bool:
    """Whether nothing moves between devices, and nothing is sliced inside the loop.

    A slice inside would be put off as well: shards would be counted where all of it is carried.
    """
    routes = [r for c in (init, carry) for r in (*c.operand_moves, *c.result_moves)]
    return all(m.kind == SLICE for route in routes for m in route) and not any(
        c.partial or any(c.operand_moves) or any(c.result_moves) or c.exchanges for c in inside
    )


def _dataflow(op: OpClass, choice: Choice, order: Order) -> list[object]:
    """How a term is split and reduced, in dims of the sum: terms must agree to be added first."""
    atoms = op.results[0].layout.atoms

    def split(placement: Placement) -> list[object]:
        return [
            j if j == REPLICATED else (order.index(atoms[j].dim), atoms[j].place) for j in placement
        ]

    moves = [(m.kind, m.axes, split(m.after)) for m in choice.result_moves[0]]
    return [choice.partial, split(choice.produced[0]), moves]


def _makes_sums(program: Program, op: Op) -> bool:
    """Whether lowering can make the partial sums of an op explicit."""
    if adds_entries(op.rule):  # into a constant, which one device adds and the others take as zero
        return op.operands[0] != LITERAL and program.constant_subgraphs()[op.operands[0]]
    return sums_at_once(op.rule)


def _only_use(program: Program, uses: list[list[int]], value: int, op: Op) -> bool:
    """Whether an op is the only use of a value, in the region that computes it."""
    source = program.values[value].op
    return (
        uses[value] == [op.index]
        and op.operands.count(value) == 1
        and source != NO_OP
        and program.ops[source].region == op.operand_region
        and program.ops[source].custom == op.custom
    )
