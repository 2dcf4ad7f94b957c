"""The algorithms that the TPU compiler names for collectives, beside the links of their prices.

And the order of a plan's devices: on a slice without hardware, by its coordinates.
"""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.cost.devices import device
from shardwright.cost.links import Network
from shardwright.mesh import Mesh
from shardwright.referee.targets import compile_for, devices_of, parse_target
from shardwright.referee.verify import compile_plan
from tests.cost.test_collective_matmul import bf16, forward

pytest.importorskip("libtpu")

# `phases` of a ring strategy of several dims; the others name one ring of all members.
DIMS = {
    r'"emitter":"1DAllGather': 1, r'"emitter":"2DAllGather': 2, r'"strategy":"StrategyRing"': 1,
    r'"strategy":"UniDirection1DRing': 1, r'"strategy":"\w*ND\w*","debug":".*?phases:(\d)': 0,
}  # fmt: skip
KINDS = {
    "all-gather": lambda x: jax.lax.all_gather(x, "x", tiled=True),
    "reduce-scatter": lambda x: jax.lax.psum_scatter(x, "x", tiled=True),
    "all-reduce": lambda x: jax.lax.psum(x, "x"),
}
ROWS, COLUMNS = 16_384, 12_288  # 400 MB, the weights of a large MLP


