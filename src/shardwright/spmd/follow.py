"""Ops follow: given how its operands and results are stored, how an op is computed.

Each axis goes to one of the op's atoms that a stored operand or result already gives it, or to
none: whichever is cheapest in compute plus data movement. Given the values, ops are
independent, so this choice is exact; the caller memoises it per class.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, Protocol

from shardwright.rules.rule import NOTHING, PASS, Rule
from shardwright.rules.rule import PERMUTE as PERMUTES
from shardwright.spmd.layout import WHOLE, Placement
from shardwright.spmd.moves import PERMUTE, Move, reduction, reshard
from shardwright.spmd.opclass import NO_ATOM, OpClass, Slot


class Prices(Protocol):
    """What compute and movement cost."""

    axis_sizes: tuple[int, ...]

    def move_s(self, move: Move) -> float: ...

    def compute_s(
        self, op: OpClass, local: Sequence[int], slot_bytes: Sequence[int]
    ) -> float: ...


class Choice(NamedTuple):
    """How one op class is computed in one state, and what that costs once."""

    claims: Placement  # [axes] op atom or WHOLE
    needs: tuple[Placement, ...]  # per operand
    produced: tuple[Placement, ...]  # per result, after its reduction
    partial: tuple[int, ...]  # axes over which results are partial sums
    operand_moves: tuple[list[Move], ...]
    exchanges: list[Move]  # neighbour exchanges inside the op
    result_moves: tuple[list[Move], ...]
    compute_s: float
    operand_s: tuple[float, ...]
    result_s: tuple[float, ...]
    exchange_s: float
    temp_bytes: int  # moved copies of operands, results before they are moved

    @property
    def total_s(self) -> float:
        return self.compute_s + sum(self.operand_s) + sum(self.result_s) + self.exchange_s


def choose(op: OpClass, stored: Sequence[Placement], prices: Prices) -> Choice:
    """The cheapest way to compute `op` when its slots are stored like this; ties keep order."""
    axes = range(len(prices.axis_sizes))
    options: list[list[int]] = []
    for a in axes:
        seen: dict[int, None] = {}
        for slot, placement in zip(op.slots, stored, strict=True):
            if placement[a] != WHOLE:
                atom = slot.to_op[placement[a]]
                if atom != NO_ATOM and op.splittable[atom]:
                    seen[atom] = None
        options.append(list(seen))
    first = tuple(o[0] if o else WHOLE for o in options)
    if all(len(o) <= 1 for o in options) and all(
        a == WHOLE or op.kinds[a] == PASS for a in first
    ):
        needs = [_needed(slot, first) for slot in op.slots]
        if all(need == have for need, have in zip(needs, stored, strict=True)):
            return _priced(op, first, stored, prices)  # everything is where it is needed
    best: Choice | None = None
    for claims in product(*([*o, WHOLE] for o in options)):
        if not _possible(op, claims, prices.axis_sizes):
            continue
        choice = _priced(op, claims, stored, prices)
        if best is None or choice.total_s < best.total_s - 1e-15:
            best = choice
    assert best is not None  # splitting nothing is always possible
    return best


def sums_at_once(rule: Rule) -> bool:
    """Whether partial sums over several dims are reduced in one collective.

    Dots and plain sums are lowered so (see lowering/partial.py); for every other op a compiler
    reduces one dim after the other.
    """
    return (
        not rule.fusible
        and rule.unit != NOTHING
        and len(rule.operands) <= 2
        and len(rule.results) == 1
        and all(kind in (PASS, "add") for kind in rule.kinds)
        and "add" in rule.kinds
    )


def _needed(slot: Slot, claims: Placement) -> Placement:
    return tuple(slot.to_op.index(c) if c != WHOLE and c in slot.to_op else WHOLE for c in claims)


def _possible(op: OpClass, claims: Sequence[int], axis_sizes: Sequence[int]) -> bool:
    """Whether the atoms divide and only prefixes of compound dims are split."""
    left = list(op.sizes)
    for n, c in zip(axis_sizes, claims, strict=True):
        if c != WHOLE:
            if left[c] < n:
                return False
            left[c] = -(-left[c] // n)
    claimed = set(claims)
    for slot in op.slots:
        atoms = slot.layout.atoms
        for j, k in enumerate(slot.to_op):
            if k in claimed and k != NO_ATOM:
                for i in range(j):
                    if atoms[i].dim == atoms[j].dim and left[slot.to_op[i]] > 1:
                        return False
    return True


def _local(op: OpClass, claims: Placement, axis_sizes: Sequence[int]) -> list[int]:
    left = list(op.sizes)
    for n, c in zip(axis_sizes, claims, strict=True):
        if c != WHOLE:
            left[c] = -(-left[c] // n)
    return left


def _priced(op: OpClass, claims: Placement, stored: Sequence[Placement], prices: Prices) -> Choice:
    """The cost of computing `op` with these claims."""
    sizes = prices.axis_sizes
    count = len(op.operands)
    needs = tuple(_needed(slot, claims) for slot in op.operands)
    result_kinds = [op.kinds[c] if c != WHOLE else PASS for c in claims]
    in_results = {k for slot in op.results for k in slot.to_op}
    partial = tuple(
        a for a, c in enumerate(claims)
        if c != WHOLE and result_kinds[a] not in (PASS, PERMUTES) and c not in in_results
    )  # fmt: skip
    produced = tuple(_needed(slot, claims) for slot in op.results)
    rounds = _rounds(op, claims, partial)
    operand_moves = tuple(
        reshard(slot.layout, have, need, sizes)
        for slot, have, need in zip(op.operands, stored[:count], needs, strict=True)
    )
    result_moves = tuple(
        reduction(slot.layout, made, rounds, want, sizes) if partial
        else reshard(slot.layout, made, want, sizes)
        for slot, made, want in zip(op.results, produced, stored[count:], strict=True)
    )  # fmt: skip
    slot_bytes = [
        slot.layout.local_bytes(p, sizes)
        for slot, p in zip(op.slots, (*needs, *produced), strict=True)
    ]
    local = _local(op, claims, sizes)
    exchanges = [
        Move(PERMUTE, (a,), _exchanged(op, c, local[c], slot_bytes), ())
        for a, c in enumerate(claims)
        if result_kinds[a] == PERMUTES
    ]
    temp = sum(b for b, moves in zip(slot_bytes, (*operand_moves, *result_moves), strict=True) if moves)
    return Choice(
        claims, needs, produced, partial, operand_moves, exchanges, result_moves,
        prices.compute_s(op, local, slot_bytes),
        tuple([sum([prices.move_s(m) for m in moves]) for moves in operand_moves]),
        tuple([sum([prices.move_s(m) for m in moves]) for moves in result_moves]),
        sum(prices.move_s(m) for m in exchanges),
        temp,
    )  # fmt: skip


def _rounds(op: OpClass, claims: Placement, partial: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The axes of each reduction, one after the other."""
    if sums_at_once(op.rule) or len(partial) <= 1:
        return [partial]
    by_atom: dict[int, list[int]] = {}
    for a in partial:
        by_atom.setdefault(claims[a], []).append(a)
    return [tuple(axes) for axes in by_atom.values()]


# A window reaches over this many rows of the neighbour's part.
HALO_ROWS = 2


def _exchanged(op: OpClass, atom: int, local: int, slot_bytes: Sequence[int]) -> int:
    """Bytes exchanged with a neighbour when a permutation atom is split.

    A compute op (a window) needs a halo; an op that only moves data (slice, pad, concatenate,
    reverse) may move all of it.
    """
    largest = max(
        (b for slot, b in zip(op.slots, slot_bytes, strict=True) if atom in slot.to_op), default=0
    )
    if op.rule.work > 0:
        return min(largest, largest * HALO_ROWS // max(local, 1))
    return largest
