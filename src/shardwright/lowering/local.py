"""Data that each process loads for itself: which part is its own, and the global arrays of it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardwright.errors import ShardwrightError

Part = tuple[slice, ...]


def local_part(sharding: NamedSharding, shape: tuple[int, ...], path: str) -> Part:
    """The slices of a global array that the devices of this process hold together."""
    indices = [index or () for index in sharding.addressable_devices_indices_map(shape).values()]
    part = []
    for dim, size in enumerate(shape):
        held = sorted({index[dim].indices(size)[:2] for index in indices})
        ends = [end for _, end in held]
        if [start for start, _ in held[1:]] != ends[:-1]:
            raise ShardwrightError(
                f"this process holds parts of {path} that are not next to each other",
                dim=f"{dim} of {list(shape)}: {', '.join(f'{a}:{b}' for a, b in held)}",
                try_="a mesh whose devices of one process are neighbours (jax.make_mesh), or"
                " plan.place(...) with the whole array on every process",
            )
        part.append(slice(held[0][0], ends[-1]))
    return tuple(part)


def from_local(leaf: Any, sharding: NamedSharding, shape: tuple[int, ...], path: str) -> jax.Array:
    """The global array of which every process has loaded its part."""
    part = local_part(sharding, shape, path)
    wanted = tuple(s.stop - s.start for s in part)
    if np.shape(leaf) != wanted:
        raise ShardwrightError(
            f"this process loads another part of {path} than it holds",
            loaded=f"{list(np.shape(leaf))} of {list(shape)}",
            holds=f"{list(wanted)}: [{', '.join(f'{s.start}:{s.stop}' for s in part)}]",
            try_="load what plan.local_part() says",
        )
    return jax.make_array_from_process_local_data(sharding, np.asarray(leaf), shape)
