"""Elementwise kernels of frameworks that run op by op: each reads and writes memory on its own.

PyTorch without `torch.compile` fuses nothing across its kernels. A kernel here is an op that is
priced by the bytes that it touches; it is traced and priced, never run.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive

import shardwright as sw


@functools.cache
def _kernel(operands: int) -> Primitive:
    """An elementwise kernel of so many operands; its result has the shape of the first."""
    primitive = Primitive(f"eager_kernel_{operands}")
    primitive.def_abstract_eval(
        lambda x, *_, dtype: jax.core.ShapedArray(x.shape, dtype or x.dtype)
    )
    one = "... d"
    sw.rule(primitive.name, f"{', '.join([one] * operands)} -> {one}", replicate="d")
    return primitive


def kernel(*operands: jax.Array, dtype: Any = None) -> jax.Array:
    """What one kernel makes of its operands, which are alike."""
    return _kernel(len(operands)).bind(*operands, dtype=dtype)


@jax.custom_vjp
def unary(x: jax.Array) -> jax.Array:
    """A norm or an activation: one kernel forward, one backward that reads x again."""
    return kernel(x)


unary.defvjp(lambda x: (unary(x), x), lambda x, dy: (kernel(dy, x),))


@jax.custom_vjp
def product(x: jax.Array, y: jax.Array) -> jax.Array:
    """x y: one kernel forward, one for each operand backward."""
    return kernel(x, y)


product.defvjp(
    lambda x, y: (product(x, y), (x, y)), lambda xy, dz: (kernel(dz, xy[1]), kernel(dz, xy[0]))
)


@jax.custom_vjp
def through_f32(x: jax.Array) -> jax.Array:
    """Rotary positions as complex numbers: widened, turned, narrowed; the same backward."""
    return kernel(kernel(x, dtype=jnp.float32), dtype=x.dtype)


through_f32.defvjp(lambda x: (through_f32(x), None), lambda _, dy: (through_f32(dy),))
