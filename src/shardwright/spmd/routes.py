"""Routes: the moves of slots between placements, with their seconds, found once for all alike.

Where all shards are even, moves depend only on which axes share an atom: they are found once for
all layouts (`reductions`), and sized for each. Routes are memoised by geometry and placements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

from shardwright.spmd.layout import NO_BIT, REPLICATED, Atom, Layout, Placement
from shardwright.spmd.moves import SLICE, Move, find_reductions, gather_and_pick, gathers_minor
from shardwright.spmd.opclass import OpClass, Slot

SumAxes = tuple[tuple[int, ...], ...]  # the axes of each reduction, one after the other


class Route(NamedTuple):
    """The moves of one layout from one placement to another, and their seconds."""

    moves: list[Move]
    seconds: float
    reordered: bool = False  # shards are gathered in another order than that of the result's dims

    @property
    def travels(self) -> bool:
        """Whether anything crosses links; a local slice fuses into elementwise work."""
        return any(m.kind != SLICE for m in self.moves)


NOWHERE = Route([], 0.0)


class Routes:
    """Routes and local sizes, memoised by geometry and placements."""

    def __init__(
        self, axis_sizes: tuple[int, ...], move_s: Callable[[Move], float], *,
        scatters_at_once: bool, gathers_major: bool, across: frozenset[int],
    ) -> None:  # fmt: skip
        self._axis_sizes, self._move_s, self._gathers_major = axis_sizes, move_s, gathers_major
        self.scatters_at_once = scatters_at_once  # one reduce-scatter over several axes
        self.across = across  # axes between slices
        self._known: dict[object, Route] = {}
        self._bytes: dict[tuple[int, Placement], int] = {}

    def bytes(self, slot: Slot, placement: Placement) -> int:
        """Bytes of one device's shard of a slot."""
        key = (slot.geometry, placement)
        size = self._bytes.get(key)
        if size is None:
            size = self._bytes[key] = slot.layout.local_bytes(placement, self._axis_sizes)
        return size

    def reshard(self, slot: Slot, have: Placement, need: Placement) -> Route:
        """The route of an operand, or of a complete result, between two placements."""
        if have == need:
            return NOWHERE
        key = (slot.geometry, have, need)
        route = self._known.get(key)
        if route is None:
            moves = reshard(slot.layout, have, need, self._axis_sizes)
            twice = self._gathers_major and gathers_minor(
                slot.layout, have, moves, self._axis_sizes
            )
            seconds = sum(self._move_s(m) for m in moves)
            route = self._known[key] = Route(moves, seconds, twice)
        return route

    def reduce(
        self, op: OpClass, slot: Slot, sums: SumAxes, made: Placement, want: Placement
    ) -> Route:
        """The cheapest route of an op's partial result to where its sum is stored."""
        picks = op.operands[0].layout.itemsize if op.picks else 0
        key = (slot.geometry, made, sums, want, picks, op.at_once)
        route = self._known.get(key)
        if route is None:
            given = (slot.layout, made, sums, want, self._axis_sizes)
            orders = [gather_and_pick(*given, picks)] if picks else reductions(
                *given, at_once=self.scatters_at_once, written_out=op.at_once,
                across=self.across,
            )  # fmt: skip
            routes = [Route(moves, sum(self._move_s(m) for m in moves)) for moves in orders]
            route = self._known[key] = min(routes, key=lambda one: one.seconds)
        return route


Step = tuple[str, tuple[int, ...], int]  # (kind, axes, shards of what travels) of a move


def reshard(
    layout: Layout, stored: Placement, needed: Placement, axis_sizes: tuple[int, ...]
) -> list[Move]:
    """The moves from `stored` to `needed`."""
    return reductions(layout, stored, (), needed, axis_sizes)[0] if stored != needed else []


