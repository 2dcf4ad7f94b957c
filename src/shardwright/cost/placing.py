"""Which physical dims of a torus carry which mesh axes, where that is left open."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.devices import Device
from shardwright.cost.links import KINDS, Network
from shardwright.cost.torus import placements
from shardwright.mesh import Mesh

MOST = 8  # ways that are worth a look each; more axes than dims have dozens, alike but for names


def placed(mesh: Mesh, device: Device) -> list[Mesh]:
    """The mesh laid on its slice in every way that no other way beats, JAX's first.

    One way is better than another if no collective over any axes is slower. A mesh of one axis has
    one way; so has a mesh that says where its axes lie, and any mesh of a switched device.

    >>> [m.torus for m in placed(Mesh({"data": 4, "model": 4}), find_device("tpu-v5p"))]
    [((("data", 4),), (("model", 2),), (("model", 2),)), ((("data", 2),), ..., (("model", 4),))]
    """
    inner = Network(mesh, device).on_torus
    if mesh.torus or len(inner) < 2:
        return [mesh]
    ways = [replace(mesh, torus=torus) for torus in placements(inner, device)]
    slopes = np.stack([_curves(way, device, [name for name, _ in inner]) for way in ways])
    kept: list[int] = []
    for i, row in enumerate(slopes):
        beaten = (slopes <= row).all(1) & (slopes < row).any(1)
        alike = any((slopes[k] == row).all() for k in kept)
        if not beaten.any() and not alike:
            kept.append(i)
    return [ways[i] for i in kept[:MOST]]


def _curves(mesh: Mesh, device: Device, axes: Sequence[str]) -> np.ndarray:
    """[kinds x sets of axes x 2] latency and seconds per byte of every collective over the axes."""
    network = Network(mesh, device)
    sets = itertools.chain.from_iterable(
        itertools.combinations(axes, n) for n in range(1, len(axes) + 1)
    )
    rows = [network.curve(kind, on)[:2] for on in sets for kind in KINDS]
    return np.round(np.array(rows).ravel(), 15)  # 1e-15 s: what sums in another order differ by
