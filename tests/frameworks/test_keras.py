"""Keras: a stateless scope trains as under jax.jit, sharded; what cannot be threaded is told."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import shardwright as sw

HOW: dict[str, Any] = {
    "mesh": {"data": 4, "model": 2},
    "tactics": [sw.FSDP("data"), sw.Megatron("model")],
}
X = jax.random.normal(jax.random.key(0), (32, 16))
STEPS = 3


def keras_model() -> tuple[Any, Any]:
    """Running statistics, dropout with a seed among its variables."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((16,)), layers.Dense(64, use_bias=False), layers.BatchNormalization(),
        layers.ReLU(), layers.Dropout(0.1), layers.Dense(16),
    ])  # fmt: skip
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    return model, optimizer


KERAS, KERAS_OPTIMIZER = keras_model()


def keras_scope_step(state: Any, x: jax.Array) -> Any:
    variables = (KERAS.trainable_variables, KERAS.non_trainable_variables)
    trainable, other, opt_state = state

    def loss_of(trainable: Any) -> Any:
        pairs = [*zip(variables[0], trainable, strict=True), *zip(variables[1], other, strict=True)]
        with keras.StatelessScope(state_mapping=pairs) as scope:
            loss = jnp.mean((x + KERAS(x, training=True)) ** 2)
        return loss, [scope.get_current_value(v) for v in variables[1]]

    (loss, new), grads = jax.value_and_grad(loss_of, has_aux=True)(trainable)
    trainable, opt_state = KERAS_OPTIMIZER.stateless_apply(opt_state, grads, trainable)
    return (trainable, [n if n is not None else o for n, o in zip(new, other)], opt_state), loss  # noqa: B905


def keras_start() -> tuple[Any, ...]:
    model, optimizer = keras_model()
    groups = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    return ([[v.value for v in group] for group in groups],)


def train(step: Any, state: tuple[Any, ...]) -> tuple[list[float], list[list[Any]]]:
    """(losses, the leaves of the state after each step)."""
    losses, states = [], []
    for _ in range(STEPS):
        *state, loss = step(*state, X)
        losses.append(float(loss))
        states.append(jax.tree.leaves(state))
    return losses, states


def test_a_stateless_scope_trains_as_under_jax_jit() -> None:
    step, start = keras_scope_step, keras_start
    want, theirs = train(jax.jit(step), start())
    donated = tuple(range(len(start())))
    plan = sw.partition(step, *start(), X, donate_argnums=donated, **HOW)
    losses, ours = train(plan.jit(step), start())
    np.testing.assert_allclose(losses, want, rtol=1e-4)
    assert len(set(want)) == STEPS  # it trains
    for a, b in zip(ours[-1], theirs[-1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    planned = [spec for path, spec in plan.specs().items() if path != "x"]
    for state in ours:  # sharded throughout
        assert [x.sharding.spec for x in state] == planned
    assert sum(bool(spec) for spec in planned) > len(planned) / 2
    assert not plan.record.notes


def test_keras_variables_are_no_arguments() -> None:
    with pytest.raises(sw.ShardwrightError) as error:
        sw.partition(lambda v, x: x @ v[0], KERAS.trainable_variables, X, **HOW)
    assert str(error.value) == (
        "v[0] is a Variable, which stands for an array and is none\n"
        "  try     pass its array: v[0].value, say"
    )


def test_a_keras_model_that_is_not_passed_cannot_be_updated() -> None:
    model, _ = keras_model()

    def forward(x: jax.Array) -> Any:
        return model(x, training=True)

    with pytest.raises(sw.ShardwrightError) as error:
        sw.partition(forward, X, mesh=HOW["mesh"])
    first, try_ = str(error.value).splitlines()
    assert first.startswith("forward changes the Keras variable of model (sequential")
    assert first.endswith("compiled code would not, and it now holds a value that does not exist")
    assert "model.stateless_call(...), optimizer.stateless_apply(...)" in try_
