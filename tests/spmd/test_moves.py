"""Moves: a table of what each change of placement costs, and every move played on real shards."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardwright.spmd.layout import REPLICATED, Atom, Layout, Placement
from shardwright.spmd.moves import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    PERMUTE,
    REDUCE_SCATTER,
    SLICE,
    Move,
    find_moves,
)
from shardwright.spmd.routes import reductions, reshard

AG, AR, RS, A2A = ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, ALL_TO_ALL
o = REPLICATED


def layout(*dims: tuple[int, ...]) -> Layout:
    """A float32 value whose dims have these atoms."""
    atoms = [
        Atom(d, place, size, 10 * d + place, -1, 0)
        for d, sizes in enumerate(dims)
        for place, size in enumerate(sizes)
    ]
    return Layout(tuple(atoms), 4, 1, False, False)


MATRIX = layout((8,), (16,))  # f32[8, 16]: 512 bytes
HEADS = layout((8,), (2, 8))  # f32[8, (2, 8)]: 512 bytes


@pytest.mark.parametrize(
    "value, axes, stored, needed, moves",
    [
        # One axis: the table of the design.
        (MATRIX, (4,), (0,), (0,), []),
        (MATRIX, (4,), (0,), (o,), [(AG, (0,), 512)]),
        (MATRIX, (4,), (0,), (1,), [(A2A, (0,), 512 // 4)]),
        (MATRIX, (4,), (o,), (1,), [(SLICE, (0,), 512 // 4)]),
        # Two axes: a slice first, so that less is gathered.
        (MATRIX, (2, 4), (0, o), (o, 1), [(SLICE, (1,), 512 // 8), (AG, (0,), 512 // 4)]),
        (MATRIX, (2, 4), (0, 1), (o, 1), [(AG, (0,), 512 // 4)]),
        (MATRIX, (2, 4), (0, 1), (o, o), [(AG, (0,), 512 // 4), (AG, (1,), 512)]),
        # Axes of one dim leave together: one collective over their product.
        (MATRIX, (2, 4), (0, 0), (o, o), [(AG, (0, 1), 512)]),
        (MATRIX, (2, 4), (0, 0), (1, 1), [(A2A, (0, 1), 512 // 8)]),
        # The minor axis of a dim leaves alone ...
        (MATRIX, (2, 4), (0, 0), (0, o), [(AG, (1,), 512 // 2)]),
        # ... the major one cannot: what stays would not be contiguous.
        (MATRIX, (2, 4), (0, 0), (o, 0), [(AG, (0, 1), 512), (SLICE, (1,), 512 // 4)]),
        # Both atoms of a compound dim are one dim.
        (HEADS, (2, 4), (1, 2), (o, o), [(AG, (0, 1), 512)]),
        (HEADS, (2, 4), (1, 2), (1, o), [(AG, (1,), 512 // 2)]),
        # Three and four axes.
        (MATRIX, (2, 2, 2), (0, 0, 1), (o, o, o), [(AG, (0, 1), 512 // 2), (AG, (2,), 512)]),
        (MATRIX, (2, 2, 2, 2), (0, 0, 1, 1), (1, 1, o, o),
         [(A2A, (0, 1), 512 // 16), (PERMUTE, (0, 1, 2, 3), 512 // 16), (AG, (2, 3), 512 // 4)]),
        # An axis that arrives on the major side of another: XLA slices, then exchanges shards.
        (MATRIX, (2, 4), (o, 0), (0, 0), [(SLICE, (0,), 512 // 8), (PERMUTE, (0, 1), 512 // 8)]),
        (MATRIX, (2, 4), (1, 0), (0, 0), [(A2A, (0,), 512 // 8), (PERMUTE, (0, 1), 512 // 8)]),
        (MATRIX, (2, 4), (0, 1), (0, 0), [(A2A, (1,), 512 // 8)]),
    ],
)  # fmt: skip
def test_reshard(
    value: Layout, axes: tuple[int, ...], stored: Placement, needed: Placement, moves: list
) -> None:
    assert [m[:3] for m in reshard(value, stored, needed, axes)] == moves


@pytest.mark.parametrize(
    "axes, produced, sum_axes, stored, moves",
    [
        ((4,), (o,), [(0,)], (o,), [(AR, (0,), 512)]),
        ((4,), (o,), [(0,)], (1,), [(RS, (0,), 512)]),
        # Other axes keep their split: less is reduced.
        ((2, 4), (0, o), [(1,)], (0, o), [(AR, (1,), 512 // 2)]),
        ((2, 4), (0, o), [(1,)], (0, 1), [(RS, (1,), 512 // 2)]),
        # Two axes in one reduction: scattered over those that are to split the result.
        ((2, 4), (o, o), [(0, 1)], (o, o), [(AR, (0, 1), 512)]),
        ((2, 4), (o, o), [(0, 1)], (0, 1), [(RS, (0,), 512), (RS, (1,), 512 // 2)]),
        ((2, 4), (o, o), [(0, 1)], (0, 0), [(RS, (0,), 512), (RS, (1,), 512 // 2)]),
        ((2, 4), (o, o), [(0, 1)], (0, o), [(RS, (0,), 512), (AR, (1,), 512 // 2)]),
        # One reduction after the other.
        ((2, 4), (o, o), [(0,), (1,)], (o, 1), [(AR, (0,), 512), (RS, (1,), 512)]),
        # What is reduced and moved elsewhere.
        ((2, 4), (0, o), [(1,)], (1, o), [(AR, (1,), 256), (A2A, (0,), 256)]),
    ],
)
def test_reduction(
    axes: tuple[int, ...], produced: Placement, sum_axes: list, stored: Placement, moves: list
) -> None:
    given = (MATRIX, produced, sum_axes, stored, axes)
    first, *_ = reductions(*given, at_once=False, written_out=True)
    assert [m[:3] for m in first] == moves


BLOCKS = layout((4,), (4, 8))  # f32[4, (4, 8)]: 512 bytes


@pytest.mark.parametrize(
    "value, produced, last, stored, at_once, written_out, ways",
    [
        # One axis after the other, in both orders.
        (MATRIX, (o, o), (0, 1), (0, 1), False, True,
         [[(RS, (0,), 512), (RS, (1,), 512 // 2)], [(RS, (1,), 512), (RS, (0,), 512 // 4)]]),
        # On one dim minor before major leaves the parts in another order.
        (MATRIX, (o, o), (0, 1), (0, 0), False, True,
         [[(RS, (0,), 512), (RS, (1,), 512 // 2)],
          [(RS, (1,), 512), (RS, (0,), 512 // 4), (PERMUTE, (0, 1), 512 // 8)]]),
        (BLOCKS, (o, o), (0, 1), (2, 1), False, True,
         [[(RS, (0,), 512), (RS, (1,), 512 // 2), (PERMUTE, (0, 1), 512 // 8)],
          [(RS, (1,), 512), (RS, (0,), 512 // 4)]]),
        # So does an axis that arrives on the major side of one that is there.
        (MATRIX, (o, 0), (0,), (0, 0), False, True,
         [[(RS, (0,), 512 // 4), (PERMUTE, (0, 1), 512 // 8)]]),
        # In one collective for each dim.
        (MATRIX, (o, o), (0, 1), (0, 0), True, True, [[(RS, (0, 1), 512)]]),
        (MATRIX, (o, o), (0, 1), (0, 1), True, True,
         [[(RS, (0,), 512), (RS, (1,), 512 // 2)], [(RS, (1,), 512), (RS, (0,), 512 // 4)]]),
        # Left to compilers, only what one collective scatters is scattered.
        (MATRIX, (o, o), (0, 1), (0, 0), True, False, [[(RS, (0, 1), 512)]]),
        (MATRIX, (o, o), (0, 1), (0, 1), True, False,
         [[(AR, (0, 1), 512), (SLICE, (0, 1), 512 // 8)]]),
        (MATRIX, (o, o), (0, 1), (0, 0), False, False,
         [[(AR, (0, 1), 512), (SLICE, (0, 1), 512 // 8)]]),
    ],
)  # fmt: skip
def test_ways_to_scatter(
    value: Layout, produced: Placement, last: tuple[int, ...], stored: Placement, at_once: bool,
    written_out: bool, ways: list,
) -> None:  # fmt: skip
    found = reductions(
        value, produced, [last], stored, (2, 4), at_once=at_once, written_out=written_out
    )
    assert [[m[:3] for m in way] for way in found] == ways
    assert all(way[-1].after == stored for way in found)


LARGE = layout((1024,), (1024,))  # f32[1024, 1024]: 2**22 bytes
BYTES = 2**22


# Axis 0 crosses slices; axes 1 and 2 are inside them.
@pytest.mark.parametrize(
    "value, last, stored, moves",
    [
        # Scattered inside, reduced across in parts, gathered inside.
        (LARGE, (0, 1), (o, o, o), [(RS, (1,), BYTES), (AR, (0,), BYTES // 4), (AG, (1,), BYTES)]),
        # What is stored in parts inside anyway, as under FSDP, is not gathered.
        (LARGE, (0, 1), (o, 0, o), [(RS, (1,), BYTES), (AR, (0,), BYTES // 4)]),
        # Nothing crosses, everything crosses, or it is small.
        (LARGE, (1, 2), (o, o, o), [(AR, (1, 2), BYTES)]),
        (LARGE, (0,), (o, o, o), [(AR, (0,), BYTES)]),
        (MATRIX, (0, 1), (o, o, o), [(AR, (0, 1), 512)]),
    ],
)
def test_sums_cross_slices_in_parts(
    value: Layout, last: tuple[int, ...], stored: Placement, moves: list
) -> None:
    given = (value, (o, o, o), [last], stored, (2, 4, 2))
    first, *_ = reductions(*given, at_once=True, written_out=True, across={0})
    assert [m[:3] for m in first] == moves
    assert first[-1].after == stored


# Every move is played: device -> set of elements.

Shards = dict[tuple[int, ...], frozenset[int]]


def shards(value: Layout, placement: Placement, axes: tuple[int, ...]) -> Shards:
    """What each device holds: axes of one atom split it in mesh order."""
    sizes = [a.size for a in value.atoms]
    elements = np.arange(int(np.prod(sizes))).reshape(sizes)
    out: Shards = {}
    for at in itertools.product(*(range(n) for n in axes)):
        part = elements
        for axis, atom in enumerate(placement):
            if atom != REPLICATED:
                part = np.array_split(part, axes[axis], axis=atom)[at[axis]]
        out[at] = frozenset(part.ravel().tolist())
    return out


def group_of(device: tuple[int, ...], move: Move, axes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The devices that take part in a collective together with this one."""
    return [
        other for other in itertools.product(*(range(n) for n in axes))
        if all(other[a] == device[a] for a in range(len(axes)) if a not in move.axes)
    ]  # fmt: skip


