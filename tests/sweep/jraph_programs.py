"""Graph networks as jraph users write them: padded graphs, segment sums, update functions."""

from typing import Any

import jax
import jax.numpy as jnp
import jraph
import numpy as np

from tests.frameworks.shapes import Program
from tests.sweep.steps import train, weight

NODES, EDGES, GRAPHS, FEATURES = 64, 256, 8, 16


def _batch() -> jraph.GraphsTuple:
    """Eight graphs of one size in one tuple."""
    rng = np.random.default_rng(0)
    own = np.repeat(np.arange(GRAPHS), EDGES // GRAPHS) * (NODES // GRAPHS)
    return jraph.GraphsTuple(
        nodes=rng.normal(size=(NODES, FEATURES)).astype(np.float32),
        edges=rng.normal(size=(EDGES, FEATURES)).astype(np.float32),
        senders=(own + rng.integers(0, NODES // GRAPHS, EDGES)).astype(np.int32),
        receivers=(own + rng.integers(0, NODES // GRAPHS, EDGES)).astype(np.int32),
        globals=rng.normal(size=(GRAPHS, FEATURES)).astype(np.float32),
        n_node=np.full(GRAPHS, NODES // GRAPHS, np.int32),
        n_edge=np.full(GRAPHS, EDGES // GRAPHS, np.int32),
    )


def _train(net: Any, *shapes: tuple[int, int]) -> Program:
    """One step of Adam on `net(params, graph)`."""
    return train(net, [weight(*shape) for shape in shapes], _batch())


def graph_network() -> Program:
    """Edges, nodes and globals are updated in turn."""

    def net(params: Any, graph: Any) -> jax.Array:
        edge, node, whole = params
        apply = jraph.GraphNetwork(
            update_edge_fn=lambda e, s, r, g: jax.nn.relu(jnp.concatenate([e, s, r, g], 1) @ edge),
            update_node_fn=lambda n, s, r, g: jax.nn.relu(jnp.concatenate([n, s, r, g], 1) @ node),
            update_global_fn=lambda n, e, g: jnp.concatenate([n, e, g], 1) @ whole,
        )
        return jnp.mean(apply(graph).globals ** 2)

    return _train(net, (4 * FEATURES, 32), (FEATURES + 64 + FEATURES, 32), (80, 8))


def graph_convolution() -> Program:
    """Two layers of a GCN with symmetric normalisation."""

    def net(params: Any, graph: Any) -> jax.Array:
        for w in params:
            layer = jraph.GraphConvolution(lambda n, w=w: jax.nn.relu(n @ w), add_self_edges=True)
            graph = layer(graph)
        return jnp.mean(graph.nodes**2)

    return _train(net, (FEATURES, 32), (32, 8))


def graph_attention() -> Program:
    """A GAT: a softmax over the edges of each receiver."""

    def net(params: Any, graph: Any) -> jax.Array:
        w, a, b = params
        layer = jraph.GAT(
            attention_query_fn=lambda n: n @ w,
            attention_logit_fn=lambda s, r, e: jax.nn.leaky_relu(s @ a + r @ b),
        )
        return jnp.mean(layer(graph._replace(globals=None, edges=None)).nodes ** 2)

    return _train(net, (FEATURES, 32), (32, 1), (32, 1))


def interaction_network() -> Program:
    """Messages along edges, summed at receivers; two rounds with the same weights."""

    def net(params: Any, graph: Any) -> jax.Array:
        edge, node = params
        apply = jraph.InteractionNetwork(
            update_edge_fn=lambda e, s, r: jnp.tanh(jnp.concatenate([e, s, r], 1) @ edge),
            update_node_fn=lambda n, r: jnp.tanh(jnp.concatenate([n, r], 1) @ node),
        )
        return jnp.mean(apply(apply(graph._replace(globals=None))).nodes ** 2)

    return _train(net, (3 * FEATURES, FEATURES), (2 * FEATURES, FEATURES))
