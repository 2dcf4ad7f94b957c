"""The TPU compiler, without a TPU, does what plans predict: bytes on links, peak memory.

The program is large enough that its buffers are in HBM: the compiler keeps small temporaries in
the 128 MB of on-chip memory, which no figure of ours counts.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright.lowering import shards
from shardwright.lowering.workarounds import WORKAROUNDS
from tests.compilers.plans import plan_for

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")


LARGE = {
    "d_model": 2048, "d_ff": 8192, "heads": 16, "kv_heads": 16, "vocab": 32768, "seq": 2048,
    "batch": 32,
}  # fmt: skip


@pytest.mark.parametrize("strategy", ["FSDP + TP", "found by the search"])
def test_predicted_equals_compiled(strategy: str) -> None:
    verification = plan_for(strategy, "tpu-v5e", **LARGE).verify("tpu:v5e:4x4")
    print(verification)
    assert verification.link_error <= 0.10
    assert verification.memory_error <= 0.15
    assert verification.rematerialisations == 0


ROWS, COLUMNS = 4096, 14336  # 14336 / 16 is no multiple of 256


def gradient_plan(dims: tuple[int, int]) -> sw.Plan:
    """A weight's gradient over both axes, the weight split by them along these dims."""

    def weight_gradient(x: Any, g: Any, w: Any) -> Any:
        return w - x.T @ g

    mesh = {"data": 4, "model": 4}
    pins = [
        pin for dim, axis in zip(dims, mesh, strict=True)
        for pin in (sw.Pin("x", 0, axis), sw.Pin("g", 0, axis), sw.Pin("w", dim, axis))
    ]  # fmt: skip
    shapes = [(131072, ROWS), (131072, COLUMNS), (ROWS, COLUMNS)]
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    return sw.partition(weight_gradient, *args, mesh=mesh, device="tpu-v5e", tactics=pins)


@pytest.mark.parametrize("dims", [(0, 0), (1, 1), (0, 1)])
def test_fsdp_over_two_axes_scatters_gradients(dims: tuple[int, int]) -> None:
    """Over both axes at once the compiler would all-reduce the whole gradient."""
    found = gradient_plan(dims).verify("tpu:v5e:4x4").traffic.rows
    assert {(row.kind, row.axes): row.compiled[1] for row in found} == {
        ("reduce-scatter", ("data",)): 2 * ROWS * COLUMNS,
        ("reduce-scatter", ("model",)): 2 * ROWS * COLUMNS // 4,
    }


def test_a_dim_that_is_scattered_must_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler still needs `scattered` of lowering/workarounds.py."""

    def in_place(part: Any, axes: tuple[str, ...], dim: int) -> Any:
        return jax.lax.psum_scatter(part, axes, scatter_dimension=dim, tiled=True)

    monkeypatch.setattr(shards, "scattered", in_place)
    found = gradient_plan((1, 1)).verify("tpu:v5e:4x4").traffic.rows
    name = "scattered dim must lead"
    assert any(row.kind == "all-reduce" for row in found), f"no longer: {WORKAROUNDS[name]}"
