"""Which physical dims carry which mesh axes: the ways to lay them, and the devices there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import mesh_utils

import shardwright as sw
from shardwright.cost.devices import device
from shardwright.cost.links import KINDS as KINDS_OF_COLLECTIVES
from shardwright.cost.links import Network
from shardwright.cost.placing import placed
from shardwright.cost.torus import placements, slice_shape
from shardwright.lowering.device_order import device_order
from shardwright.mesh import Mesh

KINDS = {"tpu-v5e": "TPU v5 lite", "tpu-v5p": "TPU v5", "tpu-v4": "TPU v4"}  # as JAX has them


@dataclass(frozen=True, order=True)
class Chip:
    """A TPU device as JAX shows it."""

    id: int
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    slice_index: int = 0
    platform: str = field(default="tpu", compare=False)
    device_kind: str = field(default="TPU v5", compare=False)


def chips(shape: tuple[int, ...], kind: str = "TPU v5", slices: int = 1) -> list[Chip]:
    """The chips of slices of a torus, x fastest."""
    x, y, z = (*shape, 1, 1)[:3]
    coords = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
    return [
        Chip(n, at, slice_index=s, device_kind=kind)
        for n, (s, at) in enumerate((s, at) for s in range(slices) for at in coords)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name, chips, shape",
    [
        ("tpu-v5e", 8, (2, 4)), ("tpu-v5e", 32, (4, 8)), ("tpu-v5e", 256, (16, 16)),
        ("tpu-v5p", 16, (2, 2, 4)), ("tpu-v5p", 128, (4, 4, 8)), ("tpu-v5p", 1, ()),
    ],
)  # fmt: skip
def test_the_most_compact_slice(name: str, chips: int, shape: tuple[int, ...]) -> None:
    assert slice_shape(chips, device(name)) == shape


# The dims as text: "a4 b2" is a dim with 4 of axis a, outside, and 2 of axis b.
@pytest.mark.parametrize(
    "name, axes, ways",
    [
        ("tpu-v5e", {"a": 4, "b": 4}, ["a4 | b4"]),
        ("tpu-v5p", {"a": 4, "b": 4}, ["a4 | b2 | b2", "a2 | a2 | b4"]),
        ("tpu-v5e", {"a": 2, "b": 8}, ["a2 b2 | b4", "b2 a2 | b4"]),
        ("tpu-v5e", {"a": 4, "b": 16, "c": 4}, ["a4 c4 | b16", "c4 a4 | b16"]),
        ("tpu-v5p", {"a": 16, "b": 4}, ["a4 | a4 | b4"]),
        ("tpu-v5e", {"a": 16}, []),  # JAX knows rings through a whole slice
        ("h100", {"a": 2, "b": 8}, []),
    ],
)
def test_ways_to_lay_axes(name: str, axes: dict[str, int], ways: list[str]) -> None:
    found = [
        " | ".join(" ".join(f"{on}{part}" for on, part in dim) for dim in mesh.torus)
        for mesh in placed(Mesh(axes), device(name))
    ]
    assert found == (ways or [""])


@pytest.mark.parametrize("name", ["tpu-v5e", "tpu-v5p"])
@pytest.mark.parametrize("sizes", [(4, 4), (2, 8), (8, 2), (4, 16), (2, 2, 4), (4, 2, 8), (2, 32)])
def test_no_way_is_beaten_and_all_fill_the_slice(name: str, sizes: tuple[int, ...]) -> None:
    mesh, hw = Mesh(dict(zip("abc", sizes, strict=False))), device(name)
    ways = placed(mesh, hw)
    assert {way.torus for way in ways} <= set(placements(mesh.axes, hw))
    for way in ways:
        dims = [math.prod(part for _, part in dim) for dim in way.torus]
        assert sorted(dims) == list(slice_shape(mesh.size, hw))
        for axis, size in mesh.axes:
            assert math.prod(p for dim in way.torus for on, p in dim if on == axis) == size
    rates = [[row.bytes_per_s for row in Network(way, hw).describe()] for way in ways]
    for one in rates:
        assert not any(other != one and all(map(float.__le__, one, other)) for other in rates) or (
            len(sizes) > 2  # better for some two axes at once
        )


@pytest.mark.parametrize(
    "name, slice_, sizes",
    [
        ("tpu-v5p", (2, 2, 4), (4, 4)), ("tpu-v5p", (4, 4, 4), (16, 4)),
        ("tpu-v4", (4, 4, 4), (4, 4, 4)), ("tpu-v5p", (4, 4, 8), (16, 8)),
        ("tpu-v5e", (4, 8), (4, 8)), ("tpu-v5e", (8, 8), (4, 16)), ("tpu-v5e", (4, 4), (2, 8)),
    ],
)  # fmt: skip
def test_the_first_way_is_jax(name: str, slice_: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    """Every axis lies along as many chips of the dims as in `mesh_utils`."""
    mesh = placed(Mesh(dict(zip("abc", sizes, strict=False))), device(name))[0]
    devices = chips(slice_, KINDS[name])
    theirs = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    assert spans(device_order(mesh, devices)) == spans(theirs)


def spans(grid: np.ndarray) -> list[list[int]]:
    """[axes] how many chips of each dim an axis lies along, in ascending order."""
    found = []
    for axis in range(grid.ndim):
        line = np.moveaxis(grid, axis, 0).reshape(grid.shape[axis], -1)[:, 0]
        found.append(sorted(len({chip.coords[d] for chip in line}) for d in range(3)))
    return found


@dataclass
class JaxMesh:
    """What `Mesh.of` reads of a JAX mesh."""

    devices: np.ndarray
    axis_names: tuple[str, ...]

    @property
    def shape(self) -> dict[str, int]:
        return dict(zip(self.axis_names, self.devices.shape, strict=True))


@pytest.mark.parametrize(
    "name, slice_, axes",
    [
        ("tpu-v5p", (2, 2, 4), {"a": 4, "b": 4}), ("tpu-v5p", (4, 2, 2), {"a": 4, "b": 4}),
        ("tpu-v5e", (4, 4), {"a": 2, "b": 8}), ("tpu-v5e", (4, 4), {"a": 2, "b": 2, "c": 4}),
        ("tpu-v5e", (2, 4), {"a": 2, "b": 2, "c": 2}), ("tpu-v5e", (8, 4), {"a": 2, "b": 16}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("slices", [1, 2])
def test_devices_lie_as_the_mesh_says(
    name: str, slice_: tuple[int, ...], axes: dict[str, int], slices: int
) -> None:
    """In the plan's order of devices each axis lies along its parts of the dims, and only there."""
    whole = Mesh({"dcn": 2} | axes, dcn="dcn") if slices > 1 else Mesh(axes)
    for mesh in placed(whole, device(name)):
        grid = device_order(mesh, chips(slice_, KINDS[name], slices))
        assert len(set(grid.ravel())) == mesh.size
        found = Mesh.of(JaxMesh(grid, mesh.names))  # read off the coordinates again
        assert sorted(found.torus) == sorted(mesh.torus)
        assert found.dcn == mesh.dcn
        for kind in KINDS_OF_COLLECTIVES:
            for axis in mesh.names:
                same = Network(mesh, name).curve(kind, (axis,))
                assert Network(found, name).curve(kind, (axis,)) == pytest.approx(same)