def named(topology: str, mesh: dict[str, int], kind: str, rows: int = ROWS) -> tuple[str, int]:
    """(the collective that is compiled for `kind` over "x", the dims that it uses at once)."""
    gathers = kind == "all-gather"

    def build(on: Any) -> Any:
        return jax.jit(jax.shard_map(
            KINDS[kind], mesh=on, in_specs=P("x") if gathers else P(),
            out_specs=P("x") if kind == "reduce-scatter" else P(), check_vma=False,
        ))  # fmt: skip

    x = jax.ShapeDtypeStruct((rows, COLUMNS), jnp.bfloat16)
    hlo = compile_for(parse_target(f"tpu:{topology}"), build, (x,), mesh=mesh).hlo
    for line in hlo.splitlines():
        made = re.search(r" (all-gather|reduce-scatter|all-reduce)(?:-start)?\(", line)
        config = re.search(r'"collective_algorithm_config":\{.*', line)
        if made and config:
            for pattern, dims in DIMS.items():
                found = re.search(pattern, config[0])
                if found:
                    return made[1], dims or int(found[1])
    raise AssertionError(f"no algorithm is named for {kind}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology, mesh, kind, compiled, dims",
    [
        ("v5e:16x16", {"x": 256}, "all-gather", "all-gather", 1),
        ("v6e:16x16", {"x": 256}, "all-gather", "all-gather", 1),
        ("v5e:16x16", {"x": 256}, "all-reduce", "all-reduce", 2),
        ("v5p:4x4x4", {"x": 16, "y": 4}, "all-gather", "all-gather", 1),
        ("v5p:4x4x4", {"x": 16, "y": 4}, "all-reduce", "all-reduce", 2),
        ("v5p:4x4x4", {"x": 64}, "all-gather", "all-reduce", 3),
        ("v5p:4x4x4", {"x": 64}, "reduce-scatter", "all-reduce", 3),
        ("v5e:4x4", {"x": 4, "y": 4}, "all-gather", "all-gather", 1),
    ],
)
def test_priced_by_the_links_of_the_named_algorithm(
    topology: str, mesh: dict[str, int], kind: str, compiled: str, dims: int
) -> None:
    assert named(topology, mesh, kind) == (compiled, dims)
    hw, n = device(f"tpu-{topology.split(':')[0]}"), mesh["x"]
    network = Network(Mesh(mesh), hw)
    (level,) = network.levels(("x",))
    links = 2 * dims if any(ring.wrap for ring in level.rings) else len(level.rings)
    passes = 2 if compiled == "all-reduce" else 1  # of the data over the links
    expected = passes * (n - 1) / n / (links * hw.link_bytes_per_s)
    assert network.curve(kind, ("x",)).s_per_byte == pytest.approx(expected, rel=0.07)


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology, chips, compiled",
    [
        ("v6e:2x4", 8, "all-gather"), ("v6e:4x4", 16, "all-gather"), ("v6e:4x8", 32, "all-gather"),
        ("v6e:8x8", 64, "all-reduce"), ("v6e:16x16", 256, "all-reduce"),
        ("v5e:16x16", 256, "all-reduce"),
    ],
)  # fmt: skip
def test_small_arrays_are_gathered_as_priced(topology: str, chips: int, compiled: str) -> None:
    """Along one ring of all members, or as a sum where such a ring takes more steps."""
    assert named(topology, {"x": chips}, "all-gather", rows=chips)[0] == compiled
    network = Network({"x": chips}, f"tpu-{topology.split(':')[0]}")
    ways = network.ways("all-gather", ("x",))
    steps_s = min(way.latency_s for way in ways) - network.device.latency_s
    ring_s = chips // 2 * network.device.hop_latency_s
    assert (steps_s < ring_s * (1 - 1e-9)) == (compiled == "all-reduce")


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1024, 65_536])  # 8 MB and 540 MB to gather, 8 and 540 to sum
@pytest.mark.parametrize(
    "shapes, x, w, y, moved",
    [
        ((4096, 16_384), P("x", None), P(None, "x"), P(None, "x"), "all-gather"),
        ((16_384, 4096), P(None, "x"), P("x", None), P(), "all-reduce"),
        ((16_384, 4096), P(None, "x"), P("x", None), P("x", None), "reduce-scatter"),
    ],
)
def test_no_dot_is_split(rows: int, shapes: tuple[int, int], x: P, w: P, y: P, moved: str) -> None:
    """Nothing hides behind parts of a dot, left to the compiler: `splits_bytes` is 0."""

    def build(mesh: Any) -> Any:
        operands, result = [NamedSharding(mesh, s) for s in (x, w)], NamedSharding(mesh, y)
        return jax.jit(jnp.matmul, in_shardings=operands, out_shardings=result)

    k, n = shapes
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, k), (k, n))]
    compiled = compile_for(parse_target("tpu:v5e:2x4"), build, tuple(args), mesh={"y": 2, "x": 4})
    found = [row for row in compiled.collectives if row.kind != "collective-permute"]
    assert [(row.kind, row.count) for row in found] == [(moved, 1)]
    assert " while(" not in compiled.hlo
    assert device("tpu-v5e").splits_bytes == 0


@pytest.mark.slow
def test_a_plan_has_its_devices_where_its_axes_lie() -> None:
    """Megatron on 2 x 2 of a v5p slice: the compiler sees a plane, and sums over both its dims."""

    args = ([(bf16(4096, 16_384), bf16(16_384, 4096))] * 2, bf16(8192, 4096))
    plan = sw.partition(
        forward, *args, mesh={"model": 4, "data": 4}, device="tpu-v5p",
        tactics=[sw.DataParallel("data"), sw.Megatron("model")],
    )  # fmt: skip
    assert {name for dim in plan.mesh.torus for name, part in dim if part == 2} == {"model"}
    grid = devices_of(parse_target("tpu:v5p:2x2x4"), plan.mesh)
    assert {(d.coords[0], d.coords[1]) for d in grid[:, 0]} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert {d.coords[2] for d in grid[0]} == {0, 1, 2, 3}
    hlo = compile_plan(plan, "tpu:v5p:2x2x4").hlo
    phases = re.findall(r"(?:all-reduce|fusion)\(.*phases:(\d) cores:\{2 2\}", hlo)
    assert phases and set(phases) == {"2"}
    assert math.prod(grid.shape) == len({d.id for d in grid.ravel()}) == 16
