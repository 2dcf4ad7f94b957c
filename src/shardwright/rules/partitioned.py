"""custom_partitioning: the user has told Shardy a rule already, and we read it."""

from __future__ import annotations

from typing import Any

from shardwright.rules.registry import register
from shardwright.rules.rule import OpShape, Rule, einsum


@register("custom_partitioning")
def _custom_partitioning(op: OpShape) -> Rule:
    """The rule given to `def_partition(sharding_rule=...)`; without one the op is opaque."""
    told = op.params["sharding_rule"]  # no rule, or a function of the mesh: AttributeError below
    sizes: dict[Any, int] = dict(told.factor_sizes)
    slots: list[list[Any]] = []
    tensors = (*op.operands, *op.results)
    for dims, tensor in zip((*told.operand_mappings, *told.result_mappings), tensors, strict=True):
        slots.append([dim if isinstance(dim, str) else list(dim) for dim in dims])
        for dim, size in zip(dims, tensor.shape, strict=True):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    return einsum(
        op, slots[: len(op.operands)], slots[len(op.operands) :],
        reduce=told.reduction_factors, replicate=told.need_replication_factors,
        permute=told.permutation_factors,
        sizes={name: size for name, size in sizes.items() if name not in told.permutation_factors},
    )  # fmt: skip
