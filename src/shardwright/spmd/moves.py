"""Moves: the collectives that bring a value from one placement to another."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

from shardwright.spmd.layout import REPLICATED, Layout, Placement

SLICE = "slice"  # local, free
ALL_GATHER, ALL_TO_ALL = "all-gather", "all-to-all"
ALL_REDUCE, REDUCE_SCATTER = "all-reduce", "reduce-scatter"
PERMUTE = "collective-permute"
RAGGED_ALL_TO_ALL = "ragged-all-to-all"  # inside an op
WHOLE_BYTES = 1 << 20  # a smaller sum crosses slices whole: in parts it takes three latencies


class Move(NamedTuple):
    """One collective, or a free local slice, and the placement after it."""

    kind: str
    axes: tuple[int, ...]  # mesh axes, in mesh order
    bytes: int  # the larger side on one device
    after: Placement  # between two reduce-scatters of one sum it gives the size, not the sharding


def _put(placement: Placement, axes: Sequence[int], atom: int) -> Placement:
    """The placement in which these axes split this atom."""
    out = list(placement)
    for a in axes:
        out[a] = atom
    return tuple(out)


def find_moves(
    layout: Layout, stored: Placement, needed: Placement, axis_sizes: Sequence[int]
) -> list[Move]:
    """The moves between two placements: slices first, then all-to-alls, then all-gathers.

    Several axes on one dim are sub-axes, major to minor, and a shard is contiguous. An axis on the
    major side cannot leave alone: the remainder would not be contiguous, so XLA gathers the whole
    dim and slices it again. An axis that arrives on the major side of others leaves the shards on
    the wrong devices: a collective-permute brings them into order.
    """
    if stored == needed:
        return []
    if layout.rematerialised:  # rematerialised per shard, never moved
        moved = tuple(a for a in range(len(stored)) if stored[a] != needed[a])
        return [Move(SLICE, moved, layout.local_bytes(needed, axis_sizes), needed)]
    for moves in find_orders(layout, stored, needed, axis_sizes):
        if _possible(layout, stored, moves, axis_sizes):
            break
    return moves


def find_orders(
    layout: Layout, stored: Placement, needed: Placement, axis_sizes: Sequence[int]
) -> Iterator[list[Move]]:
    """The moves in three orders: the first is the cheapest, the last always possible."""
    axes = range(len(stored))
    leaving = [a for a in axes if stored[a] != REPLICATED and needed[a] != stored[a]]
    gathered_too = _not_contiguous(layout, stored, leaving)
    swapped = [a for a in leaving if needed[a] != REPLICATED and a not in gathered_too]
    gathered = sorted({*leaving, *gathered_too} - {*swapped})
    early = [
        a for a in axes
        if stored[a] == REPLICATED and needed[a] != REPLICATED
        and not any(stored[b] == needed[a] for b in leaving)
    ]  # fmt: skip
    for order in (
        ((_slice, early), (_swap, swapped), (_gather, gathered)),
        ((_gather, gathered), (_swap, swapped)),
        ((_gather, sorted({*leaving, *gathered_too})),),
    ):
        moves: list[Move] = []
        at = stored
        for step, group in order:
            moves += step(layout, at, group, needed, axis_sizes)
            at = moves[-1].after if moves else at
        late = [a for a in axes if at[a] != needed[a]]
        yield [*moves, *_slice(layout, at, late, needed, axis_sizes)]


def _possible(
    layout: Layout, at: Placement, moves: Sequence[Move], axis_sizes: Sequence[int]
) -> bool:
    """Whether shards are contiguous after each move, and JAX has a sharding for them."""
    for move in moves:
        after = move.after
        left = [a for a in range(len(at)) if at[a] != REPLICATED and after[a] != at[a]]
        if _not_contiguous(layout, at, left) or not _splits(layout, after, axis_sizes):
            return False
        at = after
    return True


def _swap(
    layout: Layout, at: Placement, axes: Sequence[int], needed: Placement,
    axis_sizes: Sequence[int],
) -> list[Move]:  # fmt: skip
    """The all-to-alls, one for each pair of atoms, and permutes where sub-axes are out of order."""
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
    """The all-gathers, one for each dim."""
    dims: dict[int, list[int]] = {}
    for a in axes:
        dims.setdefault(layout.atoms[at[a]].dim, []).append(a)
    moves: list[Move] = []
    for together in dims.values():
        shards = math.prod(axis_sizes[a] for a in together)
        size = layout.local_bytes(at, axis_sizes) * shards  # with the padding of uneven shards
        at = _put(at, together, REPLICATED)
        moves.append(Move(ALL_GATHER, tuple(together), size, at))
    return moves


def _slice(
    layout: Layout, at: Placement, axes: Sequence[int], needed: Placement,
    axis_sizes: Sequence[int],
) -> list[Move]:  # fmt: skip
    """The slice that lets these axes split what they replicate: free if sub-axes stay in order."""
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
    """The axes of the atom's dim that are minor to these once these split the atom."""
    to = layout.atoms[atom]
    return [
        b for b in range(len(at))
        if at[b] != REPLICATED and b not in axes and layout.atoms[at[b]].dim == to.dim
        and (layout.atoms[at[b]].place, b) > (to.place, min(axes))
    ]  # fmt: skip


