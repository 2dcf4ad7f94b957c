"""A selective state space model: the sequence is gone through by an associative scan (Mamba).

Dims: B batch, S sequence, D model, F inner, N state, R rank of the step size, W window, V
vocabulary.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from . import transformer
from .example import Example
from .parameters import Params, Weight, dense, draw, ones, zeros
from .training import cross_entropy, train_example

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of a model, and of the batch it is trained on."""

    layers: int = 2
    d_model: int = 32
    d_inner: int = 64
    state: int = 8
    rank: int = 8
    window: int = 4
    vocab: int = 256
    seq: int = 16
    batch: int = 8
    dtype: Any = jnp.float32


PRESETS = {
    "tiny": Config(),
    # mamba-2.8b of arXiv 2312.00752
    "mamba_3b": Config(
        layers=64, d_model=2560, d_inner=5120, state=16, rank=160, vocab=50_280, seq=2048,
        batch=128, dtype=jnp.bfloat16,
    ),
}  # fmt: skip


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    d, f, n = config.d_model, config.d_inner, config.state
    layer = {
        "norm": ones(d),
        "wx": dense(d, f),
        "wz": dense(d, f),
        "filter": dense(config.window, f),
        "wb": dense(f, n),
        "wc": dense(f, n),
        "step_in": dense(f, config.rank),
        "step_out": dense(config.rank, f),
        "step_bias": zeros(f),
        "decay": Weight((f, n), std=0.1),
        "skip": ones(f),
        "wo": dense(f, d),
    }
    weights = {
        "embedding": Weight((config.vocab, d), std=0.02),
        "layers": [layer] * config.layers,
        "final_norm": ones(d),
    }
    return draw(weights, key)


def convolve(x: Array, taps: Array) -> Array:
    """x [B, S, F] filtered along S by taps [W, F], each channel on its own, seeing the past."""
    padded = jnp.pad(x, ((0, 0), (taps.shape[0] - 1, 0), (0, 0)))
    shifted = [padded[:, i : i + x.shape[1]] * taps[i] for i in range(taps.shape[0])]
    return functools.reduce(jnp.add, shifted)


def selective_scan(layer: Params, x: Array) -> Array:
    """The state space on x [B, S, F]: h' = exp(-step A) h + step B x, y = C h."""
    step = jax.nn.softplus(x @ layer["step_in"] @ layer["step_out"] + layer["step_bias"])
    rate = -jnp.exp(layer["decay"].astype(jnp.float32))  # [F, N]
    wide = step.astype(jnp.float32)
    keep = jnp.exp(wide[..., None] * rate)  # [B, S, F, N]
    add = (wide * x)[..., None] * (x @ layer["wb"])[:, :, None, :]

    def join(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        return a[0] * b[0], b[0] * a[1] + b[1]

    _, state = jax.lax.associative_scan(join, (keep, add.astype(jnp.float32)), axis=1)
    out = jnp.einsum("bsfn,bsn->bsf", state, (x @ layer["wc"]).astype(jnp.float32))
    return out.astype(x.dtype) + layer["skip"] * x


def block(config: Config, layer: Params, x: Array) -> Array:
    """One layer on the residual stream x [B, S, D]."""
    layer = transformer.cast(layer, config.dtype)
    normed = transformer.rms_norm(x, layer["norm"])
    inner = jax.nn.silu(convolve(normed @ layer["wx"], layer["filter"]))
    gate = jax.nn.silu(normed @ layer["wz"])
    return x + (selective_scan(layer, inner) * gate) @ layer["wo"]


def forward(config: Config, params: Params, tokens: Array) -> Array:
    """Logits [B, S, V] for tokens [B, S]."""
    x = params["embedding"][tokens].astype(config.dtype)
    for layer in params["layers"]:
        x = jax.checkpoint(block, static_argnums=0)(config, layer, x)
    x = transformer.rms_norm(x, params["final_norm"])
    return jnp.einsum("bsd,vd->bsv", x, params["embedding"].astype(config.dtype)).astype(
        jnp.float32
    )


def loss(config: Config, params: Params, batch: Any) -> Array:
    """The mean cross-entropy of the next token."""
    return cross_entropy(forward(config, params, batch["tokens"]), batch["targets"])


def train(config: Config, name: str = "mamba_train") -> Example:
    """One AdamW step as an example."""
    return train_example(config, name, init=init, loss=loss, batch=transformer.batch)
