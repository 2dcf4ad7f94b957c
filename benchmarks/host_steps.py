"""Steps of small models on this host's CPU devices, predicted after calibration and measured.

    python -m benchmarks.host_steps            # eight devices, about two minutes
    python -m benchmarks.host_steps --save mine.toml

`sw.calibrate` measures rates and links of the devices, and every model is planned with them, in
the strategies that are named here. What is measured is the fastest of a few steps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

DEVICES = 8
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={DEVICES}")

import jax  # noqa: E402  (the count of devices is read at import)

import shardwright as sw  # noqa: E402
from shardwright.report.words import columns, human_seconds  # noqa: E402
from shardwright.zoo import mlp, moe, transformer  # noqa: E402
from shardwright.zoo.example import Example, materialize  # noqa: E402

MESH = {"data": 4, "model": 2}
REPEATS = 5
GPT = replace(
    transformer.PRESETS["tiny"], layers=2, d_model=512, d_ff=2048, heads=8, vocab=4096, batch=16,
    seq=256,
)  # fmt: skip
MOE = replace(moe.PRESETS["tiny"], d_model=256, d_ff=1024, batch=16, seq=128)
DATA = [sw.DataParallel(("data", "model"))]
BOTH = [sw.DataParallel("data"), sw.Megatron("model")]
SHARDED = [sw.FSDP("data"), sw.FSDP("model")]


def cases() -> list[tuple[str, Example, list[Any] | None]]:
    """(what is run, the program, its strategy or None for a plan that is searched)."""
    gpt = transformer.train(GPT, "GPT train")
    deep = transformer.train(replace(GPT, layers=4, scan=True), "GPT train, scanned")
    wide = mlp.gradient(
        replace(mlp.PRESETS["tiny"], batch=2048, d_in=1024, d_ff=4096, d_out=1024), "MLP gradient"
    )
    experts = moe.train(MOE, "MoE train")
    return [
        *[(f"{one.name}, {name}", one, how) for one in (gpt, wide) for name, how in (
            ("DP", DATA), ("DP + Megatron", BOTH), ("FSDP", SHARDED), ("searched", None),
        )],
        ("GPT train, scanned, FSDP", deep, SHARDED), ("MoE train, searched", experts, None),
    ]  # fmt: skip


def measured_s(plan: sw.Plan, example: Example) -> float:
    """The fastest of a few steps."""
    run, seconds = plan.jit(example.fn), []
    for _ in range(REPEATS + 1):
        args = plan.place(*materialize(example))  # a step may consume what it is given
        jax.block_until_ready(args)
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])  # the first compiles


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 if a step is more than twice off."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--save", default="host.toml", help="where the device table goes")
    given = parser.parse_args(argv)
    sw.calibrate(MESH, path=given.save)
    rows, ratios = [("step", "predicted", "measured", "ratio")], []
    for name, example, how in cases():
        plan = sw.partition(
            example.fn, *example.args, mesh=MESH, device=str(Path(given.save)), tactics=how,
            donate_argnums=example.donate_argnums, cache=False,
        )  # fmt: skip
        took_s = measured_s(plan, example)
        ratios.append(plan.cost.step_s / took_s)
        rows.append((name, human_seconds(plan.cost.step_s), human_seconds(took_s),
                     f"{ratios[-1]:.2f}"))  # fmt: skip
        print("  ".join(rows[-1]), flush=True)
    print(columns(rows, right=(1, 2, 3), indent=0))
    apart = [max(r, 1 / r) for r in ratios]
    print(f"median {statistics.median(apart):.2f} x apart, worst {max(apart):.2f} x")
    return int(max(apart) > 2)


if __name__ == "__main__":
    raise SystemExit(main())
