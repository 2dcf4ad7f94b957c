"""Samplers of BlackJAX: one step of many chains or particles."""

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from tests.frameworks.shapes import Program

CHAINS, FEATURES, ROWS = 16, 8, 64
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, FEATURES)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.float32)


def _density(x: jax.Array, y: jax.Array) -> Any:
    """Logistic regression with a normal prior."""

    def log_density(weights: jax.Array) -> jax.Array:
        logits = x @ weights
        return jnp.sum(y * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(weights**2)

    return log_density


def _chains(make: Any) -> Program:
    start = RNG.normal(size=(CHAINS, FEATURES)).astype(np.float32)
    states = jax.vmap(make(_density(X, Y)).init)(start)

    def step(keys: jax.Array, states: Any, x: jax.Array, y: jax.Array) -> Any:
        return jax.vmap(make(_density(x, y)).step)(keys, states)

    return step, (jax.random.split(jax.random.key(0), CHAINS), states, X, Y)


def no_u_turn() -> Program:
    """NUTS: a while loop per chain, batched."""
    return _chains(lambda d: blackjax.nuts(d, 0.1, jnp.ones(FEATURES), max_num_doublings=4))


def metropolis_adjusted_langevin() -> Program:
    """MALA."""
    return _chains(lambda d: blackjax.mala(d, 0.05))


def elliptical_slice() -> Program:
    """A slice that shrinks until it holds a point."""
    start = RNG.normal(size=(CHAINS, FEATURES)).astype(np.float32)

    def sampler(x: jax.Array, y: jax.Array) -> Any:
        likelihood = lambda w: jnp.sum(y * (x @ w) - jax.nn.softplus(x @ w))  # noqa: E731
        return blackjax.elliptical_slice(
            likelihood, mean=jnp.zeros(FEATURES), cov=jnp.eye(FEATURES)
        )

    states = jax.vmap(sampler(X, Y).init)(start)

    def step(keys: jax.Array, states: Any, x: jax.Array, y: jax.Array) -> Any:
        return jax.vmap(sampler(x, y).step)(keys, states)[0]

    return step, (jax.random.split(jax.random.key(0), CHAINS), states, X, Y)


def stochastic_gradient_langevin() -> Program:
    """SGLD: a gradient on a batch, and noise."""

    def step(key: jax.Array, weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        estimate = lambda w, batch: jax.grad(_density(*batch))(w)  # noqa: E731
        return blackjax.sgld(estimate).step(key, weights, (x, y), 1e-3)

    return step, (jax.random.key(0), np.zeros(FEATURES, np.float32), X, Y)


def particle_resampling() -> Program:
    """Weights of particles, systematic resampling, and a random walk of each survivor."""
    particles = RNG.normal(size=(CHAINS, FEATURES)).astype(np.float32)

    def step(key: jax.Array, particles: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        choose, walk = jax.random.split(key)
        density = _density(x, y)
        weights = jax.nn.softmax(jax.vmap(density)(particles))
        kept = particles[blackjax.smc.resampling.systematic(choose, weights, CHAINS)]
        sampler = blackjax.additive_step_random_walk(
            density, blackjax.mcmc.random_walk.normal(jnp.full(FEATURES, 0.1))
        )
        states = jax.vmap(sampler.init)(kept)
        return jax.vmap(sampler.step)(jax.random.split(walk, CHAINS), states)[0].position

    return step, (jax.random.key(0), particles, X, Y)
