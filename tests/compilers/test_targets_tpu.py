"""The TPU compiler without a TPU reads the same collectives as the shardings ask for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.referee.compiled import totals
from shardwright.referee.estimates import cycles
from shardwright.referee.hlo import parse
from shardwright.referee.replay import replay
from shardwright.referee.targets import OutOfMemory, compile_for, devices_of, parse_target
from tests.compilers.plans import build_update

pytest.importorskip("libtpu")

MESH = {"data": 4, "model": 2}
B, D, F, LENGTH, BF16 = 1024, 512, 2048, 3, 2


def build_matmul(mesh: Any) -> Any:
    """Batch on data, contraction on model: one all-reduce over model."""

    def on(*spec: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    return jax.jit(
        lambda x, w: x @ w,
        in_shardings=(on("data", "model"), on("model", None)),
        out_shardings=on("data", None),
    )


def build_fsdp(mesh: Any) -> Any:
    """A scan of layers whose weights are split over data and gathered for use."""

    def on(*spec: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    def fn(ws, x):
        def layer(h, w):
            w = jax.lax.with_sharding_constraint(w, on(None, "model"))
            u = jax.lax.with_sharding_constraint(jnp.tanh(h @ w), on("data", "model"))
            h = jax.lax.with_sharding_constraint(u @ w.T, on("data", None))
            return h, None

        return jax.lax.scan(layer, x, ws)[0]

    return jax.jit(
        fn,
        in_shardings=(on(None, "data", "model"), on("data", None)),
        out_shardings=on("data", None),
    )


def shapes(*dims: tuple[int, ...]) -> tuple:
    return tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in dims)


TOPOLOGIES = ["v5e:2x4", "v6e:2x4", "v5p:2x2x2", "v4:2x2x2", "v3:2x2"]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_split_contraction_is_one_all_reduce(name: str) -> None:
    target = parse_target(f"tpu:{name}")
    compiled = compile_for(target, build_matmul, shapes((B, D), (D, F)), mesh=MESH)
    local = B // 4 * F * BF16
    assert totals(compiled.collectives) == {("all-reduce", ("model",)): (1, local)}
    assert compiled.memory.argument_bytes == (B * D // 8 + D * F // 2) * BF16
    assert replay(compiled.hlo, MESH, lambda row: 0.0, cycles(1.0)).compute_s > 0


def test_gathers_in_a_scan_are_counted_per_layer() -> None:
    args = shapes((LENGTH, D, F), (B, D))
    compiled = compile_for(parse_target("tpu:v5e:2x4"), build_fsdp, args, mesh=MESH)
    found = totals(compiled.collectives)
    assert found["all-gather", ("data",)] == (LENGTH, LENGTH * D * F // 2 * BF16)
    assert found["all-reduce", ("model",)] == (LENGTH, LENGTH * B // 4 * D * BF16)


def test_an_update_is_one_loop() -> None:
    """As it is priced (tests/cost/test_fusion.py): every array is read or written once."""
    compiled = compile_for(
        parse_target("tpu:v6e:2x4"), build_update, shapes(*[(D, F)] * 4), mesh=MESH
    )
    main = parse(compiled.hlo)
    (loop,) = [
        row for row in main.computations[main.entry].instructions.values()
        if row.opcode == "fusion"
    ]  # fmt: skip
    assert len(loop.operands) == 4 and loop.type.count("bf16[") == 3


def test_a_program_that_does_not_fit_is_an_error() -> None:
    huge = shapes((1 << 18, 1 << 15), (1 << 15, 1 << 17))
    with pytest.raises(OutOfMemory, match="does not fit on tpu:v5e:2x4"):
        compile_for(parse_target("tpu:v5e:2x4"), build_matmul, huge, mesh=MESH)


def test_a_topology_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ShardwrightError, match="no topology tpu:v5e:3x5"):
        devices_of(parse_target("tpu:v5e:3x5"), Mesh({"x": 15}))


@pytest.mark.parametrize("name, count", [("v5e:4x4", 16), ("v4:2x2x4", 16), ("v3:2x2", 8)])
def test_devices_have_the_shape_of_the_mesh(name: str, count: int) -> None:
    devices = devices_of(parse_target(f"tpu:{name}"), Mesh({"x": count // 2, "y": 2}))
    assert devices.shape == (count // 2, 2) and len(set(devices.flat)) == count