def valid(value: Layout, placement: Placement, axes: tuple[int, ...]) -> bool:
    """Divides, and only prefixes of compound dims are split."""
    left = [a.size for a in value.atoms]
    for axis, atom in enumerate(placement):
        if atom != REPLICATED:
            if left[atom] % axes[axis]:
                return False
            left[atom] //= axes[axis]
    return all(
        left[i] == 1
        for j in set(placement) - {REPLICATED}
        for i in range(j)
        if value.atoms[i].dim == value.atoms[j].dim
    )


VALUES = [
    layout((8,), (8,)),
    layout((2, 8), (8,)),
    layout((2, 2, 4)),
    layout((16,)),
    layout((4,), (4,), (4,)),
]
AXES = [(2,), (4,), (2, 2), (2, 4), (4, 2), (2, 2, 2), (2, 2, 2, 2)]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(data=st.data(), value=st.sampled_from(VALUES), axes=st.sampled_from(AXES))
def test_every_move_can_be_made(data: st.DataObject, value: Layout, axes: tuple[int, ...]) -> None:
    atom = st.integers(REPLICATED, len(value.atoms) - 1)
    placements = st.tuples(*[atom] * len(axes))
    stored, needed = data.draw(placements), data.draw(placements)
    assume(valid(value, stored, axes) and valid(value, needed, axes))
    check(value, stored, needed, axes)


