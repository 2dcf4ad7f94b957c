"""Differential equations with diffrax: solvers are while loops, adjoints run them backwards."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.frameworks.shapes import Program

BATCH, DIM = 16, 8
START = np.random.default_rng(0).normal(size=(BATCH, DIM)).astype(np.float32)


def _field(key: jax.Array) -> Any:
    return eqx.nn.MLP(DIM, DIM, 32, 2, activation=jnp.tanh, key=key)


def _train(solve: Any) -> Program:
    """One step of Adam on a vector field, so that trajectories end near zero."""
    model = _field(jax.random.key(0))
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    optimizer = optax.adam(1e-3)

    def step(arrays: Any, opt_state: Any, start: jax.Array) -> Any:
        def loss(arrays: Any) -> jax.Array:
            field = eqx.combine(arrays, static)
            return jnp.mean(jax.vmap(lambda y: solve(field, y))(start) ** 2)

        value, grads = jax.value_and_grad(loss)(arrays)
        updates, opt_state = optimizer.update(grads, opt_state)
        return eqx.apply_updates(arrays, updates), opt_state, value

    return step, (arrays, optimizer.init(arrays), START)


def neural_ode() -> Program:
    """Adaptive steps, the backward pass from checkpoints."""

    def solve(field: Any, y: jax.Array) -> jax.Array:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, _: field(y)), diffrax.Tsit5(), 0.0, 1.0, 0.1, y,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-3), max_steps=64,
        ).ys[-1]  # fmt: skip

    return _train(solve)


def neural_ode_backsolve() -> Program:
    """Constant steps; the gradient is another equation, solved backwards."""

    def solve(field: Any, y: jax.Array) -> jax.Array:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, f: f(y)), diffrax.Heun(), 0.0, 1.0, 0.1, y, args=field,
            adjoint=diffrax.BacksolveAdjoint(), max_steps=64,
        ).ys[-1]  # fmt: skip

    return _train(solve)


def stochastic_equation() -> Program:
    """Euler-Maruyama over a virtual Brownian tree, saved at eight times."""

    def simulate(start: jax.Array, keys: jax.Array) -> jax.Array:
        def one(y: jax.Array, key: jax.Array) -> jax.Array:
            path = diffrax.VirtualBrownianTree(0.0, 1.0, tol=0.02, shape=(DIM,), key=key)
            terms = diffrax.MultiTerm(
                diffrax.ODETerm(lambda t, y, _: -y),
                diffrax.ControlTerm(lambda t, y, _: 0.1 * jnp.ones((DIM, DIM)), path),
            )
            saved = diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 8))
            return diffrax.diffeqsolve(
                terms, diffrax.Euler(), 0.0, 1.0, 0.05, y, saveat=saved, max_steps=64
            ).ys

        return jax.vmap(one)(start, keys)

    return simulate, (START, jax.random.split(jax.random.key(1), BATCH))


def implicit_solver() -> Program:
    """A stiff equation: Newton steps and linear solves inside the solver's loop."""

    def simulate(start: jax.Array, rate: jax.Array) -> jax.Array:
        def one(y: jax.Array) -> jax.Array:
            return diffrax.diffeqsolve(
                diffrax.ODETerm(lambda t, y, _: -rate * y + jnp.roll(y, 1)), diffrax.Kvaerno3(),
                0.0, 1.0, 0.1, y, max_steps=64,
                stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-3),
            ).ys[-1]  # fmt: skip

        return jax.vmap(one)(start)

    return simulate, (START, np.linspace(1, 50, DIM, dtype=np.float32))