def _splits(layout: Layout, placement: Placement, axis_sizes: Sequence[int]) -> bool:
    """Whether JAX has a sharding for it inside a program, where shards may be uneven."""
    devices, split = math.prod(axis_sizes), [layout.atoms[j] for j in placement if j != REPLICATED]
    if layout.units and not layout.closed and not any(a.place or a.size % devices for a in split):
        return True  # each the major atom of its dim, and divisible by all axes
    return layout._replace(border=False).can_store(placement, axis_sizes)


def _evenly(layout: Layout, placement: Placement, axis_sizes: Sequence[int]) -> bool:
    """Whether all shards are of one size: a reduce-scatter needs that."""
    shards = layout.shards(placement, axis_sizes)
    return all(a.size % p == 0 for a, p in zip(layout.atoms, shards, strict=True))


def _not_contiguous(layout: Layout, at: Placement, leaving: Sequence[int]) -> set[int]:
    """The axes that must be gathered, for the sub-axis order of a dim that some axes leave.

    What remains of a dim is contiguous only if the axes that leave it are its minor ones. Where one
    stays on the minor side of one that leaves, both are gathered: the result has such pairs.
    """
    out: set[int] = set()
    for a in leaving:
        atom = layout.atoms[at[a]]
        for b in range(len(at)):
            if b == a or at[b] == REPLICATED or layout.atoms[at[b]].dim != atom.dim:
                continue
            if (layout.atoms[at[b]].place, b) > (atom.place, a) and b not in leaving:
                out |= {a, b}
    return out


def gathers_minor(
    layout: Layout, at: Placement, moves: Sequence[Move], axis_sizes: Sequence[int]
) -> bool:
    """Whether shards arrive in another order than the result's, which costs one more copy.

    So they do after an all-to-all, and after an all-gather along a dim that is not the major one of
    the shard, or that is padded.
    """
    for move in moves:
        if move.kind == ALL_TO_ALL:
            return True
        if move.kind == ALL_GATHER:
            shards = layout.shards(at, axis_sizes)
            dim = layout.atoms[at[move.axes[0]]].dim
            for a, p in zip(layout.atoms, shards, strict=True):
                if (a.dim < dim and a.size > p) or (a.dim == dim and a.size % p):
                    return True
        at = move.after
    return False


def gather_and_pick(
    layout: Layout, produced: Placement, sum_axes: Sequence[tuple[int, ...]], stored: Placement,
    axis_sizes: tuple[int, ...], itemsize: int,
) -> list[Move]:  # fmt: skip
    """The moves that turn each shard's argmax (or argmin), placed as `produced`, into `stored`.

    Compilers gather the best values (elements of `itemsize` bytes) and the indices of all shards.
    """
    moves: list[Move] = []
    local = layout.local_bytes(produced, axis_sizes)
    for axes in sum_axes:
        size = local * math.prod(axis_sizes[a] for a in axes)
        values = size * itemsize // layout.itemsize
        moves += [Move(ALL_GATHER, axes, n, produced) for n in (values, size)]
    return [*moves, *find_moves(layout, produced, stored, axis_sizes)]


