"""A recommender: large embedding tables, pairwise products, an MLP that predicts a click (DLRM).

Dims: B batch, T tables, R rows of a table, I indices per table and example, E embedding, X dense
features, F hidden.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from .example import Example
from .parameters import Params, Weight, dense, draw, zeros
from .training import train_example

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of a model, and of the batch it is trained on."""

    batch: int = 16
    tables: int = 3
    rows: int = 64
    indices: int = 2
    embedding: int = 16
    features: int = 8
    bottom: tuple[int, ...] = (32, 16)  # ends in the embedding's width
    top: tuple[int, ...] = (32, 16)
    dtype: Any = jnp.float32


PRESETS = {
    "tiny": Config(),
    # The sizes of MLPerf's DLRM (26 tables, 13 features, bottom 512-256-128, top 1024-1024-512-256)
    # with tables of a million rows each.
    "dlrm": Config(
        batch=65_536, tables=26, rows=1_000_000, indices=1, embedding=128, features=13,
        bottom=(512, 256, 128), top=(1024, 1024, 512, 256), dtype=jnp.bfloat16,
    ),
}  # fmt: skip


def mlp_weights(*sizes: int) -> list[dict[str, Weight]]:
    """Layers from each size to the next."""
    return [{"w": dense(a, b), "b": zeros(b)} for a, b in pairwise(sizes)]


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    vectors = config.tables + 1
    pairs = vectors * (vectors - 1) // 2
    weights = {
        "tables": [Weight((config.rows, config.embedding), std=0.1)] * config.tables,
        "bottom": mlp_weights(config.features, *config.bottom),
        "top": mlp_weights(config.embedding + pairs, *config.top, 1),
    }
    return draw(weights, key)


def mlp(config: Config, layers: Params, x: Array) -> Array:
    """Dense layers with ReLUs between them, on [B, ...]."""
    for i, layer in enumerate(layers):
        x = x @ layer["w"].astype(config.dtype) + layer["b"].astype(config.dtype)
        x = jax.nn.relu(x) if i + 1 < len(layers) else x
    return x


def forward(config: Config, params: Params, batch: Any) -> Array:
    """The log-odds [B] of a click."""
    dense_part = mlp(config, params["bottom"], batch["features"].astype(config.dtype))  # [B, E]
    looked_up = [
        jnp.sum(table[rows].astype(config.dtype), axis=1)  # [B, I, E] -> [B, E]
        for table, rows in zip(params["tables"], batch["indices"], strict=True)
    ]
    vectors = jnp.stack([dense_part, *looked_up], axis=1)  # [B, T + 1, E]
    products = jnp.einsum("bte,bue->btu", vectors, vectors)
    rows, columns = jnp.tril_indices(vectors.shape[1], -1)
    joined = jnp.concatenate([dense_part, products[:, rows, columns]], axis=1)
    return mlp(config, params["top"], joined)[:, 0].astype(jnp.float32)


def loss(config: Config, params: Params, batch: Any) -> Array:
    """The mean binary cross-entropy of the clicks."""
    odds = forward(config, params, batch)
    return jnp.mean(jax.nn.softplus(odds) - odds * batch["clicks"])


def batch(config: Config, key: Array) -> dict[str, Any]:
    """Random features [B, X], indices [B, I] of each table, and clicks [B]."""
    draw_rows = partial(jax.random.randint, minval=0, maxval=config.rows, dtype=jnp.int32)
    keys = jax.random.split(key, config.tables)
    return {
        "features": jax.random.normal(key, (config.batch, config.features)),
        "indices": [draw_rows(k, (config.batch, config.indices)) for k in keys],
        "clicks": jax.random.bernoulli(key, 0.3, (config.batch,)).astype(jnp.float32),
    }


def train(config: Config, name: str = "recommender_train") -> Example:
    """One AdamW step as an example."""
    return train_example(config, name, init=init, loss=loss, batch=batch)
