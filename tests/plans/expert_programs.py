"""Mixtures of experts as users write them: a layer each, with its shapes, in several styles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox import ops as megablox

Array = jax.Array
Weights = dict[str, Array]


class Sizes(NamedTuple):
    batch: int
    seq: int
    width: int
    hidden: int
    experts: int
    top_k: int


TINY = Sizes(8, 16, 32, 64, 4, 2)
MIXTRAL = Sizes(128, 4096, 4096, 14_336, 8, 2)
DEEPSEEK = Sizes(256, 4096, 2048, 1408, 64, 6)


def weights(sizes: Sizes, dtype: Any) -> dict[str, jax.ShapeDtypeStruct]:
    e, d, f = sizes.experts, sizes.width, sizes.hidden
    shapes = {"router": (d, e), "w1": (e, d, f), "w3": (e, d, f), "w2": (e, f, d)}
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}


def gated(w: Weights, rows: Array, sizes: Array) -> Array:
    """The experts' own layers on rows that are sorted by expert."""
    hidden = jax.nn.silu(jax.lax.ragged_dot(rows, w["w1"], sizes))
    hidden = hidden * jax.lax.ragged_dot(rows, w["w3"], sizes)
    return jax.lax.ragged_dot(hidden, w["w2"], sizes)


def route(w: Weights, rows: Array, top_k: int) -> tuple[Array, Array]:
    logits = (rows @ w["router"]).astype(jnp.float32)
    gates, choices = jax.lax.top_k(jax.nn.softmax(logits), top_k)
    return (gates / jnp.sum(gates, axis=-1, keepdims=True)).astype(rows.dtype), choices


