"""Inference with the transformer of the zoo: prefill and decode with a key/value cache.

Dims as in `transformer`, and T: the longest sequence the cache holds (`config.seq`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from . import transformer
from .example import Example
from .parameters import Params
from .transformer import Config

Array = jax.Array
Cache = Any  # {"k", "v"}: [B, T, N, K] in a list over layers, or stacked [L, B, T, N, K]

# Inference keeps the parameters as the computation wants them, and has nothing to recompute.
PRESETS = {
    name: replace(preset, param_dtype=preset.dtype, remat=False)
    for name, preset in transformer.PRESETS.items()
}


def init_cache(config: Config) -> Cache:
    """An empty cache, stacked over layers when the layers are scanned."""
    shape = (config.batch, config.seq, config.kv_heads, config.d_head)
    if config.scan:
        return {name: jnp.zeros((config.layers, *shape), config.dtype) for name in "kv"}
    return [{name: jnp.zeros(shape, config.dtype) for name in "kv"} for _ in range(config.layers)]


def block(
    config: Config, layer: Params, cache: Cache, x: Array, start: Array
) -> tuple[Array, Cache]:
    """One layer on x [B, S, D], which stands at `start`, and the cache with its keys written."""
    layer = transformer.cast(layer, config.dtype)
    positions = start + jnp.arange(x.shape[1])
    normed = transformer.rms_norm(x, layer["norm1"])
    q, k, v = transformer.project(config, layer, normed, positions)
    cache = {
        "k": jax.lax.dynamic_update_slice_in_dim(cache["k"], k, start, axis=1),
        "v": jax.lax.dynamic_update_slice_in_dim(cache["v"], v, start, axis=1),
    }
    visible = positions[:, None] >= jnp.arange(config.seq)[None, :]  # [S, T]
    heads = transformer.attend(q, cache["k"], cache["v"], visible)
    x = x + transformer.attention_output(layer, heads)
    normed = transformer.rms_norm(x, layer["norm2"])
    return x + transformer.feed_forward(config, layer, normed), cache


def extend(
    config: Config, params: Params, cache: Cache, tokens: Array, start: Array
) -> tuple[Array, Cache]:
    """Logits [B, V] after tokens [B, S] placed at `start`, and the longer cache."""
    x = transformer.embed(config, params, tokens, start)
    if config.scan:

        def body(x: Array, xs: tuple[Params, Cache]) -> tuple[Array, Cache]:
            return block(config, *xs, x, start)

        x, cache = jax.lax.scan(body, x, (params["layers"], cache))
    else:
        written = []
        for layer, old in zip(params["layers"], cache, strict=True):
            x, new = block(config, layer, old, x, start)
            written.append(new)
        cache = written
    return transformer.unembed(config, params, x[:, -1:])[:, 0], cache


def decode_step(config: Config) -> Callable[..., tuple[Array, Cache]]:
    """A function (params, cache, tokens [B], position) -> (logits [B, V], cache)."""

    def decode(params: Params, cache: Cache, tokens: Array, position: Array) -> tuple[Array, Cache]:
        return extend(config, params, cache, tokens[:, None], position)

    return decode


def prefill_step(config: Config) -> Callable[..., tuple[Array, Cache]]:
    """A function (params, cache, prompt [B, S]) -> (logits [B, V] of the last token, cache)."""

    def prefill(params: Params, cache: Cache, prompt: Array) -> tuple[Array, Cache]:
        return extend(config, params, cache, prompt, jnp.int32(0))

    return prefill


def decode(config: Config, name: str = "transformer_decode") -> Example:
    """One decoded token per sequence as an example; the cache is donated."""

    def make(key: Array) -> tuple[Any, ...]:
        tokens = transformer.batch(config, key)["tokens"][:, 0]
        position = jnp.int32(config.seq // 2)
        return transformer.init(config, key), _filled(config, key), tokens, position

    return Example(name=name, fn=decode_step(config), make=make, donate_argnums=(1,))


def prefill(config: Config, name: str = "transformer_prefill") -> Example:
    """A prompt of half the cache's length as an example; the cache is donated."""

    def make(key: Array) -> tuple[Any, ...]:
        prompt = transformer.batch(config, key)["tokens"][:, : config.seq // 2]
        return transformer.init(config, key), init_cache(config), prompt

    return Example(name=name, fn=prefill_step(config), make=make, donate_argnums=(1,))


def _filled(config: Config, key: Array) -> Cache:
    """A cache of random numbers, so that every position matters to the result."""
    draw = partial(jax.random.normal, dtype=jnp.float32)
    leaves, tree = jax.tree.flatten(init_cache(config))
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        tree, [draw(k, x.shape).astype(x.dtype) for k, x in zip(keys, leaves, strict=True)]
    )
