"""Steps that update modules of flax.nnx in place train as under nnx.jit, sharded throughout."""

from __future__ import annotations

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
OPTIONS: dict[str, Any] = {"mesh": MESH, "device": DEVICES["balanced"], "seconds": 0.2}
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


def planned(fn: Any, how: str) -> Any:
    if how == "sw.jit":
        return sw.jit(fn, **OPTIONS)
    return sw.partition(fn, *fresh(), BATCH, **OPTIONS).jit(fn)


@pytest.mark.parametrize("how", ["sw.jit", "plan.jit"])
@pytest.mark.parametrize("jitted", [False, True], ids=["bare", "nnx.jit"])
def test_it_trains_as_under_nnx_jit(how: str, jitted: bool) -> None:
    step = planned(nnx.jit(train_step) if jitted else train_step, how)
    model, optimizer = fresh()
    kept = model.embed.embedding
    got = losses(step, model, optimizer)
    theirs = fresh()
    want = losses(nnx.jit(train_step), *theirs)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert len(set(want)) == STEPS  # it trains
    for a, b in zip(arrays(model, optimizer), arrays(*theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    assert model.embed.embedding is kept  # updated in place
    assert model.head is model.embed
