"""Losses of RLax in train steps, over batches of trajectories."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rlax

from tests.frameworks.shapes import Program
from tests.sweep.steps import train, weight

BATCH, TIME, FEATURES, ACTIONS, HIDDEN = 16, 8, 16, 4, 32
RNG = np.random.default_rng(0)
OBSERVED = RNG.normal(size=(BATCH, TIME, FEATURES)).astype(np.float32)
TAKEN = RNG.integers(0, ACTIONS, (BATCH, TIME)).astype(np.int32)
REWARDS = RNG.normal(size=(BATCH, TIME)).astype(np.float32)
DISCOUNTS = np.full((BATCH, TIME), 0.9, np.float32)


def _net(params: Any, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ params["in"]) @ params["out"]


def _params(outputs: int) -> dict[str, np.ndarray]:
    return {"in": weight(FEATURES, HIDDEN), "out": weight(HIDDEN, outputs)}


def double_q_learning() -> Program:
    """One-step targets from a second network."""

    def loss(params: Any, target: Any, x: jax.Array, a: jax.Array, r: jax.Array) -> jax.Array:
        q, selector, values = _net(params, x), _net(params, x), _net(target, x)
        error = jax.vmap(rlax.double_q_learning)(
            q[:, 0], a[:, 0], r[:, 0], jnp.full(BATCH, 0.9), values[:, 1], selector[:, 1]
        )
        return jnp.mean(rlax.huber_loss(error))

    return train(loss, _params(ACTIONS), _params(ACTIONS), OBSERVED, TAKEN, REWARDS)


def v_trace() -> Program:
    """IMPALA: importance-weighted returns, policy gradient, entropy."""

    def loss(params: Any, x: Any, a: Any, r: Any, d: Any, behaviour: Any) -> jax.Array:
        out = _net(params, x)
        logits, values = out[..., :ACTIONS], out[..., ACTIONS]

        def one(logits: Any, values: Any, a: Any, r: Any, d: Any, behaviour: Any) -> jax.Array:
            rhos = rlax.categorical_importance_sampling_ratios(logits[:-1], behaviour[:-1], a[:-1])
            returns = rlax.vtrace_td_error_and_advantage(
                values[:-1], values[1:], r[:-1], d[:-1], rhos
            )
            ones = jnp.ones(TIME - 1)
            return (
                rlax.policy_gradient_loss(logits[:-1], a[:-1], returns.pg_advantage, ones)
                + 0.5 * jnp.mean(returns.errors**2)
                + rlax.entropy_loss(logits[:-1], ones)
            )

        return jnp.mean(jax.vmap(one)(logits, values, a, r, d, behaviour))

    behaviour = RNG.normal(size=(BATCH, TIME, ACTIONS)).astype(np.float32)
    return train(loss, _params(ACTIONS + 1), OBSERVED, TAKEN, REWARDS, DISCOUNTS, behaviour)


def categorical_q_learning() -> Program:
    """A distribution of returns, projected back on its atoms."""
    atoms = 16

    def loss(params: Any, target: Any, x: jax.Array, a: jax.Array, r: jax.Array) -> jax.Array:
        support = jnp.linspace(-4.0, 4.0, atoms)

        def logits(p: Any, t: int) -> jax.Array:
            return _net(p, x[:, t]).reshape(BATCH, ACTIONS, atoms)

        def one(q: Any, a: Any, r: Any, following: Any) -> jax.Array:
            return rlax.categorical_q_learning(support, q, a, r, 0.9, support, following)

        return jnp.mean(jax.vmap(one)(logits(params, 0), a[:, 0], r[:, 0], logits(target, 1)))

    sizes = ACTIONS * atoms
    return train(loss, _params(sizes), _params(sizes), OBSERVED, TAKEN, REWARDS)


def retrace() -> Program:
    """Off-policy returns over whole trajectories."""

    def loss(params: Any, x: Any, a: Any, r: Any, d: Any) -> jax.Array:
        q = _net(params, x)

        def one(q: Any, a: Any, r: Any, d: Any) -> jax.Array:
            policy = jax.nn.softmax(q)
            taken = jnp.take_along_axis(policy, a[:, None], 1)[:, 0]
            return rlax.retrace(
                q[:-1], q[1:], a[:-1], a[1:], r[:-1], d[:-1], policy[1:], taken[1:], 0.9
            )

        return jnp.mean(jax.vmap(one)(q, a, r, d) ** 2)

    return train(loss, _params(ACTIONS), OBSERVED, TAKEN, REWARDS, DISCOUNTS)
