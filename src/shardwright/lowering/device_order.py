"""Which device stands where in the mesh that a plan runs on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.experimental import mesh_utils

from shardwright.coordinates import coordinates
from shardwright.mesh import Mesh


def device_order(mesh: Mesh, devices: Sequence[Any]) -> np.ndarray:
    """The devices as an array of the mesh's shape: slices along the axes between them.

    Inside a slice of a torus the axes lie as the mesh says. Where it does not, or where the devices
    are another slice, the order is JAX's, which follows the physical topology where it can.
    """
    by_slice: dict[int, list[Any]] = {}
    for device in devices:
        by_slice.setdefault(getattr(device, "slice_index", 0), []).append(device)
    outer = [n if name in mesh.dcn else mesh.slices.get(name, 1) for name, n in mesh.axes]
    inner = [n // slices for n, slices in zip(mesh.sizes, outer, strict=True)]
    sizes = {len(group) for group in by_slice.values()}
    if len(by_slice) == math.prod(outer) > 1 and sizes == {math.prod(inner)}:
        blocks = [_in_slice(mesh, inner, group) for _, group in sorted(by_slice.items())]
        grid = np.stack(blocks).reshape(*outer, *inner)
        pairs = np.arange(grid.ndim).reshape(2, -1).T  # each axis between slices, then inside
        return grid.transpose(pairs.ravel()).reshape(mesh.sizes)
    return _in_slice(mesh, mesh.sizes, devices)


def _in_slice(mesh: Mesh, sizes: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
    """The devices of one slice: along its dims as the mesh says, else in JAX's order, if any."""
    laid = _along_dims(mesh, sizes, devices)
    if laid is not None:
        return laid
    try:
        return mesh_utils.create_device_mesh(tuple(sizes), devices, allow_split_physical_axes=True)
    except (NotImplementedError, ValueError, AttributeError):  # no nice order on this topology
        return _object_array(devices).reshape(sizes)


def _along_dims(mesh: Mesh, sizes: Sequence[int], devices: Sequence[Any]) -> np.ndarray | None:
    """The devices with the axes on the dims of `mesh.torus`; None where they are another slice."""
    at = coordinates(devices)
    if not mesh.torus or at is None:
        return None
    *shape, cores = (at.max(0) + 1).tolist()  # [x, y, z], cores of a chip
    wanted = [math.prod(part for _, part in dim) for dim in mesh.torus]
    if math.prod(shape) * cores != len(devices) or math.prod(sizes) != len(devices):
        return None
    dims: list[int] = []
    for size in wanted:  # dims of one size are alike
        found = next((d for d, n in enumerate(shape) if n == size and d not in dims), None)
        if found is None:
            return None
        dims.append(found)
    rest = [d for d, n in enumerate(shape) if d not in dims]
    if any(shape[d] > 1 for d in rest):
        return None
    grid = np.empty((*shape, cores), object)
    grid[tuple(at.T)] = _object_array(devices)
    parts = [on_it for dim in mesh.torus for on_it in dim]
    grid = grid.transpose(*dims, *rest, len(shape)).reshape(*(part for _, part in parts), cores)
    of_axis = [[i for i, (on, _) in enumerate(parts) if on == name] for name in mesh.names]
    for size, places in zip(sizes, of_axis, strict=True):
        chips = math.prod(parts[i][1] for i in places)
        if size == chips * cores > chips:  # neighbouring cores are nearest
            places.append(len(parts))
            break
    order = [i for places in of_axis for i in places]
    if len(order) < len(parts) + (cores > 1):
        return None
    rest = [i for i in range(grid.ndim) if i not in order]  # one core: a dim of size 1
    return grid.transpose(*order, *rest).reshape(sizes)


def _object_array(devices: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(devices), object)
    array[:] = devices
    return array
