"""What passes between memory and fused work."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright.cost.devices import device
from shardwright.cost.fusion import find_fusions

SHAPE = (512, 1024)
ONE = 4 * 512 * 1024  # bytes of one array


def adamw(w: jax.Array, m: jax.Array, v: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
    return w - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 1e-2 * w), m, v


def momentum(w: jax.Array, m: jax.Array, v: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
    m = 0.9 * m + g
    return w - 1e-3 * m, m


def summed(w: jax.Array, m: jax.Array, v: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
    m = 0.9 * m + 0.1 * g * v
    return w - jnp.sum(m * m), m


def traffic(fn: Any, name: str) -> float:
    """Bytes that pass, in arrays of SHAPE."""
    arrays = [jax.ShapeDtypeStruct(SHAPE, jnp.float32)] * 4
    program = sw.trace(fn, *arrays)
    passes = find_fusions(program, device(name)).traffic
    sizes = [v.bytes if v.type.shape == SHAPE else 0 for v in program.values]
    return float(passes @ sizes) / ONE


# One loop with several results reads each operand once; what needs a sum of one is another loop.
@pytest.mark.parametrize("name", ["tpu-v6e", "h100"])
@pytest.mark.parametrize(
    "fn, arrays", [(adamw, 4 + 3), (momentum, 3 + 2), (summed, (3 + 1) + (1 + 1))]
)
def test_an_update_is_one_loop(fn: Any, arrays: int, name: str) -> None:
    assert traffic(fn, name) == arrays
