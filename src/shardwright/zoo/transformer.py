"""A decoder-only transformer: GPT or Llama, unrolled or scanned, as plain functions.

Dims: B batch, S sequence, D model, H query heads, N key/value heads, G = H/N queries per
key/value head, K head, F hidden, V vocabulary, L layers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from .example import Example
from .parameters import Params, Weight, dense, draw, ones, stacked, zeros
from .training import cross_entropy, train_example

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape and the style of a model, and of the batch it is trained on."""

    layers: int = 2
    d_model: int = 32
    d_ff: int = 128
    heads: int = 8
    kv_heads: int = 8
    d_head: int = 8
    vocab: int = 256
    seq: int = 16
    batch: int = 8
    tied: bool = True  # one embedding for input and output
    positions: Literal["learned", "rotary"] = "learned"
    mlp: Literal["gelu", "swiglu"] = "gelu"
    fused_qkv: bool = False  # one projection [3, D, H, K]; needs kv_heads == heads
    biases: bool = False  # on the outputs of attention and of both halves of the MLP
    final_norm: bool = True
    scan: bool = False  # lax.scan over stacked layers, or a list of layers
    remat: bool = False  # recompute each block in the backward pass
    dtype: Any = jnp.float32  # of the computation
    param_dtype: Any = jnp.float32


_BF16 = Config(d_head=128, seq=2048, dtype=jnp.bfloat16)
_LLAMA = replace(
    _BF16, kv_heads=8, vocab=128_256, tied=False, positions="rotary", mlp="swiglu", remat=True
)

PRESETS = {
    "tiny": Config(),
    "tiny_llama": Config(heads=16, tied=False, positions="rotary", mlp="swiglu"),
    "tiny_partir": Config(fused_qkv=True, biases=True, final_norm=False),
    # The two-layer GPT of docs and benchmarks.
    "gpt_2l": replace(
        _BF16, d_model=2048, d_ff=8192, heads=16, kv_heads=16, vocab=32_768, batch=32
    ),
    # Llama 3: 8.0 and 70.6 billion parameters.
    "llama_8b": replace(_LLAMA, layers=32, d_model=4096, d_ff=14_336, heads=32, batch=256),
    "llama_70b": replace(_LLAMA, layers=80, d_model=8192, d_ff=28_672, heads=64, batch=512),
    # Llama 3.1: 405.8 billion.
    "llama_405b": replace(
        _LLAMA, layers=126, d_model=16_384, d_ff=53_248, heads=128, seq=8192, batch=512
    ),
    # Gemma (arXiv 2403.08295) but for its GeGLU, here SwiGLU: 2.5 and 8.5 billion, heads of 256,
    # one key/value head in the smaller.
    "gemma_2b": replace(
        _BF16,
        layers=18,
        d_model=2048,
        d_ff=16_384,
        heads=8,
        kv_heads=1,
        d_head=256,
        vocab=256_128,
        positions="rotary",
        mlp="swiglu",
        remat=True,
        batch=128,
    ),
    "gemma_7b": replace(
        _BF16,
        layers=28,
        d_model=3072,
        d_ff=24_576,
        heads=16,
        kv_heads=16,
        d_head=256,
        vocab=256_128,
        positions="rotary",
        mlp="swiglu",
        remat=True,
        batch=128,
    ),
    # For PartIR's table of collectives (arXiv 2401.11202): 290 gradients, of which ZeRO shards
    # 129. The parameters are our guess from those counts, 9 per layer of which 4 are matrices
    # and 2 outside of which 1 is large; the widths are ours.
    "partir_32l": replace(
        _BF16,
        layers=32,
        d_model=4096,
        d_ff=16_384,
        heads=32,
        kv_heads=32,
        vocab=32_768,
        batch=48,
        fused_qkv=True,
        biases=True,
        final_norm=False,
    ),
}


