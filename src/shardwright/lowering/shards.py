"""Functions that run on each device's own shards of their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax

from shardwright import _jax
from shardwright.lowering.actions import Scatters
from shardwright.lowering.specs import Spec, partition_spec
from shardwright.lowering.workarounds import scattered


def on_shards(
    fn: Callable[..., Any], mesh: Any, operands: Sequence[Spec], results: Any
) -> Callable[..., Any]:
    """`fn`, written for shards, as a function of global arrays; `results`: one spec or a list."""
    out = [*map(partition_spec, results)] if isinstance(results, list) else partition_spec(results)
    return jax.shard_map(
        fn, mesh=mesh, in_specs=tuple(map(partition_spec, operands)), out_specs=out,
        check_vma=False, axis_names=_jax.automatic_axes(mesh),
    )  # fmt: skip


def shard_shape(shape: tuple[int, ...], spec: Spec, mesh: Any) -> tuple[int, ...]:
    """The shape of one device's shard of an array."""
    return tuple(
        n // prod(mesh.shape[a] for a in axes) for n, axes in zip(shape, spec, strict=True)
    )


def summed(term: Any, sums: Sequence[tuple[str, ...]], scatter: Scatters) -> Any:
    """In shards: the sum of the terms of all devices over these axes, scattered where that says."""
    for axes, dim in scatter:
        term = scattered(term, axes, dim)
    done = {axis for axes, _ in scatter for axis in axes}
    for axes in sums:
        left = tuple(axis for axis in axes if axis not in done)
        term = jax.lax.psum(term, left) if left else term
    return term


def after(spec: Spec, scatter: Scatters) -> Spec:
    """The sharding of a sum that was produced so, once it is scattered."""
    made = list(spec)
    for axes, dim in scatter:
        made[dim] += axes
    return tuple(made)
