"""A residual network of bottleneck blocks, with batch norm that keeps running statistics.

Dims: B batch, Y and X pixels, C channels, O classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .convolution import conv2d
from .example import Example
from .parameters import Params, conv, dense, draw, ones, zeros
from .training import adamw, cross_entropy, first_state, optax

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of a model, and of the batch it is trained on."""

    batch: int = 16
    size: int = 16  # Y and X
    colors: int = 3
    depths: tuple[int, ...] = (1, 2)  # blocks per stage; each stage but the first halves Y, X
    width: int = 8  # inner channels of the first stage; they double at each stage
    expansion: int = 4  # outer channels / inner channels
    classes: int = 24
    stem: int = 3  # side of the first kernel
    stem_stride: int = 1
    pool: bool = False  # 3x3 max-pooling after the stem
    dtype: Any = jnp.float32


PRESETS = {
    "tiny": Config(),
    "resnet_50": Config(
        batch=1024,
        size=224,
        depths=(3, 4, 6, 3),
        width=64,
        classes=1000,
        stem=7,
        stem_stride=2,
        pool=True,
        dtype=jnp.bfloat16,
    ),
}


class State(NamedTuple):
    """What one training step hands to the next."""

    params: Params
    stats: Params  # running mean and variance of each batch norm
    opt_state: Any
    step: Array


def weights(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """All parameters and all running statistics, and how to draw them."""

    def norm(channels: int) -> tuple[dict[str, Any], dict[str, Any]]:
        return (
            {"gain": ones(channels), "bias": zeros(channels)},
            {"mean": zeros(channels), "variance": ones(channels)},
        )

    stem_params, stem_stats = norm(config.width)
    params: dict[str, Any] = {"norm": stem_params, "blocks": []}
    stats: dict[str, Any] = {"norm": stem_stats, "blocks": []}
    params["stem"] = conv(config.stem, config.stem, config.colors, config.width)
    channels = config.width
    for stage, depth in enumerate(config.depths):
        inner, outer = config.width * 2**stage, config.width * 2**stage * config.expansion
        for _ in range(depth):
            sides = {
                "1": (1, channels, inner),
                "2": (3, inner, inner),
                "3": (1, inner, outer),
                **({"skip": (1, channels, outer)} if channels != outer else {}),
            }
            block: dict[str, Any] = {}
            block_stats: dict[str, Any] = {}
            for name, (side, source, target) in sides.items():
                block[f"conv{name}"] = conv(side, side, source, target)
                block[f"norm{name}"], block_stats[f"norm{name}"] = norm(target)
            params["blocks"].append(block)
            stats["blocks"].append(block_stats)
            channels = outer
    params["head"] = dense(channels, config.classes)
    return params, stats


def batch_norm(params: Params, stats: Params, x: Array, *, training: bool) -> tuple[Array, Params]:
    """x [B, Y, X, C] normalised per channel, and the running statistics after it."""
    wide = x.astype(jnp.float32)
    if training:
        mean = jnp.mean(wide, axis=(0, 1, 2))
        variance = jnp.mean(wide * wide, axis=(0, 1, 2)) - mean * mean
        stats = {
            "mean": 0.9 * stats["mean"] + 0.1 * mean,
            "variance": 0.9 * stats["variance"] + 0.1 * variance,
        }
    else:
        mean, variance = stats["mean"], stats["variance"]
    normed = (wide - mean) * jax.lax.rsqrt(variance + 1e-5)
    return (normed * params["gain"] + params["bias"]).astype(x.dtype), stats


def bottleneck(
    params: Params, stats: Params, x: Array, *, stride: int, training: bool
) -> tuple[Array, Params]:
    """One residual block on x [B, Y, X, C], and its running statistics."""
    new = {}

    def step(name: str, x: Array, stride: int = 1) -> Array:
        x = conv2d(x, params[f"conv{name}"], stride=stride)
        norm = f"norm{name}"
        x, new[norm] = batch_norm(params[norm], stats[norm], x, training=training)
        return x

    h = jax.nn.relu(step("1", x))
    h = jax.nn.relu(step("2", h, stride))
    h = step("3", h)
    skip = step("skip", x, stride) if "convskip" in params else x
    return jax.nn.relu(h + skip), new


def forward(
    config: Config, params: Params, stats: Params, images: Array, *, training: bool = False
) -> tuple[Array, Params]:
    """Logits [B, O] for images [B, Y, X, C], and the running statistics."""
    x = conv2d(images.astype(config.dtype), params["stem"], stride=config.stem_stride)
    x, stem_stats = batch_norm(params["norm"], stats["norm"], x, training=training)
    x = jax.nn.relu(x)
    if config.pool:
        window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "SAME")
    new_stats = []
    firsts = {sum(config.depths[:stage]) for stage in range(1, len(config.depths))}
    for i, (block, old) in enumerate(zip(params["blocks"], stats["blocks"], strict=True)):
        x, new = bottleneck(block, old, x, stride=2 if i in firsts else 1, training=training)
        new_stats.append(new)
    pooled = jnp.mean(x.astype(jnp.float32), axis=(1, 2))  # [B, C]
    return pooled @ params["head"], {"norm": stem_stats, "blocks": new_stats}


def train_step(config: Config) -> Callable[[State, Any], tuple[State, Array]]:
    """A function (state, batch) -> (next state, loss); donate the state."""
    optimizer = adamw()

    def loss(params: Params, stats: Params, batch: Any) -> tuple[Array, Params]:
        logits, stats = forward(config, params, stats, batch["images"], training=True)
        return cross_entropy(logits, batch["labels"]), stats

    def train_step(state: State, batch: Any) -> tuple[State, Array]:
        grad = jax.value_and_grad(loss, has_aux=True)
        (value, stats), grads = grad(state.params, state.stats, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return State(params, stats, opt_state, state.step + 1), value

    return train_step


def init(config: Config, key: Array) -> tuple[Params, Params]:
    """Fresh parameters and running statistics."""
    params, stats = weights(config)
    return draw(params, key), draw(stats, key)


def train_state(config: Config, key: Array) -> State:
    """Parameters, running statistics, AdamW moments and step count."""
    params, stats = init(config, key)
    state = first_state(params, adamw())
    return State(state.params, stats, state.opt_state, state.step)


def batch(config: Config, key: Array) -> dict[str, Array]:
    """Random images [B, Y, X, C] and labels [B]."""
    shape = (config.batch, config.size, config.size, config.colors)
    labels = jax.random.randint(key, (config.batch,), 0, config.classes, jnp.int32)
    return {"images": jax.random.normal(key, shape), "labels": labels}


def train(config: Config, name: str = "resnet_train") -> Example:
    """One AdamW step as an example."""
    return Example(
        name=name,
        fn=train_step(config),
        make=lambda key: (train_state(config, key), batch(config, key)),
        donate_argnums=(0,),
    )


def infer(config: Config, name: str = "resnet_forward") -> Example:
    """Classification with the running statistics as an example."""
    return Example(
        name=name,
        fn=lambda params, stats, images: forward(config, params, stats, images)[0],
        make=lambda key: (*init(config, key), batch(config, key)["images"]),
    )
