"""Modules of Equinox: what is no array in them is static, as under eqx.filter_jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shardwright as sw
from tests.plans.runs import DEVICES

OPTIONS: dict[str, Any] = {
    "mesh": {"data": 8},
    "device": DEVICES["balanced"],
    "seconds": 0.1,
}
X = jax.random.normal(jax.random.key(1), (16, 4, 16))
STEPS = 3
OPTIMISER = optax.adam(1e-2)


class Model(eqx.Module):
    """A number, a bool, a word and functions as leaves."""

    attention: eqx.nn.MultiheadAttention
    dropout: eqx.nn.Dropout
    mlp: eqx.nn.MLP
    scale: float
    residual: bool
    kind: str
    activation: Callable[[Any], Any]

    def __init__(self, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(2, 16, key=first)
        self.dropout = eqx.nn.Dropout(0.1)
        self.mlp = eqx.nn.MLP(16, 16, 64, 1, key=second)
        self.scale, self.residual, self.kind, self.activation = 0.5, True, "gelu", jax.nn.gelu

    def __call__(self, x: jax.Array, key: jax.Array) -> jax.Array:
        y = self.dropout(self.attention(x, x, x), key=key)
        x = x + self.scale * y if self.residual else y
        return jax.vmap(self.mlp)(self.activation(x) if self.kind == "gelu" else x)


@eqx.filter_value_and_grad
def loss_of(model: Model, x: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.mean((jax.vmap(model)(x, jax.random.split(key, x.shape[0])) - x) ** 2)


def step(model: Model, opt_state: Any, x: jax.Array, key: jax.Array) -> Any:
    loss, grads = loss_of(model, x, key)
    updates, opt_state = OPTIMISER.update(grads, opt_state)
    return eqx.apply_updates(model, updates), opt_state, loss


def fresh() -> tuple[Model, Any]:
    model = Model(jax.random.key(0))
    return model, OPTIMISER.init(eqx.filter(model, eqx.is_array))


def train(run: Any) -> tuple[list[float], Model]:
    (model, opt_state), losses = fresh(), []
    for i in range(STEPS):
        model, opt_state, loss = run(model, opt_state, jnp.copy(X), jax.random.key(i))
        losses.append(float(loss))
    return losses, model


@pytest.fixture(scope="module")
def theirs() -> tuple[list[float], Model]:
    """Losses and model under eqx.filter_jit."""
    return train(eqx.filter_jit(step))


@pytest.mark.parametrize("jitted", [False, True], ids=["bare", "filter_jit"])
def test_it_trains_as_under_filter_jit(jitted: bool, theirs: Any) -> None:
    fn = eqx.filter_jit(step, donate="all") if jitted else step
    plan = sw.partition(fn, *fresh(), X, jax.random.key(0), **OPTIONS)
    assert not any(word in path for path in plan.specs() for word in ("scale", "residual", "kind"))
    assert (
        plan.result_specs()["result[0].mlp.layers[0].weight"]
        == (plan.specs()["model.mlp.layers[0].weight"])
    )
    assert bool(plan.record.notes) is not jitted  # donated under filter_jit
    got, model = train(plan.jit(fn))
    want, trained = theirs
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert len(set(want)) == STEPS
    assert (model.scale, model.residual, model.kind) == (0.5, True, "gelu")
    state, other = (jax.tree.leaves(eqx.filter(m, eqx.is_array)) for m in (model, trained))
    for a, b in zip(state, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_a_number_is_static_where_equinox_says_so() -> None:
    @eqx.filter_jit
    def power(x: jax.Array, n: int) -> jax.Array:
        return x * x if n == 2 else x

    run = sw.jit(power, **OPTIONS)
    np.testing.assert_allclose(run(X, 2), X * X)
    np.testing.assert_allclose(run(X, 1), X)  # another program: planned again


def test_running_statistics_are_threaded() -> None:
    def normed(norm: Any, state: Any, x: jax.Array) -> Any:
        return jax.vmap(norm, axis_name="b", in_axes=(0, None), out_axes=(0, None))(x, state)

    results = []
    for run in (sw.jit(normed, **OPTIONS), eqx.filter_jit(normed)):
        norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(16, axis_name="b", mode="ema")
        for _ in range(STEPS):
            out, state = run(norm, state, X[:, 0])
        results.append(out)
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)
