"""Equivariant networks with e3nn-jax: tensor products and spherical harmonics."""

from typing import Any

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from tests.frameworks.shapes import Program
from tests.sweep.steps import train, weight

NODES, EDGES = 32, 128
RNG = np.random.default_rng(0)


def equivariant_messages() -> Program:
    """Features times harmonics of edge directions, weighted by distance, summed at receivers."""
    irreps = e3nn.Irreps("8x0e + 8x1o")

    def loss(params: Any, features: jax.Array, points: jax.Array, ends: jax.Array) -> jax.Array:
        senders, receivers = ends
        vectors = points[receivers] - points[senders]
        distance = jnp.sqrt(jnp.sum(vectors**2, -1, keepdims=True) + 1e-6)
        harmonics = e3nn.spherical_harmonics("0e + 1o + 2e", vectors, normalize=True)
        nodes = e3nn.IrrepsArray(irreps, features)
        messages = e3nn.tensor_product(nodes[senders], harmonics, filter_ir_out="0e + 1o")
        messages = messages * (jnp.exp(-distance * params["decay"]))
        summed = e3nn.scatter_sum(messages, dst=receivers, output_size=NODES)
        scalars = summed.filter("0e").array @ params["mix"]
        return jnp.mean(scalars**2)

    product = e3nn.tensor_product(irreps, "0e + 1o + 2e", filter_ir_out="0e + 1o")
    params = {"decay": np.ones(1, np.float32), "mix": weight(product.count("0e"), 16)}
    ends = RNG.integers(0, NODES, (2, EDGES)).astype(np.int32)
    features = RNG.normal(size=(NODES, irreps.dim)).astype(np.float32)
    return train(loss, params, features, RNG.normal(size=(NODES, 3)).astype(np.float32), ends)


def equivariant_gates() -> Program:
    """Linear layers between irreps and gated nonlinearities."""
    start, hidden = e3nn.Irreps("16x0e + 8x1o"), e3nn.Irreps("24x0e + 8x1o")
    linear = e3nn.FunctionalLinear(start, hidden)

    def loss(params: Any, features: jax.Array) -> jax.Array:
        def one(row: jax.Array) -> jax.Array:
            out = e3nn.gate(linear(params, e3nn.IrrepsArray(start, row)))
            return jnp.sum(e3nn.norm(out).array ** 2)

        return jnp.mean(jax.vmap(one)(features))

    params = [RNG.normal(size=i.path_shape).astype(np.float32) for i in linear.instructions]
    return train(loss, params, RNG.normal(size=(NODES, start.dim)).astype(np.float32))
