"""What XLA gets wrong or does badly under a sharding, and what is computed instead.

Each entry says in which jaxlib it was seen; tests/lowering/test_workarounds.py has the program
that shows it, and fails when XLA no longer needs the workaround.
"""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from shardwright import _jax
from shardwright.lowering.steps import Spec

# Ops whose operands a compiler gathers although every part can be computed where it is
# (jaxlib 0.10.2): computed on each device's part, in a shard_map.
IN_PARTS = ("fft", "top_k", "triangular_solve")


def clamped_starts(eqn: Any, args: list[Any]) -> list[Any]:
    """The operands of a dynamic (update) slice, with starts that leave room for the slice.

    XLA (jaxlib 0.10.2) merges a slice with the one that takes a device's part of its result, and
    clamps the sum of both starts: a start beyond the end reads other entries than without a mesh.
    """
    if eqn.primitive.name not in ("dynamic_slice", "dynamic_update_slice"):
        return args
    first = 1 if eqn.primitive.name == "dynamic_slice" else 2
    whole = eqn.invars[0].aval.shape
    part = eqn.outvars[0].aval.shape if first == 1 else eqn.invars[1].aval.shape
    starts = [_clamp(start, n - m) for start, n, m in zip(args[first:], whole, part, strict=True)]
    return [*args[:first], *starts]


def _clamp(start: Any, most: int) -> Any:
    dtype = jnp.result_type(start)
    most = min(most, int(jnp.iinfo(dtype).max))
    return jnp.clip(start, jnp.array(0, dtype), jnp.array(most, dtype))


def sliced(eqn: Any, array: Any, spec: Spec, mesh: Any) -> list[Any]:
    """The result of a slice; an entry that one device holds alone is summed with zeros.

    XLA (jaxlib 0.10.2) makes a program that its own verifier refuses where a dim of which every
    device holds one entry is sliced to one entry, and gathered for another use.
    """
    start, limit = list(eqn.params["start_indices"]), list(eqn.params["limit_indices"])
    for d, axes in enumerate(spec):
        alone = array.shape[d] == prod(mesh.shape[a] for a in axes) > 1
        if alone and limit[d] - start[d] == 1 and not _jax.is_extended(array.dtype):
            array = _picked(array, d, start[d])
            start[d], limit[d] = 0, 1
    return _jax.bind(eqn, [array], start_indices=tuple(start), limit_indices=tuple(limit))


def _picked(array: Any, dim: int, place: int) -> Any:
    """One entry of a dim as a sum over all of them, of which the others are zero."""
    here = jax.lax.broadcasted_iota(jnp.int32, array.shape, dim) == place
    held = jnp.where(here, array, jnp.zeros_like(array))
    add = jax.lax.bitwise_or if array.dtype == bool else jax.lax.add
    picked = jax.lax.reduce(held, jnp.zeros((), array.dtype), add, (dim,))
    return jnp.expand_dims(picked, dim)
