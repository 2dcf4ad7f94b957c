"""Convolutions: a dot over channels, with windows that reach over the edge of a shard.

The iteration space is batch x output channels x input channels of a group x output positions x
kernel positions: a spatial factor counts output positions, so work x (product of sizes) = flops.
"""

from __future__ import annotations

import math
from typing import Any

from shardwright.rules.precision import precision_of
from shardwright.rules.registry import register
from shardwright.rules.rule import MATRIX, Expanded, OpShape, Rule, einsum, with_work
from shardwright.rules.windows import halo


@register("conv_general_dilated")
def _conv(op: OpShape) -> Rule:
    """Batch and output channels pass through, input channels are summed, positions are windows."""
    p = op.params
    numbers = p["dimension_numbers"]
    lhs, rhs, out = (list(spec) for spec in (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec))
    groups, batch_groups = p["feature_group_count"], p["batch_group_count"]
    lhs_shape, rhs_shape = op.operands[0].shape, op.operands[1].shape
    out_shape = op.results[0].shape
    rank = len(lhs)
    left: list[Any] = [None] * rank
    right: list[Any] = [None] * rank
    result: list[Any] = [None] * rank
    sizes: dict[Any, int] = {
        "group": max(groups, batch_groups),
        "batch": out_shape[out[0]],
        "in": rhs_shape[rhs[1]],
        "out": rhs_shape[rhs[0]] // max(groups, batch_groups),
    }
    # Groups are the major factor of the channels (or, for batch groups, of the lhs batch).
    left[lhs[0]] = ["group", "batch"] if batch_groups > 1 else "batch"
    left[lhs[1]] = ["group", "in"] if groups > 1 else "in"
    right[rhs[0]] = result[out[1]] = ["group", "out"]
    right[rhs[1]] = "in"
    result[out[0]] = "batch"
    permute: list[Any] = []
    halos: dict[Any, tuple[int, int, int]] = {}
    reduce: list[Any] = ["in"] if groups == 1 else []
    # XLA splits groups, not what is inside one (inside a batch group it even aborts).
    replicate: list[Any] = []
    if groups > 1:
        replicate += ["in", "out"]
    elif batch_groups > 1:
        replicate += ["batch", "out"]
    for n in range(rank - 2):
        kernel, position = ("kernel", n), ("position", n)
        i, k, o = lhs_shape[lhs[2 + n]], rhs_shape[rhs[2 + n]], out_shape[out[2 + n]]
        stride, pads = p["window_strides"][n], tuple(p["padding"][n])
        dilations = (p["lhs_dilation"][n], p["rhs_dilation"][n])
        reach = halo(i, o, size=k, stride=stride, pads=pads, dilations=dilations)
        right[rhs[2 + n]], result[out[2 + n]], left[lhs[2 + n]] = kernel, position, position
        replicate.append(kernel)
        sizes[kernel], sizes[position] = k, o
        if i == o * stride and k == stride and pads == (0, 0) and dilations == (1, 1):
            left[lhs[2 + n]] = [position, kernel]  # windows tile the input: no halo
        elif k > o and i == k:  # the gradient of a kernel: positions of both are summed over
            # XLA would reduce it, but sums over mesh axes that split nothing as well: wrong.
            left[lhs[2 + n]] = kernel
            replicate.append(position)
        elif k > o or reach is None or batch_groups > 1:
            # The same with strides, where every window covers most of the input; or windows that
            # do not align with even shards of the input.
            left[lhs[2 + n]] = ("input", n)
            replicate += [position, ("input", n)]
        else:
            permute.append(position)
            halos[position] = reach
    rule = einsum(
        op, [left, right], [result],
        reduce=reduce, permute=permute, replicate=replicate, sizes=sizes, unit=MATRIX, halos=halos,
        maps=False, precision=precision_of(p.get("precision")), expanded=_expanded(op),
        even=["group"],  # XLA pairs padded groups with the wrong kernels, or aborts
    )  # fmt: skip
    kernel_points = math.prod(rhs_shape) // rhs_shape[rhs[0]]
    return with_work(rule, 2 * math.prod(out_shape) * kernel_points)


def _expanded(op: OpShape) -> Expanded:
    """A copy of what is not in the order that libraries convolve in: NHWC, HWIO to NHWC.

    A kernel larger than what it slides over changes places with it, and is turned around. Of batch
    groups, every pair is computed and masked: the pairs, and the masked ones.
    """
    numbers, groups = op.params["dimension_numbers"], op.params["batch_group_count"]
    (batch, feature, *places), (out, into, *kernel) = numbers.lhs_spec, numbers.rhs_spec
    (rows, channels, *positions) = numbers.out_spec
    orders = {0: (batch, *places, feature), 1: (*kernel, into, out)}
    orders[-1] = (rows, *positions, channels)
    shapes = {0: op.operands[0].shape, 1: op.operands[1].shape, -1: op.results[0].shape}
    copied = {}
    for slot, order in orders.items():
        real = [d for d in order if shapes[slot][d] > 1]
        if real != sorted(real):
            copied[slot] = 1.0
    slid = math.prod(shapes[0][d] for d in places)
    if math.prod(shapes[1][d] for d in kernel) > slid:
        copied[1] = 1.0
    if groups > 1:
        copied[-1] = copied.get(-1, 0.0) + 2.0 * groups
    return Expanded(tuple(copied.items()))
