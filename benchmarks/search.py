"""Seconds that planning takes: every stage after tracing, unrolled and scanned, by depth.

    python benchmarks/search.py

Limits on two cores: 32 layers unrolled 8 s, scanned 2 s; search at 64 layers at most 1.5 times
that at 8.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import jax

from shardwright.analysis import analyze_program
from shardwright.cost.devices import device
from shardwright.cost.model import CostModel
from shardwright.mesh import Mesh
from shardwright.program import trace
from shardwright.search import Found, search
from shardwright.zoo import transformer

CONFIG = replace(transformer.PRESETS["gpt_2l"], batch=32)
MESH = Mesh({"data": 8, "model": 4})
DEVICE = "tpu-v5e"
CASES = [  # (name, layers, scanned)
    ("unrolled", 8, False),
    ("unrolled", 32, False),
    ("unrolled", 64, False),
    ("scanned", 32, True),
]
LIMITS_S = {("unrolled", 32): 8.0, ("scanned", 32): 2.0}
GROWTH = 1.5  # search at 64 layers over search at 8


def measure(layers: int, scan: bool) -> tuple[dict[str, float], Found]:
    """Seconds of each stage, and what was found."""
    example = transformer.train(replace(CONFIG, layers=layers, scan=scan, remat=True), "bench")
    times: dict[str, float] = {}

    def lap(name: str, start: float) -> float:
        now = time.perf_counter()
        times[name] = now - start
        return now

    at = time.perf_counter()
    jax.make_jaxpr(example.fn)(*example.args)
    at = lap("make_jaxpr", at)
    program = trace(example.fn, *example.args, donate_argnums=example.donate_argnums)
    at = lap("trace", at)  # runs make_jaxpr again, which JAX remembers in part
    analysis = analyze_program(program)
    at = lap("analyze", at)
    model = CostModel(analysis, MESH, device(DEVICE))
    at = lap("model", at)
    found = search(model, memory=10**12)
    lap("search", at)
    times["after make_jaxpr"] = sum(times.values()) - times["make_jaxpr"]
    return times, found


def main(_: Sequence[str] = ()) -> int:
    """Prints the table; returns 1 when a limit is exceeded."""
    rows, search_s = [], {}
    for name, layers, scan in CASES:
        times, found = measure(layers, scan)
        rows.append((name, layers, times))
        search_s[name, layers] = times["search"]
        stages = "  ".join(f"{stage} {seconds:6.2f}" for stage, seconds in times.items())
        print(f"{name:<9}{layers:>3} layers  {stages}  [{found.certificate}]", flush=True)
    growth = search_s["unrolled", 64] / search_s["unrolled", 8]
    print(f"search at 64 layers / at 8: {growth:.2f}")
    late = [
        f"{name} {layers}: {times['after make_jaxpr']:.1f} s, limit {LIMITS_S[name, layers]} s"
        for name, layers, times in rows
        if times["after make_jaxpr"] > LIMITS_S.get((name, layers), float("inf"))
    ]
    late += [f"growth {growth:.2f}, limit {GROWTH}"] if growth > GROWTH else []
    for line in late:
        print("over:", line)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