def layer_weights(config: Config) -> dict[str, Weight]:
    """The parameters of one layer, and how to draw them."""
    d, f, k = config.d_model, config.d_ff, config.d_head
    h, n = config.heads, config.kv_heads
    weights = {"norm1": ones(d), "wo": dense(h, k, d, fan_in=h * k)}
    if config.fused_qkv:
        weights |= {"wqkv": dense(3, d, h, k, fan_in=d)}
    else:
        weights |= {"wq": dense(d, h, k), "wk": dense(d, n, k), "wv": dense(d, n, k)}
    weights |= {"norm2": ones(d), "w1": dense(d, f), "w2": dense(f, d)}
    if config.mlp == "swiglu":
        weights |= {"w3": dense(d, f)}
    if config.biases:
        weights |= {"bo": zeros(d), "b1": zeros(f), "b2": zeros(d)}
    return weights


def weights(config: Config) -> dict[str, Any]:
    """All parameters, and how to draw them."""
    layer = layer_weights(config)
    tree: dict[str, Any] = {
        "embedding": Weight((config.vocab, config.d_model), std=0.02),
        "layers": stacked(layer, config.layers) if config.scan else [layer] * config.layers,
    }
    if config.positions == "learned":
        tree["positions"] = Weight((config.seq, config.d_model), std=0.02)
    if config.final_norm:
        tree["final_norm"] = ones(config.d_model)
    if not config.tied:
        tree["unembedding"] = dense(config.d_model, config.vocab)
    return tree


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    return draw(weights(config), key, config.param_dtype)


