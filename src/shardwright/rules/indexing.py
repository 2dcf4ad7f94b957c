"""Gather, scatter and dynamic slices: indexed dims are masked locally, the rest passes.

Entries are shared evenly: XLA reads and writes what pads them too.
"""

from __future__ import annotations

import math
from typing import Any

from shardwright.rules.registry import register
from shardwright.rules.rule import NOTHING, VECTOR, Expanded, OpShape, Rule, einsum, with_work

# How updates that meet at one place combine, where XLA knows an all-reduce for it.
_COMBINE = {
    "scatter-add": "add", "scatter-max": "max", "scatter-min": "min", "scatter-mul": "mul",
}  # fmt: skip


# XLA:CPU: a scatter is a loop over its updates, with a counter, its next value, an index, whether
# that is in range, and the places of the arrays.
SCATTER_WORDS = 5


@register("gather")
def _gather(op: OpShape) -> Rule:
    """An indexed dim of which one entry is read is a reduction: masked local gather, then sum."""
    numbers = op.params["dimension_numbers"]
    slice_sizes = op.params["slice_sizes"]
    operand, indices = op.dims(0), op.dims(1)
    result: list[Any] = op.result_dims()
    batch = [d for d in range(len(result)) if d not in numbers.offset_dims]
    for d, label in zip(batch, indices[:-1], strict=True):
        result[d] = label
    paired = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    for d, index_dim in paired:
        operand[d] = indices[index_dim]
    reduce: list[Any] = []
    replicate: list[Any] = [indices[-1]]  # the components of one index
    offsets = iter(numbers.offset_dims)
    for d, size in enumerate(op.operands[0].shape):
        if d in numbers.operand_batching_dims:
            continue
        collapsed = d in numbers.collapsed_slice_dims
        place = None if collapsed else next(offsets)
        if slice_sizes[d] == size and place is not None:
            result[place] = operand[d]
        elif slice_sizes[d] == 1 and d in numbers.start_index_map:
            reduce.append(operand[d])
        else:
            replicate += [operand[d]] if place is None else [operand[d], result[place]]
    return einsum(
        op, [operand, indices], [result],
        reduce=reduce, replicate=replicate, unit=NOTHING, work=0.0, linear=(0,),
        even=indices[:-1],
    )  # fmt: skip


@register("scatter", "scatter-add", "scatter-sub", "scatter-max", "scatter-min", "scatter-mul")
def _scatter(op: OpShape) -> Rule:
    """Each device updates its own shard of the operand; scattered updates combine."""
    numbers = op.params["dimension_numbers"]
    operand, indices, updates = op.dims(0), op.dims(1), op.dims(2)
    shape, update_shape = op.operands[0].shape, op.operands[2].shape
    scattered = [d for d in range(len(updates)) if d not in numbers.update_window_dims]
    for d, label in zip(scattered, indices[:-1], strict=True):
        updates[d] = label
    combined = set(indices[:-1])
    paired = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    for d, index_dim in paired:
        operand[d] = indices[index_dim]
        combined.discard(indices[index_dim])
    replicate: list[Any] = [indices[-1]]
    indexed = []  # dims of the operand of which an update writes one entry
    # Many updates are masked locally. One alone the TPU compiler turns into something else,
    # which gathers the operand (XLA:CPU does not); a dynamic_update_slice stays local.
    one_update = math.prod(op.operands[1].shape[:-1]) == 1
    windows = iter(numbers.update_window_dims)
    for d, size in enumerate(shape):
        if d in numbers.operand_batching_dims:
            continue
        place = None if d in numbers.inserted_window_dims else next(windows)
        written = 1 if place is None else update_shape[place]
        if place is not None and written == size:
            updates[place] = operand[d]
        elif written > 1 or one_update:
            replicate += [operand[d]] if place is None else [operand[d], updates[place]]
        else:
            indexed.append(operand[d])
    kind = _COMBINE.get(op.name)
    if kind is None:  # an overwrite: order matters, and nothing adds up
        replicate += combined
    copies = _whole_indices(op, len(numbers.operand_batching_dims)) + _windows_last(op, scattered)
    rule = einsum(
        op, [operand, indices, updates], [operand],
        reduce={} if kind is None else dict.fromkeys(combined, kind), replicate=replicate,
        linear=(0, 2) if kind == "add" else (),
        unit=NOTHING if op.name == "scatter" else VECTOR, work=0.0,
        # Where a device has one update XLA makes it a slice, which writes into what pads the dim.
        even=[*indices[:-1], *indexed],
        expanded=Expanded(copies, 0 if one_update else SCATTER_WORDS),
    )  # fmt: skip
    return rule if op.name == "scatter" else with_work(rule, math.prod(update_shape))


def _whole_indices(op: OpShape, batch: int) -> tuple[tuple[int, float], ...]:
    """The copy of indices that names the batch dims as well, which XLA:CPU knows no others than."""
    components = op.operands[1].shape[-1]
    return ((1, (components + batch) / components),) if batch and components else ()


def _windows_last(op: OpShape, scattered: list[int]) -> tuple[tuple[int, float], ...]:
    """The copy of updates whose windows do not come last, where XLA:CPU has them."""
    real = [d for d, n in enumerate(op.operands[2].shape) if n > 1]
    places = [d in scattered for d in real]
    return () if places == sorted(places, reverse=True) else ((2, 1.0),)


@register("dynamic_slice")
def _dynamic_slice(op: OpShape) -> Rule:
    """Dims that are not sliced pass through; sliced ones need replication."""
    operand, result = op.dims(0), op.result_dims()
    replicate = []
    for d, (n, m) in enumerate(zip(op.operands[0].shape, op.results[0].shape, strict=True)):
        if n == m:
            result[d] = operand[d]
        else:  # XLA gathers the operand, even for one entry
            replicate += [operand[d], result[d]]
    starts: list[Any] = [[] for _ in op.operands[1:]]
    return einsum(
        op, [operand, *starts], [result],
        replicate=replicate, unit=NOTHING, work=0.0, fusible=True, linear=(0,),
    )  # fmt: skip


@register("dynamic_update_slice")
def _dynamic_update_slice(op: OpShape) -> Rule:
    """Dims that are written whole or in one entry pass through; others need replication."""
    operand, update = op.dims(0), op.dims(1)
    replicate, written = [], []
    for d, (n, m) in enumerate(zip(op.operands[0].shape, op.operands[1].shape, strict=True)):
        if n == m:
            update[d] = operand[d]
        elif m > 1:  # one entry is a masked local update (a key-value cache); more are not
            replicate += [operand[d], update[d]]
        else:
            written.append(operand[d])
    starts: list[Any] = [[] for _ in op.operands[2:]]
    return einsum(
        op, [operand, update, *starts], [operand],
        replicate=replicate, unit=NOTHING, work=0.0, linear=(0, 1), even=written,
    )  # fmt: skip
