"""A graph network: messages along edges, summed at nodes, over a few rounds.

Dims: N nodes, M edges, I node inputs, J edge inputs, D latent, F hidden, O outputs.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .example import Example
from .parameters import Params, Weight, dense, draw, ones, zeros
from .training import train_example

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of a model, and of the graph it is trained on."""

    nodes: int = 64
    edges: int = 256
    d_node: int = 8
    d_edge: int = 8
    d_latent: int = 32
    d_hidden: int = 48
    d_out: int = 8
    rounds: int = 2
    dtype: Any = jnp.float32


PRESETS = {
    "tiny": Config(),
    # A weather mesh as GraphCast's: an icosahedron refined six times has 10 * 4**6 + 2 nodes and,
    # over all levels and both ways, 60 * (4**7 - 1) / 3 edges; padded to multiples of 64.
    "graphcast": Config(
        nodes=41_024,
        edges=327_680,
        d_node=256,
        d_edge=8,
        d_latent=512,
        d_hidden=512,
        d_out=256,
        rounds=16,
        dtype=jnp.bfloat16,
    ),
}


def mlp_weights(inputs: int, hidden: int, outputs: int) -> dict[str, Weight]:
    """The parameters of an MLP with a norm at its end."""
    return {
        "w1": dense(inputs, hidden),
        "b1": zeros(hidden),
        "w2": dense(hidden, outputs),
        "gain": ones(outputs),
    }


def init(config: Config, key: Array) -> Params:
    """Fresh parameters."""
    d, f = config.d_latent, config.d_hidden
    weights = {
        "encode_nodes": mlp_weights(config.d_node, f, d),
        "encode_edges": mlp_weights(config.d_edge, f, d),
        "rounds": [
            {"edge": mlp_weights(3 * d, f, d), "node": mlp_weights(2 * d, f, d)}
            for _ in range(config.rounds)
        ],
        "decode": dense(d, config.d_out),
    }
    return draw(weights, key)


def mlp(params: Params, x: Array) -> Array:
    """The MLP on x [..., inputs], its outputs scaled to unit mean square."""
    h = jax.nn.silu(x @ params["w1"].astype(x.dtype) + params["b1"].astype(x.dtype))
    y = (h @ params["w2"].astype(x.dtype)).astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-6) * params["gain"]
    return y.astype(x.dtype)


def message_round(params: Params, nodes: Array, edges: Array, graph: Any) -> tuple[Array, Array]:
    """Nodes [N, D] and edges [M, D] after one round of messages."""
    sent, received = nodes[graph["senders"]], nodes[graph["receivers"]]  # [M, D]
    messages = mlp(params["edge"], jnp.concatenate([edges, sent, received], axis=-1))
    inbox = jax.ops.segment_sum(messages, graph["receivers"], num_segments=nodes.shape[0])
    update = mlp(params["node"], jnp.concatenate([nodes, inbox], axis=-1))
    return nodes + update, edges + messages


def forward(config: Config, params: Params, graph: Any) -> Array:
    """Predictions [N, O] for every node."""
    nodes = mlp(params["encode_nodes"], graph["nodes"].astype(config.dtype))
    edges = mlp(params["encode_edges"], graph["edges"].astype(config.dtype))
    for layer in params["rounds"]:
        nodes, edges = message_round(layer, nodes, edges, graph)
    return nodes.astype(jnp.float32) @ params["decode"]


def loss(config: Config, params: Params, batch: Any) -> Array:
    """The mean squared error against the targets [N, O]."""
    return jnp.mean((forward(config, params, batch) - batch["targets"]) ** 2)


def batch(config: Config, key: Array) -> dict[str, Array]:
    """A random graph with features and targets."""
    n, m = config.nodes, config.edges
    keys = jax.random.split(key, 5)
    return {
        "nodes": jax.random.normal(keys[0], (n, config.d_node)),
        "edges": jax.random.normal(keys[1], (m, config.d_edge)),
        "senders": jax.random.randint(keys[2], (m,), 0, n, jnp.int32),
        "receivers": jax.random.randint(keys[3], (m,), 0, n, jnp.int32),
        "targets": jax.random.normal(keys[4], (n, config.d_out)),
    }


def train(config: Config, name: str = "gnn_train") -> Example:
    """One AdamW step as an example."""
    return train_example(config, name, init=init, loss=loss, batch=batch)


def infer(config: Config, name: str = "gnn_forward") -> Example:
    """Predictions for one graph as an example."""

    def make(key: Array) -> tuple[Any, ...]:
        graph = batch(config, key)
        del graph["targets"]
        return init(config, key), graph

    return Example(name=name, fn=partial(forward, config), make=make)
