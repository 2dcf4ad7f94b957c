"""An encoder-decoder: a decoder that looks at an encoded source, with lengths of their own (T5).

Dims: B batch, S source, T target, D model, H heads, K head, F hidden, V vocabulary.
"""

from dataclasses import dataclass, replace
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
    """A decoder (`seq` is its length), an encoder of as many layers, and the source's length."""

    source: int = 24


PRESETS = {
    "tiny": Config(),
    # T5 1.1 XXL: gated hidden layers, 4.6 billion parameters in each half
    "t5_11b": Config(
        layers=24, d_model=4096, d_ff=10_240, heads=64, kv_heads=64, d_head=64, vocab=32_128,
        seq=512, source=512, batch=512, mlp="swiglu", tied=False, dtype=jnp.bfloat16,
    ),
}  # fmt: skip


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    d, h, k = config.d_model, config.heads, config.d_head
    layer = transformer.layer_weights(config)
    cross = {
        "norm": ones(d), "wq": dense(d, h, k), "wk": dense(d, h, k), "wv": dense(d, h, k),
        "wo": dense(h, k, d, fan_in=h * k),
    }  # fmt: skip
    weights = transformer.weights(replace(config, scan=False, positions="rotary"))
    weights["layers"] = [{"self": layer, "cross": cross}] * config.layers
    weights |= {"encoder": [layer] * config.layers, "encoder_norm": ones(d)}
    weights["source_embedding"] = Weight((config.vocab, d), std=0.02)
    return draw(weights, key)


def attention(config: Config, layer: Params, x: Array, *, causal: bool) -> Array:
    """Self-attention on x [B, S, D]."""
    positions = jnp.arange(x.shape[1])
    normed = transformer.rms_norm(x, layer["norm1"])
    q, k, v = transformer.project(config, layer, normed, positions)
    mask = positions[:, None] >= positions[None, :] if causal else None
    return x + transformer.attention_output(layer, transformer.attend(q, k, v, mask))


def hidden(config: Config, layer: Params, x: Array) -> Array:
    """The MLP on x [B, S, D]."""
    return x + transformer.feed_forward(config, layer, transformer.rms_norm(x, layer["norm2"]))


def look(layer: Params, x: Array, source: Array) -> Array:
    """Attention of x [B, T, D] to the encoded source [B, S, D]."""
    q = jnp.einsum("btd,dhk->bthk", transformer.rms_norm(x, layer["norm"]), layer["wq"])
    k, v = (jnp.einsum("bsd,dhk->bshk", source, layer[name]) for name in ("wk", "wv"))
    return x + jnp.einsum("bthk,hkd->btd", transformer.attend(q, k, v), layer["wo"])


def forward(config: Config, params: Params, source: Array, tokens: Array) -> Array:
    """Logits [B, T, V] for tokens [B, T], given a source [B, S]."""
    config = replace(config, positions="rotary")
    x = params["source_embedding"][source].astype(config.dtype)
    for layer in transformer.cast(params["encoder"], config.dtype):
        x = hidden(config, layer, attention(config, layer, x, causal=False))
    encoded = transformer.rms_norm(x, params["encoder_norm"])
    y = transformer.embed(config, params, tokens)
    for layer in transformer.cast(params["layers"], config.dtype):
        y = attention(config, layer["self"], y, causal=True)
        y = hidden(config, layer["self"], look(layer["cross"], y, encoded))
    return transformer.unembed(config, params, y)


def loss(config: Config, params: Params, batch: Any) -> Array:
    """The mean cross-entropy of the next target token, given the source."""
    logits = forward(config, params, batch["source"], batch["tokens"])
    return cross_entropy(logits, batch["targets"])


def batch(config: Config, key: Array) -> dict[str, Array]:
    """Random source [B, S], tokens and targets [B, T]."""
    shape = (config.batch, config.source)
    source = jax.random.randint(key, shape, 0, config.vocab, jnp.int32)
    return {"source": source, **transformer.batch(config, key)}


def train(config: Config, name: str = "encoder_decoder_train") -> Example:
    """One AdamW step as an example."""
    return train_example(config, name, init=init, loss=loss, batch=batch)
