"""Rows that each device sorts for itself: sorts, gathers and scatters that stay in a shard.

What is gathered or scattered in a shard must have been sorted in that shard or in a part of it. So
a sort sorts as many blocks as the finest of them has shards, however it is split itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm, prod
from typing import Any

import jax

from shardwright import _jax
from shardwright.lowering.actions import OwnRows
from shardwright.lowering.shards import on_shards
from shardwright.lowering.specs import Spec
from shardwright.program.interpret import Key
from shardwright.program.types import Op
from shardwright.spmd.follow import split_by
from shardwright.spmd.ir import Partitioned


def sorted_blocks(given: Partitioned) -> dict[Key, int]:
    """{sort: blocks of rows, one behind the other, that are each sorted}."""
    sizes = dict(given.axes)
    blocks: dict[Key, int] = {}
    for op in given.program.ops:
        if op.sorted_by is None:
            continue
        shards = prod(sizes[axis] for axis in _over(given, op))
        blocks[op.sorted_by] = lcm(blocks.get(op.sorted_by, 1), shards)
    return blocks


def _over(given: Partitioned, op: Op) -> tuple[str, ...]:
    """The axes that split the rows of an op that keeps to its own."""
    if op.rule.own is None:
        return ()
    op_class, choice = given.computed(op.index)
    return tuple(given.axes[a][0] for a in split_by(op_class, choice.claims, op.rule.own))


def own_rows(
    given: Partitioned, op: Op, blocks: Mapping[Key, int], operands: tuple[Spec, ...],
    results: tuple[Spec, ...],
) -> OwnRows | None:  # fmt: skip
    """How an op keeps to its own rows; None where they are whole, and need no blocks."""
    assert op.sorted_by is not None
    over = _over(given, op)
    if op.name == "sort":
        here = blocks[op.sorted_by] // prod(dict(given.axes)[axis] for axis in over)
        return OwnRows(operands, results, over, here) if over or here > 1 else None
    (dim,) = [d for d, factors in enumerate(op.rule.operands[0]) if factors == (op.rule.own,)]
    return OwnRows(operands, results, over, dim=dim) if over else None


def keep_own_rows(eqn: Any, args: Sequence[Any], how: OwnRows, mesh: Any) -> list[Any]:
    """The results of a sort, gather or scatter, computed in shards."""

    def local(*shards: Any) -> list[Any]:
        if eqn.primitive.name == "sort":
            return _sorted_in_blocks(eqn, shards, how.blocks)
        array, indices, *updates = shards
        rows = array.shape[how.dim]
        first = jax.lax.axis_index(how.over) * rows
        here = [array, indices - first.astype(indices.dtype), *updates]
        if eqn.primitive.name != "gather":
            return _jax.bind(eqn, here)
        whole = eqn.invars[0].aval.shape
        rows_ = zip(eqn.params["slice_sizes"], whole, array.shape, strict=True)
        sizes = tuple(now if size == before else size for size, before, now in rows_)
        slices = tuple(1 if d == how.dim else size for d, size in enumerate(sizes))
        return _jax.bind(eqn, here, slice_sizes=slices)

    return list(on_shards(local, mesh, how.operands, list(how.results))(*args))


def _sorted_in_blocks(eqn: Any, arrays: Sequence[Any], blocks: int) -> list[Any]:
    if blocks == 1:
        return _jax.bind(eqn, list(arrays))
    parts = [a.reshape(blocks, -1) for a in arrays]
    return [a.reshape(-1) for a in _jax.bind(eqn, parts, dimension=1)]
