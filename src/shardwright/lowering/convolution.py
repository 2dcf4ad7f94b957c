"""Convolutions on shards: neighbours exchange halos, then each device convolves what it has.

XLA partitions the simple cases so: see workarounds.py for the others.
"""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from shardwright import _jax
from shardwright.lowering.actions import Convolve, Halo
from shardwright.lowering.shards import on_shards
from shardwright.lowering.specs import Spec
from shardwright.program.types import Op
from shardwright.spmd.follow import split_by
from shardwright.spmd.ir import Partitioned
from shardwright.spmd.layout import REPLICATED


def convolution(
    given: Partitioned, op: Op, operands: tuple[Spec, ...], result: Spec
) -> Convolve | None:
    """How a convolution is computed in shards; None for replicated ones and uneven shards."""
    op_class, choice = given.computed(op.index)
    if all(c == REPLICATED for c in choice.claims):
        return None
    names, sizes = zip(*given.axes, strict=True)
    for atom, size in enumerate(op_class.sizes):
        if size % prod(n for n, c in zip(sizes, choice.claims, strict=True) if c == atom):
            return None
    halos = []
    for halo in op.rule.halos:
        axes = split_by(op_class, choice.claims, halo.factor)
        if axes:
            dim = op.rule.operands[0].index((halo.factor,))
            halos.append(Halo(dim, tuple(names[a] for a in axes), halo.before, halo.after))
    return Convolve(operands, result, tuple(halos), tuple(names[a] for a in choice.partial))


def convolve(eqn: Any, args: list[Any], how: Convolve, mesh: Any) -> Any:
    """The result of a convolution that each device computes on its shards."""
    p = eqn.params
    numbers, whole = p["dimension_numbers"], eqn.outvars[0].aval.shape

    def local(image: Any, kernel: Any) -> Any:
        """The shard of the result, with the padding of the windows that this device computes."""
        padding = list(p["padding"])
        for halo in how.halos:
            n = numbers.lhs_spec.index(halo.dim) - 2
            shards = prod(mesh.shape[a] for a in halo.axes)
            image = _with_neighbours(image, halo, shards)
            size = (kernel.shape[numbers.rhs_spec[2 + n]] - 1) * p["rhs_dilation"][n] + 1
            windows = whole[numbers.out_spec[2 + n]] // shards
            reach = (windows - 1) * p["window_strides"][n] + size
            rows = (image.shape[halo.dim] - 1) * p["lhs_dilation"][n] + 1
            low = padding[n][0] - halo.before * p["lhs_dilation"][n]
            padding[n] = (low, reach - rows - low)
        groups = image.shape[numbers.lhs_spec[1]] // kernel.shape[numbers.rhs_spec[1]]
        batch_groups = max(1, image.shape[numbers.lhs_spec[0]] // whole[numbers.out_spec[0]])
        (out,) = _jax.bind(
            eqn, [image, kernel], padding=tuple(padding),
            feature_group_count=groups, batch_group_count=batch_groups,
        )  # fmt: skip
        return jax.lax.psum(out, how.sum_over) if how.sum_over else out

    return on_shards(local, mesh, how.operands, how.result)(*args)


def _with_neighbours(image: Any, halo: Halo, shards: int) -> Any:
    """The shard with the rows before and behind it; zeros at both ends of the image."""
    dim, axes, before, after = halo
    rows = image.shape[dim]
    pieces = [image]
    if before:
        last = jax.lax.slice_in_dim(image, rows - before, rows, axis=dim)
        up = [(i, i + 1) for i in range(shards - 1)]
        pieces.insert(0, jax.lax.ppermute(last, axes, up))
    if after:
        first = jax.lax.slice_in_dim(image, 0, after, axis=dim)
        down = [(i + 1, i) for i in range(shards - 1)]
        pieces.append(jax.lax.ppermute(first, axes, down))
    return jnp.concatenate(pieces, axis=dim)
