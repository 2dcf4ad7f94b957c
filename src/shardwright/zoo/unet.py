"""A U-Net that learns to remove noise: the model of image diffusion.

Dims: B batch, Y and X pixels, C channels (they double at each level down), T features of time.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from .convolution import conv2d, group_norm, upsample
from .example import Example
from .parameters import Params, Weight, conv, dense, draw, ones, zeros
from .training import train_example
from .transformer import attend

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of a model, and of the batch it is trained on."""

    batch: int = 8
    size: int = 16  # Y and X
    colors: int = 8  # channels of the image (of its latent code)
    width: int = 16  # channels at full resolution
    levels: int = 2  # each halves Y and X and doubles the channels
    groups: int = 8
    heads: int = 8
    d_time: int = 32
    dtype: Any = jnp.float32


PRESETS = {
    "tiny": Config(),
    # In the range of latent-diffusion models, not a copy of one.
    "latent": Config(
        batch=128,
        size=64,
        width=320,
        levels=3,
        groups=32,
        heads=32,
        d_time=1280,
        dtype=jnp.bfloat16,
    ),
}


def residual_weights(config: Config, channels: int, features: int) -> dict[str, Weight]:
    """The parameters of a residual block that maps C = channels to O = features."""
    weights = {
        "gain1": ones(channels),
        "bias1": zeros(channels),
        "conv1": conv(3, 3, channels, features),
        "time": dense(config.d_time, features),
        "gain2": ones(features),
        "bias2": zeros(features),
        "conv2": conv(3, 3, features, features),
    }
    if channels != features:
        weights["skip"] = conv(1, 1, channels, features)
    return weights


def attention_weights(channels: int, heads: int) -> dict[str, Weight]:
    """The parameters of self-attention over pixels."""
    k = channels // heads
    return {
        "gain": ones(channels),
        "bias": zeros(channels),
        "wq": dense(channels, heads, k),
        "wk": dense(channels, heads, k),
        "wv": dense(channels, heads, k),
        "wo": dense(heads, k, channels, fan_in=channels),
    }


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    widths = [config.width * 2**level for level in range(config.levels + 1)]
    block = partial(residual_weights, config)
    weights = {
        "time1": dense(config.d_time, config.d_time),
        "time2": dense(config.d_time, config.d_time),
        "stem": conv(3, 3, config.colors, config.width),
        "down": [
            {"block": block(fine, fine), "shrink": conv(3, 3, fine, coarse)}
            for fine, coarse in pairwise(widths)
        ],
        "middle": {
            "block1": block(widths[-1], widths[-1]),
            "attention": attention_weights(widths[-1], config.heads),
            "block2": block(widths[-1], widths[-1]),
        },
        "up": [
            {"grow": conv(3, 3, coarse, fine), "block": block(2 * fine, fine)}
            for fine, coarse in reversed(list(pairwise(widths)))
        ],
        "gain": ones(config.width),
        "bias": zeros(config.width),
        "out": conv(3, 3, config.width, config.colors),
    }
    return draw(weights, key)


def residual(config: Config, params: Params, x: Array, time: Array) -> Array:
    """A residual block on x [B, Y, X, C], told the time [B, T]."""
    norm = partial(group_norm, groups=config.groups)
    h = jax.nn.silu(norm(x, params["gain1"], params["bias1"]))
    h = conv2d(h, params["conv1"])
    h = h + (time @ params["time"].astype(time.dtype))[:, None, None, :]
    h = jax.nn.silu(norm(h, params["gain2"], params["bias2"]))
    h = conv2d(h, params["conv2"])
    return h + (conv2d(x, params["skip"]) if "skip" in params else x)


def attention(config: Config, params: Params, x: Array) -> Array:
    """Self-attention over the pixels of x [B, Y, X, C]."""
    h = group_norm(x, params["gain"], params["bias"], groups=config.groups)
    h = h.reshape(x.shape[0], -1, x.shape[3])  # [B, Y*X, C]
    q, k, v = (
        jnp.einsum("bsc,chk->bshk", h, params[name].astype(h.dtype)) for name in ("wq", "wk", "wv")
    )
    out = jnp.einsum("bshk,hkc->bsc", attend(q, k, v), params["wo"].astype(h.dtype))
    return x + out.reshape(x.shape)


def embed_time(config: Config, params: Params, time: Array) -> Array:
    """Features [B, T] of the times [B] in [0, 1)."""
    half = config.d_time // 2
    angle = 1000.0 * time[:, None] * 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    waves = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
    return (jax.nn.silu(waves @ params["time1"]) @ params["time2"]).astype(config.dtype)


def forward(config: Config, params: Params, images: Array, time: Array) -> Array:
    """The noise [B, Y, X, C] seen in images [B, Y, X, C] at time [B]."""
    features = embed_time(config, params, time)
    x = conv2d(images.astype(config.dtype), params["stem"])
    skips = []
    for level in params["down"]:
        x = residual(config, level["block"], x, features)
        skips.append(x)
        x = conv2d(x, level["shrink"], stride=2)
    middle = params["middle"]
    x = residual(config, middle["block1"], x, features)
    x = attention(config, middle["attention"], x)
    x = residual(config, middle["block2"], x, features)
    for level in params["up"]:
        x = conv2d(upsample(x), level["grow"])
        x = jnp.concatenate([x, skips.pop()], axis=-1)
        x = residual(config, level["block"], x, features)
    x = jax.nn.silu(group_norm(x, params["gain"], params["bias"], groups=config.groups))
    return conv2d(x, params["out"]).astype(jnp.float32)


def loss(config: Config, params: Params, batch: Any) -> Array:
    """The mean squared error of the predicted noise, drawn from the batch's key."""
    noise_key, time_key = jax.random.split(batch["key"])
    images = batch["images"]
    noise = jax.random.normal(noise_key, images.shape)
    time = jax.random.uniform(time_key, images.shape[:1])
    angle = (0.5 * jnp.pi * time)[:, None, None, None]
    noisy = jnp.cos(angle) * images + jnp.sin(angle) * noise
    return jnp.mean((forward(config, params, noisy, time) - noise) ** 2)


def images(config: Config, key: Array) -> Array:
    """Random images [B, Y, X, C]."""
    return jax.random.normal(key, (config.batch, config.size, config.size, config.colors))


def batch(config: Config, key: Array) -> dict[str, Array]:
    """Random images, and the key to draw noise and times from."""
    return {"images": images(config, key), "key": jax.random.fold_in(key, 1)}


def train(config: Config, name: str = "unet_train") -> Example:
    """One AdamW step as an example."""
    return train_example(config, name, init=init, loss=loss, batch=batch)


def infer(config: Config, name: str = "unet_forward") -> Example:
    """One denoising step as an example."""
    return Example(
        name=name,
        fn=partial(forward, config),
        make=lambda key: (
            init(config, key),
            images(config, key),
            jax.random.uniform(key, (config.batch,)),
        ),
    )
