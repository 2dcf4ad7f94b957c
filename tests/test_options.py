"""Options that are read off what is given: the device of a JAX mesh."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwright as sw
from shardwright.options import read_options


def mesh_of(kind: str, platform: str) -> Any:
    """What partition() reads of a JAX mesh of devices that this machine has not."""
    devices = np.array([SimpleNamespace(device_kind=kind, platform=platform)] * 4)
    return SimpleNamespace(devices=devices, axis_names=("x",), shape={"x": 4})


@pytest.mark.parametrize(
    "kind, platform, device",
    [
        ("TPU v4", "tpu", "tpu-v4"),
        ("TPU v5 lite", "tpu", "tpu-v5e"),
        ("TPU v5", "tpu", "tpu-v5p"),
        ("TPU v6 lite", "tpu", "tpu-v6e"),
        ("TPU v3", "tpu", "tpu-v3-core"),  # JAX shows each core as a device
        ("TPU7x", "tpu", "tpu-7x-core"),
        ("NVIDIA H100 80GB HBM3", "gpu", "h100"),
        ("NVIDIA A100-SXM4-40GB", "gpu", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "gpu", "a100-80"),
        ("NVIDIA B200", "gpu", "b200"),
        ("AMD Unheard", "gpu", None),
        ("cpu", "cpu", None),  # a host stands in for something else
    ],
)
def test_the_device_is_read_off_the_mesh(kind: str, platform: str, device: str | None) -> None:
    options = read_options(mesh=mesh_of(kind, platform), device=None)
    assert options.device.name == (device or "tpu-v5e")
    assert options.default_device is (device is None)
    assert read_options(mesh=mesh_of(kind, platform), device="v100").device.name == "v100"


def test_a_default_is_printed_as_one() -> None:
    def double(x: jax.Array) -> jax.Array:
        return x * 2

    told = sw.partition(double, jnp.ones(8), mesh={"x": 8}, device="tpu-v5e")
    silent = sw.partition(double, jnp.ones(8), mesh={"x": 8})
    assert str(told).startswith("double on 8 x tpu-v5e, mesh x=8")
    assert str(silent).startswith("double on 8 x tpu-v5e (the default device), mesh x=8")
