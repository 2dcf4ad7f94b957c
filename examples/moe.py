"""A mixture of experts: where the experts live is found, and a token goes to its expert.

    python examples/moe.py

Plans a layer of Mixtral's size for 32 H100 from shapes alone, and trains a tiny one on host
devices with the experts split, next to the same steps on one device.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import shardwright as sw
from shardwright import zoo
from shardwright.zoo import moe


def plan_large() -> sw.Plan:
    """Prints where the search puts the experts of a large model, and what that moves."""
    large = zoo.programs("full")["moe_train"]
    plan = sw.partition(
        large.fn, *large.args, mesh={"data": 4, "model": 8}, device="h100", donate_argnums=0
    )
    print(plan)
    return plan


def train_small(steps: int = 3) -> float:
    """Trains under expert parallelism; the largest difference to the unsplit losses."""
    example = moe.train(moe.PRESETS["tiny"])
    plan = sw.partition(
        example.fn, *example.args, mesh={"data": 2, "model": 4}, device="cpu", donate_argnums=0,
        tactics=[sw.DataParallel("data"), sw.ExpertParallel("model")],
    )  # fmt: skip
    kinds = sorted({f"{row.kind} over {'+'.join(row.axes)}" for row in plan.collectives})
    print("\nexpert parallel, small:", ", ".join(kinds))
    ours, batch = plan.place(*zoo.materialize(example))
    theirs, plain = zoo.materialize(example)
    planned, unsplit = plan.jit(example.fn), jax.jit(example.fn)
    apart = 0.0
    for _ in range(steps):
        ours, loss = planned(ours, batch)
        theirs, expected = unsplit(theirs, plain)
        apart = max(apart, abs(float(loss) - float(expected)))
        print(f"loss {float(loss):.5f}, on one device {float(expected):.5f}")
    assert np.isfinite(apart)
    return apart


if __name__ == "__main__":
    plan_large()
    train_small()
