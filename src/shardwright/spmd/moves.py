"""Moves: the collectives that bring a value from one placement to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    after: Placement


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
    """Whether nobody is left without a part, and only prefixes of compound dims are split."""
    left = [a.size for a in layout.atoms]
    for axis, atom in enumerate(placement):
        if atom != WHOLE:
            if left[atom] < axis_sizes[axis]:
                return False
            left[atom] = -(-left[atom] // axis_sizes[axis])
    return all(
        left[i] == 1 for j in placement if j != WHOLE for i in range(j - layout.atoms[j].place, j)
    )


def _evenly(layout: Layout, placement: Placement, axis_sizes: Sequence[int]) -> bool:
    """Whether all parts are of one size: only such a sum can be scattered in one collective."""
    left = [a.size for a in layout.atoms]
    for axis, atom in enumerate(placement):
        if atom != WHOLE:
            if left[atom] % axis_sizes[axis]:
                return False
            left[atom] //= axis_sizes[axis]
    return True


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


def reduction(
    layout: Layout, produced: Placement, rounds: Sequence[tuple[int, ...]], stored: Placement,
    axis_sizes: Sequence[int],
) -> list[Move]:  # fmt: skip
    """The moves that turn partial results, placed as `produced`, into `stored`.

    `rounds` are the axes of one reduction after the other. When every axis of the last one is to
    split the result anyway, its sum is scattered; otherwise it is reduced as a whole and
    sliced, which is what compilers do.
    """
    size = layout.local_bytes(produced, axis_sizes)
    moves = [Move(ALL_REDUCE, axes, size, produced) for axes in rounds[:-1]]
    last = rounds[-1]
    if all(stored[a] != WHOLE for a in last):
        split = _slice(layout, produced, last, stored, axis_sizes)
        scattered = split[-1].after
        if _evenly(layout, scattered, axis_sizes) and (
            scattered == stored or _splits(layout, scattered, axis_sizes)
        ):
            moves += [Move(REDUCE_SCATTER, last, size, scattered), *split[1:]]
            return [*moves, *reshard(layout, scattered, stored, axis_sizes)]
    moves.append(Move(ALL_REDUCE, last, size, produced))
    return [*moves, *reshard(layout, produced, stored, axis_sizes)]
