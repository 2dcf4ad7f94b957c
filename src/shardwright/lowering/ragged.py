"""Ragged dots in parts: each device multiplies its rows, of whichever groups they are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shardwright import _jax
from shardwright.lowering.actions import RaggedDot
from shardwright.lowering.shards import on_shards
from shardwright.lowering.specs import spec_of
from shardwright.program.types import Op
from shardwright.spmd.follow import split_by
from shardwright.spmd.ir import Partitioned


def ragged_dot(given: Partitioned, op: Op) -> RaggedDot | None:
    """How a ragged dot is computed in shards; None unless its rows are split."""
    number = int(given.classes.of_op[op.index])
    op_class, choice = given.classes.table[number], given.choices[number]
    names = tuple(name for name, _ in given.axes)
    rows = op.rule.operands[0][_ragged_dim(op.eqn)]
    over = tuple(names[a] for f in rows for a in split_by(op_class, choice.claims, f))
    if not over:
        return None
    placed = zip(op_class.slots, (*choice.needs, *choice.produced), strict=True)
    *operands, result = [
        spec_of(slot.layout, placement, len(dims), names)
        for (slot, placement), dims in zip(placed, op.rule.slots, strict=True)
    ]
    sums: dict[int, list[str]] = {}  # as follow.py counts them: one reduction per dim
    for axis in choice.partial:
        sums.setdefault(choice.claims[axis], []).append(names[axis])
    return RaggedDot(tuple(operands), result, over, tuple(map(tuple, sums.values())))


def multiply(eqn: Any, args: list[Any], how: RaggedDot, mesh: Any) -> Any:
    """The result of a ragged dot, computed in parts."""
    dim = _ragged_dim(eqn)

    def local(lhs: Any, rhs: Any, sizes: Any) -> Any:
        rows = lhs.shape[dim]
        first = jax.lax.axis_index(how.rows_over).astype(sizes.dtype) * rows
        ends = jnp.cumsum(sizes, axis=-1, dtype=sizes.dtype)
        here = [jnp.clip(edge, first, first + rows) for edge in (ends - sizes, ends)]
        (out,) = _jax.bind(eqn, [lhs, rhs, here[1] - here[0]])  # the rows of each group that I have
        for axes in how.sums:
            out = jax.lax.psum(out, axes)
        return out

    return on_shards(local, mesh, how.operands, how.result)(*args)


def _ragged_dim(eqn: Any) -> int:
    """The dim of the rows in the first operand."""
    (dim,) = eqn.params["ragged_dot_dimension_numbers"].lhs_ragged_dimensions
    return int(dim)
