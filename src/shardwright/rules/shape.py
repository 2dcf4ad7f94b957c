"""Ops that only rearrange: reshape, transpose, broadcast, slice, pad, concatenate and friends."""

from __future__ import annotations

import math
from typing import Any

from shardwright.rules.registry import register
from shardwright.rules.rule import NOTHING, OpShape, Rule, einsum


def view(
    op: OpShape, operands: Any, results: Any, *,
    fusible: bool = True, linear: tuple[int, ...] | None = None, **more: Any,
) -> Rule:  # fmt: skip
    """The rule of an op that computes nothing: linear in all operands unless told otherwise."""
    if linear is None:
        linear = tuple(range(len(op.operands)))
    return einsum(
        op, operands, results, unit=NOTHING, work=0.0, fusible=fusible, linear=linear, **more
    )


@register("transpose")
def _transpose(op: OpShape) -> Rule:
    dims = op.dims(0)
    return view(op, [dims], [[dims[d] for d in op.params["permutation"]]])


@register("broadcast_in_dim")
def _broadcast_in_dim(op: OpShape) -> Rule:
    result = op.result_dims()
    operand = [result[d] for d in op.params["broadcast_dimensions"]]
    more: list[Any] = [[] for _ in op.operands[1:]]  # dynamic sizes
    return view(op, [operand, *more], [result], linear=(0,))


@register("squeeze")
def _squeeze(op: OpShape) -> Rule:
    dims = op.dims(0)
    gone = op.params["dimensions"]
    return view(op, [dims], [[label for d, label in enumerate(dims) if d not in gone]])


@register("iota", "empty", "empty2")
def _from_nothing(op: OpShape) -> Rule:
    return view(op, [[] for _ in op.operands], [op.result_dims()])


@register("rev")
def _rev(op: OpShape) -> Rule:
    dims = op.dims(0)
    return view(op, [dims], [dims], permute=[dims[d] for d in op.params["dimensions"]])


@register("slice")
def _slice(op: OpShape) -> Rule:
    """Dims that are not cut pass, one entry is a masked sum, strides are local, others permute."""
    p = op.params
    shape, kept = op.operands[0].shape, op.results[0].shape
    operand: list[Any] = []
    result: list[Any] = []
    permute: list[Any] = []
    reduce: list[Any] = []
    replicate: list[Any] = []
    sizes: dict[Any, int] = {}
    for d, (n, m) in enumerate(zip(shape, kept, strict=True)):
        start, stride = p["start_indices"][d], (p["strides"] or (1,) * len(shape))[d]
        result.append(d)
        operand.append(d)
        if m == n:
            continue
        if m == 1:
            reduce.append(d)  # one device has it: masked, then summed
        elif n == m * stride and start < stride:
            skipped = ("skipped", d)  # every stride-th entry: still local
            operand[d] = [d, skipped]
            sizes[d], sizes[skipped] = m, stride
            replicate.append(skipped)
        else:
            permute.append(d)
    return view(
        op, [operand], [result],
        permute=permute, reduce=reduce, replicate=replicate, sizes=sizes, even=reduce,
    )  # fmt: skip


@register("pad")
def _pad(op: OpShape) -> Rule:
    dims = op.dims(0)
    moved = [d for d, pads in zip(dims, op.params["padding_config"], strict=True) if any(pads)]
    return view(op, [dims, []], [dims], permute=moved)


@register("concatenate")
def _concatenate(op: OpShape) -> Rule:
    dims = list(range(len(op.results[0].shape)))
    alone = len(op.operands) == 1
    return view(
        op, [dims] * len(op.operands), [dims],
        permute=() if alone else [op.params["dimension"]], fusible=False,
    )  # fmt: skip


@register("split")
def _split(op: OpShape) -> Rule:
    dims = list(range(len(op.operands[0].shape)))
    alone = len(op.results) == 1
    return view(op, [dims], [dims] * len(op.results), permute=() if alone else [op.params["axis"]])


@register("stack")
def _stack(op: OpShape) -> Rule:
    result: list[Any] = op.result_dims()
    axis = op.params["axis"]
    operand = result[:axis] + result[axis + 1 :]
    return view(op, [operand] * len(op.operands), [result], replicate=[result[axis]], fusible=False)


