"""Partial sums as data: one leading dim per mesh axis, each device holding its own term.

A compiler reduces the partial sums of a dot right behind it, and one dim after the other. Where a
plan adds partial sums before it reduces them, or reduces over several axes in one collective, the
sums are made explicit: split the contracted dims, compute a batch of partial results, sum later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def split_dims(
    array: Any, sizes: Sequence[int], dims: Sequence[int | None], pin: Callable[[Any], Any]
) -> Any:
    """The array with one leading dim of size n for each dim that an axis of size n splits.

    A dim that does not divide is padded with zeros: they add nothing to the sums.
    """
    if all(d is None for d in dims):
        return array
    shape: list[int] = []
    front: dict[int, int] = {}  # {axis: the position of its new dim}
    kept: list[int] = []
    padding: list[tuple[int, int]] = []
    for d, size in enumerate(array.shape):
        on_dim = [a for a, dim in enumerate(dims) if dim == d]
        parts = math.prod(sizes[a] for a in on_dim)
        local = -(-size // parts)
        padding.append((0, local * parts - size))
        for a in on_dim:
            front[a] = len(shape)
            shape.append(sizes[a])
        kept.append(len(shape))
        shape.append(local)
    if any(extra for _, extra in padding):
        array = jnp.pad(array, padding)
    return pin(jnp.transpose(array.reshape(shape), [*(front[a] for a in sorted(front)), *kept]))


def in_first_part(array: Any, sizes: Sequence[int]) -> Any:
    """The array as a sum of terms, one per device, of which only the first is not zero."""
    device = jnp.arange(math.prod(sizes)).reshape(*sizes, *[1] * array.ndim)
    return jnp.where(device == 0, array, jnp.zeros_like(array))


def over_leading(
    fn: Callable[..., list[Any]], leading: Sequence[Sequence[bool]], args: Sequence[Any]
) -> list[Any]:
    """`fn` mapped over one leading dim per axis; an operand without the dim is shared."""
    mapped = fn
    for axis in range(len(leading[0]) - 1, -1, -1):
        in_axes = tuple(0 if row[axis] else None for row in leading)
        mapped = jax.vmap(mapped, in_axes=in_axes)
    return mapped(*args)


def add_up(terms: Any) -> Any:
    """The sum over the leading dim in the terms' own dtype: jnp.sum would send f32 for bf16."""
    return jax.lax.reduce(terms, jnp.zeros((), terms.dtype), jax.lax.add, (0,))
