"""What arguments say of where they are: followed, or told why not; no part of the program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from tests.plans.runs import DEVICES

OPTIONS: dict[str, Any] = {"device": DEVICES["balanced"], "seconds": 0.1}
AXES = {"data": 4, "model": 2}


def layer(params: Any, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ params["up"]) @ params["down"]


def arguments(placed: bool, **specs: P) -> Any:
    """The arguments with these shardings: arrays that are there, or shapes only."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    shapes = {"up": (16, 64), "down": (64, 16), "x": (32, 16)}

    def make(name: str) -> Any:
        if name not in specs:
            return jnp.ones(shapes[name])
        where = NamedSharding(mesh, specs[name])
        if placed:
            return jax.device_put(jnp.ones(shapes[name]), where)
        return jax.ShapeDtypeStruct(shapes[name], "float32", sharding=where)

    return {name: make(name) for name in ("up", "down")}, make("x")


@pytest.mark.parametrize("placed", [True, False], ids=["arrays", "shapes"])
def test_shardings_of_arguments_are_followed(placed: bool) -> None:
    specs = {"up": P("data", "model"), "x": P("data")}
    plan = sw.partition(layer, *arguments(placed, **specs), mesh=AXES, **OPTIONS)
    assert plan.specs()["params['up']"] == P("data", "model")
    assert plan.specs()["x"][0] == "data"
    assert plan.record.search.pins_in_code == 3 and not plan.record.notes
    run = plan.jit(layer)  # arguments that are elsewhere are the same program
    want = layer(*arguments(True))
    np.testing.assert_allclose(run(*arguments(True)), want, rtol=1e-5)
    np.testing.assert_allclose(run(*arguments(True, **specs)), want, rtol=1e-5)


def test_what_is_replicated_says_nothing() -> None:
    given = arguments(True, up=P(), x=P(None, None))
    plan = sw.partition(layer, *given, mesh=AXES, **OPTIONS)
    assert plan.record.search.pins_in_code == 0


def test_a_contradiction_is_told() -> None:
    pin = sw.Pin("x", 1, "data")
    plan = sw.partition(
        layer, *arguments(True, x=P("data")), mesh=AXES, tactics=[pin, sw.Search()], **OPTIONS
    )
    assert plan.specs()["x"][1] == "data"
    assert plan.record.notes == ("not followed: sharding(P('data',)) at x",)
