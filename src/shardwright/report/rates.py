"""How fast a plan is in the field's terms: model FLOPs utilisation, tokens or examples a second."""

from __future__ import annotations

import math
import re

from shardwright.analysis.labels import fits
from shardwright.record.types import GroupRow, PlanRecord
from shardwright.report.claims import Role
from shardwright.report.words import type_shape

_INTEGER = re.compile(r"[iu]\d+\[")
_ARGUMENT = re.compile(r"[.\[]")  # what follows the name of an argument in a path


def mfu(record: PlanRecord) -> float | None:
    """The share of all devices' bf16 FLOP/s that the model's own dots and convolutions use.

    What jax.checkpoint computes again does not count (Chowdhery et al. 2022, appendix B).
    """
    peak = record.device.matrix_flops_per_s("bf16") * record.mesh.size
    if not record.matrix_flops or not record.cost.step_s or not peak:
        return None
    return record.matrix_flops / record.cost.step_s / peak


def throughput(record: PlanRecord) -> tuple[float, str] | None:
    """(per second, "tokens" or "examples"), where the arguments show what one step takes in.

    Tokens are the entries of an argument of integers with a batch and a sequence among its dims.
    """
    dims = {role: _dims(record, role) for role in (Role.BATCH, Role.SEQUENCE)}
    step_s = record.cost.step_s
    if not step_s:
        return None
    for path, type_ in record.arguments.items():
        shape = type_shape(type_)
        named = [f"{path}[{d}]" for d in range(len(shape))]
        if _INTEGER.match(type_) and all(dims[role].intersection(named) for role in dims):
            return math.prod(shape) / step_s, "tokens"
    batch = [
        g for g in record.groups
        if g.role == Role.BATCH and g.colors == 1 and len(g.sizes) == 1 and _is_batch(record, g)
    ]  # fmt: skip
    return (batch[0].sizes[0] / step_s, "examples") if batch else None


def _is_batch(record: PlanRecord, group: GroupRow) -> bool:
    """Whether every array of an argument has the dim: the edges of a graph with nodes are none.

    Arrays of one dim may be without, such as keys and tables.
    """
    having = [dim.rpartition("[")[0] for dim in group.dims]
    arguments = {_ARGUMENT.split(path)[0] for path in having}
    return all(
        any(fits(path, one) for one in having)
        for path, type_ in record.arguments.items()
        if _ARGUMENT.split(path)[0] in arguments and "," in type_
    )


def _dims(record: PlanRecord, role: str) -> set[str]:
    """Dims of arguments that belong to groups of a role."""
    return {dim for group in record.groups if group.role == role for dim in group.dims}
