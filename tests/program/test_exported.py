"""Functions of jax.export are opened: planned as what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import shardwright as sw

MESH = {"data": 4, "model": 2}
X, W = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(32, 16), (16, 16)]))


def mlp(x: Any, w: Any) -> Any:
    return jax.nn.gelu(x @ w) @ w.T + x


def attention(x: Any, w: Any) -> Any:
    q, mask = x @ w, jnp.tril(jnp.ones((32, 32), bool))
    scores = jnp.where(mask, q @ x.T, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1) @ x


def loop(x: Any, w: Any) -> Any:
    def layer(c: Any, n: Any) -> Any:
        return jnp.tanh(c @ w) * n, jnp.max(c)

    return lax.scan(layer, x, jnp.arange(1.0, 4.0))


def picks(x: Any, w: Any) -> Any:
    rows = jnp.take(x, jnp.array([3, 1, 40]), axis=0)
    ends = jnp.concatenate([x[::2], jnp.flip(x, 0)])
    return rows, ends, jnp.argmax(x, axis=-1), jnp.pad(w, 1), jnp.all(x > -9), x[:, 0].astype(int)


def branches(x: Any, w: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda: x @ w, lambda: x), lax.switch(2, [lambda: x] * 3)


def halves(x: Any, w: Any) -> Any:
    return jnp.dot(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16) * 3) ** 2


@pytest.mark.parametrize("fn", [mlp, attention, loop, picks, branches, halves])
def test_numbers(fn: Callable[..., Any]) -> None:
    exported = export.export(jax.jit(fn))(X, W)

    def call(x: Any, w: Any) -> Any:
        return exported.call(x, w)

    plan = sw.partition(call, X, W, mesh=MESH, tactics=[sw.Pin("x", 0, "data")], seconds=0.1)
    assert plan.record.opaque == {}
    pairs = zip(jax.tree.leaves(plan.jit(call)(X, W)), jax.tree.leaves(fn(X, W)), strict=True)
    for got, want in pairs:
        np.testing.assert_allclose(*(np.asarray(a, float) for a in (got, want)), rtol=2e-2)


def test_planned_as_the_function_itself() -> None:
    exported = export.export(jax.jit(mlp))(X, W)
    plans = [sw.partition(f, X, W, mesh=MESH) for f in (mlp, lambda x, w: exported.call(x, w))]
    one, other = (plan.cost for plan in plans)
    assert (one.step_s, one.peak_bytes) == pytest.approx((other.step_s, other.peak_bytes), rel=0.05)
    assert plans[0].specs() == plans[1].specs()


def test_gradients_that_were_exported_with_it() -> None:
    exported = export.deserialize(export.export(jax.jit(mlp))(X, W).serialize(vjp_order=1))

    def step(x: Any, w: Any) -> Any:
        return jax.grad(lambda w: jnp.sum(exported.call(x, w)))(w)

    plan = sw.partition(step, X, W, mesh=MESH, seconds=0.1)
    assert plan.record.opaque == {}
    np.testing.assert_allclose(plan.jit(step)(X, W), step(X, W), rtol=1e-3, atol=1e-4)


def test_what_is_not_read_back_is_told() -> None:
    exported = export.export(jax.jit(lambda x, w: jnp.sort(x) @ w))(X, W)
    plan = sw.partition(lambda x, w: exported.call(x, w), X, W, mesh=MESH, seconds=0.1)
    assert plan.record.opaque == {"call_exported": 1}
    (note,) = plan.record.notes
    assert "sorts" in note and "plan the function before it is exported" in note
    assert "test_exported.py" in note
