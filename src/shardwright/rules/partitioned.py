"""custom_partitioning: the user has told Shardy a rule already, and we read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwright import _jax
from shardwright.rules.registry import register
from shardwright.rules.rule import OpShape, Rule, einsum


@register("custom_partitioning")
def _custom_partitioning(op: OpShape) -> Rule:
    """The rule given to `def_partition(sharding_rule=...)`; without one the op is opaque.

    Some give a function of the call, as Shardy has it called.
    """
    told = op.params["sharding_rule"]
    if callable(told):
        try:
            told = _jax.asked_partitioning_rule(told, op.params, op.operands, op.results)
        except Exception as error:  # somebody else's function, written for types of MLIR
            raise ValueError(
                f"its sharding_rule, a function, failed: {type(error).__name__}: {error}"
            ) from error
    if told is None:
        raise ValueError("its def_partition was given no sharding_rule")
    sizes: dict[Any, int] = dict(told.factor_sizes)
    slots: list[list[Any]] = []
    tensors = (*op.operands, *op.results)
    for dims, tensor in zip((*told.operand_mappings, *told.result_mappings), tensors, strict=True):
        labels = _every_dim(dims, len(tensor.shape))
        slots.append(labels)
        for dim, size in zip(labels, tensor.shape, strict=True):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    return einsum(
        op, slots[: len(op.operands)], slots[len(op.operands) :],
        reduce=told.reduction_factors, replicate=told.need_replication_factors,
        permute=told.permutation_factors,
        sizes={name: size for name, size in sizes.items() if name not in told.permutation_factors},
    )  # fmt: skip


def _every_dim(dims: Sequence[Any], rank: int) -> list[Any]:
    """The labels of all dims: one that stands for any number of leading dims is written out."""
    labels = [dim if isinstance(dim, str) else list(dim) for dim in dims]
    if not labels or not isinstance(labels[0], str) or not labels[0].startswith(_jax.ANY_DIMS):
        return labels
    return [f"{labels[0]}.{d}" for d in range(rank - len(labels) + 1)] + labels[1:]
