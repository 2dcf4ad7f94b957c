"""A vision transformer: patches, an encoder with layer norm, mean pooling, classes.

Dims: B batch, Y and X pixels, C channels, S patches, D model, H heads, K head, F hidden, O classes.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .convolution import conv2d
from .example import Example
from .parameters import Params, Weight, conv, dense, draw, ones, zeros
from .training import cross_entropy, train_example
from .transformer import attend, cast

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of a model, and of the batch it is trained on."""

    batch: int = 8
    size: int = 16  # Y and X
    colors: int = 3
    patch: int = 4
    layers: int = 2
    d_model: int = 32
    d_ff: int = 128
    heads: int = 8
    classes: int = 24
    dtype: Any = jnp.float32

    @property
    def patches(self) -> int:
        """Patches per image."""
        return (self.size // self.patch) ** 2


PRESETS = {
    "tiny": Config(),
    "vit_l16": Config(
        batch=1024,
        size=224,
        patch=16,
        layers=24,
        d_model=1024,
        d_ff=4096,
        heads=16,
        classes=1000,
        dtype=jnp.bfloat16,
    ),
}


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    d, f, h = config.d_model, config.d_ff, config.heads
    k = d // h
    layer = {
        "gain1": ones(d),
        "bias1": zeros(d),
        "wq": dense(d, h, k),
        "wk": dense(d, h, k),
        "wv": dense(d, h, k),
        "wo": dense(h, k, d, fan_in=d),
        "gain2": ones(d),
        "bias2": zeros(d),
        "w1": dense(d, f),
        "b1": zeros(f),
        "w2": dense(f, d),
        "b2": zeros(d),
    }
    weights = {
        "patch": conv(config.patch, config.patch, config.colors, d),
        "positions": Weight((config.patches, d), std=0.02),
        "layers": [layer] * config.layers,
        "gain": ones(d),
        "bias": zeros(d),
        "head": dense(d, config.classes),
        "head_bias": zeros(config.classes),
    }
    return draw(weights, key)


def layer_norm(x: Array, gain: Array, bias: Array) -> Array:
    """x [..., D] with zero mean and unit variance over D, times gain plus bias."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.var(wide, axis=-1, keepdims=True)
    normed = (wide - mean) * jax.lax.rsqrt(variance + 1e-6)
    return (normed * gain.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


def block(config: Config, layer: Params, x: Array) -> Array:
    """One encoder layer on x [B, S, D]."""
    layer = cast(layer, config.dtype)
    h = layer_norm(x, layer["gain1"], layer["bias1"])
    q, k, v = (jnp.einsum("bsd,dhk->bshk", h, layer[name]) for name in ("wq", "wk", "wv"))
    x = x + jnp.einsum("bshk,hkd->bsd", attend(q, k, v), layer["wo"])
    h = layer_norm(x, layer["gain2"], layer["bias2"])
    h = jax.nn.gelu(h @ layer["w1"] + layer["b1"])
    return x + h @ layer["w2"] + layer["b2"]


def forward(config: Config, params: Params, images: Array) -> Array:
    """Logits [B, O] for images [B, Y, X, C]."""
    x = conv2d(images.astype(config.dtype), params["patch"], stride=config.patch)
    x = x.reshape(x.shape[0], config.patches, config.d_model)
    x = x + params["positions"].astype(config.dtype)
    for layer in params["layers"]:
        x = block(config, layer, x)
    pooled = jnp.mean(layer_norm(x, params["gain"], params["bias"]).astype(jnp.float32), axis=1)
    return pooled @ params["head"] + params["head_bias"]


def loss(config: Config, params: Params, batch: Any) -> Array:
    """The mean cross-entropy of the labels."""
    return cross_entropy(forward(config, params, batch["images"]), batch["labels"])


def batch(config: Config, key: Array) -> dict[str, Array]:
    """Random images [B, Y, X, C] and labels [B]."""
    shape = (config.batch, config.size, config.size, config.colors)
    labels = jax.random.randint(key, (config.batch,), 0, config.classes, jnp.int32)
    return {"images": jax.random.normal(key, shape), "labels": labels}


def train(config: Config, name: str = "vit_train") -> Example:
    """One AdamW step as an example."""
    return train_example(config, name, init=init, loss=loss, batch=batch)


def infer(config: Config, name: str = "vit_forward") -> Example:
    """Classification as an example."""
    return Example(
        name=name,
        fn=partial(forward, config),
        make=lambda key: (init(config, key), batch(config, key)["images"]),
    )
