"""Memory of one process that makes many plans: python -m benchmarks.many_plans [COUNT]

Every plan is of another function and other shapes, so that nothing is looked up. What JAX keeps of
functions it has traced is dropped by `jax.clear_caches()`, as a long-running service would; what is
left must not grow.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import shardwright as sw

EVERY = 100  # plans between two looks


def plan(number: int) -> sw.Plan:
    """The plan of a small train step that was not planned before."""

    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

    width = 8 * (number + 1)
    shapes = ((64, width), (16, 64))
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    mesh = {"data": 4, "model": 2}
    return sw.partition(step, *args, mesh=mesh, device="h100", seconds=0.05, cache=False)


def resident_mb() -> float:
    """Megabytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seen = []
    for number in range(count):
        plan(number)
        if number % EVERY == EVERY - 1:
            jax.clear_caches()
            gc.collect()
            seen.append(resident_mb())
            print(f"{number + 1:5} plans  {seen[-1]:7.1f} MB", flush=True)
    grown = seen[-1] - seen[len(seen) // 2]
    print(f"second half: {grown:+.1f} MB")
    return 1 if grown > 0.05 * seen[-1] else 0


if __name__ == "__main__":
    sys.exit(main())