def rms_norm(x: Array, gain: Array) -> Array:
    """`x` scaled to unit mean square over its last dim, times `gain`; computed in float32."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale * gain.astype(jnp.float32)).astype(x.dtype)


def rotate(x: Array, positions: Array) -> Array:
    """`x` [B, S, H, K] with pairs of its last dim turned by angles that grow with position."""
    half = x.shape[-1] // 2
    frequency = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[:, None, None].astype(jnp.float32) * frequency  # [S, 1, K/2]
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def project(config: Config, layer: Params, x: Array, positions: Array) -> tuple[Array, ...]:
    """Queries [B, S, H, K], keys and values [B, S, N, K]."""
    if config.fused_qkv:
        q, k, v = jnp.einsum("bsd,cdhk->cbshk", x, layer["wqkv"])
    else:
        q = jnp.einsum("bsd,dhk->bshk", x, layer["wq"])
        k = jnp.einsum("bsd,dnk->bsnk", x, layer["wk"])
        v = jnp.einsum("bsd,dnk->bsnk", x, layer["wv"])
    if config.positions == "rotary":
        q, k = rotate(q, positions), rotate(k, positions)
    return q, k, v


def attend(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    """Softmax attention of q [B, S, H, K] over k, v [B, T, N, K]: [B, S, H, K].

    `mask` [S, T] is true where a query may look. Heads are grouped when N < H.
    """
    heads, kv_heads, width = q.shape[2], k.shape[2], q.shape[3]
    q = q / jnp.asarray(width**0.5, q.dtype)
    if heads == kv_heads:
        return jnp.einsum("bhst,bthk->bshk", _softmax(jnp.einsum("bshk,bthk->bhst", q, k), mask), v)
    grouped = q.reshape(*q.shape[:2], kv_heads, heads // kv_heads, width)
    probs = _softmax(jnp.einsum("bsngk,btnk->bngst", grouped, k), mask)
    return jnp.einsum("bngst,btnk->bsngk", probs, v).reshape(q.shape)


def _softmax(scores: Array, mask: Array | None) -> Array:
    wide = scores.astype(jnp.float32)
    if mask is not None:
        wide = jnp.where(mask, wide, -1e30)
    return jax.nn.softmax(wide, axis=-1).astype(scores.dtype)


def attention_output(layer: Params, x: Array) -> Array:
    """Heads [B, S, H, K] merged into the residual stream [B, S, D]."""
    out = jnp.einsum("bshk,hkd->bsd", x, layer["wo"])
    return out + layer["bo"] if "bo" in layer else out


def feed_forward(config: Config, layer: Params, x: Array) -> Array:
    """The MLP on [B, S, D]."""
    hidden = jnp.einsum("bsd,df->bsf", x, layer["w1"])
    if "b1" in layer:
        hidden = hidden + layer["b1"]
    if config.mlp == "swiglu":
        hidden = jax.nn.silu(hidden) * jnp.einsum("bsd,df->bsf", x, layer["w3"])
    else:
        hidden = jax.nn.gelu(hidden)
    out = jnp.einsum("bsf,fd->bsd", hidden, layer["w2"])
    return out + layer["b2"] if "b2" in layer else out


def cast(params: Params, dtype: Any) -> Params:
    """The parameters as the computation wants them."""
    return jax.tree.map(lambda w: w.astype(dtype), params)


def block(config: Config, layer: Params, x: Array) -> Array:
    """One layer on the residual stream x [B, S, D]."""
    layer = cast(layer, config.dtype)
    positions = jnp.arange(x.shape[1])
    q, k, v = project(config, layer, rms_norm(x, layer["norm1"]), positions)
    causal = positions[:, None] >= positions[None, :]
    x = x + attention_output(layer, attend(q, k, v, causal))
    return x + feed_forward(config, layer, rms_norm(x, layer["norm2"]))


def embed(config: Config, params: Params, tokens: Array, start: int | Array = 0) -> Array:
    """The residual stream [B, S, D] of tokens [B, S] that begin at position `start`."""
    x = params["embedding"][tokens].astype(config.dtype)
    if config.positions == "learned":
        if isinstance(start, int):
            table = params["positions"][start : start + tokens.shape[1]]
        else:
            table = jax.lax.dynamic_slice_in_dim(params["positions"], start, tokens.shape[1])
        x = x + table.astype(config.dtype)
    return x


def unembed(config: Config, params: Params, x: Array) -> Array:
    """Logits [B, S, V] in float32."""
    if config.final_norm:
        x = rms_norm(x, params["final_norm"])
    if config.tied:
        logits = jnp.einsum("bsd,vd->bsv", x, params["embedding"].astype(config.dtype))
    else:
        logits = jnp.einsum("bsd,dv->bsv", x, params["unembedding"].astype(config.dtype))
    return logits.astype(jnp.float32)


def forward(config: Config, params: Params, tokens: Array) -> Array:
    """Logits [B, S, V] for tokens [B, S]."""
    x = embed(config, params, tokens)
    layer_fn: Callable[[Params, Array], Array] = partial(block, config)
    if config.remat:
        layer_fn = jax.checkpoint(layer_fn)
    if config.scan:
        x, _ = jax.lax.scan(lambda x, layer: (layer_fn(layer, x), None), x, params["layers"])
    else:
        for layer in params["layers"]:
            x = layer_fn(layer, x)
    return unembed(config, params, x)


def loss(config: Config, params: Params, batch: Any) -> Array:
    """The mean cross-entropy of the next token."""
    return cross_entropy(forward(config, params, batch["tokens"]), batch["targets"])


def batch(config: Config, key: Array) -> dict[str, Array]:
    """Random tokens and targets, int32 [B, S]."""
    text = jax.random.randint(key, (config.batch, config.seq + 1), 0, config.vocab, jnp.int32)
    return {"tokens": text[:, :-1], "targets": text[:, 1:]}


def train(config: Config, name: str = "transformer_train") -> Example:
    """One AdamW step as an example."""
    return train_example(config, name, init=init, loss=loss, batch=batch)


def infer(config: Config, name: str = "transformer_forward") -> Example:
    """Logits of a whole sequence as an example."""
    return Example(
        name=name,
        fn=partial(forward, config),
        make=lambda key: (init(config, key), batch(config, key)["tokens"]),
    )
