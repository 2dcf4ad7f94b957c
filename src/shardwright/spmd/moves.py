"""Moves: the collectives that bring a value from one placement to another."""

from __future__ import annotations

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
    would no longer be contiguous. Then the whole dim is gathered and sliced again.
    """
    if stored == needed:
        return []
    moves: list[Move] = []
    at = stored
    leaving = [a for a in range(len(at)) if at[a] != WHOLE and needed[a] != at[a]]
    stuck = _stuck(layout, at, leaving)
    early = [
        a for a in range(len(at))
        if at[a] == WHOLE and needed[a] != WHOLE and not any(at[b] == needed[a] for b in leaving)
    ]  # fmt: skip
    if early:
        for a in early:
            at = _put(at, [a], needed[a])
        moves.append(Move(SLICE, tuple(early), layout.local_bytes(at, axis_sizes), at))
    swaps: dict[tuple[int, int], list[int]] = {}
    for a in leaving:
        if needed[a] != WHOLE and a not in stuck:
            swaps.setdefault((at[a], needed[a]), []).append(a)
    for (_, to), axes in swaps.items():
        size = layout.local_bytes(at, axis_sizes)
        at = _put(at, axes, to)
        moves.append(Move(ALL_TO_ALL, tuple(axes), size, at))
    gathers: dict[int, list[int]] = {}
    for a in range(len(at)):
        if at[a] != WHOLE and (at[a] != needed[a] or a in stuck):
            gathers.setdefault(layout.atoms[at[a]].dim, []).append(a)
    for axes in gathers.values():
        at = _put(at, axes, WHOLE)
        moves.append(Move(ALL_GATHER, tuple(axes), layout.local_bytes(at, axis_sizes), at))
    late = tuple(a for a in range(len(at)) if at[a] != needed[a])
    if late:
        moves.append(Move(SLICE, late, layout.local_bytes(needed, axis_sizes), needed))
    return moves


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
        scattered = produced
        for a in last:
            scattered = _put(scattered, [a], stored[a])
        moves.append(Move(REDUCE_SCATTER, last, size, scattered))
        return [*moves, *reshard(layout, scattered, stored, axis_sizes)]
    moves.append(Move(ALL_REDUCE, last, size, produced))
    return [*moves, *reshard(layout, produced, stored, axis_sizes)]
