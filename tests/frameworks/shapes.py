"""Abstract arguments for the programs of this folder."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Program = tuple[Callable[..., Any], tuple[Any, ...]]  # a function and its arguments

KEY = jax.eval_shape(lambda: jax.random.key(0))


def F32(*shape: int) -> jax.ShapeDtypeStruct:
    """A float32 array that is never allocated."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def I32(*shape: int) -> jax.ShapeDtypeStruct:
    """An int32 array that is never allocated."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def shaped(fn: Callable[..., Any], *args: Any) -> Any:
    """The shapes of what `fn` returns."""
    return jax.eval_shape(fn, *args)
