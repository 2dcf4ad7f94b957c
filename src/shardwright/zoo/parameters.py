"""Parameters as a table of shapes, drawn in one place."""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

Params = Any  # a tree of arrays


@dataclass(frozen=True, slots=True)
class Weight:
    """The shape of one parameter and the normal distribution it is drawn from."""

    shape: tuple[int, ...]
    std: float = 0.0
    mean: float = 0.0


def dense(*shape: int, fan_in: int | None = None) -> Weight:
    """A weight whose product with unit inputs has unit variance; the first dim is contracted."""
    return Weight(shape, std=1 / math.sqrt(fan_in or shape[0]))


def conv(height: int, width: int, channels: int, features: int) -> Weight:
    """A convolution kernel, HWIO, scaled for a ReLU."""
    return Weight(
        (height, width, channels, features), std=math.sqrt(2 / (height * width * channels))
    )


def ones(*shape: int) -> Weight:
    """A gain."""
    return Weight(shape, mean=1.0)


def zeros(*shape: int) -> Weight:
    """A bias."""
    return Weight(shape)


def stacked(weights: Any, count: int) -> Any:
    """The same weights with a leading dim of `count`, for `lax.scan` over layers."""
    return jax.tree.map(lambda w: replace(w, shape=(count, *w.shape)), weights, is_leaf=_is_weight)


def draw(weights: Any, key: jax.Array, dtype: Any = jnp.float32) -> Params:
    """A tree of arrays, one for each `Weight`; the same key gives the same numbers."""
    leaves, tree = jax.tree.flatten(weights, is_leaf=_is_weight)
    arrays = [_draw_one(w, jax.random.fold_in(key, i), dtype) for i, w in enumerate(leaves)]
    return jax.tree.unflatten(tree, arrays)


def _draw_one(weight: Weight, key: jax.Array, dtype: Any) -> jax.Array:
    if weight.std == 0:
        return jnp.full(weight.shape, weight.mean, dtype)
    return (weight.std * jax.random.normal(key, weight.shape)).astype(dtype)


def _is_weight(node: Any) -> bool:
    return isinstance(node, Weight)
