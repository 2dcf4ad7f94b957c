"""Sliding windows: pooling and its derivatives. A window reaches over the edge of a shard."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shardwright.rules.indexing import SCATTER_WORDS
from shardwright.rules.registry import register
from shardwright.rules.rule import Expanded, OpShape, Rule, einsum, with_work

_DILATIONS = ("base_dilation", "window_dilation")


def halo(
    rows: int, windows: int, *, size: int, stride: int, pads: Sequence[int],
    dilations: Sequence[int] = (1, 1),
) -> tuple[int, int, int] | None:  # fmt: skip
    """(rows, rows needed before a shard, rows needed behind it), the same for all even shards.

    `dilations` are those of the rows and of the window. None where shards of the rows and shards of
    the windows do not align: the windows of one shard begin at another offset than of the next.

    >>> halo(16, 16, size=3, stride=1, pads=(1, 1)), halo(16, 8, size=3, stride=2, pads=(0, 1))
    ((16, 1, 1), (16, 0, 1))
    """
    apart, within = dilations
    if rows * apart != windows * stride:
        return None
    behind = (size - 1) * within - stride - pads[0]  # the last place read past the shard
    return rows, max(0, pads[0] // apart), max(0, behind // apart + 1)


def _windows(op: OpShape, large: int, small: int) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Labels of the dims before and after the windows, and the kinds.

    `large` and `small` are slots (operands, then results) whose shapes the windows join. Windows
    that tile the dim exactly cut it in (window, within): no exchange. Where a window is one
    entry the dim passes.
    """
    p = op.params
    slots = (*op.operands, *op.results)
    before: list[Any] = list(range(len(slots[large].shape)))
    after = list(before)
    permute: list[Any] = []
    replicate: list[Any] = []
    sizes: dict[Any, int] = {}
    halos: dict[Any, tuple[int, int, int]] = {}
    for d, (n, m) in enumerate(zip(slots[large].shape, slots[small].shape, strict=True)):
        size, stride = p["window_dimensions"][d], p["window_strides"][d]
        dilations = [p.get(key, (1,) * (d + 1))[d] for key in _DILATIONS]
        dilated = dilations != [1, 1]
        pads = tuple(p["padding"][d])
        within = ("within", d)
        if size == stride == 1 and pads == (0, 0) and not dilated:
            continue
        if size == stride and n == m * size and pads == (0, 0) and not dilated:
            before[d] = [d, within]
            sizes[d], sizes[within] = m, size
            replicate.append(within)
        else:
            permute.append(d)
            reach = halo(n, m, size=size, stride=stride, pads=pads, dilations=dilations)
            if reach:
                halos[d] = reach
    kinds = {"permute": permute, "replicate": replicate, "sizes": sizes, "halos": halos}
    return before, after, kinds


def _visits(op: OpShape, small: int) -> float:
    """Entries that all windows together look at; `small` is the slot with one entry per window."""
    slots = (*op.operands, *op.results)
    return float(math.prod(op.params["window_dimensions"]) * math.prod(slots[small].shape))


@register("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min")
def _reduce_window(op: OpShape) -> Rule:
    before, after, kinds = _windows(op, 0, len(op.operands))
    tensors = len(op.results)
    operands = [before] * tensors + [[]] * (len(op.operands) - tensors)  # then initial values
    linear = (0,) if op.name == "reduce_window_sum" else ()
    rule = einsum(op, operands, [after] * tensors, linear=linear, **kinds)
    return with_work(rule, _visits(op, len(op.operands)))


def _scattered(op: OpShape, operand: int, source: int) -> tuple[list[Any], list[Any], Any]:
    """Labels of operand and source. Windows that overlap or are padded need replication: split
    there, XLA (jaxlib 0.10.2) adds up wrong values; the referee found it."""
    before, after, kinds = _windows(op, operand, source)
    kinds.pop("halos")
    for d in kinds.pop("permute"):
        after[d] = ("window", d)
        kinds["replicate"] += [d, ("window", d)]
    return before, after, kinds


@register("select_and_scatter_add")
def _select_and_scatter_add(op: OpShape) -> Rule:
    before, after, kinds = _scattered(op, 1, 0)
    rule = einsum(op, [after, before], [before], linear=(0,), expanded=_selected(op), **kinds)
    return with_work(rule, _visits(op, 0))


def _selected(op: OpShape) -> Expanded:
    """Where each window has its largest entry: a coordinate of every entry, then of the largest.

    Windows that reach over the edges work on a padded operand and a padded result.
    """
    operand, rank = op.operands[1], len(op.operands[1].shape)
    words = 4 / operand.dtype.itemsize  # coordinates are 32-bit integers
    padded = 2.0 if any(any(pair) for pair in op.params["padding"]) else 0.0
    longer = sum(size > 1 for size in operand.shape)
    coordinates = min(rank, longer + 1)  # of all dims of size 1 they are the same zeros
    return Expanded(((0, 1 + rank * words), (1, coordinates * words + padded)), SCATTER_WORDS)


@register("select_and_scatter")
def _select_and_scatter(op: OpShape) -> Rule:
    before, after, kinds = _scattered(op, 0, 1)
    rule = einsum(op, [before, after, []], [before], **kinds)
    return with_work(rule, _visits(op, 1))


@register("select_and_gather_add")
def _select_and_gather_add(op: OpShape) -> Rule:
    before, after, kinds = _windows(op, 0, len(op.operands))
    rule = einsum(op, [before, before], [after], linear=(0,), **kinds)
    return with_work(rule, _visits(op, len(op.operands)))
