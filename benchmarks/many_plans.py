"""Memory of one process that makes many plans: python -m benchmarks.many_plans [COUNT] [--jax]

Every plan is of another function and other shapes, so that nothing is looked up. What JAX keeps of
functions it has traced is dropped by `jax.clear_caches()`, as a long-running service would; what is
left must not grow. `--jax` only traces, without Shardwright: what JAX keeps after all (the types
that its own `matmul`, `mean` and others were called with, `_seen_qdds` in jax/_src/pjit.py).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import shardwright as sw

EVERY = 100  # plans between two looks


def function(number: int) -> tuple[Any, list[Any]]:
    """(a small train step, its argument types), like no other number's."""

    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

    shapes = ((64, 8 * (number + 1)), (16, 64))
    return step, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def plan(number: int) -> None:
    """Plans what was not planned before."""
    step, args = function(number)
    mesh = {"data": 4, "model": 2}
    sw.partition(step, *args, mesh=mesh, device="h100", seconds=0.05, cache=False)


def trace(number: int) -> None:
    """What JAX does of it alone."""
    step, args = function(number)
    jax.make_jaxpr(step)(*args)


def blocks_left(work: Callable[[int], None], numbers: range) -> float:
    """Blocks of Python's memory that each call leaves behind."""
    before = _settled()
    for number in numbers:
        work(number)
    return (_settled() - before) / len(numbers)


def _settled() -> int:
    """Blocks that Python has allocated, without JAX's caches and what waits to be collected."""
    jax.clear_caches()
    gc.collect()
    return sys.getallocatedblocks()


def resident_mb() -> float:
    """Megabytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> int:
    work = trace if "--jax" in sys.argv else plan
    count = next((int(word) for word in sys.argv[1:] if word.isdigit()), 1000)
    seen = []
    for first in range(0, count, EVERY):
        blocks = blocks_left(work, range(first, first + EVERY))
        seen.append(resident_mb())
        print(f"{first + EVERY:5} calls  {seen[-1]:7.1f} MB  {blocks:5.0f} blocks each", flush=True)
    grown = seen[-1] - seen[len(seen) // 2]
    print(f"second half: {grown:+.1f} MB")
    return 1 if grown > 0.05 * seen[-1] else 0


if __name__ == "__main__":
    sys.exit(main())
