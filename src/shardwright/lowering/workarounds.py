"""What XLA gets wrong or does badly under a sharding, and what is computed instead."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from shardwright import _jax
from shardwright.lowering.specs import Spec
from shardwright.program.types import Op
from shardwright.spmd.ir import Partitioned

# XLA merges a slice with the one that takes a device's part of its result, and clamps the sum of
# both starts: a start beyond the end reads other entries than without a mesh.
MERGED_STARTS = ("dynamic_slice", "dynamic_update_slice")
# Ops whose operands a compiler gathers although every part can be computed where it is.
GATHERED = ("fft", "top_k", "triangular_solve")


def clamped_starts(eqn: Any, args: list[Any]) -> list[Any]:
    """The operands of a dynamic (update) slice, with starts that leave room for the slice."""
    first = 1 if eqn.primitive.name == "dynamic_slice" else 2
    whole = eqn.invars[0].aval.shape
    part = eqn.outvars[0].aval.shape if first == 1 else eqn.invars[1].aval.shape
    starts = [_clamp(start, n - m) for start, n, m in zip(args[first:], whole, part, strict=True)]
    return [*args[:first], *starts]


def _clamp(start: Any, most: int) -> Any:
    dtype = jnp.result_type(start)
    most = min(most, int(jnp.iinfo(dtype).max))
    return jnp.clip(start, jnp.array(0, dtype), jnp.array(most, dtype))


def picked_dims(given: Partitioned, op: Op, spec: Spec) -> tuple[int, ...]:
    """The dims of a slice's operand of which every device holds one entry, sliced to one entry.

    XLA makes a program that its own verifier refuses where such a dim is gathered for another use.
    """
    array = given.program.values[op.operands[0]]
    if _jax.is_extended(array.dtype):
        return ()
    start, limit = op.eqn.params["start_indices"], op.eqn.params["limit_indices"]
    sizes = dict(given.axes)
    return tuple(
        d for d, axes in enumerate(spec)
        if array.shape[d] == prod(sizes[a] for a in axes) > 1 == limit[d] - start[d]
    )  # fmt: skip


def sliced(eqn: Any, array: Any, picked: tuple[int, ...]) -> list[Any]:
    """The result of a slice; an entry that one device holds alone is summed with zeros."""
    start, limit = list(eqn.params["start_indices"]), list(eqn.params["limit_indices"])
    for d in picked:
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
