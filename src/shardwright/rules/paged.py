"""Paged attention: queries of one step over keys and values in pages."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from shardwright import _jax
from shardwright.rules import notation
from shardwright.rules.registry import LIBRARY_RULES, register
from shardwright.rules.rule import MATRIX, Dot, OpShape, Rule, TensorShape, Work, with_work

# Pages are read by whichever sequence has them, so all of a head's are on each of its devices.
_RULES = {
    "paged_attention": (
        "b (kv g) d, kv p s d, kv p s d, b, b i -> b (kv g) d", "g d p s i",
    ),
    "ragged_paged_attention": (
        "t (kv g) d, p s (kv two) d, n, n i, m, one -> t (kv g) d", "t g d p s two n i m one",
    ),
}  # fmt: skip


@register("paged_attention", "ragged_paged_attention", table=LIBRARY_RULES)
def _paged(op: OpShape) -> Rule:
    """Key/value heads with all their query heads split; whole sequences where each has a row."""
    _jax.paged_options(op.params)  # ValueError: it could not be called again on shards
    text, whole = _RULES[op.name]
    sizes = _sizes(op)
    rule = notation.apply(
        notation.parse(text), op, reduce={}, replicate=whole, unit=MATRIX, sizes=sizes
    )
    work = _work(op, sizes)
    return replace(with_work(rule, work.flops), kernel=work)


def _sizes(op: OpShape) -> dict[str, int]:
    """The sizes of factors that stand in compound dims only."""
    heads = op.operands[0].shape[1]
    if op.name == "paged_attention":
        kv = op.operands[1].shape[0]
        return {"kv": kv, "g": heads // kv}
    kv = op.operands[1].shape[2] // 2
    return {"kv": kv, "g": heads // kv, "two": 2}


def _work(op: OpShape, sizes: dict[str, int]) -> Work:
    """Two dots per page, as if every sequence had all the pages that its row has room for."""
    ragged = op.name == "ragged_paged_attention"
    queries, tables = op.operands[0], op.operands[3 if ragged else 4]
    page = op.operands[1].shape[1 if ragged else 2]
    sequences, length = tables.shape[0], tables.shape[1] * page
    rows = max(1, queries.shape[0] // sequences) * sizes["g"]
    width = queries.shape[2]
    times = 2.0 * sequences * sizes["kv"]
    pages = 2.0 * sequences * length * sizes["kv"] * width * _itemsize(op.operands[1])
    own = 2.0 * prod(queries.shape) * _itemsize(queries)
    scores = times / 2 * rows * length
    return Work((Dot(times, rows, length, width, str(queries.dtype)),), 5.0 * scores, pages + own)


def _itemsize(tensor: TensorShape) -> Any:
    return np.dtype(tensor.dtype).itemsize