def check(value: Layout, stored: Placement, needed: Placement, axes: tuple[int, ...]) -> None:
    """Plays the moves: nobody receives what nobody in the group had."""
    at = stored
    moves = reshard(value, stored, needed, axes)
    while moves:
        move = moves.pop(0)
        if moves and moves[0].kind == PERMUTE:  # two that arrive together, the second in order
            assert move.after == moves[0].after and move.kind in (SLICE, ALL_TO_ALL)
            order = moves.pop(0)
            move = order._replace(axes=tuple({*move.axes, *order.axes}))
        before, after = shards(value, at, axes), shards(value, move.after, axes)
        assert valid(value, move.after, axes), move
        sizes = value.local_bytes(at, axes), value.local_bytes(move.after, axes)
        for dev, wanted in after.items():
            senders = [dev] if move.kind == SLICE else group_of(dev, move, axes)
            had = frozenset[int]().union(*(before[s] for s in senders))
            assert wanted <= had, (move, "from", at)
        if move.kind == ALL_GATHER:
            assert move.bytes == sizes[1] > sizes[0]
        elif move.kind == PERMUTE:
            assert move.bytes == sizes[1] <= sizes[0]
        elif move.kind == ALL_TO_ALL:
            assert move.bytes == sizes[0] == sizes[1]
        else:
            assert move.kind == SLICE and move.bytes == sizes[1] < sizes[0]
        at = move.after
    assert at == needed


@pytest.mark.parametrize("axes", [(2, 4), (4, 2), (2, 2, 2)])
@pytest.mark.parametrize(
    "value",
    [layout((16,), (8,), (32,)), layout((8,), (2, 8), (16,)), layout((12,), (8, 8))],
    ids=["even", "a compound dim", "one uneven dim"],
)
def test_moves_that_are_known_from_other_layouts(value: Layout, axes: tuple[int, ...]) -> None:
    """Even shards of whole dims move alike whatever their sizes: the moves are looked up."""
    placements = [
        p
        for p in itertools.product([o, *range(len(value.atoms))], repeat=len(axes))
        if value.can_store(p, axes)
    ]
    for stored, needed in itertools.permutations(placements, 2):
        assert reshard(value, stored, needed, axes) == find_moves(value, stored, needed, axes)
