"""Moves: the collectives that bring a value from one placement to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

from shardwright.spmd.layout import WHOLE, Layout, Placement

SLICE = "slice"  # local, free
ALL_GATHER, ALL_TO_ALL = "all-gather", "all-to-all"
ALL_REDUCE, REDUCE_SCATTER = "all-reduce", "reduce-scatter"
PERMUTE = "collective-permute"


class Move(NamedTuple):
    """One step of data on its way: a collective (or a free local slice)."""

    kind: str
    axes: tuple[int, ...]  # mesh axes, in mesh order
    bytes: int  # the larger side on one device
    after: Placement  # between two scatters of one sum: of its size, and no sharding


def _put(placement: Placement, axes: Sequence[int], atom: int) -> Placement:
    out = list(placement)
    for a in axes:
        out[a] = atom
    return tuple(out)


def reshard(
    layout: Layout, stored: Placement, needed: Placement, axis_sizes: Sequence[int]
) -> list[Move]:
    """The moves from `stored` to `needed`: slices first, then all-to-alls, then all-gathers.

    An axis on the major side of a split dim cannot leave alone: what stays on the minor side
    would no longer be contiguous. Then the whole dim is gathered and sliced again. One that
    arrives there leaves the parts in another order: they are exchanged once more.
    """
    if stored == needed:
        return []
    if layout.made_up:  # made where it is needed
        moved = tuple(a for a in range(len(stored)) if stored[a] != needed[a])
        return [Move(SLICE, moved, layout.local_bytes(needed, axis_sizes), needed)]
    axes = range(len(stored))
    leaving = [a for a in axes if stored[a] != WHOLE and needed[a] != stored[a]]
    stuck = _stuck(layout, stored, leaving)
    swapped = [a for a in leaving if needed[a] != WHOLE and a not in stuck]
    gathered = sorted({*leaving, *stuck} - {*swapped})
    early = [
        a for a in axes
        if stored[a] == WHOLE and needed[a] != WHOLE
        and not any(stored[b] == needed[a] for b in leaving)
    ]  # fmt: skip
    for order in (  # the first is the cheapest, the last always possible
        ((_slice, early), (_swap, swapped), (_gather, gathered)),
        ((_gather, gathered), (_swap, swapped)),
        ((_gather, sorted({*leaving, *stuck})),),
    ):
        moves: list[Move] = []
        at = stored
        for step, group in order:
            moves += step(layout, at, group, needed, axis_sizes)
            at = moves[-1].after if moves else at
        late = [a for a in axes if at[a] != needed[a]]
        moves += _slice(layout, at, late, needed, axis_sizes)
        if _possible(layout, stored, moves, axis_sizes):
            break
    return moves


def _possible(
    layout: Layout, at: Placement, moves: Sequence[Move], axis_sizes: Sequence[int]
) -> bool:
    """Whether each move leaves behind what is contiguous and has a sharding in JAX."""
    for move in moves:
        after = move.after
        left = [a for a in range(len(at)) if at[a] != WHOLE and after[a] != at[a]]
        if _stuck(layout, at, left) or not _splits(layout, after, axis_sizes):
            return False
        at = after
    return True


def _swap(
    layout: Layout, at: Placement, axes: Sequence[int], needed: Placement,
    axis_sizes: Sequence[int],
) -> list[Move]:  # fmt: skip
    """All-to-alls, one for each pair of atoms."""
    pairs: dict[tuple[int, int], list[int]] = {}
    for a in axes:
        pairs.setdefault((at[a], needed[a]), []).append(a)
    moves: list[Move] = []
    for (_, to), together in pairs.items():
        size = layout.local_bytes(at, axis_sizes)
        minor = _minor(layout, at, together, to)
        at = _put(at, together, to)
        size = max(size, layout.local_bytes(at, axis_sizes))  # padding travels too
        moves.append(Move(ALL_TO_ALL, tuple(together), size, at))
        if minor:
            moves.append(Move(PERMUTE, tuple(sorted({*together, *minor})), size, at))
    return moves


def _gather(
    layout: Layout, at: Placement, axes: Sequence[int], needed: Placement,
    axis_sizes: Sequence[int],
) -> list[Move]:  # fmt: skip
    """All-gathers, one for each dim."""
    dims: dict[int, list[int]] = {}
    for a in axes:
        dims.setdefault(layout.atoms[at[a]].dim, []).append(a)
    moves: list[Move] = []
    for together in dims.values():
        parts = math.prod(axis_sizes[a] for a in together)
        size = layout.local_bytes(at, axis_sizes) * parts  # the padding of uneven parts included
        at = _put(at, together, WHOLE)
        moves.append(Move(ALL_GATHER, tuple(together), size, at))
    return moves


def _slice(
    layout: Layout, at: Placement, axes: Sequence[int], needed: Placement,
    axis_sizes: Sequence[int],
) -> list[Move]:  # fmt: skip
    """The axes split what is whole: free, unless the parts are then held in another order."""
    if not axes:
        return []
    after, crossed = at, set[int]()
    for a in axes:
        minor = _minor(layout, at, [a], needed[a])
        crossed |= {a, *minor} if minor else set()
        after = _put(after, [a], needed[a])
    size = layout.local_bytes(after, axis_sizes)
    moves = [Move(SLICE, tuple(axes), size, after)]
    return [*moves, Move(PERMUTE, tuple(sorted(crossed)), size, after)] if crossed else moves


def _minor(layout: Layout, at: Placement, axes: Sequence[int], atom: int) -> list[int]:
    """Axes that stay on the minor side of where these arrive."""
    to = layout.atoms[atom]
    return [
        b for b in range(len(at))
        if at[b] != WHOLE and b not in axes and layout.atoms[at[b]].dim == to.dim
        and (layout.atoms[at[b]].place, b) > (to.place, min(axes))
    ]  # fmt: skip


def _splits(layout: Layout, placement: Placement, axis_sizes: Sequence[int]) -> bool:
    """Whether JAX has a sharding for it: as stored inside a program, where parts may be uneven."""
    return layout._replace(border=False).can_store(placement, axis_sizes)


def _evenly(layout: Layout, placement: Placement, axis_sizes: Sequence[int]) -> bool:
    """Whether all parts are of one size: only such a sum can be scattered in one collective."""
    parts = layout.parts(placement, axis_sizes)
    return all(a.size % p == 0 for a, p in zip(layout.atoms, parts, strict=True))


def _stuck(layout: Layout, at: Placement, leaving: Sequence[int]) -> set[int]:
    """Axes that must be gathered because an axis on their major side leaves the same dim."""
    out: set[int] = set()
    for a in leaving:
        atom = layout.atoms[at[a]]
        for b in range(len(at)):
            if b == a or at[b] == WHOLE or layout.atoms[at[b]].dim != atom.dim:
                continue
            if (layout.atoms[at[b]].place, b) > (atom.place, a) and b not in leaving:
                out |= {a, b}
    return out


def gathers_minor(
    layout: Layout, at: Placement, moves: Sequence[Move], axis_sizes: Sequence[int]
) -> bool:
    """Whether parts are exchanged, gathered along another dim than the major one, or padded."""
    for move in moves:
        if move.kind == ALL_TO_ALL:
            return True
        if move.kind == ALL_GATHER:
            parts = layout.parts(at, axis_sizes)
            dim = layout.atoms[at[move.axes[0]]].dim
            for a, p in zip(layout.atoms, parts, strict=True):
                if (a.dim < dim and a.size > p) or (a.dim == dim and a.size % p):
                    return True
        at = move.after
    return False


def best_of_parts(
    layout: Layout, produced: Placement, rounds: Sequence[tuple[int, ...]], stored: Placement,
    axis_sizes: Sequence[int], itemsize: int,
) -> list[Move]:  # fmt: skip
    """The moves that turn the best index of each part, placed as `produced`, into `stored`.

    Compilers gather the values (elements of `itemsize` bytes) and the indices of all parts.
    """
    moves: list[Move] = []
    local = layout.local_bytes(produced, axis_sizes)
    for axes in rounds:
        size = local * math.prod(axis_sizes[a] for a in axes)
        values = size * itemsize // layout.itemsize
        moves += [Move(ALL_GATHER, axes, n, produced) for n in (values, size)]
    return [*moves, *reshard(layout, produced, stored, axis_sizes)]


def reductions(
    layout: Layout, produced: Placement, rounds: Sequence[tuple[int, ...]], stored: Placement,
    axis_sizes: Sequence[int], *, at_once: bool, written_out: bool,
) -> list[list[Move]]:  # fmt: skip
    """The moves that turn partial results, placed as `produced`, into `stored`, in each order.

    `rounds` are the axes of one reduction after the other. Over the axes of the last one that are
    to split the result anyway its sum is scattered: `at_once` in one collective for each dim,
    otherwise over one axis after the other; over the others the parts are reduced. A sum that is
    not `written_out`, and for which one collective is not enough, is reduced as a whole and
    sliced, which is what compilers do.
    """
    size = layout.local_bytes(produced, axis_sizes)
    early = [Move(ALL_REDUCE, axes, size, produced) for axes in rounds[:-1]]
    last = rounds[-1]
    kept = [a for a in last if stored[a] != WHOLE]
    others = tuple([a for a in last if stored[a] == WHOLE])
    if kept:
        turns: dict[int, list[int]] = {}
        for a in kept:
            turns.setdefault(layout.atoms[stored[a]].dim if at_once else a, []).append(a)
        scattered = produced
        for a in kept:
            scattered = _put(scattered, [a], stored[a])
        if (
            (written_out or (len(turns) == 1 and not others))
            and _evenly(layout, scattered, axis_sizes)
            and (scattered == stored or _splits(layout, scattered, axis_sizes))
        ):
            part = layout.local_bytes(scattered, axis_sizes)
            late = [Move(ALL_REDUCE, others, part, scattered)] if others else []
            late += reshard(layout, scattered, stored, axis_sizes)
            return [
                [*early, *_scatter(layout, produced, order, scattered, axis_sizes), *late]
                for order in permutations(turns.values())
            ]
    whole = Move(ALL_REDUCE, last, size, produced)
    return [[*early, whole, *reshard(layout, produced, stored, axis_sizes)]]


def _scatter(
    layout: Layout, at: Placement, turns: Sequence[Sequence[int]], scattered: Placement,
    axis_sizes: Sequence[int],
) -> list[Move]:  # fmt: skip
    """Reduce-scatters, each of what the one before has left.

    Each cuts what a device holds, so the first axis on a dim is its major one: where the sharding
    has another order, the parts are exchanged in the end.
    """
    moves: list[Move] = []
    held = {a: (0, *_place(layout, scattered, a)) for a, j in enumerate(at) if j != WHOLE}
    for turn, axes in enumerate(turns, 1):
        size = layout.local_bytes(at, axis_sizes)
        for a in axes:
            held[a] = (turn, *_place(layout, scattered, a))
            at = _put(at, [a], scattered[a])
        moves.append(Move(REDUCE_SCATTER, tuple(axes), size, at))
    crossed: set[int] = set()
    for dim in {layout.atoms[scattered[a]].dim for a in held}:
        here = [a for a in held if layout.atoms[scattered[a]].dim == dim]
        wanted = sorted(here, key=lambda a: _place(layout, scattered, a))
        pairs = zip(sorted(here, key=held.__getitem__), wanted, strict=True)
        crossed |= {a for a, b in pairs if a != b}
    if crossed:
        size = layout.local_bytes(at, axis_sizes)
        moves.append(Move(PERMUTE, tuple(sorted(crossed)), size, at))
    return moves


def _place(layout: Layout, placement: Placement, axis: int) -> tuple[int, int]:
    """Where an axis stands among those of its dim, major to minor."""
    return layout.atoms[placement[axis]].place, axis
