"""Mixtures of experts as they are trained today: tokens sorted by expert, a ragged dot.

Mixtral (gated experts), and DeepSeek-like models: experts that every token goes to beside the
routed ones, and attention whose keys and values come from a narrow latent.

Dims as in `transformer`, and E experts, T = B S top_k rows, R latent, P rotary part of a head.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from . import transformer
from .example import Example
from .parameters import Params, Weight, dense, draw, ones
from .training import cross_entropy, train_example

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Config(transformer.Config):
    """A transformer, the experts in each of its layers, and the latent of its attention."""

    experts: int = 8
    top_k: int = 2
    shared: int = 0  # hidden width of the expert that every token goes to
    latent: int = 0  # width of what keys and values are made from; 0: grouped-query attention
    rotary: int = 8  # of a head's queries and keys, the part that knows positions


PRESETS = {
    "tiny": Config(positions="rotary", tied=False),
    "tiny_latent": Config(positions="rotary", tied=False, shared=64, latent=16),
    # Mixtral 8x7B (arXiv 2401.04088)
    "mixtral_8x7b": Config(
        layers=32, d_model=4096, d_ff=14_336, heads=32, kv_heads=8, d_head=128, vocab=32_000,
        seq=4096, batch=128, experts=8, top_k=2, positions="rotary", tied=False, remat=True,
        dtype=jnp.bfloat16,
    ),
    # DeepSeek-V2 Lite (arXiv 2405.04434): 64 experts of 1408, 6 per token, 2 shared, latent 512
    "deepseek_16b": Config(
        layers=27, d_model=2048, d_ff=1408, heads=16, kv_heads=16, d_head=128, vocab=102_400,
        seq=4096, batch=128, experts=64, top_k=6, shared=2816, latent=512, rotary=64,
        positions="rotary", tied=False, remat=True, dtype=jnp.bfloat16,
    ),
}  # fmt: skip


def layer_weights(config: Config) -> dict[str, Weight]:
    """The parameters of one layer: attention, router, experts."""
    d, f, e = config.d_model, config.d_ff, config.experts
    h, n, k, r = config.heads, config.kv_heads, config.d_head, config.latent
    weights = {
        "norm1": ones(d), "wo": dense(h, k, d, fan_in=h * k), "norm2": ones(d),
        "router": dense(d, e), "w1": dense(e, d, f, fan_in=d), "w3": dense(e, d, f, fan_in=d),
        "w2": dense(e, f, d, fan_in=f),
    }  # fmt: skip
    if config.shared:
        s = config.shared
        weights |= {"shared1": dense(d, s), "shared3": dense(d, s), "shared2": dense(s, d)}
    if r:
        p = config.rotary
        weights |= {
            "wq": dense(d, h, k), "wq_rotary": dense(d, h, p), "down": dense(d, r),
            "latent_norm": ones(r), "wk": dense(r, h, k), "wk_rotary": dense(d, p),
            "wv": dense(r, h, k),
        }  # fmt: skip
    else:
        weights |= {"wq": dense(d, h, k), "wk": dense(d, n, k), "wv": dense(d, n, k)}
    return weights


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    tree = transformer.weights(config)
    tree["layers"] = [layer_weights(config)] * config.layers
    return draw(tree, key, config.param_dtype)


def latent_attention(layer: Params, x: Array) -> Array:
    """Heads [B, S, H, K] for x [B, S, D]; keys are made of a latent and a shared rotary part."""
    positions = jnp.arange(x.shape[1])
    latent = transformer.rms_norm(x @ layer["down"], layer["latent_norm"])  # [B, S, R]
    q = jnp.einsum("bsd,dhk->bshk", x, layer["wq"])
    q_rotary = transformer.rotate(jnp.einsum("bsd,dhp->bshp", x, layer["wq_rotary"]), positions)
    k = jnp.einsum("bsr,rhk->bshk", latent, layer["wk"])
    k_rotary = transformer.rotate((x @ layer["wk_rotary"])[:, :, None], positions)[:, :, 0]
    v = jnp.einsum("bsr,rhk->bshk", latent, layer["wv"])
    scores = jnp.einsum("bshk,bthk->bhst", q, k) + jnp.einsum("bshp,btp->bhst", q_rotary, k_rotary)
    scores = scores.astype(jnp.float32) / (q.shape[-1] + q_rotary.shape[-1]) ** 0.5
    causal = positions[:, None] >= positions[None, :]
    probs = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(x.dtype)
    return jnp.einsum("bhst,bthk->bshk", probs, v)


def experts(config: Config, layer: Params, x: Array) -> Array:
    """The mixture on x [B, S, D]: rows sorted by expert, one ragged dot for all experts."""
    rows = x.reshape(-1, x.shape[-1])  # [B S, D]
    gates = jax.nn.softmax((rows @ layer["router"]).astype(jnp.float32))
    values, choices = jax.lax.top_k(gates, config.top_k)  # [B S, top_k]
    values = values / jnp.sum(values, axis=-1, keepdims=True)
    order = jnp.argsort(choices.reshape(-1))  # [T]
    sent = rows[order // config.top_k]  # [T, D]
    sizes = jnp.bincount(choices.reshape(-1), length=config.experts)
    hidden = jax.nn.silu(jax.lax.ragged_dot(sent, layer["w1"], sizes))
    hidden = hidden * jax.lax.ragged_dot(sent, layer["w3"], sizes)
    done = jax.lax.ragged_dot(hidden, layer["w2"], sizes)  # [T, D]
    back = jnp.zeros_like(done).at[order].set(done).reshape(*choices.shape, -1)
    mixed = jnp.einsum("tkd,tk->td", back, values.astype(x.dtype)).reshape(x.shape)
    if config.shared:
        common = jax.nn.silu(x @ layer["shared1"]) * (x @ layer["shared3"])
        mixed = mixed + common @ layer["shared2"]
    return mixed


def block(config: Config, layer: Params, x: Array) -> Array:
    """One layer on x [B, S, D]."""
    layer = transformer.cast(layer, config.dtype)
    normed = transformer.rms_norm(x, layer["norm1"])
    if config.latent:
        heads = latent_attention(layer, normed)
    else:
        positions = jnp.arange(x.shape[1])
        q, k, v = transformer.project(config, layer, normed, positions)
        heads = transformer.attend(q, k, v, positions[:, None] >= positions[None, :])
    x = x + transformer.attention_output(layer, heads)
    return x + experts(config, layer, transformer.rms_norm(x, layer["norm2"]))


def loss(config: Config, params: Params, batch: Any) -> Array:
    """The mean cross-entropy of the next token."""
    x = transformer.embed(config, params, batch["tokens"])
    layer_fn = jax.checkpoint(block, static_argnums=0) if config.remat else block
    for layer in params["layers"]:
        x = layer_fn(config, layer, x)
    return cross_entropy(transformer.unembed(config, params, x), batch["targets"])


def train(config: Config, name: str = "sorted_moe_train") -> Example:
    """One AdamW step as an example."""
    return train_example(config, name, init=init, loss=loss, batch=transformer.batch)
