"""Two matrices and a ReLU: the smallest program worth sharding.

Dims: B batch, I inputs, F hidden, O outputs.
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

    batch: int = 32
    d_in: int = 16
    d_ff: int = 64
    d_out: int = 24


PRESETS = {
    "tiny": Config(),
    "mlp_8k": Config(batch=65_536, d_in=8192, d_ff=32_768, d_out=8192),
}


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    weights = {"w1": dense(config.d_in, config.d_ff), "w2": dense(config.d_ff, config.d_out)}
    return draw(weights, key)


def forward(params: Params, x: Array) -> Array:
    """Outputs [B, O] for x [B, I]."""
    return jax.nn.relu(x @ params["w1"]) @ params["w2"]


def loss(params: Params, x: Array, y: Array) -> Array:
    """The mean squared error against y [B, O]."""
    return jnp.mean((forward(params, x) - y) ** 2)


def inputs(config: Config, key: Array) -> tuple[Array, Array]:
    """Random inputs [B, I] and targets [B, O]."""
    x = jax.random.normal(key, (config.batch, config.d_in))
    y = jax.random.normal(jax.random.fold_in(key, 1), (config.batch, config.d_out))
    return x, y


def infer(config: Config, name: str = "mlp_forward") -> Example:
    """The forward pass as an example."""
    return Example(
        name=name,
        fn=forward,
        make=lambda key: (init(config, key), inputs(config, key)[0]),
    )


def gradient(config: Config, name: str = "mlp_grad") -> Example:
    """Loss and gradients of the parameters as an example."""
    return Example(
        name=name,
        fn=jax.value_and_grad(loss),
        make=lambda key: (init(config, key), *inputs(config, key)),
    )
