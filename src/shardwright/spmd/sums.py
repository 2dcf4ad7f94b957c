"""Sums: partial results of several ops that only meet in additions, reduced once after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from shardwright.program.types import LITERAL, NO_OP, Op, Program
from shardwright.rules.rule import MATRIX, Rule
from shardwright.spmd.follow import Choice
from shardwright.spmd.layout import WHOLE, Placement
from shardwright.spmd.moves import Move
from shardwright.spmd.opclass import OpClass, adds_entries, sums_at_once

Order = tuple[int, ...]  # of dims: where each of them comes from


class Leaf(NamedTuple):
    """An op whose partial result is added to others."""

    op: int
    order: Order  # [dims of the sum] dim of the op's result


class Sum(NamedTuple):
    """What some partial results are added up to."""

    value: int  # the result of the last addition
    leaves: tuple[Leaf, ...]


class MovePrices(Protocol):
    """Seconds of a collective."""

    def move_s(self, move: Move) -> float: ...


def find_sums(program: Program) -> list[Sum]:
    """Sums of two and more ops whose partial results are only added up, scaled and transposed."""
    uses = program.uses()
    carried: dict[int, tuple[Sum, Order]] = {}  # value -> (its sum, [dims] dim of the sum)
    absorbed: set[int] = set()
    for op in program.ops:
        if op.tie or len(op.results) != 1:
            continue
        result = op.results[0]
        if _makes_sums(program, op):
            straight = tuple(range(len(program.values[result].shape)))
            carried[result] = Sum(result, (Leaf(op.index, straight),)), straight
            continue
        order = passing_order(op.rule)
        if order is None:
            continue
        inside = [op.operands[i] for i in op.rule.linear if op.operands[i] != LITERAL]
        parts = [v for v in inside if v in carried and _only_use(program, uses, v, op)]
        if op.rule.additive:
            if len(inside) != 2 or len(set(parts)) != 2:
                continue
            leaves = [
                Leaf(leaf.op, _then(leaf.order, carried[v][1]))
                for v in parts for leaf in carried[v][0].leaves
            ]  # fmt: skip
            carried[result] = Sum(result, tuple(leaves)), order
        else:
            if len(parts) != 1 or len([v for v in op.operands if v != LITERAL]) != 1:
                continue
            one, before = carried[parts[0]]
            carried[result] = one, _then(before, order)
        absorbed.update(parts)
    return [
        one for v, (one, _) in carried.items() if v not in absorbed and len(one.leaves) > 1
    ]  # fmt: skip


def passing_order(rule: Rule) -> Order | None:
    """[result dims] the operand's dim, for an op that partial sums pass; None for all others."""
    if not rule.fusible or not rule.linear:
        return None
    before, after = rule.operands[rule.linear[0]], rule.results[0]
    if all(rule.operands[i] in (after, ()) for i in rule.linear):
        return tuple(range(len(after)))
    if len(rule.linear) == 1 and () not in after and sorted(before) == sorted(after):
        return tuple(before.index(dim) for dim in after)
    return None


def _then(first: Order, second: Order) -> Order:
    return tuple([first[d] for d in second])


def reduced_once(
    parts: Sequence[tuple[OpClass, Choice, Order]], itemsize: int, prices: MovePrices
) -> list[Move] | None:
    """The moves that reduce a sum whose elements have this size, after the additions.

    None when its parts are reduced in different ways, or reducing each of them takes less
    (elements may be smaller before they are added).
    """
    op, first, _ = parts[0]
    way = _way(*parts[0])
    if not first.partial or any(_way(*part) != way for part in parts[1:]):
        return None
    own = op.results[0].layout.itemsize
    moves = [m._replace(bytes=m.bytes * itemsize // own) for m in first.result_moves[0]]
    apart_s = sum([choice.result_s[0] for _, choice, _ in parts])
    return moves if sum(map(prices.move_s, moves)) <= apart_s else None


def _way(op: OpClass, choice: Choice, order: Order) -> list[object]:
    """How an op's result is made and reduced, in terms of the dims of the sum."""
    atoms = op.results[0].layout.atoms

    def split(placement: Placement) -> list[object]:
        return [j if j == WHOLE else (order.index(atoms[j].dim), atoms[j].place) for j in placement]

    moves = [(m.kind, m.axes, split(m.after)) for m in choice.result_moves[0]]
    return [choice.partial, split(choice.produced[0]), moves]


def _makes_sums(program: Program, op: Op) -> bool:
    if adds_entries(op.rule):  # to numbers that all devices have: one of them starts from those
        return program.is_numbers(op.operands[0])
    return op.rule.unit == MATRIX and sums_at_once(op.rule)


def _only_use(program: Program, uses: list[list[int]], value: int, op: Op) -> bool:
    source = program.values[value].op
    return (
        uses[value] == [op.index]
        and op.operands.count(value) == 1
        and source != NO_OP
        and program.ops[source].region == op.region
        and program.ops[source].remat == op.remat
    )
