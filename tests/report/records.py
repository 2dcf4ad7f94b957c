"""Plans that the report tests look at, each made once."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import shardwright as sw
from shardwright.record.types import PlanRecord
from shardwright.zoo import programs

MESH = {"data": 4, "model": 2}
TACTICS: dict[str, list[sw.search.Tactic]] = {
    "fsdp+tp": [sw.FSDP("data"), sw.Megatron("model")],
    "dp": [sw.DataParallel("data")],
    "dp+tp+sp": [sw.DataParallel("data"), sw.Megatron("model"), sw.SequenceParallel("model")],
    "zero": [sw.ZeRO(2, "data"), sw.ZeRO(2, "model")],
    "cp": [sw.ContextParallel("model")],
}


@functools.cache
def plan_of(program: str, tactics: str = "", memory: float | None = None) -> sw.Plan:
    """A plan of a tiny program of the zoo, with named tactics or searched."""
    example = programs("tiny")[program]
    return sw.partition(
        example.fn, *example.args, mesh=MESH, device="tpu-v5e", tactics=TACTICS.get(tactics),
        donate_argnums=example.donate_argnums, memory=memory, seconds=0.5,
    )  # fmt: skip


def record_of(*args: Any, **changes: Any) -> PlanRecord:
    """The record of `plan_of` with some fields replaced."""
    return replace(plan_of(*args).record, **changes)
