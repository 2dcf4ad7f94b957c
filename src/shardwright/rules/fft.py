"""Fourier transforms: transformed dims need replication, the others pass."""

from __future__ import annotations

import math
from typing import Any

from shardwright.rules.registry import register
from shardwright.rules.rule import OpShape, Rule, einsum, with_work


@register("fft")
def _fft(op: OpShape) -> Rule:
    """Batch dims pass through; transformed dims need replication."""
    shape, out = op.operands[0].shape, op.results[0].shape
    lengths = op.params["fft_lengths"]
    batch = len(shape) - len(lengths)
    operand: list[Any] = list(range(len(shape)))
    # The last dim of a real transform has another length before than after.
    result = [d if n == m else ("out", d) for d, (n, m) in enumerate(zip(shape, out, strict=True))]
    transformed = [*operand[batch:], *result[batch:]]
    operations = 5 * math.log2(max(2, math.prod(lengths))) * math.prod(shape)
    rule = einsum(op, [operand], [result], replicate=transformed, linear=(0,), even=operand)
    return with_work(rule, operations)
