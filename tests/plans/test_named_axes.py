"""Axes that the user's code names: pins if the mesh has them, notes if not; with no mesh set."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from tests.plans.runs import DEVICES

OPTIONS: dict[str, Any] = {
    "mesh": {"data": 4, "model": 2}, "device": DEVICES["balanced"], "seconds": 0.1,
}  # fmt: skip
X = jax.random.normal(jax.random.key(0), (32, 16))
WEIGHTS = {"up": jnp.ones((16, 64)) / 16, "down": jnp.ones((64, 16)) / 64}


def plain(w: Any, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ w["up"]) @ w["down"]


def bare(w: Any, x: jax.Array) -> jax.Array:
    """Written for a mesh with data, fsdp and tensor axes."""
    constrain = jax.lax.with_sharding_constraint
    h = jax.nn.relu(constrain(x, P(("data", "fsdp"))) @ w["up"])
    return constrain(h, P(("data", "fsdp"), "tensor")) @ w["down"]


def of_another_mesh(w: Any, x: jax.Array) -> jax.Array:
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    where = NamedSharding(mesh, P(("data", "fsdp"), "tensor"))
    h = jax.lax.with_sharding_constraint(jax.nn.relu(x @ w["up"]), where)
    return h @ w["down"]


@pytest.mark.parametrize("fn, times", [(bare, " and 1 more"), (of_another_mesh, "")])
def test_axes_that_the_mesh_does_not_have_are_told(fn: Any, times: str) -> None:
    plan = sw.partition(fn, WEIGHTS, X, **OPTIONS)
    fsdp, tensor = plan.record.notes
    assert fsdp.startswith("not followed: the mesh has no axis 'fsdp' of with_sharding_constraint(")
    assert "P(('data', 'fsdp')" in fsdp and fsdp.endswith(times) and "test_named_axes.py:" in fsdp
    assert tensor.startswith("not followed: the mesh has no axis 'tensor'")
    assert plan.specs()["x"][0] == "data" and plan.record.search.pins_in_code  # what it has is
    np.testing.assert_allclose(plan.jit(fn)(WEIGHTS, X), plain(WEIGHTS, X), rtol=1e-4)


class Logical(nn.Module):
    """Parameters and activations with logical axes, as in MaxText."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def init(*names: str) -> Any:
            return nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)

        x = nn.with_logical_constraint(x, ("batch", "embed"))
        h = nn.relu(nn.Dense(64, kernel_init=init("embed", "mlp"))(x))
        h = nn.with_logical_constraint(h, ("batch", "mlp"))
        return nn.Dense(16, kernel_init=init("mlp", "embed"))(h)


def apply(variables: Any, x: jax.Array) -> jax.Array:
    out: jax.Array = Logical().apply(variables, x)
    return out


@pytest.mark.parametrize(
    "rules, followed, note",
    [
        ([("batch", "model"), ("mlp", "data"), ("embed", None)], True, None),
        ([("batch", ("data", "fsdp")), ("mlp", "tensor")], True, "has no axis 'fsdp'"),
        ([], False, "arguments name the axes embed, mlp, for which there is no rule"),
    ],
)
def test_logical_axes_are_pins_with_no_mesh_set(rules: Any, followed: bool, note: Any) -> None:
    variables = Logical().init(jax.random.key(0), X)
    with nn.logical_axis_rules(rules):
        plan = sw.partition(apply, variables, X, **OPTIONS)
    assert bool(plan.record.search.pins_in_code) == followed
    assert note in "\n".join(plan.record.notes) if note else not plan.record.notes
    if note is None:
        specs = plan.specs()
        assert specs["x"] == P("model") and specs["variables['params']['Dense_0']['kernel']"] == P(
            None, "data"
        )
    run = plan.jit(apply)  # where no rules are set any more
    np.testing.assert_allclose(run(variables, X), apply(variables, X), rtol=1e-4, atol=1e-5)


def test_boxes_that_name_axes_of_the_mesh_are_pins() -> None:
    init = nn.with_partitioning(nn.initializers.ones_init(), ("model", "data"))
    model = nn.Dense(64, kernel_init=init, use_bias=False)
    plan = sw.partition(model.apply, model.init(jax.random.key(0), X), X, **OPTIONS)
    assert next(iter(plan.specs().values())) == P("model", "data")


EXPLICIT = {
    "explicit": (AxisType.Explicit, AxisType.Explicit),
    "mixed": (AxisType.Explicit, AxisType.Auto),
}


@pytest.mark.parametrize("set_around", [False, True])
@pytest.mark.parametrize("kind", EXPLICIT)
def test_meshes_with_explicit_axes(kind: str, set_around: bool) -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=EXPLICIT[kind])
    if not set_around:
        plan = sw.partition(plain, WEIGHTS, X, **OPTIONS | {"mesh": mesh})
        np.testing.assert_allclose(plan.jit(plain)(WEIGHTS, X), plain(WEIGHTS, X), rtol=1e-4)
        return
    with jax.set_mesh(mesh):
        x = jax.device_put(X, NamedSharding(mesh, P("data")))
        w = jax.tree.map(lambda a: jax.device_put(a, NamedSharding(mesh, P())), WEIGHTS)
        plan = sw.partition(plain, w, x, **OPTIONS | {"mesh": mesh})
        assert plan.specs()["x"][0] == "data" and plan.record.search.pins_in_code == 1
        out = plan.jit(plain)(w, x)
        total = x + out if kind == "explicit" else x + jax.sharding.reshard(out, P("data"))
    np.testing.assert_allclose(np.asarray(total) - X, plain(WEIGHTS, X), rtol=1e-3, atol=1e-5)
