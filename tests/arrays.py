"""Arguments of programs that are only traced."""

from __future__ import annotations

import jax


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """An f32 array of this shape, without its content."""
    return jax.ShapeDtypeStruct(shape, "float32")
