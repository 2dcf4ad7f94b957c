"""A diffusion transformer: noisy patches, layers modulated by time and class (DiT).

Dims: B batch, S patches, P pixels of a patch, D model, H heads, K head, F hidden.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .example import Example
from .parameters import Params, Weight, dense, draw
from .training import train_example
from .transformer import attend, cast

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of a model, and of the batch it is trained on."""

    batch: int = 8
    patches: int = 16
    pixels: int = 8  # numbers in a patch
    layers: int = 2
    d_model: int = 32
    d_ff: int = 128
    heads: int = 8
    classes: int = 24
    dtype: Any = jnp.float32


PRESETS = {
    "tiny": Config(),
    # DiT-XL/2 of arXiv 2212.09748: latents of 32 x 32 x 4 in patches of 2 x 2
    "dit_xl": Config(
        batch=256, patches=256, pixels=16, layers=28, d_model=1152, d_ff=4608, heads=16,
        classes=1000, dtype=jnp.bfloat16,
    ),
}  # fmt: skip


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    d, f, h = config.d_model, config.d_ff, config.heads
    layer = {
        "modulation": dense(d, 6, d),
        "wq": dense(d, h, d // h),
        "wk": dense(d, h, d // h),
        "wv": dense(d, h, d // h),
        "wo": dense(h, d // h, d, fan_in=d),
        "w1": dense(d, f),
        "w2": dense(f, d),
    }
    weights = {
        "patch": dense(config.pixels, d),
        "positions": Weight((config.patches, d), std=0.02),
        "classes": Weight((config.classes, d), std=0.02),
        "time": dense(d, d),
        "layers": [layer] * config.layers,
        "head": dense(d, config.pixels),
    }
    return draw(weights, key)


def time_features(t: Array, width: int) -> Array:
    """Sines and cosines [B, D] of times t [B]."""
    frequency = jnp.exp(jnp.linspace(0.0, 7.0, width // 2))
    angle = t[:, None] * frequency
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def normalize(x: Array) -> Array:
    """x [..., D] with zero mean and unit variance over D."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    return ((wide - mean) * jax.lax.rsqrt(jnp.var(wide, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def block(config: Config, layer: Params, x: Array, about: Array) -> Array:
    """One layer on patches x [B, S, D], modulated by what the image is about [B, D]."""
    layer = cast(layer, config.dtype)
    modulation = jnp.einsum("bd,dce->cbe", jax.nn.silu(about), layer["modulation"])[:, :, None]
    shift1, scale1, gate1, shift2, scale2, gate2 = modulation  # [B, 1, D] each
    h = normalize(x) * (1 + scale1) + shift1
    q, k, v = (jnp.einsum("bsd,dhk->bshk", h, layer[name]) for name in ("wq", "wk", "wv"))
    x = x + gate1 * jnp.einsum("bshk,hkd->bsd", attend(q, k, v), layer["wo"])
    h = normalize(x) * (1 + scale2) + shift2
    return x + gate2 * (jax.nn.gelu(h @ layer["w1"]) @ layer["w2"])


def forward(config: Config, params: Params, noisy: Array, t: Array, labels: Array) -> Array:
    """The noise [B, S, P] in patches [B, S, P] at times t [B]."""
    x = noisy.astype(config.dtype) @ params["patch"].astype(config.dtype)
    x = x + params["positions"].astype(config.dtype)
    about = time_features(t, config.d_model) @ params["time"] + params["classes"][labels]
    for layer in params["layers"]:
        x = block(config, layer, x, about.astype(config.dtype))
    return (normalize(x) @ params["head"].astype(config.dtype)).astype(jnp.float32)


def loss(config: Config, params: Params, batch: Any) -> Array:
    """The mean squared error of the predicted noise."""
    t, noise = batch["times"], batch["noise"]
    level = t[:, None, None]
    noisy = jnp.sqrt(1 - level) * batch["images"] + jnp.sqrt(level) * noise
    return jnp.mean((forward(config, params, noisy, t, batch["labels"]) - noise) ** 2)


def batch(config: Config, key: Array) -> dict[str, Array]:
    """Random images and noise [B, S, P], times and labels [B]."""
    shape = (config.batch, config.patches, config.pixels)
    images, noise = jax.random.normal(key, (2, *shape))
    return {
        "images": images,
        "noise": noise,
        "times": jax.random.uniform(key, (config.batch,), minval=0.01, maxval=0.99),
        "labels": jax.random.randint(key, (config.batch,), 0, config.classes, jnp.int32),
    }


def train(config: Config, name: str = "dit_train") -> Example:
    """One AdamW step as an example."""
    return train_example(config, name, init=init, loss=loss, batch=batch)
