"""Sorting and cumulative ops: the dim they run along needs replication, the others pass."""

from __future__ import annotations

import math

from shardwright.rules.registry import register
from shardwright.rules.rule import AS_IT_IS, Expanded, OpShape, Rule, einsum, with_work


@register("sort")
def _sort(op: OpShape) -> Rule:
    dims = list(range(len(op.operands[0].shape)))
    along = op.params["dimension"]
    steps = max(1.0, math.log2(max(2, op.operands[0].shape[along])))
    return einsum(
        op, [dims] * len(op.operands), [dims] * len(op.results), replicate=[along], work=2 * steps
    )


@register("top_k", "approx_top_k")
def _top_k(op: OpShape) -> Rule:
    rank = len(op.operands[0].shape)
    along = op.params["axis"] if op.name == "top_k" else op.params["reduction_dimension"]
    along %= rank
    dims = list(range(rank))
    best = [d if d != along else "best" for d in dims]
    rule = einsum(op, [dims], [best] * len(op.results), replicate=[along, "best"], even=dims)
    # The k best are found in one pass over the dim: the work does not grow with k x n.
    comparisons = math.log2(max(2, op.params["k"])) * math.prod(op.operands[0].shape)
    return with_work(rule, comparisons)


_BLOCK = 16  # XLA: what it accumulates along at once
_CUMULATIVE = {"cumsum": 1.0, "cumprod": 1.0, "cummax": 1.0, "cummin": 1.0, "cumlogsumexp": 20.0}


@register(*_CUMULATIVE)
def _cumulative(op: OpShape) -> Rule:
    dims = list(range(len(op.operands[0].shape)))
    along = op.params["axis"]
    steps = math.log2(max(2, op.operands[0].shape[along]))  # a scan in log2(n) sweeps
    return einsum(
        op, [dims], [dims],
        replicate=[along], work=_CUMULATIVE[op.name] * steps,
        linear=(0,) if op.name == "cumsum" else (),
        expanded=_in_blocks(op.operands[0].shape[along]),
    )  # fmt: skip


def _in_blocks(length: int) -> Expanded:
    """A long dim is padded to whole blocks and accumulated in each: two arrays, then the result."""
    blocks = -(-length // _BLOCK)
    return Expanded(((0, 2.0 * blocks * _BLOCK / length - 1),)) if blocks > 1 else AS_IT_IS
