"""A train step around a loss, and weights to start from: what many programs here share."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax

from tests.frameworks.shapes import Program


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    """A random matrix that keeps the scale of what it multiplies."""
    values = np.random.default_rng([seed, *shape]).normal(size=shape)
    return (values / np.sqrt(shape[0])).astype(np.float32)


def train(loss: Any, params: Any, *batch: Any) -> Program:
    """One step of Adam on `loss(params, *batch)`."""
    optimizer = optax.adam(1e-3)

    def step(params: Any, opt_state: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return step, (params, optimizer.init(params), *batch)
