"""The demo: plan an 8B train step on 64 chips, then train a small model with a plan on 8 devices.

Run by `make demo`. Nothing here needs an accelerator: planning looks at shapes only, and the
small model runs on eight devices that XLA makes out of the host's CPU.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from shardwright import zoo
from shardwright.zoo import transformer

PAGE = Path("build/demo.html")
STEPS = 5


def plan_large() -> None:
    """Plans Llama 3 8B for 64 TPU v5e: plain JAX code, no annotations, shapes only."""
    example = zoo.programs("full")["llama_scan_train"]
    size = sum(leaf.size for leaf in jax.tree.leaves(example.args[0].params))
    print(f"1. Planning: a train step of {size / 1e9:.1f} billion parameters on 64 TPU v5e\n")
    start = time.perf_counter()
    plan = sw.partition(
        example.fn, *example.args, mesh={"data": 16, "model": 4}, device="tpu-v5e",
        donate_argnums=0,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    print(plan)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(plan.to_html(), encoding="utf-8")
    ops = plan.record.ops
    print(f"\ntraced, analysed and searched in {seconds:.1f} s ({ops} ops); as a page: {PAGE}\n")


def train_small() -> bool:
    """Trains a small transformer with and without a plan; whether the losses are equal."""
    config = replace(
        transformer.PRESETS["tiny"], d_model=64, d_ff=256, vocab=512, seq=32, batch=16, scan=True
    )
    example = transformer.train(config)
    mesh = {"data": 4, "model": 2}
    # Little memory, so that splitting only the batch is not enough.
    plan = sw.partition(
        example.fn, *example.args, mesh=mesh, device="h100", memory=3.0e6, donate_argnums=0,
        seconds=1,
    )  # fmt: skip
    print(f"2. Training: a small transformer on {len(jax.devices())} host devices, with a plan\n")
    print(plan.explain().split("\n\n")[0])
    state, batch = zoo.materialize(example)
    split, split_batch = plan.place(*zoo.materialize(example))
    weight = split.params["layers"]["w1"]
    print(
        f"  layers.w1 {weight.shape} is {weight.sharding.spec},"
        f" {weight.addressable_shards[0].data.shape} on each device"
    )
    step, planned = jax.jit(example.fn, donate_argnums=0), plan.jit(example.fn)
    print("\n  step   loss, unsharded   loss, planned   difference")
    equal = True
    for i in range(STEPS):
        state, loss = step(state, batch)
        split, split_loss = planned(split, split_batch)
        difference = abs(float(loss) - float(split_loss))
        equal &= difference <= 1e-5 * abs(float(loss))
        print(f"  {i:4}   {float(loss):15.6f}   {float(split_loss):13.6f}   {difference:10.1e}")
    print("\n  the losses are equal" if equal else "\n  the losses DIFFER")
    return equal


if __name__ == "__main__":
    plan_large()
    raise SystemExit(0 if train_small() else 1)
