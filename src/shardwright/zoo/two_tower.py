"""Two towers that meet in a contrastive loss: every query against every document (CLIP, InfoNCE).

Dims: B batch (of queries, and again of documents), X features, F hidden, E embedding.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .example import Example
from .parameters import Params, dense, draw, zeros
from .training import cross_entropy, train_example

Array = jax.Array
TOWERS = ("query", "document")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of both towers, and of the batch they are trained on."""

    batch: int = 16
    features: int = 32
    hidden: int = 64
    layers: int = 2
    embedding: int = 16
    temperature: float = 0.1
    dtype: Any = jnp.float32


PRESETS = {
    "tiny": Config(),
    # Pairs in a batch as in CLIP (arXiv 2103.00020); towers of a residual MLP.
    "contrastive_32k": Config(
        batch=32_768, features=4096, hidden=8192, layers=8, embedding=1024, temperature=0.01,
        dtype=jnp.bfloat16,
    ),
}  # fmt: skip


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    x, f = config.features, config.hidden
    layer = {"up": dense(x, f), "bias": zeros(f), "down": dense(f, x)}
    tower = {"layers": [layer] * config.layers, "head": dense(x, config.embedding)}
    return draw(dict.fromkeys(TOWERS, tower), key)


def embed(config: Config, tower: Params, x: Array) -> Array:
    """Unit vectors [B, E] for features x [B, X]."""
    tower = jax.tree.map(lambda w: w.astype(config.dtype), tower)
    x = x.astype(config.dtype)
    for layer in tower["layers"]:
        x = x + jax.nn.gelu(x @ layer["up"] + layer["bias"]) @ layer["down"]
    out = (x @ tower["head"]).astype(jnp.float32)
    return out * jax.lax.rsqrt(jnp.sum(out * out, axis=-1, keepdims=True) + 1e-6)


def loss(config: Config, params: Params, batch: Any) -> Array:
    """Both ways: the right document for a query, the right query for a document."""
    query, document = (embed(config, params[name], batch[name]) for name in TOWERS)
    scores = jnp.einsum("qe,de->qd", query, document) / config.temperature  # [B, B]
    right = jnp.arange(scores.shape[0])
    return (cross_entropy(scores, right) + cross_entropy(scores.T, right)) / 2


def batch(config: Config, key: Array) -> dict[str, Array]:
    """Random features [B, X] of pairs: a document is its query and noise."""
    query, noise = jax.random.normal(key, (2, config.batch, config.features))
    return {"query": query, "document": query + noise}


def train(config: Config, name: str = "two_tower_train") -> Example:
    """One AdamW step as an example."""
    return train_example(config, name, init=init, loss=loss, batch=batch)
