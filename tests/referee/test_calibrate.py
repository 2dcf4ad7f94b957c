"""Calibration on host devices: the table is read back, and predicts what steps take."""

from __future__ import annotations

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner

import shardwright as sw
from shardwright.calibrate import device_table
from shardwright.cli import main
from shardwright.cost.devices import device, devices
from shardwright.cost.links import KINDS, Network
from shardwright.referee.calibrate import COLLECTIVES, Timing, fit_line, fit_links

MESH = {"data": 4, "model": 2}


@pytest.mark.parametrize("name", devices())
def test_tables_are_read_back(name: str, tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(device_table(device(name)))
    assert device(str(tmp_path / "one.toml")) == device(name)


def test_a_file_of_several_devices_is_not_one(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(device_table(device("h100")) + device_table(device("a100-80")))
    with pytest.raises(sw.ShardwrightError, match=r"two.toml has 2 devices"):
        device(str(path))


@pytest.mark.parametrize("name", ["h100", "tpu-v5e", "cpu"])
def test_links_that_are_measured_come_out(name: str) -> None:
    """Timings of a device twice as fast, made by the model itself, give that device."""
    start = sw.Device.like(name, name="start", half_bandwidth_bytes=0)
    fast = sw.Device.like(start, name="fast", link_bytes_per_s=2 * start.link_bytes_per_s)
    network = Network({"x": 8}, fast)
    timings = [
        Timing(kind, "x", size, network.seconds(kind, ("x",), size))
        for kind in KINDS for size in (1 << 20, 1 << 24, 1 << 28)
    ]  # fmt: skip
    found = fit_links(sw.Mesh({"x": 8}), start, timings)
    assert found["link_bytes_per_s"] == pytest.approx(fast.link_bytes_per_s, rel=0.02)
    assert found["latency_s"] == pytest.approx(fast.latency_s, abs=2e-6)


def test_a_line_has_no_negative_parts() -> None:
    assert fit_line([1.0, 2.0], [3.0, 5.0]) == pytest.approx((1.0, 2.0))
    assert fit_line([1.0, 2.0], [1.0, 4.0]) == (0.0, 2.0)  # noise


def test_every_kind_of_collective_is_measured() -> None:
    assert set(COLLECTIVES) == set(KINDS)


@pytest.mark.slow
def test_a_host_is_calibrated_and_predicts_its_steps(tmp_path: Path) -> None:
    """Within a factor of 4 on a machine that does other things, too: no rate is off by orders."""
    path = tmp_path / "host.toml"
    said = CliRunner().invoke(main, ["calibrate", str(path), "--mesh", "data=4,model=2"])
    assert said.exit_code == 0 and "FLOP/s" in said.output

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) @ w.T) ** 2))(w)

    w, x = jnp.ones((1024, 1024)) / 1024, jnp.ones((2048, 1024))
    plan = sw.partition(step, w, x, mesh=MESH, device=str(path), tactics=[sw.DataParallel("data")])
    run, given = plan.jit(step), plan.place(w, x)
    jax.block_until_ready(run(*given))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(run(*given))
        seconds.append(time.perf_counter() - start)
    assert 1 / 4 < plan.cost.step_s / min(seconds) < 4
    assert plan.device.source.startswith("measured on 8 x cpu")
