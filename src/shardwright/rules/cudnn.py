"""cuDNN's fused attention, and its dots of blocks that share a scale."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from shardwright.rules.registry import register
from shardwright.rules.rule import (
    MATRIX,
    AllIfSplit,
    Dot,
    OpShape,
    Rule,
    Work,
    einsum,
    with_work,
)

# Per score: scaled, maximum, subtracted, exponential, summed; backward much the same again.
_OPERATIONS_PER_SCORE = 5.0
_QUERIES = (
    "cuDNN counts lengths, packed sequences and dropout from its first row, so that queries stay"
    " whole; batch and key/value heads are split"
)
_CAUSAL = ("CAUSAL", "PADDING_CAUSAL")
# Dots per block of scores: scores and values; backward the scores again, dv, dp, dq, dk.
_DOTS = {"fwd": 2, "bwd": 5}


def _attention_dims(op: OpShape) -> list[list[Any]]:
    """The labels of q, k, v, bias, lengths, offsets and page tables; absent ones have size 0."""
    (_, *q), (_, *k) = (t.shape for t in op.operands[:2])
    heads_first = op.params["layout"] == 1  # AttentionLayout.BNTH
    heads, kv_heads = (shape[0 if heads_first else 1] for shape in (q, k))
    grouped: Any = ["kv", "group"] if heads != kv_heads else "kv"

    def labels(heads: Any, length: str, width: str) -> list[Any]:
        return ["b", heads, length, width] if heads_first else ["b", length, heads, width]

    shape = op.operands[3].shape  # of the bias: dims of size 1 are shared
    bias = [
        label if size > 1 else None
        for label, size in zip(["b", grouped, "t", "s"][-len(shape) :], shape, strict=True)
    ]
    lengths = [["b"] if t.shape != (0,) else ["none"] for t in op.operands[4:6]]
    offsets = [["b", ("offsets", n)][: len(t.shape)] for n, t in enumerate(op.operands[6:8])]
    pages = [[("page", n, d) for d in range(len(t.shape))] for n, t in enumerate(op.operands[8:10])]
    return [
        labels(grouped, "t", "h"), labels("kv", "s", "h"), labels("kv", "s", "v"),
        bias, *lengths, *offsets, *pages,
    ]  # fmt: skip


@register("dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper")
def _attention(op: OpShape) -> Rule:
    """Batch and heads split, as cuDNN's own partitioner has it; keys and width stay whole.

    Queries split, too, with what a causal mask or a window leaves of them as a bias
    (lowering/cudnn.py); the gradients of keys and values are then sums. So is that of a bias which
    batch or heads share.
    """
    dims = _attention_dims(op)
    q, k, v, bias = dims[:4]
    if op.operands[8].shape != (0,):  # keys in pages, which every sequence may read
        raise ValueError("attention over pages")
    out = [*q[:-1], "v"]
    heads, rows = (q[1], q[2]) if op.params["layout"] == 1 else (q[2], q[1])
    statistics = ["b", heads, rows]
    whole: set[Any] = {"s", "h", "v", "group"} | {d for dim in dims[6:] for d in dim} - {"b"}
    forward = op.name == "dot_product_attention_fwd_wrapper"
    summed: set[Any] = set()
    if not _counts_from_a_mask(op):
        whole.add("t")
    if forward:
        operands, results = dims, [out, statistics][: len(op.results)]
    else:
        operands, results = [*dims, statistics, out, out], [q, k, v, bias][: len(op.results)]
        summed = {"t"}
        if len(op.results) == 4:
            shared = [n == 1 for n in op.operands[3].shape[:2]]
            summed |= {label for label, one in zip(("b", "kv"), shared, strict=True) if one}
    if any(t.shape[0] != op.operands[0].shape[0] for t in op.results[1:2] if forward):
        whole.add("b")  # several sequences in one row: the statistics have one row for each
        results = [out, ["segments", heads, rows]]
        whole.add("segments")
    sizes = _head_sizes(op, q)
    rule = einsum(
        op, operands, results, reduce=summed - whole, replicate=whole, sizes=sizes, unit=MATRIX
    )
    work = _attention_work(op, forward)
    share = _share(op, *_lengths(op))
    queries = rule.operands[0][2 if op.params["layout"] == 1 else 1]
    if share < 1.0 and queries:
        work = work._replace(uneven=AllIfSplit(queries[0], 1.0 / share))
    why = _QUERIES if "t" in whole else ""
    return replace(with_work(rule, work.flops), kernel=work, why=why)


def _counts_from_a_mask(op: OpShape) -> bool:
    """Whether nothing but a mask says which keys a query sees, by where they are."""
    lengths = any(t.shape != (0,) for t in op.operands[4:8])
    return not lengths and not op.params["dropout_rate"] and getattr(
        op.params["mask_type"], "name", ""
    ) in ("NO_MASK", "CAUSAL")  # fmt: skip


def _lengths(op: OpShape) -> tuple[int, int]:
    """How many queries and keys a sequence has."""
    at = 2 if op.params["layout"] == 1 else 1
    return op.operands[0].shape[at], op.operands[1].shape[at]


def _head_sizes(op: OpShape, q: list[Any]) -> dict[Any, int]:
    """The sizes of key/value heads and of the queries that share one."""
    at = 1 if op.params["layout"] == 1 else 2
    heads, kv_heads = (t.shape[at] for t in op.operands[:2])
    return {"kv": kv_heads, "group": heads // kv_heads} if isinstance(q[at], list) else {}


def _attention_work(op: OpShape, forward: bool) -> Work:
    """Dots of a head at a time; every array passes through memory once, scores never do."""
    q, at = op.operands[0], 1 if op.params["layout"] == 1 else 2
    batch, heads, width = q.shape[0], q.shape[at], q.shape[3]
    rows, columns = _lengths(op)
    share = _share(op, rows, columns)
    dots = Dot(
        _DOTS["fwd" if forward else "bwd"] * batch * heads * share, rows, columns, width,
        str(q.dtype),
    )  # fmt: skip
    scores = batch * heads * rows * columns * share * (1.0 if forward else 2.0)
    tensors = (*op.operands, *op.results)
    moved = sum(prod(t.shape) * np.dtype(t.dtype).itemsize for t in tensors)
    return Work((dots,), _OPERATIONS_PER_SCORE * scores, float(moved))


def _share(op: OpShape, rows: int, columns: int) -> float:
    """The scores that the mask leaves, as if blocks were small."""
    window = op.params["sliding_window_length"]
    if window:
        return min(1.0, window / columns)
    mask = op.params["mask_type"]
    return (rows + 1) / (2.0 * rows) if getattr(mask, "name", "") in _CAUSAL else 1.0


@register("scaled_matmul_wrapper")
def _scaled_matmul(op: OpShape) -> Rule:
    """[b, m, k] x [b, n, k], a block of k with one scale: (block, within)."""
    blocks = op.operands[2].shape[2]
    k: Any = ["block", "within"]
    return einsum(
        op, [["b", "m", k], ["b", "n", k], ["b", "m", "block"], ["b", "n", "block"]],
        [["b", "m", "n"]], reduce=k, unit=MATRIX, work=2.0,
        sizes={"block": blocks, "within": op.operands[0].shape[2] // blocks},
    )  # fmt: skip
