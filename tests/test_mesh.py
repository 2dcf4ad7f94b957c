"""Meshes: what is accepted, what is refused and how, which shapes a device count allows."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from shardwright.errors import ShardwrightError
from shardwright.lowering.device_order import device_order
from shardwright.mesh import Link, Mesh, completions, factorisations

PAIRS = (("data", 4), ("model", 2))


@pytest.mark.parametrize(
    "given",
    [
        {"data": 4, "model": 2},
        [("data", 4), ("model", 2)],
        iter(PAIRS),
        {"data": np.int64(4), "model": 2},
        Mesh({"data": 4, "model": 2}),
        jax.sharding.AbstractMesh((4, 2), ("data", "model")),
        jax.sharding.Mesh(np.array(jax.devices("cpu")).reshape(4, 2), ("data", "model")),
    ],
    ids=["dict", "pairs", "iterator", "numpy", "Mesh", "AbstractMesh", "jax Mesh"],
)
def test_accepted(given: object) -> None:
    mesh = Mesh.of(given)
    assert mesh.axes == PAIRS
    assert mesh.names == ("data", "model") and mesh.sizes == (4, 2)
    assert mesh.shape == {"data": 4, "model": 2} and mesh.size == 8
    assert str(mesh) == "data=4 x model=2"


@pytest.mark.parametrize(
    "given, text",
    [
        ({}, 'a mesh needs at least one axis\n  try     {"data": 1}'),
        (
            [("data", 4), ("data", 2)],
            "mesh axis 'data' appears 2 times\n  mesh    data=4 x data=2\n"
            "  try     a different name for each axis",
        ),
        (
            {"data": 0, "model": 4},
            "mesh axis 'data' has size 0\n  mesh    data=0 x model=4\n  try     a positive integer",
        ),
        (
            {"data": -2},
            "mesh axis 'data' has size -2\n  mesh    data=-2\n  try     a positive integer",
        ),
        ({"data": 2.0}, "mesh axis 'data' has size 2.0\n"),
        ({"data": True}, "mesh axis 'data' has size True\n"),
        ({"data": None}, "mesh axis 'data' has size None\n"),
        ({"data": "4"}, "mesh axis 'data' has size '4'\n"),
        ({"": 4}, "a mesh axis is called ''\n  mesh    =4\n  try     a name such as \"data\""),
        ({3: 4}, "a mesh axis is called 3\n"),
        ({"a\nb": 4}, "a mesh axis is called 'a\\nb'\n"),
        (
            {"data": 10**9},
            "mesh axis 'data' has size 1000000000\n  mesh    data=1000000000\n"
            "  try     at most 1,048,576 devices",
        ),
        (
            {"a": 2**15, "b": 2**15},
            "a mesh has size 1073741824\n  try     at most 1,048,576 devices",
        ),
        ({"data": 10**5000}, "mesh axis 'data' has size a huge integer\n"),
        ({"data": np.array([4, 2])}, "mesh axis 'data' has size array([4, 2])\n"),
        (8, 'not a mesh: 8\n  try     {"data": 4, "model": 4}, or a jax.sharding.Mesh'),
        ("data", "not a mesh: 'data'\n"),
    ],
)
def test_refused(given: object, text: str) -> None:
    with pytest.raises(ShardwrightError) as error:
        Mesh.of(given)
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    "what",
    [
        {"dcn": ("slice",)},
        {"slices": {"slice": 2}},
        {"links": {"slice": Link(bytes_per_s=1.0)}},
        {"wrap": {"slice": True}},
    ],
)
def test_overrides_name_axes(what: dict[str, object]) -> None:
    with pytest.raises(ShardwrightError) as error:
        Mesh({"data": 4}, **what)  # type: ignore[arg-type]
    (name,) = what
    assert str(error.value) == (
        f"{name} names an unknown mesh axis 'slice'\n  mesh    data=4\n  try     'data'"
    )


class FakeDevice(NamedTuple):
    """A device of a slice, as a TPU has it."""

    id: int
    slice_index: int


class FakeMesh(NamedTuple):
    """What of a JAX mesh is read."""

    axis_names: tuple[str, ...]
    devices: np.ndarray

    @property
    def shape(self) -> dict[str, int]:
        return dict(zip(self.axis_names, self.devices.shape, strict=True))


def hybrid(names: tuple[str, ...], inner: tuple[int, ...], outer: tuple[int, ...]) -> FakeMesh:
    """As create_hybrid_device_mesh(inner, outer) lays its slices: each axis is (outer, inner)."""
    slices, per_slice = math.prod(outer), math.prod(inner)
    devices = np.empty((slices, per_slice), object)
    for i in range(slices * per_slice):
        devices[divmod(i, per_slice)] = FakeDevice(i, i // per_slice)
    rank = len(inner)
    grid = devices.reshape(*outer, *inner)
    grid = grid.transpose([axis for i in range(rank) for axis in (i, rank + i)])
    return FakeMesh(names, grid.reshape([a * b for a, b in zip(outer, inner, strict=True)]))


@pytest.mark.parametrize(
    "mesh, dcn, slices",
    [
        ({"dcn_data": 4, "data": 16, "model": 16}, ("dcn_data",), {}),  # as MaxText names them
        (hybrid(("data", "model"), (1, 4), (2, 1)), ("data",), {}),
        (hybrid(("data", "model"), (2, 4), (2, 1)), (), {"data": 2}),
        (hybrid(("replica", "data", "model"), (1, 2, 2), (2, 3, 1)), ("replica",), {"data": 3}),
        (hybrid(("data", "model"), (4, 2), (1, 1)), (), {}),
    ],
)
def test_axes_between_slices(mesh: Any, dcn: tuple[str, ...], slices: dict[str, int]) -> None:
    found = Mesh.of(mesh)
    assert found.dcn == dcn and found.slices == slices
    if isinstance(mesh, FakeMesh):  # and a plan's devices are laid that way
        devices = sorted(mesh.devices.ravel())
        assert (device_order(found, devices) == mesh.devices).all()


def test_slices_divide_their_axis() -> None:
    with pytest.raises(ShardwrightError) as error:
        Mesh({"data": 8}, slices={"data": 3})
    assert str(error.value) == (
        "mesh axis 'data' crosses 3 slices\n  mesh    data=8\n  try     a divisor of 8"
    )


def test_link_refused() -> None:
    with pytest.raises(ShardwrightError, match="link with 0 bytes/s"):
        Link(bytes_per_s=0)


def test_a_mesh_is_a_value() -> None:
    one = Mesh({"data": 4}, dcn="data", links={"data": Link(bytes_per_s=1e9)}, wrap={"data": True})
    assert one.dcn == ("data",)
    again = Mesh(one.axes, dcn=one.dcn, links=dict(one.links), wrap=dict(one.wrap))
    assert again == one and len({one, again}) == 1
    assert one != Mesh({"data": 4})
    assert Mesh({"a": 2, "b": 4}) != Mesh({"b": 4, "a": 2})  # order is part of a mesh


@pytest.mark.parametrize(
    "count, max_axes, shapes",
    [
        (1, 2, [(1,)]),
        (7, 3, [(7,)]),
        (16, 1, [(16,)]),
        (16, 2, [(16,), (8, 2), (4, 4)]),
        (12, 3, [(12,), (6, 2), (4, 3), (3, 2, 2)]),
        (64, 2, [(64,), (32, 2), (16, 4), (8, 8)]),
    ],
)
def test_factorisations(count: int, max_axes: int, shapes: list[tuple[int, ...]]) -> None:
    meshes = factorisations(count, max_axes=max_axes)
    assert [mesh.sizes for mesh in meshes] == shapes
    assert all(mesh.size == count for mesh in meshes)


@pytest.mark.parametrize("count", [8, 12, 16, 60])
def test_every_order_is_a_permutation_of_one_shape(count: int) -> None:
    shapes = {mesh.sizes for mesh in factorisations(count, max_axes=3)}
    ordered = [mesh.sizes for mesh in factorisations(count, max_axes=3, ordered=True)]
    assert len(set(ordered)) == len(ordered)
    assert {tuple(sorted(sizes, reverse=True)) for sizes in ordered} == shapes


@pytest.mark.parametrize(
    "sizes, count, found",
    [
        ({"data": None, "model": 4}, 64, ["data=16 x model=4"]),
        ({"data": 8, "model": 8}, 64, ["data=8 x model=8"]),
        ({"x": None, "y": None}, 4, ["x=1 x y=4", "x=2 x y=2", "x=4 x y=1"]),
    ],
)
def test_completions(sizes: dict[str, int | None], count: int, found: list[str]) -> None:
    assert [str(mesh) for mesh in completions(sizes, count)] == found


@pytest.mark.parametrize("sizes", [{"data": None, "model": 5}, {"data": 8, "model": 4}])
def test_no_completion(sizes: dict[str, int | None]) -> None:
    fixed = math.prod(size for size in sizes.values() if size)
    with pytest.raises(ShardwrightError) as error:
        completions(sizes, 64)
    assert str(error.value).startswith("no mesh of 64 devices has these sizes\n")
    assert str(error.value).endswith(f"try     a device count that is a multiple of {fixed}")


@pytest.mark.parametrize("count", [0, -4, 2.5, 1_000_000_007])
def test_device_count_refused(count: int) -> None:
    with pytest.raises(ShardwrightError, match=f"devices has size {count}"):
        factorisations(count)
