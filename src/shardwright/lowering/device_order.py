"""Which device stands where in the mesh that a plan runs on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shardwright.mesh import Mesh


def device_order(mesh: Mesh, devices: Sequence[Any]) -> np.ndarray:
    """The devices as an array of the mesh's shape: slices along the axes between them.

    Inside a slice the order is JAX's, which follows the physical topology where it can.
    """
    by_slice: dict[int, list[Any]] = {}
    for device in devices:
        by_slice.setdefault(getattr(device, "slice_index", 0), []).append(device)
    outer = [n if name in mesh.dcn else mesh.slices.get(name, 1) for name, n in mesh.axes]
    inner = [n // slices for n, slices in zip(mesh.sizes, outer, strict=True)]
    sizes = {len(group) for group in by_slice.values()}
    if len(by_slice) == math.prod(outer) > 1 and sizes == {math.prod(inner)}:
        blocks = [_in_slice(inner, group) for _, group in sorted(by_slice.items())]
        grid = np.stack(blocks).reshape(*outer, *inner)
        rank = len(inner)
        order = [
            axis for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for axis in pair
        ]
        return grid.transpose(order).reshape(mesh.sizes)
    return _in_slice(mesh.sizes, devices)


def _in_slice(sizes: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
    """The devices of one slice in JAX's order, or as they come where it has none."""
    names = tuple(f"axis_{i}" for i in range(len(sizes)))
    try:
        return np.asarray(jax.make_mesh(tuple(sizes), names, devices=devices).devices)
    except (NotImplementedError, ValueError, AttributeError):  # no nice order on this topology
        return _object_array(devices).reshape(sizes)


def _object_array(devices: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(devices), object)
    array[:] = devices
    return array
