"""Dots of eight-bit numbers as libraries write them: split like others, at rates of eight bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shardwright as sw

ROWS, K, N, MESH = 16384, 4096, 8192, {"data": 4, "model": 2}
X, W = jax.ShapeDtypeStruct((ROWS, K), jnp.bfloat16), jax.ShapeDtypeStruct((K, N), jnp.bfloat16)
PINS = [sw.Pin("x", 0, "data"), sw.Pin("w", 1, "model")]


def plain(x: Any, w: Any) -> Any:
    return x @ w


def preferred(x: Any, w: Any, dtype: Any, out: Any) -> Any:
    return lax.dot_general(
        x.astype(dtype), w.astype(dtype), (((1,), (0,)), ((), ())), preferred_element_type=out
    )


def int8(x: Any, w: Any) -> Any:
    """As AQT has it: a scale for each row and column, the dot in int8, summed in int32."""
    rows = jnp.max(jnp.abs(x), 1, keepdims=True).astype(jnp.float32) / 127
    columns = jnp.max(jnp.abs(w), 0, keepdims=True).astype(jnp.float32) / 127
    dot = preferred(jnp.round(x / rows), jnp.round(w / columns), jnp.int8, jnp.int32)
    return (dot * rows * columns).astype(x.dtype)


def fp8(x: Any, w: Any) -> Any:
    """A scale for each array, kept from steps before."""
    dot = preferred(x / 0.5, w / 0.5, jnp.float8_e4m3fn, jnp.float32)
    return (dot * 0.25).astype(x.dtype)


def straight_through(x: Any, w: Any) -> Any:
    """A train step's gradients of the int8 dot, by a rule of its own."""

    @jax.custom_vjp
    def dot(x: Any, w: Any) -> Any:
        return int8(x, w)

    dot.defvjp(
        lambda x, w: (int8(x, w), (x, w)), lambda kept, g: (int8(g, kept[1].T), int8(kept[0].T, g))
    )
    return jax.grad(lambda x, w: jnp.sum(dot(x, w).astype(jnp.float32) ** 2), (0, 1))(x, w)


@pytest.mark.parametrize("device, rate", [("h100", "s8"), ("tpu-v5e", "s8"), ("h100", "f8")])
def test_the_rate_of_eight_bits(device: str, rate: str) -> None:
    """The dot takes what its FLOPs take at that rate on its shards; bf16 twice that."""
    known = sw.devices()[device]
    flops = 2 * ROWS * K * N / 8
    fn = {"s8": int8, "f8": fp8}[rate]
    plan = sw.partition(fn, X, W, mesh=MESH, device=device, tactics=PINS, seconds=0.1)
    (row,) = [row for row in plan.ir().rows if row.name == "dot_general"]
    assert dict(row.claims) == {"data": "i", "model": "k"}
    other = sw.partition(plain, X, W, mesh=MESH, device=device, tactics=PINS, seconds=0.1)
    (wide,) = other.ir().rows[:1]
    assert row.compute_s >= flops / known.flops_per_s[rate]
    ratio = known.flops_per_s[rate] / known.flops_per_s["bf16"]
    assert wide.compute_s / row.compute_s == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize("fn", [int8, fp8, straight_through])
def test_numbers_are_those_of_one_device(fn: Callable[..., Any]) -> None:
    """Scales are largest numbers of rows and columns that are split: summed by a maximum."""
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in [(32, 16), (16, 24)])
    pins = [sw.Pin("x", 0, "data"), sw.Pin("w", 0, "model")]
    plan = sw.partition(fn, x, w, mesh=MESH, device="h100", tactics=pins, seconds=0.2)
    found = plan.verify(run=True)
    assert found.ok and found.numbers_agree, found


def test_a_scale_for_each_block() -> None:
    """jax.nn.scaled_matmul: rows and columns are split with their scales, and stay in fp8."""
    x, w = (jax.ShapeDtypeStruct((1, n, K), jnp.float8_e4m3fn) for n in (ROWS, N))
    scales = [jax.ShapeDtypeStruct((1, n, K // 32), jnp.float8_e8m0fnu) for n in (ROWS, N)]

    def scaled(x: Any, w: Any, of_x: Any, of_w: Any) -> Any:
        return jax.nn.scaled_matmul(x, w, of_x, of_w, preferred_element_type=jnp.float32)

    pins = [sw.Pin("x", 1, "data"), sw.Pin("w", 1, "model")]
    plan = sw.partition(scaled, x, w, *scales, mesh=MESH, device="h100", tactics=pins, seconds=0.1)
    assert not sw.trace(scaled, x, w, *scales).opaque
    assert plan.specs()["of_x"][1] == "data" and plan.specs()["of_w"][1] == "model"
    assert not plan.collectives
    assert plan.cost.compute_s >= 2 * ROWS * K * N / 8 / sw.devices()["h100"].flops_per_s["f8"]
