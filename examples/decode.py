"""Serving: one plan for reading a prompt, one for writing tokens, the same weights in both.

    python examples/decode.py

A decode step is bound by memory, not by compute: its best plan keeps weights where they are and
moves the few numbers of one token. The cache is an argument and a result: it keeps its sharding.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import shardwright as sw
from shardwright import zoo

MESH = {"data": 2, "model": 4}


def plan_large() -> sw.Plan:
    """Prints the plan of a decode step of Llama 3 8B on 16 TPU v5e."""
    large = zoo.programs("full")["llama_decode"]
    plan = sw.partition(
        large.fn, *large.args, mesh={"x": 4, "y": 4}, device="tpu-v5e",
        donate_argnums=large.donate_argnums,
    )  # fmt: skip
    print(plan)
    return plan


if __name__ == "__main__":
    plan_large()
