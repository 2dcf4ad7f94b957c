"""Steps that update modules of flax.nnx in place train as under nnx.jit, sharded throughout."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import shardwright as sw
from tests.plans.runs import DEVICES

MESH = {"data": 4, "model": 2}
OPTIONS: dict[str, Any] = {"mesh": MESH, "device": DEVICES["balanced"], "seconds": 0.1}
BATCH = {
    "tokens": jnp.arange(32 * 4).reshape(32, 4) % 64,
    "labels": jnp.arange(32) % 64,
}
STEPS = 3


class Model(nnx.Module):
    """A tied embedding, dropout with a stream of its own, running statistics."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(64, 16, rngs=rngs)
        self.up = nnx.Linear(16, 64, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.down = nnx.Linear(64, 16, rngs=rngs)
        self.head = self.embed  # one array, two names

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens).mean(1)
        x = x + self.down(self.drop(nnx.relu(self.norm(self.up(x)))))
        return self.head.attend(x)


def fresh() -> tuple[Model, nnx.Optimizer[Model]]:
    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def train_step(model: Model, optimizer: Any, batch: Any) -> jax.Array:
    def loss_fn(model: Model) -> jax.Array:
        logits = model(batch["tokens"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def losses(step: Any, model: Any, optimizer: Any) -> list[float]:
    return [float(step(model, optimizer, BATCH)) for _ in range(STEPS)]


def arrays(*objects: Any) -> list[Any]:
    return [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in jax.tree.leaves(nnx.state(objects))
    ]


@functools.cache
def plan(donate_argnums: tuple[int, ...] = ()) -> sw.Plan:
    return sw.partition(train_step, *fresh(), BATCH, donate_argnums=donate_argnums, **OPTIONS)


@pytest.fixture(scope="module")
def theirs() -> tuple[list[float], list[Any]]:
    """Losses and state under nnx.jit."""
    objects = fresh()
    return losses(nnx.jit(train_step), *objects), arrays(*objects)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: sw.jit(train_step, **OPTIONS), id="sw.jit"),
        pytest.param(lambda: sw.jit(nnx.jit(train_step), **OPTIONS), id="sw.jit-of-nnx.jit"),
        pytest.param(lambda: plan().jit(train_step), id="plan.jit"),
        pytest.param(lambda: plan(donate_argnums=(0, 1)).jit(train_step), id="plan.jit-of-donated"),
    ],
)
def test_it_trains_as_under_nnx_jit(make: Any, theirs: Any) -> None:
    step, (model, optimizer) = make(), fresh()
    kept, (want, state) = model.embed.embedding, theirs
    np.testing.assert_allclose(losses(step, model, optimizer), want, rtol=1e-4)
    assert len(set(want)) == STEPS  # it trains
    for a, b in zip(arrays(model, optimizer), state, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    assert model.embed.embedding is kept and model.head is model.embed  # the caller's objects


def test_state_stays_where_it_is_planned() -> None:
    p = plan(donate_argnums=(0, 1))
    specs, results = p.specs(), p.result_specs()
    updated = [path for path in results if path != "result"]
    assert "model.embed.embedding" in updated and "model.drop.rngs.count" in updated
    assert "optimizer.opt_state[0].mu['up']['kernel']" in updated
    assert all(results[path] == specs[path] for path in updated)
    step, (model, optimizer, batch) = p.jit(train_step), p.place(*fresh(), BATCH)
    assert model.head is model.embed
    for _ in range(2):
        places = [x.sharding for x in jax.tree.leaves(nnx.state((model, optimizer)))]
        assert not all(place.is_fully_replicated for place in places)
        old = model.embed.embedding.get_value()
        step(model, optimizer, batch)
        assert old.is_deleted()
        now = jax.tree.leaves(nnx.state((model, optimizer)))
        assert all(x.sharding.is_equivalent_to(s, x.ndim) for x, s in zip(now, places, strict=True))


def test_what_is_not_donated_is_told() -> None:
    notes = "\n".join(plan().record.notes)
    assert "become in the next step: model, optimizer (tie=False lets them differ)" in notes
    assert "donate_argnums=(0, 1) saves that" in notes
    assert not plan(donate_argnums=(0, 1)).record.notes


def test_static_changes_and_new_variables_come_back() -> None:
    def evaluate(model: Model, batch: Any) -> jax.Array:
        model.eval()
        model.calls = nnx.Variable(jnp.float32(1))
        return model(batch["tokens"]).sum()

    (model, _), (other, _) = fresh(), fresh()
    got, want = sw.jit(evaluate, **OPTIONS)(model, BATCH), nnx.jit(evaluate)(other, BATCH)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert model.drop.deterministic and float(model.calls[...]) == 1


def test_what_cannot_be_threaded_is_an_error() -> None:
    model, _ = fresh()

    def closes_over_it(batch: Any) -> jax.Array:
        return model(batch["tokens"]).sum()

    with pytest.raises(sw.ShardwrightError, match="TraceContextError") as error:
        sw.partition(closes_over_it, BATCH, **OPTIONS)
    assert error.value.facts["try"] == "pass the module it changes as an argument"
    with pytest.raises(sw.ShardwrightError, match=r"in place, which jax\.jit alone does not"):
        plan().to_python()