def find_reductions(
    layout: Layout, produced: Placement, sum_axes: Sequence[tuple[int, ...]], stored: Placement,
    axis_sizes: tuple[int, ...], *, at_once: bool, written_out: bool,
    across: Collection[int] = (), every: bool = False,
) -> list[list[Move]]:  # fmt: skip
    """The moves that turn partial results, placed as `produced`, into `stored`, in each order.

    `sum_axes` are the axes of one reduction after the other. In the last one, axes that split the
    stored sum reduce-scatter it: `at_once` with one collective for each dim, otherwise one axis
    after the other. The axes that replicate it all-reduce the shards. A compiler does this by
    itself only where one collective is enough; otherwise it all-reduces and slices, unless lowering
    makes the sum explicit (`written_out`). Over axes `across` slices go parts of a sum that was
    scattered inside them, and is gathered inside them at last. With `every`, also those that are
    not taken where shards are even.
    """

    def brought(made: Placement) -> list[list[Move]]:
        """The ways on to where the sum is stored."""
        if every:
            return list(find_orders(layout, made, stored, axis_sizes))
        return [find_moves(layout, made, stored, axis_sizes)]

    if not sum_axes:
        return brought(produced)
    scattering: list[list[Move]] = []
    local = layout.local_bytes(produced, axis_sizes)
    early = [Move(ALL_REDUCE, axes, local, produced) for axes in sum_axes[:-1]]
    last = sum_axes[-1]
    aim = stored
    if written_out and across and local >= WHOLE_BYTES:
        aim = _in_parts(layout, produced, last, stored, axis_sizes, across)
    split = [a for a in last if aim[a] != REPLICATED]
    others = tuple([a for a in last if aim[a] == REPLICATED])
    if split:
        turns: dict[int, list[int]] = {}
        for a in split:
            turns.setdefault(layout.atoms[aim[a]].dim if at_once else a, []).append(a)
        scattered = produced
        for a in split:
            scattered = _put(scattered, [a], aim[a])
        if (
            (written_out or (len(turns) == 1 and not others))
            and _evenly(layout, scattered, axis_sizes)
            and (scattered == stored or _splits(layout, scattered, axis_sizes))
        ):
            size = layout.local_bytes(scattered, axis_sizes)
            late = [Move(ALL_REDUCE, others, size, scattered)] if others else []
            scattering = [
                [*early, *_scatter(layout, produced, order, scattered, axis_sizes), *late, *way]
                for order in permutations(turns.values()) for way in brought(scattered)
            ]  # fmt: skip
    if scattering and not every:
        return scattering
    reduced = Move(ALL_REDUCE, last, local, produced)
    return [*scattering, *[[*early, reduced, *way] for way in brought(produced)]]


def _in_parts(
    layout: Layout, produced: Placement, axes: Sequence[int], stored: Placement,
    axis_sizes: Sequence[int], across: Collection[int],
) -> Placement:  # fmt: skip
    """`stored`, with axes inside a slice on some dim where the sum crosses slices, too."""
    inside = [a for a in axes if a not in across and stored[a] == REPLICATED]
    if len(inside) == len(axes) or all(a in across for a in axes):
        return stored
    aim, made = stored, produced
    for a in axes:
        if stored[a] != REPLICATED:
            made = _put(made, [a], stored[a])
    for a in inside:
        for atom in range(len(layout.atoms)):
            put = _put(made, [a], atom)
            if not (_evenly(layout, put, axis_sizes) and _splits(layout, put, axis_sizes)):
                continue
            back = find_moves(layout, put, made, axis_sizes)
            if all(move.axes == (a,) for move in back):  # not along a dim that others split, too
                aim, made = _put(aim, [a], atom), put
                break
    return aim


def _scatter(
    layout: Layout, at: Placement, turns: Sequence[Sequence[int]], scattered: Placement,
    axis_sizes: Sequence[int],
) -> list[Move]:  # fmt: skip
    """The reduce-scatters, each of what the one before has left.

    Each cuts the shard that a device holds, so the first axis on a dim becomes its major one. Where
    the sharding has another sub-axis order, a collective-permute follows.
    """
    moves: list[Move] = []
    held = {a: (0, *_place(layout, scattered, a)) for a, j in enumerate(at) if j != REPLICATED}
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
    """The sort key of an axis among those that split its dim, major to minor."""
    return layout.atoms[placement[axis]].place, axis
