"""Small programs with squares: every way in which one color meets itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


def attend(q: Array, k: Array, v: Array, mask: bool = False) -> Array:
    scores = q @ k.T
    if mask:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape, bool)), scores, -1e30)
    return jax.nn.softmax(scores, axis=-1) @ v


def self_attention(x: Array, wq: Array, wk: Array, wv: Array) -> Array:
    return attend(x @ wq, x @ wk, x @ wv)


def causal_attention(x: Array, wq: Array, wk: Array, wv: Array) -> Array:
    return attend(x @ wq, x @ wk, x @ wv, mask=True)


def shared_projection(x: Array, wq: Array, wv: Array) -> Array:
    """Queries are keys: the scores are symmetric."""
    q = x @ wq
    return attend(q, q, x @ wv)


def cross_attention(x: Array, memory: Array, wq: Array, wk: Array, wv: Array) -> Array:
    return attend(x @ wq, memory @ wk, memory @ wv)


def grouped_heads(x: Array, wq: Array, wk: Array, wv: Array) -> Array:
    """x [S, D]; wq [D, H, K], wk and wv [D, N, K], H = N x G."""
    n = wk.shape[1]
    q = jnp.einsum("sd,dhk->shk", x, wq).reshape(x.shape[0], n, -1, wq.shape[2])
    k, v = jnp.einsum("sd,dnk->snk", x, wk), jnp.einsum("sd,dnk->snk", x, wv)
    probs = jax.nn.softmax(jnp.einsum("sngk,tnk->ngst", q, k), axis=-1)
    return jnp.einsum("ngst,tnk->sngk", probs, v)


def attention_layers(x: Array, layers: list[tuple[Array, Array, Array]]) -> Array:
    for wq, wk, wv in layers:
        x = x + self_attention(x, wq, wk, wv)
    return x


def attention_in_scan(x: Array, layers: tuple[Array, Array, Array]) -> Array:
    return lax.scan(lambda x, w: (x + self_attention(x, *w), None), x, layers)[0]


def square_chain(x: Array, ws: list[Array]) -> Array:
    """No residual: each weight joins two different colors."""
    for w in ws:
        x = jnp.tanh(x @ w)
    return x


def square_residual(x: Array, ws: list[Array]) -> Array:
    """A residual stream makes both dims of each weight one color."""
    for w in ws:
        x = x + jnp.tanh(x @ w)
    return x


def symmetric(w: Array) -> Array:
    """w[i, j] + w[j, i]: whichever dim is chosen, the other summand is split the other way."""
    return w + w.T


def gram(x: Array) -> Array:
    """x x': both dims of the result are the rows of x."""
    return x @ x.T


def pairwise(x: Array) -> Array:
    """All pairs of rows, three times: [N, N, N]."""
    return x[:, None, None] + x[None, :, None] + x[None, None, :]


def with_gradient(fn: Any) -> Any:
    """Loss and gradients of all arguments."""

    def loss(*args: Any) -> Array:
        return jnp.sum(fn(*args) ** 2)

    return lambda *args: jax.value_and_grad(loss, argnums=tuple(range(len(args))))(*args)