def reductions(
    layout: Layout, produced: Placement, sum_axes: Sequence[tuple[int, ...]], stored: Placement,
    axis_sizes: tuple[int, ...], *, at_once: bool = False, written_out: bool = False,
    across: Collection[int] = (),
) -> list[list[Move]]:  # fmt: skip
    """The moves that turn partial results into `stored`, in each order (see `find_reductions`).

    Without `sum_axes` results are complete, and only move.
    """
    used = None if across else _even_atoms(layout, produced, stored, axis_sizes)
    if used is None:
        return find_reductions(
            layout, produced, sum_axes, stored, axis_sizes, at_once=at_once,
            written_out=written_out, across=across,
        )  # fmt: skip
    number = {j: i for i, j in enumerate(used)} | {REPLICATED: REPLICATED}
    made, want = (tuple([number[j] for j in placement]) for placement in (produced, stored))
    orders = even_reductions(made, tuple(sum_axes), want, axis_sizes, at_once, written_out)
    return [_sized(layout, used, steps) for steps in orders]


def _even_atoms(
    layout: Layout, stored: Placement, needed: Placement, axis_sizes: Sequence[int]
) -> list[int] | None:
    """The atoms that are split, if all are major ones in even shards; else None."""
    splits: dict[int, int] = {}  # used atom -> all that it is split by before or after
    for have, need, n in zip(stored, needed, axis_sizes, strict=True):
        for j in (have, need) if have != need else (have,):
            if j != REPLICATED:
                splits[j] = splits.get(j, 1) * n
    atoms, plain = layout.atoms, layout.units and not (layout.closed or layout.rematerialised)
    if not plain or any([atoms[j].place or atoms[j].size % n for j, n in splits.items()]):  # noqa: C419
        return None
    return list(splits)


def _sized(
    layout: Layout, used: Sequence[int], steps: Sequence[tuple[Step, Placement]]
) -> list[Move]:
    """The moves of a layout whose atoms were numbered."""
    whole, atoms = layout.itemsize, [*used, REPLICATED]  # the last: what -1 names
    for atom in layout.atoms:
        whole *= atom.size
    return [
        Move(kind, axes, whole // shards, tuple([atoms[i] for i in after]))
        for (kind, axes, shards), after in steps
    ]


@lru_cache(maxsize=1 << 16)
def even_reductions(
    produced: Placement, sum_axes: tuple[tuple[int, ...], ...], stored: Placement,
    axis_sizes: tuple[int, ...], at_once: bool, written_out: bool,
) -> list[list[tuple[Step, Placement]]]:  # fmt: skip
    """The moves of `reductions`, and the placement after each, for dims that all axes divide."""
    even, whole = _even_layout(axis_sizes, produced, stored)
    orders = find_reductions(
        even, produced, sum_axes, stored, axis_sizes, at_once=at_once, written_out=written_out
    )
    return [[((m.kind, m.axes, whole // m.bytes), m.after) for m in moves] for moves in orders]


def even_ways(
    produced: Placement, sum_axes: Sequence[tuple[int, ...]], stored: Placement,
    axis_sizes: tuple[int, ...], at_once: bool, written_out: bool,
) -> list[list[Step]]:  # fmt: skip
    """Every route of which uneven shards may take one, each priced as if they were even."""
    even, whole = _even_layout(axis_sizes, produced, stored)
    ways = find_reductions(
        even, produced, sum_axes, stored, axis_sizes, at_once=at_once, written_out=written_out,
        every=True,
    )  # fmt: skip
    return [[(m.kind, m.axes, whole // m.bytes) for m in moves] for moves in ways]


def _even_layout(axis_sizes: Sequence[int], *placements: Placement) -> tuple[Layout, int]:
    """(a layout of dims that all axes divide, its bytes) for placements of numbered atoms."""
    size = math.prod(axis_sizes)
    dims = range(1 + max(map(max, placements)))
    even = Layout(tuple([Atom(d, 0, size, 0, NO_BIT, 0) for d in dims]), 1, 1, False, False)
    return even, size ** len(dims)
