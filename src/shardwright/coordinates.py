"""Where the devices of a JAX mesh are: in which slice, and where on its torus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

CORE = 3  # the place of a device's core behind its x, y and z
# The dims of a physical slice, each with the axes on it, major to minor, and their sizes there.
Torus = tuple[tuple[tuple[str, int], ...], ...]


def _devices(mesh: Any) -> Any:
    """The devices of a JAX mesh; None of an AbstractMesh, and of what is no mesh of JAX."""
    try:
        return mesh.devices
    except (AttributeError, ValueError):
        return None


def crossed_slices(mesh: Any) -> dict[str, int]:
    """{axis: slices that it crosses} of a JAX mesh over several slices; nothing of any other.

    A device of a slice has its `slice_index`. Along an axis the slices are its major part, as
    `jax.experimental.mesh_utils.create_hybrid_device_mesh` lays them.
    """
    devices = _devices(mesh)
    if devices is None:
        return {}
    index = np.vectorize(lambda d: getattr(d, "slice_index", 0), otypes=[np.int64])(devices)
    crossed = {}
    for axis, name in enumerate(mesh.axis_names):
        changes = (np.diff(index, axis=axis) != 0).any(axis=tuple(
            other for other in range(index.ndim) if other != axis
        ))  # fmt: skip
        slices = 1 + int(changes.sum())
        if slices > 1:
            crossed[name] = slices
    return crossed


def coordinates(devices: Any) -> np.ndarray | None:
    """[devices, 4] x, y, z and core of TPU devices, from 0 on; None for others."""
    if not all(hasattr(d, "coords") and hasattr(d, "core_on_chip") for d in devices):
        return None
    at = np.array([(*d.coords, d.core_on_chip) for d in devices])
    return at - at.min(0)


def torus_under(mesh: Any, crossed: Mapping[str, int]) -> Torus:
    """Where the axes of a JAX mesh of TPUs lie in a slice; () where that is no grid of its dims."""
    devices = _devices(mesh)
    if devices is None:
        return ()
    inside = tuple(slice(n // crossed.get(name, 1))
                   for name, n in zip(mesh.axis_names, devices.shape, strict=True))  # fmt: skip
    devices = devices[inside]
    flat = coordinates(devices.ravel())
    if flat is None:
        return ()
    at = flat.reshape(*devices.shape, flat.shape[1]) - flat[0]
    on_dim: dict[int, list[tuple[int, str, int]]] = defaultdict(list)  # dim -> (step, axis, part)
    alone = np.zeros_like(at)  # if every axis takes its own steps
    for axis, name in enumerate(mesh.axis_names):
        line = np.moveaxis(at, axis, 0).reshape(at.shape[axis], -1, at.shape[-1])[:, 0]  # [n, 4]
        alone += np.expand_dims(line, tuple(d for d in range(devices.ndim) if d != axis))
        parts = _parts(line)
        if len(line) > 1 and not parts:
            return ()
        for dim, step, part in parts:
            on_dim[dim].append((step, name, part))
    if (alone != at).any():
        return ()
    return tuple(
        tuple((name, part) for _, name, part in sorted(on_dim[dim], reverse=True))
        for dim in sorted(on_dim) if dim < CORE
    )  # fmt: skip


def _parts(line: np.ndarray) -> list[tuple[int, int, int]]:
    """(dim, step, count) of the parts of an axis, the nearest neighbours first.

    `line` [n, 4] are the coordinates along it; steps along no single dim end the list.
    """
    parts, count = [], 1
    while count < len(line):
        step = line[count]
        (dims,) = np.nonzero(step)
        part = 1
        while (part + 1) * count <= len(line) and (
            line[part * count : (part + 1) * count] - line[:count] == part * step
        ).all():
            part += 1
        if len(dims) != 1 or len(line) % (part * count) or part == 1:
            return []
        parts.append((int(dims[0]), int(step[dims[0]]), part))
        count *= part
    return parts
