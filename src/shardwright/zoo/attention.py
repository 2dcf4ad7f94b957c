"""One attention head: the smallest program with a conflict.

Dims: S sequence, D model, K queries and keys, O values. The scores are [S, S]: both dims come
from the one sequence, and a mesh axis can split only one of them.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .example import Example
from .parameters import Params, dense, draw

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Config:
    """The four sizes."""

    seq: int = 32
    d_model: int = 16
    d_key: int = 8
    d_value: int = 24


PRESETS = {
    "tiny": Config(),
    "attention_32k": Config(seq=32_768, d_model=1024, d_key=128, d_value=128),
}


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    d, k, o = config.d_model, config.d_key, config.d_value
    return draw({"wq": dense(d, k), "wk": dense(d, k), "wv": dense(d, o)}, key)


def forward(params: Params, x: Array) -> Array:
    """Attention of x [S, D] to itself: [S, O]."""
    q, k, v = x @ params["wq"], x @ params["wk"], x @ params["wv"]
    scores = q @ k.T / jnp.asarray(q.shape[-1] ** 0.5, q.dtype)
    return jax.nn.softmax(scores, axis=-1) @ v


def loss(params: Params, x: Array, y: Array) -> Array:
    """The mean squared error against y [S, O]."""
    return jnp.mean((forward(params, x) - y) ** 2)


def inputs(config: Config, key: Array) -> tuple[Array, Array]:
    """Random inputs [S, D] and targets [S, O]."""
    x = jax.random.normal(key, (config.seq, config.d_model))
    y = jax.random.normal(jax.random.fold_in(key, 1), (config.seq, config.d_value))
    return x, y


def infer(config: Config, name: str = "attention_forward") -> Example:
    """The forward pass as an example."""
    return Example(
        name=name,
        fn=forward,
        make=lambda key: (init(config, key), inputs(config, key)[0]),
    )


def gradient(config: Config, name: str = "attention_grad") -> Example:
    """Loss and gradients of parameters and inputs as an example."""
    return Example(
        name=name,
        fn=jax.value_and_grad(loss, argnums=(0, 1)),
        make=lambda key: (init(config, key), *inputs(config, key)),
    )
