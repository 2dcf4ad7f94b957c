"""Rows that travel to the device of their group inside an op, and what is computed of them back.

One axis splits rows and groups together (`OpClass.pairs`). How many rows go where is data: each
device has room for those of all devices along the axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.spmd.moves import ALL_GATHER, RAGGED_ALL_TO_ALL, Move
from shardwright.spmd.opclass import OpClass

COUNT_BYTES = 4  # of how many rows are of a group


def travels(
    op: OpClass, claims: Sequence[int], axis_sizes: Sequence[int]
) -> list[tuple[int, tuple[int, int]]]:
    """(devices, (rows, groups)) of each axis over which rows travel."""
    several = zip(axis_sizes, claims, strict=True)
    return [(n, op.pairs[c]) for n, c in several if c in op.pairs] if op.pairs else []


def travel_moves(
    op: OpClass, claims: Sequence[int], slot_bytes: Sequence[int], axis_sizes: Sequence[int]
) -> list[Move]:
    """How many rows of each group a device has; rows there, and results back."""
    moves = []
    for a, c in enumerate(claims):
        if c in op.pairs:
            rows, groups = op.pairs[c]
            moves.append(Move(ALL_GATHER, (a,), COUNT_BYTES * axis_sizes[a] * op.sizes[groups], ()))
            sent = [size for i, size in enumerate(slot_bytes) if _of_rows(op, i, rows)]
            moves += [Move(RAGGED_ALL_TO_ALL, (a,), size, ()) for size in sent]
    return moves


def with_buffers(
    op: OpClass, claims: Sequence[int], slot_bytes: Sequence[int], axis_sizes: Sequence[int]
) -> Sequence[int]:
    """[slots] bytes that the op reads and writes: its own, and buffers, zero behind what came."""
    for n, (rows, _) in travels(op, claims, axis_sizes):
        slot_bytes = [
            size * (1 + n) if _of_rows(op, i, rows) else size for i, size in enumerate(slot_bytes)
        ]  # fmt: skip
    return slot_bytes


def buffer_bytes(
    op: OpClass, claims: Sequence[int], slot_bytes: Sequence[int], axis_sizes: Sequence[int]
) -> int:
    """Bytes of the buffers; libtpu 0.0.42 copies rows that came: in order, masked, for the dot."""
    if not op.pairs:
        return 0
    used = with_buffers(op, claims, slot_bytes, axis_sizes)
    more = [there - here for there, here in zip(used, slot_bytes, strict=True)]
    return sum(more) + 3 * sum(more[: len(op.operands)])


def _of_rows(op: OpClass, slot: int, rows: int) -> bool:
    """Whether a slot has rows, not numbers of their groups: those stand behind both factors."""
    return not 2 <= slot < len(op.operands) and rows in op.slots[slot].to_op
