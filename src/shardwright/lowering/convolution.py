"""Convolutions in parts: neighbours exchange rows, then each device convolves what it has.

XLA (jaxlib 0.10.2) partitions the simple cases so, but computes wrong numbers when positions and
output channels are both split, and gathers images whose groups of channels are split.
"""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from shardwright import _jax
from shardwright.lowering.parts import on_parts
from shardwright.lowering.steps import Convolution, Exchange


def convolve(eqn: Any, args: list[Any], how: Convolution, mesh: Any) -> Any:
    """The result of a convolution, computed in parts."""
    p = eqn.params
    numbers, whole = p["dimension_numbers"], eqn.outvars[0].aval.shape

    def local(image: Any, kernel: Any) -> Any:
        padding = list(p["padding"])
        for exchange in how.exchanges:
            n = numbers.lhs_spec.index(exchange.dim) - 2
            parts = prod(mesh.shape[a] for a in exchange.axes)
            image = _with_neighbours(image, exchange, parts)
            size = (kernel.shape[numbers.rhs_spec[2 + n]] - 1) * p["rhs_dilation"][n] + 1
            windows = whole[numbers.out_spec[2 + n]] // parts
            reach = (windows - 1) * p["window_strides"][n] + size
            rows = (image.shape[exchange.dim] - 1) * p["lhs_dilation"][n] + 1
            low = padding[n][0] - exchange.before * p["lhs_dilation"][n]
            padding[n] = (low, reach - rows - low)
        groups = image.shape[numbers.lhs_spec[1]] // kernel.shape[numbers.rhs_spec[1]]
        batch_groups = max(1, image.shape[numbers.lhs_spec[0]] // whole[numbers.out_spec[0]])
        (out,) = _jax.bind(
            eqn, [image, kernel], padding=tuple(padding),
            feature_group_count=groups, batch_group_count=batch_groups,
        )  # fmt: skip
        return jax.lax.psum(out, how.partial) if how.partial else out

    return on_parts(local, mesh, how.operands, how.result)(*args)


def _with_neighbours(image: Any, exchange: Exchange, parts: int) -> Any:
    """The part with the rows before and behind it; zeros at both ends of the whole."""
    dim, axes, before, after = exchange
    rows = image.shape[dim]
    pieces = [image]
    if before:
        last = jax.lax.slice_in_dim(image, rows - before, rows, axis=dim)
        up = [(i, i + 1) for i in range(parts - 1)]
        pieces.insert(0, jax.lax.ppermute(last, axes, up))
    if after:
        first = jax.lax.slice_in_dim(image, 0, after, axis=dim)
        down = [(i + 1, i) for i in range(parts - 1)]
        pieces.append(jax.lax.ppermute(first, axes, down))
    return jnp.concatenate(pieces, axis=dim)
