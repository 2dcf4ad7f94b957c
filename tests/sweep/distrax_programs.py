"""Distributions and bijectors of Distrax in train steps."""

from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np

from tests.frameworks.shapes import Program
from tests.sweep.steps import train, weight

BATCH, DIM, HIDDEN = 32, 8, 32
RNG = np.random.default_rng(0)
X = RNG.normal(size=(BATCH, DIM)).astype(np.float32)


def variational_autoencoder() -> Program:
    """Encoder, reparametrised sample, Bernoulli decoder, divergence in closed form."""

    def loss(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        mean, log_scale = jnp.split(jax.nn.relu(x @ params["in"]) @ params["code"], 2, -1)
        posterior = distrax.MultivariateNormalDiag(mean, jnp.exp(log_scale))
        code = posterior.sample(seed=key)
        logits = jax.nn.relu(code @ params["up"]) @ params["out"]
        likelihood = distrax.Independent(distrax.Bernoulli(logits=logits), 1)
        prior = distrax.MultivariateNormalDiag(jnp.zeros_like(mean), jnp.ones_like(mean))
        bits = (x > 0).astype(jnp.float32)
        return -jnp.mean(likelihood.log_prob(bits) - posterior.kl_divergence(prior))

    params = {"in": weight(DIM, HIDDEN), "code": weight(HIDDEN, 16), "up": weight(8, HIDDEN),
              "out": weight(HIDDEN, DIM)}  # fmt: skip
    return train(loss, params, X, jax.random.key(0))


def coupling_flow() -> Program:
    """Masked coupling: half of the entries says how to scale and shift the other half."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        def conditioner(w: Any) -> Any:
            return lambda y: (jnp.tanh(y @ w["in"]) @ w["out"]).reshape(*y.shape, 2)

        def affine(p: jax.Array) -> Any:
            return distrax.ScalarAffine(shift=p[..., 0], log_scale=p[..., 1])

        mask = jnp.arange(DIM) % 2 == 0
        layers = []
        for w in params:
            layers.append(distrax.MaskedCoupling(mask, conditioner(w), affine))
            mask = ~mask
        base = distrax.MultivariateNormalDiag(jnp.zeros(DIM), jnp.ones(DIM))
        flow = distrax.Transformed(base, distrax.Inverse(distrax.Chain(layers)))
        return -jnp.mean(flow.log_prob(x))

    params = [{"in": weight(DIM, HIDDEN), "out": weight(HIDDEN, DIM * 2)} for _ in range(2)]
    return train(loss, params, X)


def hidden_markov_model() -> Program:
    """Forward and backward passes of a chain of eight states over a sequence."""

    def posterior(initial: jax.Array, transition: jax.Array, centers: jax.Array, x: Any) -> Any:
        model = distrax.HMM(
            distrax.Categorical(logits=initial), distrax.Categorical(logits=transition),
            distrax.Normal(centers, 1.0),
        )  # fmt: skip
        return model.forward_backward(x), model.viterbi(x)

    return posterior, (weight(8), weight(8, 8), weight(8), X[:, 0])
