"""Grouped dots in shards: each device multiplies its rows by the weights of its groups."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from shardwright import _jax
from shardwright.lowering.actions import RaggedDot
from shardwright.lowering.reductions import scatters
from shardwright.lowering.shards import after, on_shards, summed
from shardwright.lowering.specs import Spec
from shardwright.lowering.travel import multiply_there
from shardwright.program.interpret import Key
from shardwright.program.types import Op
from shardwright.spmd.follow import split_by
from shardwright.spmd.ir import Partitioned

# Ops, and the dim of the rows in their first operand; None: the parameters say.
GROUPED = {"ragged_dot_general": None, "megablox_gmm": 0, "megablox_tgmm": 1}


def ragged_dot(
    given: Partitioned, op: Op, blocks: Mapping[Key, int], operands: tuple[Spec, ...],
    produced: Spec,
) -> RaggedDot | None:  # fmt: skip
    """How a grouped dot is computed in shards; None where a compiler knows what to do.

    `blocks`: the blocks of rows, each sorted, that a sort makes (own_rows.py).
    """
    op_class, choice = given.computed(op.index)
    names = tuple(name for name, _ in given.axes)
    known = GROUPED[op.name]
    rows = op.rule.operands[0][_ragged_dim(op.eqn) if known is None else known]
    lhs, rhs, result = op.rule.operands[0], op.rule.operands[1], op.rule.results[0]
    groups = (rhs if rows not in rhs else result)[_group_dim(op)]

    def over(factors: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(names[a] for f in factors for a in split_by(op_class, choice.claims, f))

    sorted_in = blocks[op.sorted_by] if op.sorted_by is not None else 1
    sizes = dict(given.axes)
    sorts = prod(sizes[axis] for axis in over(rows)) % sorted_in != 0
    if not over(rows) and not over(groups) and not choice.partial and not sorts:
        return None
    return RaggedDot(
        operands, produced, over(rows), over(groups), tuple(names[a] for a in choice.partial),
        tuple(dims.index(rows) if rows in dims else None for dims in (lhs, rhs, result)),
        op.sorted_by, sorts, scatters(given, op, 0),
        next((names[a] for a, c in enumerate(choice.claims) if c in op_class.pairs), ""),
    )  # fmt: skip


def multiply(eqn: Any, args: list[Any], how: RaggedDot, mesh: Any) -> Any:
    """The result of a grouped dot, computed in shards.

    The last argument has the sizes of groups, or of each row the group, if a sort says so.
    """
    total = eqn.invars[2].aval.shape[-1]

    def local(lhs: Any, rhs: Any, sizes: Any, *offset: Any) -> Any:
        """The result of one device, from its shards; an offset: of the groups from there on."""
        if how.sorted_by is None:
            sizes = _of_my_rows(lhs.shape[how.row_dims[0]], sizes, how.rows_over)
            if offset:
                count = rhs.shape[0] if how.row_dims[1] is None else eqn.outvars[0].aval.shape[0]
                return _jax.megablox(eqn.params, (lhs, rhs, sizes), count, *offset)
            return product(lhs, rhs, sizes)
        if not how.sorts:
            return product(lhs, rhs, _sizes_of(sizes, total))
        order = jnp.argsort(sizes)
        in_lhs, in_rhs, in_result = how.row_dims
        lhs = jnp.take(lhs, order, in_lhs, unique_indices=True, mode="clip")
        if in_rhs is not None:
            rhs = jnp.take(rhs, order, in_rhs, unique_indices=True, mode="clip")
        out = product(lhs, rhs, _sizes_of(sizes[order], total))
        if in_result is None:
            return out
        return jnp.take(out, jnp.argsort(order), in_result, unique_indices=True, mode="clip")

    def product(lhs: Any, rhs: Any, sizes: Any) -> Any:
        """The result of one device, from its rows in order."""
        if how.travels:
            return multiply_there(at_groups, (lhs, rhs), how.row_dims, sizes, how.travels)
        devices = jax.lax.axis_size(how.groups_over) if how.groups_over else 1
        first = jax.lax.axis_index(how.groups_over) * (total // devices) if how.groups_over else 0
        if _jax.library_call(eqn):
            first = jnp.asarray(first, jnp.int32)
            out = _jax.megablox(eqn.params, (lhs, rhs, sizes), total // devices, first)
        else:
            out = _of_my_groups(eqn, lhs, rhs, sizes, total // devices, first, how)
        return out

    def at_groups(lhs: Any, rhs: Any, sizes: Any) -> Any:
        """The result of the groups that a device has, from their rows."""
        if _jax.library_call(eqn):
            return _jax.megablox(eqn.params, (lhs, rhs, sizes), len(sizes), jnp.int32(0))
        return _jax.bind(eqn, [lhs, rhs, sizes])[0]

    def local_sum(*shards: Any) -> Any:
        return summed(local(*shards), [how.sums], how.scatter)

    return on_shards(local_sum, mesh, how.operands, after(how.result, how.scatter))(*args)


def _sizes_of(groups: Any, total: int) -> Any:
    """How many rows are of each group, from the group of each row, in order.

    What is below group 0 is of it, as a sort and a count that clips have it.
    """
    numbers = jnp.arange(total, dtype=groups.dtype)
    ends = jnp.searchsorted(groups, numbers, side="right").astype(jnp.int32)
    return jnp.diff(ends, prepend=0)


def _of_my_rows(rows: int, sizes: Any, over: tuple[str, ...]) -> Any:
    """How many of the rows here are of each group."""
    if not over:
        return sizes
    first = jax.lax.axis_index(over).astype(sizes.dtype) * rows
    ends = jnp.cumsum(sizes, axis=-1, dtype=sizes.dtype)
    start, end = (jnp.clip(edge, first, first + rows) for edge in (ends - sizes, ends))
    return end - start


def _of_my_groups(
    eqn: Any, lhs: Any, rhs: Any, sizes: Any, count: int, first: Any, how: RaggedDot
) -> Any:
    """A ragged dot of the groups from `first` on: their rows are brought to the front."""
    if not how.groups_over:
        return _jax.bind(eqn, [lhs, rhs, sizes])[0]
    start = jnp.sum(jnp.where(jnp.arange(sizes.shape[0]) < first, sizes, 0))
    mine = jax.lax.dynamic_slice_in_dim(sizes, first, count)
    in_lhs, in_rhs, in_result = how.row_dims
    lhs = jnp.roll(lhs, -start, in_lhs)
    if in_rhs is not None:
        rhs = jnp.roll(rhs, -start, in_rhs)
    (out,) = _jax.bind(eqn, [lhs, rhs, mine])  # rows behind the last group are zero
    return out if in_result is None else jnp.roll(out, start, in_result)


def _ragged_dim(eqn: Any) -> int:
    """The dim of the rows in the first operand."""
    (dim,) = eqn.params["ragged_dot_dimension_numbers"].lhs_ragged_dimensions
    return int(dim)


def _group_dim(op: Op) -> int:
    """The dim of the groups in the weights, or in the result of which each group has its own."""
    if op.name != "ragged_dot_general":
        return 0
    groups = op.eqn.params["ragged_dot_dimension_numbers"].rhs_group_dimensions
    return int(groups[0]) if groups else 0
