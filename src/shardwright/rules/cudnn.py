"""cuDNN's fused attention, and its dots of blocks that share a scale."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from shardwright.rules.registry import register
from shardwright.rules.rule import MATRIX, Dot, OpShape, Rule, Work, einsum, with_work

# Per score: scaled, maximum, subtracted, exponential, summed; backward much the same again.
_OPERATIONS_PER_SCORE = 5.0
_QUERIES = (
    "under a mask cuDNN counts queries from its first row, so that they stay whole; batch and"
    " key/value heads are split"
)
_SUMS = (
    "queries stay whole in the backward pass, where some results are sums over them and others are"
    " not; batch and key/value heads are split"
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

    bias = ["b", grouped, "t", "s"][-len(op.operands[3].shape) :]
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

    So do queries, unless no mask asks where in the sequence they are. Backward they stay whole:
    some results are sums over them, others are not.
    """
    dims = _attention_dims(op)
    q, k, v, bias = dims[:4]
    if op.operands[8].shape != (0,):  # keys in pages, which every sequence may read
        raise ValueError("attention over pages")
    out = [*q[:-1], "v"]
    heads, rows = (q[1], q[2]) if op.params["layout"] == 1 else (q[2], q[1])
    statistics = ["b", heads, rows]
    whole: set[Any] = {"t", "s", "h", "v", "group"} | {d for dim in dims[6:] for d in dim} - {"b"}
    forward = op.name == "dot_product_attention_fwd_wrapper"
    if forward:
        if _sees_all_keys(op):
            whole.remove("t")
        operands, results = dims, [out, statistics][: len(op.results)]
    else:
        operands, results = [*dims, statistics, out, out], [q, k, v, bias][: len(op.results)]
        if len(op.results) == 4 and 1 in op.operands[3].shape:
            whole |= {"b", "kv"}  # the gradient of a bias that all share is a sum over them
    if any(t.shape[0] != op.operands[0].shape[0] for t in op.results[1:2] if forward):
        whole.add("b")  # several sequences in one row: the statistics have one row for each
        results = [out, ["segments", heads, rows]]
        whole.add("segments")
    sizes = _head_sizes(op, q)
    rule = einsum(op, operands, results, replicate=whole, sizes=sizes, unit=MATRIX)
    work = _attention_work(op, forward)
    why = "" if "t" not in whole else _QUERIES if not _sees_all_keys(op) else _SUMS
    return replace(with_work(rule, work.flops), kernel=work, why=why)


def _sees_all_keys(op: OpShape) -> bool:
    """Whether every query does, and nothing is drawn at random by position."""
    plain = getattr(op.params["mask_type"], "name", "") == "NO_MASK"
    return plain and not op.params["sliding_window_length"] and not op.params["dropout_rate"]


def _head_sizes(op: OpShape, q: list[Any]) -> dict[Any, int]:
    """The sizes of key/value heads and of the queries that share one."""
    at = 1 if op.params["layout"] == 1 else 2
    heads, kv_heads = (t.shape[at] for t in op.operands[:2])
    return {"kv": kv_heads, "group": heads // kv_heads} if isinstance(q[at], list) else {}


def _attention_work(op: OpShape, forward: bool) -> Work:
    """Dots of a head at a time; every array passes through memory once, scores never do."""
    q, k = op.operands[:2]
    at = 1 if op.params["layout"] == 1 else 2
    batch, heads, width = q.shape[0], q.shape[at], q.shape[3]
    rows, columns = q.shape[3 - at], k.shape[3 - at]
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
