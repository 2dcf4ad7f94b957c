"""Modules of flax.nnx as arguments: their parameters are called as in the user's code."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax.sharding import PartitionSpec as P

import shardwright as sw
from tests.plans.runs import DEVICES

MESH = {"data": 4, "model": 2}
X = jnp.arange(512.0).reshape(32, 16) / 512


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(16, 64, rngs=rngs)
        self.down = nnx.Linear(64, 16, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.down(nnx.relu(self.up(x)))


class Model(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([Block(rngs) for _ in range(2)])
        self.head = nnx.Linear(16, 64, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


GRAPH, STATE = nnx.split(Model())


def of_state(state: Any, x: jax.Array) -> jax.Array:
    return nnx.merge(GRAPH, state)(x)


def of_module(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


def plan(fn: Any, *args: Any, **options: Any) -> sw.Plan:
    return sw.partition(fn, *args, mesh=MESH, device=DEVICES["balanced"], seconds=0.2, **options)


@pytest.mark.parametrize(
    "fn, first, path",
    [
        (of_state, STATE, "state['layers'][0]['up']['kernel']"),
        (of_module, Model(), "model.layers[0].up.kernel"),
    ],
)
def test_paths_and_labels(fn: Any, first: Any, path: str) -> None:
    analysis = sw.analyze(fn, first, X)
    assert path in analysis.program.signature.paths
    labels = {g.label for g in analysis.groups}
    assert labels == {"x[0]", "head.kernel[0]", "head.kernel[1]", "down.kernel[0]"}
    pinned = plan(fn, first, X, tactics=[sw.Pin(path.replace("[0]", "[*]"), 1, "model")])
    assert pinned.specs()[path] == P(None, "model")
    assert plan(fn, first, X, tactics=[sw.Pin("head.kernel[1]", None, "model")])


def test_a_train_step_of_modules_runs() -> None:
    def step(model: Model, optimizer: Any, x: jax.Array) -> Any:
        grads = nnx.grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, grads)
        return model, optimizer

    def fresh() -> tuple[Model, Any]:
        model = Model()
        return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    p = plan(step, *fresh(), X, donate_argnums=(0, 1))
    assert p.result_specs()["result[0].head.kernel"] == p.specs()["model.head.kernel"]
    assert "optimizer.opt_state[0].mu['head']['kernel']" in p.specs()
    got, want = p.jit(step)(*fresh(), X), step(*fresh(), X)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6)


def test_an_ejected_plan_finds_the_parameters() -> None:
    p = plan(
        of_state,
        STATE,
        X,
        tactics=[sw.Pin("x", 0, "data"), sw.Pin("head.kernel[0]", None, "model")],
    )
    ejected: dict[str, Any] = {}
    exec(p.to_python(), ejected)
    mesh = ejected["make_mesh"]()
    placed = ejected["place"](mesh, STATE, X)
    for a, b in zip(jax.tree.leaves(placed), jax.tree.leaves(p.place(STATE, X)), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
    out = ejected["jit"](of_state, mesh, *placed)(*placed)
    np.testing.assert_allclose(out, of_state(STATE, X), rtol=1e-4, atol=1e-5)


def test_boxes_of_linen() -> None:
    boxed = {"w": linen.Partitioned(jnp.ones((16, 64)), names=(None, "model"))}
    program = sw.trace(lambda params, x: x @ params["w"].value, boxed, X)
    assert program.signature.paths == ("params['w']", "x")


class Transition(NamedTuple):
    action: Any
    value: Any


def test_a_field_called_value_keeps_its_name() -> None:
    program = sw.trace(lambda t: t.action + t.value, Transition(X, X))
    assert program.signature.paths == ("t.action", "t.value")