def scattered(w: Weights, x: Array, top_k: int) -> Array:
    """Sort, index, set the results back where they came from."""
    rows = x.reshape(-1, x.shape[-1])
    gates, choices = route(w, rows, top_k)
    order = jnp.argsort(choices.reshape(-1))
    sizes = jnp.bincount(choices.reshape(-1), length=len(w["w1"]))
    done = gated(w, rows[order // top_k], sizes)
    back = jnp.zeros_like(done).at[order].set(done).reshape(*choices.shape, -1)
    return jnp.einsum("tkd,tk->td", back, gates).reshape(x.shape)


def unsorted(w: Weights, x: Array, top_k: int) -> Array:
    """As MaxText permutes and unpermutes: take, and the sort of the order."""
    rows = jnp.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))
    gates, choices = route(w, rows, top_k)
    flat = jnp.ravel(choices)
    order = jnp.argsort(flat)
    taken = jnp.take(rows, indices=order // top_k, axis=0)
    sizes = jnp.bincount(flat, length=w["w1"].shape[0])
    done = gated(w, taken, sizes)
    back = jnp.take(done, indices=jnp.argsort(order), axis=0)
    back = jnp.reshape(back, (-1, top_k, x.shape[2]))
    return jnp.einsum("BKE,BK->BE", back, gates).reshape(x.shape)


def weighted(w: Weights, x: Array, top_k: int) -> Array:
    """Rows repeated, weighted while sorted, and added up by token."""
    rows = x.reshape(-1, x.shape[-1])
    gates, choices = route(w, rows, top_k)
    flat = choices.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    sizes = jnp.sum(jax.nn.one_hot(flat, len(w["w1"]), dtype=jnp.int32), axis=0)
    tokens = jnp.repeat(jnp.arange(len(rows)), top_k)[order]
    done = gated(w, rows[tokens], sizes) * gates.reshape(-1)[order][:, None]
    return jnp.zeros_like(rows).at[tokens].add(done).reshape(x.shape)


def segmented(w: Weights, x: Array, top_k: int) -> Array:
    """Three arrays sorted at once, and a segment sum."""
    rows = x.reshape(-1, x.shape[-1])
    gates, choices = route(w, rows, top_k)
    tokens = jax.lax.broadcasted_iota(jnp.int32, choices.shape, 0)
    flat = (choices.reshape(-1), tokens.reshape(-1), gates.reshape(-1))
    by, tokens, gates = jax.lax.sort(flat, num_keys=1)
    sizes = jnp.bincount(by, length=len(w["w1"]))
    done = gated(w, rows[tokens], sizes) * gates[:, None]
    return jax.ops.segment_sum(done, tokens, num_segments=len(rows)).reshape(x.shape)


def one_choice(w: Weights, x: Array, top_k: int) -> Array:
    """As Switch and Llama 4: each token goes to one expert."""
    del top_k
    rows = x.reshape(-1, x.shape[-1])
    probs = jax.nn.softmax((rows @ w["router"]).astype(jnp.float32))
    choice = jnp.argmax(probs, axis=-1)
    order = jnp.argsort(choice)
    sizes = jnp.bincount(choice, length=len(w["w1"]))
    done = gated(w, rows[order], sizes)[jnp.argsort(order)]
    return (done * jnp.max(probs, axis=-1, keepdims=True).astype(x.dtype)).reshape(x.shape)


def each_sequence(w: Weights, x: Array, top_k: int) -> Array:
    """One sequence after the other, each sorting its own (JAX has no vmap of a ragged dot)."""
    return jax.lax.map(lambda rows: unsorted(w, rows[None], top_k)[0], x)


def limited(w: Weights, x: Array, top_k: int) -> Array:
    """As DeepSeek: the best groups of experts first, then the best experts in them."""
    rows, groups = x.reshape(-1, x.shape[-1]), 2
    scores = jax.nn.sigmoid((rows @ w["router"]).astype(jnp.float32))
    best = jnp.max(scores.reshape(len(rows), groups, -1), axis=-1)
    _, chosen = jax.lax.top_k(best, 1)
    mask = jnp.repeat(jax.nn.one_hot(chosen[:, 0], groups), scores.shape[1] // groups, axis=1)
    gates, choices = jax.lax.top_k(scores * mask, top_k)
    flat = choices.reshape(-1)
    order = jnp.argsort(flat)
    sizes = jnp.bincount(flat, length=len(w["w1"]))
    done = gated(w, rows[order // top_k], sizes)
    back = done[jnp.argsort(order)].reshape(*choices.shape, -1)
    return jnp.sum(back * gates[..., None].astype(x.dtype), axis=1).reshape(x.shape)


def tiled(w: Weights, x: Array, top_k: int) -> Array:
    """With megablox, as it runs on TPUs."""
    rows = x.reshape(-1, x.shape[-1])
    gates, choices = route(w, rows, top_k)
    flat = choices.reshape(-1)
    order = jnp.argsort(flat)
    sizes = jnp.bincount(flat, length=len(w["w1"])).astype(jnp.int32)
    tiling = (128 if len(flat) < 2**16 else 512,) * 3

    def multiply(rows: Array, w: Array) -> Array:
        return megablox.gmm(rows, w, sizes, rows.dtype, tiling, interpret=True)

    sent = rows[order // top_k]
    hidden = jax.nn.silu(multiply(sent, w["w1"])) * multiply(sent, w["w3"])
    back = multiply(hidden, w["w2"])[jnp.argsort(order)].reshape(*choices.shape, -1)
    return jnp.einsum("tkd,tk->td", back, gates).reshape(x.shape)


def one_hot(w: Weights, x: Array, top_k: int) -> Array:
    """The form without sorting, which every expert multiplies whole."""
    gates, choices = route(w, x, top_k)
    mine = jnp.sum(jax.nn.one_hot(choices, len(w["w1"]), dtype=x.dtype) * gates[..., None], -2)
    hidden = jax.nn.silu(jnp.einsum("bsd,edf->ebsf", x, w["w1"]))
    hidden = hidden * jnp.einsum("bsd,edf->ebsf", x, w["w3"])
    return jnp.einsum("ebsf,efd,bse->bsd", hidden, w["w2"], mine)


STYLES: dict[str, Callable[[Weights, Array, int], Array]] = {
    fn.__name__: fn
    for fn in (scattered, unsorted, weighted, segmented, one_choice, each_sequence, limited, tiled)
}


def layer(style: str, sizes: Sizes) -> Callable[..., Any]:
    """The forward pass, of (weights, x)."""
    fn = STYLES.get(style, one_hot)
    return lambda w, x: x + fn(w, x, sizes.top_k)


def gradients(style: str, sizes: Sizes) -> Callable[..., Any]:
    """Gradients for weights and x."""
    fn = layer(style, sizes)
    return jax.grad(lambda w, x: jnp.sum(jnp.sin(fn(w, x).astype(jnp.float32))), (0, 1))


def arguments(sizes: Sizes, dtype: Any = jnp.bfloat16) -> tuple[Any, Any]:
    x = jax.ShapeDtypeStruct((sizes.batch, sizes.seq, sizes.width), dtype)
    return weights(sizes, dtype), x