def test_another_slice_keeps_the_order_of_jax() -> None:
    mesh = placed(Mesh({"a": 4, "b": 4}), device("tpu-v5p"))[1]  # of a slice of 2 x 2 x 4
    devices = chips((4, 4), KINDS["tpu-v5e"])
    theirs = mesh_utils.create_device_mesh((4, 4), devices)
    assert (device_order(mesh, devices) == theirs).all()


def test_a_ring_through_a_slice_is_no_grid() -> None:
    ring = mesh_utils.create_device_mesh((4,), chips((2, 2), KINDS["tpu-v5e"]))
    assert Mesh.of(JaxMesh(ring, ("a",))).torus == ()
    rings = np.stack([ring, ring])
    assert Mesh.of(JaxMesh(rings, ("a", "b"))).torus == ()


# Megatron sends more than data parallelism, FSDP more than Megatron where weights are large.
@pytest.mark.parametrize(
    "tactics, batch, on_the_plane",
    [
        ([sw.DataParallel("data"), sw.Megatron("model")], 64, "model"),
        ([sw.FSDP("data"), sw.Megatron("model")], 4, "data"),
    ],
)
def test_the_plan_lays_the_busier_axis_on_more_links(
    tactics: list[sw.Tactic], batch: int, on_the_plane: str
) -> None:
    step, args = mlp(batch)
    plan = sw.partition(
        step, *args, mesh={"data": 4, "model": 4}, device="tpu-v5p", tactics=tactics
    )
    square = {name for dim in plan.mesh.torus for name, part in dim if part == 2}
    assert square == {on_the_plane}
    costs = {
        way.torus: sw.partition(
            step, *args, mesh=way, device="tpu-v5p", tactics=tactics
        ).cost.step_s
        for way in placed(Mesh({"data": 4, "model": 4}), device("tpu-v5p"))
    }
    assert plan.cost.step_s == min(costs.values()) < max(costs.values())
    assert any("lies along 2 and 2" in note for note in plan.record.notes)


