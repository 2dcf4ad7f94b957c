"""A stack on pairs of residues: triangular products and triangular attention (AlphaFold 2).

Dims: B batch, I, J and K residues (all the same size: square conflicts), C channels, H heads,
E channels of a head, F hidden.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .example import Example
from .parameters import Params, dense, draw, ones, zeros
from .training import train_example
from .transformer import cast
from .vit import layer_norm

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of a model, and of the batch it is trained on."""

    layers: int = 1
    batch: int = 8
    residues: int = 16
    channels: int = 16
    heads: int = 8
    head: int = 4
    hidden: int = 64
    dtype: Any = jnp.float32


PRESETS = {
    "tiny": Config(),
    # The pair representation of AlphaFold 2: 128 channels, 4 heads, transitions of 4x; a crop.
    "pair_256": Config(
        layers=8, batch=32, residues=256, channels=128, heads=4, head=32, hidden=512,
        dtype=jnp.bfloat16,
    ),
}  # fmt: skip


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    c, h, e, f = config.channels, config.heads, config.head, config.hidden
    product = {
        "gain": ones(c), "bias": zeros(c), "left": dense(c, c), "right": dense(c, c),
        "left_gate": dense(c, c), "right_gate": dense(c, c), "gate": dense(c, c),
        "out_gain": ones(c), "out_bias": zeros(c), "out": dense(c, c),
    }  # fmt: skip
    attention = {
        "gain": ones(c), "bias": zeros(c), "q": dense(c, h, e), "k": dense(c, h, e),
        "v": dense(c, h, e), "pair": dense(c, h), "out": dense(h, e, c, fan_in=h * e),
    }  # fmt: skip
    transition = {"gain": ones(c), "bias": zeros(c), "up": dense(c, f), "down": dense(f, c)}
    layer = {
        "outgoing": product, "incoming": product, "starting": attention, "ending": attention,
        "transition": transition,
    }  # fmt: skip
    return draw({"layers": [layer] * config.layers, "head": dense(c, 1)}, key)


def multiply(w: Params, z: Array, *, outgoing: bool) -> Array:
    """What edges i-k and j-k (or k-i and k-j) say about the edge i-j, for z [B, I, J, C]."""
    z = layer_norm(z, w["gain"], w["bias"])
    left = jax.nn.sigmoid(z @ w["left_gate"]) * (z @ w["left"])
    right = jax.nn.sigmoid(z @ w["right_gate"]) * (z @ w["right"])
    edges = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"
    joined = layer_norm(jnp.einsum(edges, left, right), w["out_gain"], w["out_bias"])
    return jax.nn.sigmoid(z @ w["gate"]) * (joined @ w["out"])


def attend(w: Params, z: Array) -> Array:
    """Attention of the edges i-j to the edges i-k of the same start, biased by the edge j-k."""
    z = layer_norm(z, w["gain"], w["bias"])
    q, k, v = (jnp.einsum("bijc,che->bijhe", z, w[name]) for name in ("q", "k", "v"))
    scores = jnp.einsum("bijhe,bikhe->bihjk", q / q.shape[-1] ** 0.5, k)
    scores = scores + jnp.einsum("bjkc,ch->bhjk", z, w["pair"])[:, None]
    probs = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(z.dtype)
    return jnp.einsum("bijhe,hec->bijc", jnp.einsum("bihjk,bikhe->bijhe", probs, v), w["out"])


def block(config: Config, layer: Params, z: Array) -> Array:
    """One layer on pairs z [B, I, J, C]."""
    layer = cast(layer, config.dtype)
    z = z + multiply(layer["outgoing"], z, outgoing=True)
    z = z + multiply(layer["incoming"], z, outgoing=False)
    z = z + attend(layer["starting"], z)
    z = z + jnp.swapaxes(attend(layer["ending"], jnp.swapaxes(z, 1, 2)), 1, 2)
    w = layer["transition"]
    return z + jax.nn.relu(layer_norm(z, w["gain"], w["bias"]) @ w["up"]) @ w["down"]


def loss(config: Config, params: Params, batch: Any) -> Array:
    """The mean squared error of predicted distances."""
    z = batch["pairs"].astype(config.dtype)
    for layer in params["layers"]:
        z = jax.checkpoint(block, static_argnums=0)(config, layer, z)
    distance = (z @ params["head"].astype(config.dtype))[..., 0].astype(jnp.float32)
    return jnp.mean((distance - batch["distances"]) ** 2)


def batch(config: Config, key: Array) -> dict[str, Array]:
    """Random pairs [B, I, J, C] and distances [B, I, J]."""
    shape = (config.batch, config.residues, config.residues)
    pairs = jax.random.normal(key, (*shape, config.channels))
    return {"pairs": pairs, "distances": jnp.abs(jax.random.normal(key, shape))}


def train(config: Config, name: str = "pair_stack_train") -> Example:
    """One AdamW step as an example."""
    return train_example(config, name, init=init, loss=loss, batch=batch)
