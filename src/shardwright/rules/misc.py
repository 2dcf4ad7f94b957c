"""Identities: markers, barriers, constraints and moves that leave the array as it is."""

from __future__ import annotations

from shardwright.rules.registry import register
from shardwright.rules.rule import HOST, NOTHING, OpShape, Rule, einsum

_FUSED_AWAY = ("copy", "layout_constraint", "name", "reshard", "sharding_constraint",
               "stage", "stop_gradient", "xla_metadata_value")  # fmt: skip


@register(*_FUSED_AWAY)
def _identity(op: OpShape) -> Rule:
    dims = op.dims(0)
    return einsum(op, [dims], [dims], unit=NOTHING, work=0.0, fusible=True, linear=(0,))


@register("optimization_barrier", "device_put")
def _pairwise(op: OpShape) -> Rule:
    # A barrier keeps the compiler from moving anything past it: no fusion, no deferred sum.
    dims = [op.dims(n) for n in range(len(op.operands))]
    crosses = any(a.host != b.host for a, b in zip(op.operands, op.results, strict=True))
    return einsum(op, dims, dims, unit=HOST if crosses else NOTHING, work=0.0)


@register("tie")
def _tie(op: OpShape) -> Rule:
    """The second operand, once the first is there."""
    first, second = op.dims(0), op.dims(1)
    return einsum(op, [first, second], [second], unit=NOTHING, work=0.0)


@register("platform_index")
def _platform_index(op: OpShape) -> Rule:
    return einsum(op, [[] for _ in op.operands], [[]], unit=NOTHING, work=0.0, fusible=True)