def mlp(batch: int) -> tuple[Any, tuple[Any, ...]]:
    """A train step of two layers of 4096 x 16384 on so many rows of 512 tokens."""

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for up, down in weights:
            x = x + jnp.tanh(x @ up) @ down
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(weights: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights, x))

    def bf16(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    weights = [(bf16(4096, 16384), bf16(16384, 4096)) for _ in range(2)]
    return step, (weights, bf16(batch, 512, 4096))


@pytest.mark.parametrize(
    "torus, text",
    [
        ([[("a", 3)]], "torus has 3 of 'a'\n  mesh    a=4 x b=4\n  try     parts of 'a' or 'b'"),
        ([[("c", 4)]], "torus has 4 of 'c'\n"),
        ([4], "torus=[4] is no list of dims\n"),
    ],
)
def test_a_torus_that_does_not_carry_the_axes(torus: Any, text: str) -> None:
    with pytest.raises(sw.ShardwrightError) as error:
        Mesh({"a": 4, "b": 4}, torus=torus)
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    "inside, across, dcn, slices",
    [
        ((1, 4, 4), (2, 1, 1), ("a",), {}),  # {"dcn_data": 2, "data": 4, "model": 4}
        ((1, 4, 4), (1, 2, 1), (), {"b": 2}),  # data: 2 slices x 4 devices in each
    ],
)
def test_a_hybrid_mesh_of_jax_is_read_off_its_devices(
    inside: tuple[int, ...], across: tuple[int, ...], dcn: tuple[str, ...], slices: dict[str, int]
) -> None:
    """Its slices, its dims, and a plan's own mesh of that shape has the same devices in place."""
    devices = chips((4, 4), KINDS["tpu-v5e"], slices=2)
    grid = mesh_utils.create_hybrid_device_mesh(
        inside, across, devices, allow_split_physical_axes=True
    )
    found = Mesh.of(JaxMesh(grid, ("a", "b", "c")))
    assert found.dcn == dcn and found.slices == slices
    assert found.torus == ((("c", 4),), (("b", 4),)) or found.torus == ((("b", 4),), (("c", 4),))
    again = device_order(found, sorted(devices))
    assert Mesh.of(JaxMesh(again, ("a", "b", "c"))) == found
    links = [row.link for row in Network(found, "tpu-v5e").describe()]
    assert links[2] == "line of 4" and "2 DCN" in links[0] + links[1]
