"""Brax: rigid-body physics of many environments, and a policy step through it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from brax import envs

from tests.frameworks.shapes import Program
from tests.sweep.steps import train, weight

ENVIRONMENTS = 16


def _environment(name: str, backend: str) -> tuple[Any, Any]:
    env = envs.get_environment(name, backend=backend)
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), ENVIRONMENTS))
    return env, states


def positional_pendulum() -> Program:
    """Position-based dynamics of an inverted pendulum, one control step."""
    env, states = _environment("inverted_pendulum", "positional")
    actions = np.zeros((ENVIRONMENTS, env.action_size), np.float32)
    return jax.vmap(env.step), (states, actions)


def generalized_reacher() -> Program:
    """Dynamics in generalised coordinates: factorisations of mass matrices."""
    env, states = _environment("reacher", "generalized")
    actions = np.zeros((ENVIRONMENTS, env.action_size), np.float32)
    return jax.vmap(env.step), (states, actions)


def policy_through_physics() -> Program:
    """Gradients of a reward through one step of spring physics into a policy."""
    env, states = _environment("inverted_pendulum", "spring")

    def loss(params: Any, states: Any) -> jax.Array:
        actions = jnp.tanh(jnp.tanh(states.obs @ params["in"]) @ params["out"])
        return -jnp.mean(jax.vmap(env.step)(states, actions).obs ** 2)

    params = {"in": weight(env.observation_size, 32), "out": weight(32, env.action_size)}
    return train(loss, params, states)
