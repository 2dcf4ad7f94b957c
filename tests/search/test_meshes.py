"""Mesh shapes, and pins written in the user's code."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from shardwright.analysis import analyze_program
from shardwright.cost.devices import device
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh, factorisations
from shardwright.program import trace
from shardwright.search import search
from shardwright.search.meshes import candidate_meshes, search_meshes
from shardwright.search.requests import constrained_model
from tests.search.programs import analysis_of


def test_a_device_count_searches_every_shape() -> None:
    analysis, on = analysis_of("mlp_grad"), device("tpu-v5e")
    shapes = candidate_meshes(8, on)
    assert [str(m) for m in shapes] == [str(m) for m in factorisations(8)]
    cost_model = functools.partial(constrained_model, analysis, device=on)
    model, found, table = search_meshes(shapes, cost_model, on, seconds=0.2)
    assert [row.mesh for row in table] == shapes
    assert model.mesh in shapes
    for row in table:
        assert row.cost is None or found.cost.step_s <= row.cost.step_s * (1 + 1e-9)


def test_free_sizes() -> None:
    on = device("tpu-v5e")
    meshes = candidate_meshes({"data": None, "model": 4}, on, devices=16)
    assert [str(m) for m in meshes] == ["data=4 x model=4"]
    with pytest.raises(ShardwrightError, match="needs a number of devices"):
        candidate_meshes({"data": None}, on)


@pytest.mark.parametrize(
    "specs, expected",
    [
        ([PartitionSpec(None, "x")], [1]),
        ([PartitionSpec("x", None)], [0]),
        ([PartitionSpec("x", None), PartitionSpec(None, "x")], [0, 1]),  # a reshard
    ],
)
def test_with_sharding_constraint_is_a_pin(specs: list[PartitionSpec], expected: list[int]) -> None:
    jax_mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))

    def fn(x, w):  # type: ignore[no-untyped-def]
        y = x @ w
        for spec in specs:
            y = jax.lax.with_sharding_constraint(y, NamedSharding(jax_mesh, spec))
        return jnp.sin(y)

    program = trace(fn, jnp.zeros((64, 32)), jnp.zeros((32, 128)))
    model = constrained_model(analyze_program(program), Mesh({"x": 4}), device("tpu-v5e"))
    stored = model.stored(search(model, seconds=0.2).decisions)
    for pin, dim in zip(program.pins, expected, strict=True):
        layout = int(model.layouts.of_value[pin.value])
        assert model.layouts.table[layout].atoms[stored[layout][0]].dim == dim
