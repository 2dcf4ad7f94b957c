"""A transformer whose MLPs are mixtures of experts, dispatched by one-hot einsums (GShard).

Dims as in `transformer`, and E experts, C slots of one expert for one sequence. Each sequence
is a dispatch group, so B stays a batch dim until the tokens move to their experts.
"""

import math
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
    """A transformer and the experts in each of its layers."""

    experts: int = 8
    top_k: int = 2
    capacity_factor: float = 2.0
    balance: float = 1e-2  # weight of the load-balancing loss

    @property
    def capacity(self) -> int:
        """Slots per expert and sequence."""
        return math.ceil(self.capacity_factor * self.top_k * self.seq / self.experts)


PRESETS = {
    "tiny": Config(),
    "moe_8x": Config(
        layers=4,
        d_model=2048,
        d_ff=8192,
        heads=16,
        kv_heads=16,
        d_head=128,
        vocab=32_768,
        seq=2048,
        batch=64,
        capacity_factor=1.0,
        dtype=jnp.bfloat16,
    ),
}


def layer_weights(config: Config) -> dict[str, Weight]:
    """The parameters of one layer: attention, router, experts."""
    d, f, e = config.d_model, config.d_ff, config.experts
    h, n, k = config.heads, config.kv_heads, config.d_head
    return {
        "norm1": ones(d),
        "wq": dense(d, h, k),
        "wk": dense(d, n, k),
        "wv": dense(d, n, k),
        "wo": dense(h, k, d, fan_in=h * k),
        "norm2": ones(d),
        "router": dense(d, e),
        "w1": dense(e, d, f, fan_in=d),
        "w2": dense(e, f, d, fan_in=f),
    }


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    tree = transformer.weights(replace(config, scan=False))
    tree["layers"] = [layer_weights(config)] * config.layers
    return draw(tree, key, config.param_dtype)


def route(config: Config, router: Array, x: Array) -> tuple[Array, Array]:
    """Combine weights [B, S, E, C] for x [B, S, D], and the load-balancing loss.

    A token's k-th choice takes the next free slot of that expert, or is dropped when the expert
    is full for this sequence; first choices go before second ones.
    """
    gates = jax.nn.softmax(jnp.einsum("bsd,de->bse", x, router).astype(jnp.float32))
    values, choices = jax.lax.top_k(gates, config.top_k)  # [B, S, top_k]
    values = values / jnp.sum(values, axis=-1, keepdims=True)
    combine = jnp.zeros((*gates.shape, config.capacity))
    taken = jnp.zeros((gates.shape[0], 1, config.experts))  # slots in use: [B, 1, E]
    for i in range(config.top_k):
        chosen = jax.nn.one_hot(choices[..., i], config.experts)  # [B, S, E]
        slot = jnp.cumsum(chosen, axis=1) - chosen + taken
        taken = taken + jnp.sum(chosen, axis=1, keepdims=True)
        slots = jax.nn.one_hot(slot.astype(jnp.int32), config.capacity)  # zero when full
        combine = combine + (values[..., i, None] * chosen)[..., None] * slots
    first = jax.nn.one_hot(choices[..., 0], config.experts)
    load, importance = jnp.mean(first, axis=1), jnp.mean(gates, axis=1)  # [B, E]
    return combine, config.experts * jnp.mean(jnp.sum(load * importance, axis=-1))


def experts(config: Config, layer: Params, x: Array) -> tuple[Array, Array]:
    """The mixture on x [B, S, D], and its load-balancing loss."""
    combine, balance = route(config, layer["router"], x)
    dispatch = (combine > 0).astype(x.dtype)
    sent = jnp.einsum("bsec,bsd->ebcd", dispatch, x)
    hidden = jax.nn.gelu(jnp.einsum("ebcd,edf->ebcf", sent, layer["w1"]))
    done = jnp.einsum("ebcf,efd->ebcd", hidden, layer["w2"])
    return jnp.einsum("bsec,ebcd->bsd", combine.astype(x.dtype), done), balance


def block(config: Config, layer: Params, x: Array) -> tuple[Array, Array]:
    """One layer on x [B, S, D], and its load-balancing loss."""
    layer = transformer.cast(layer, config.dtype)
    positions = jnp.arange(x.shape[1])
    normed = transformer.rms_norm(x, layer["norm1"])
    q, k, v = transformer.project(config, layer, normed, positions)
    causal = positions[:, None] >= positions[None, :]
    x = x + transformer.attention_output(layer, transformer.attend(q, k, v, causal))
    mixed, balance = experts(config, layer, transformer.rms_norm(x, layer["norm2"]))
    return x + mixed, balance


def forward(config: Config, params: Params, tokens: Array) -> tuple[Array, Array]:
    """Logits [B, S, V] for tokens [B, S], and the load-balancing loss of all layers."""
    x = transformer.embed(config, params, tokens)
    balance = jnp.float32(0)
    for layer in params["layers"]:
        x, extra = block(config, layer, x)
        balance = balance + extra
    return transformer.unembed(config, params, x), balance


def loss(config: Config, params: Params, batch: Any) -> Array:
    """The mean cross-entropy of the next token plus the weighted balance."""
    logits, balance = forward(config, params, batch["tokens"])
    return cross_entropy(logits, batch["targets"]) + config.balance * balance


def train(config: Config, name: str = "moe_train") -> Example:
    """One AdamW step as an example."""
    return train_example(config, name, init=init, loss=loss, batch=transformer.batch)


def infer(config: Config, name: str = "moe_forward") -> Example:
    """Logits of a whole sequence as an example."""
    return Example(
        name=name,
        fn=lambda params, tokens: forward(config, params, tokens)[0],
        make=lambda key: (init(config, key), transformer.batch(config, key)["tokens"]),
    )
