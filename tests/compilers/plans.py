"""Plans for the compilers' judgement: named strategies and what the search finds by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import shardwright as sw
from shardwright.zoo import transformer

# bf16 compute on f32 parameters, realistic widths, few layers: compilers take seconds, not hours.
CONFIG = replace(
    transformer.PRESETS["gpt_2l"],
    d_model=1024,
    d_ff=4096,
    heads=8,
    kv_heads=8,
    vocab=16384,
    seq=1024,
    batch=16,
)
MESH = {"data": 4, "model": 4}

STRATEGIES: dict[str, Sequence[Any] | None] = {
    "data parallel": [sw.DataParallel("data"), sw.DataParallel("model")],
    "Megatron": [sw.DataParallel("data"), sw.Megatron("model")],
    "Megatron + sequence parallel": [
        sw.DataParallel("data"), sw.Megatron("model"), sw.SequenceParallel("model"),
    ],
    "FSDP": [sw.FSDP("data"), sw.FSDP("model")],
    "ZeRO-1": [sw.ZeRO(1, "data"), sw.Megatron("model")],
    "FSDP + TP": [sw.FSDP("data"), sw.Megatron("model")],
    "context parallel by query": [sw.FSDP("data"), sw.ContextParallel("model", "query")],
    "found by the search": None,
}  # fmt: skip


def plan_for(strategy: str, device: str, **changes: Any) -> sw.Plan:
    """The plan of one train step under one strategy."""
    example = transformer.train(replace(CONFIG, **changes), "referee")
    return sw.partition(
        example.fn, *example.args, mesh=MESH, device=device, donate_argnums=0,
        tactics=STRATEGIES[strategy],
    )  # fmt: skip


def build_update(mesh: Any) -> Any:
    """AdamW on one array, split over data and model."""

    def update(w, m, v, g):
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
        return w - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 1e-2 * w), m, v

    split = NamedSharding(mesh, PartitionSpec("data", "model"))
    return jax.jit(update, in_shardings=split, out_shardings=split, donate_argnums=(0, 1, 2))