@register("unstack")
def _unstack(op: OpShape) -> Rule:
    dims: list[Any] = op.dims(0)
    axis = op.params["axis"]
    kept = dims[:axis] + dims[axis + 1 :]
    return view(op, [dims], [kept] * len(op.results), replicate=[dims[axis]])


@register("bitcast_convert_type", "random_wrap", "random_unwrap", "to_edtype", "from_edtype")
def _same_bits(op: OpShape) -> Rule:
    """The parts of a wider element, or the words of a random key, are trailing dims."""
    ranks = [len(t.shape) for t in (op.operands[0], op.results[0])]
    before, after = (list(range(rank)) for rank in ranks)
    return view(op, [before], [after], replicate=range(min(ranks), max(ranks)), linear=())


@register("tile")
def _tile(op: OpShape) -> Rule:
    shape, reps = op.operands[0].shape, op.params["reps"]
    sizes: dict[Any, int] = {}
    result: list[Any] = []
    for d, (size, times) in enumerate(zip(shape, reps, strict=True)):
        sizes[d], sizes["copy", d] = size, times
        result.append([("copy", d), d])
    return view(op, [list(range(len(shape)))], [result], sizes=sizes)


@register("reshape")
def _reshape(op: OpShape) -> Rule:
    """Dims as their common factors, major to minor; what has none needs replication."""
    order = op.params.get("dimensions")
    shape = op.operands[0].shape
    order = tuple(range(len(shape))) if order is None else tuple(order)
    before, after, sizes, replicated = common_factors(
        [shape[d] for d in order], list(op.results[0].shape)
    )
    operand: list[Any] = [None] * len(shape)
    for d, labels in zip(order, before, strict=True):
        operand[d] = labels
    more: list[Any] = [[] for _ in op.operands[1:]]  # dynamic sizes
    return view(op, [operand, *more], [after], sizes=sizes, replicate=replicated, linear=(0,))


def common_factors(
    before: list[int], after: list[int]
) -> tuple[list[list[int]], list[list[int]], dict[int, int], list[int]]:
    """Labels of each dim before and after a reshape, their sizes, and those that need replication.

    Walks both shapes from major to minor and takes the greatest common factor each time. Where
    none is left ([6, 4] -> [8, 3] shares only a leading 2) the rest, up to the next place where
    both shapes align, has no common split: its dims get factors of their own, which need
    replication.

    >>> common_factors([6, 4], [8, 3])
    ([[0, 1], [3]], [[0, 2], [4]], {0: 2, 1: 3, 2: 4, 3: 4, 4: 3}, [1, 2, 3, 4])
    """
    left: list[list[int]] = [[] for _ in before]
    right: list[list[int]] = [[] for _ in after]
    sizes: dict[int, int] = {}
    replicated: list[int] = []
    if math.prod(before) == 0:
        return [[]] * len(before), [[]] * len(after), sizes, replicated

    def take(dim: list[int], size: int, label: int) -> None:
        dim.append(label)
        sizes[label] = size

    def alone(dim: list[int], size: int) -> None:
        if size > 1:
            replicated.append(len(sizes))
            take(dim, size, len(sizes))

    i = j = -1
    a = b = 1  # what is left of dim i before and of dim j after
    while True:
        while a == 1 and i + 1 < len(before):
            i, a = i + 1, before[i + 1]
        while b == 1 and j + 1 < len(after):
            j, b = j + 1, after[j + 1]
        if a == 1 and b == 1:
            return left, right, sizes, replicated
        common = math.gcd(a, b)
        if common > 1:
            label = len(sizes)
            take(left[i], common, label)
            take(right[j], common, label)
            a, b = a // common, b // common
            continue
        rest_a, rest_b = a, b  # nothing in common: skip to where the shapes align again
        alone(left[i], a)
        alone(right[j], b)
        while rest_a != rest_b:
            if rest_a < rest_b:
                i += 1
                rest_a *= before[i]
                alone(left[i], before[i])
            else:
                j += 1
                rest_b *= after[j]
                alone(right[j], after[j])
        a = b = 1
