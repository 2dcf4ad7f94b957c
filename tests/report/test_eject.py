"""The ejected module runs without Shardwright: JAX itself says where the arrays are."""

from __future__ import annotations

import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwright as sw
from shardwright.zoo import materialize, programs
from tests.plans.runs import DEVICES
from tests.report.records import MESH, plan_of


def run(text: str) -> Any:
    """The module that the snippet is; importing Shardwright in it is an error."""
    assert "import shardwright" not in text
    module = types.ModuleType("ejected")
    exec(compile(text, "ejected.py", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("program, tactics", [
    ("mlp_forward", "dp"),
    pytest.param("transformer_train", "fsdp+tp", marks=pytest.mark.slow),
    pytest.param("transformer_scan_train", "zero", marks=pytest.mark.slow),
])  # fmt: skip
def test_arrays_are_where_the_plan_says(program: str, tactics: str) -> None:
    plan, example = plan_of(program, tactics), programs("tiny")[program]
    module = run(plan.to_python())
    mesh = module.make_mesh()
    assert dict(mesh.shape) == MESH
    args = materialize(example)
    wanted = jax.tree.map(np.asarray, jax.jit(example.fn)(*args))
    placed = module.place(mesh, *args)
    planned = jax.tree.leaves(plan.in_shardings(mesh))
    for array, sharding in zip(jax.tree.leaves(placed), planned, strict=True):
        assert array.sharding.is_equivalent_to(sharding, array.ndim)
    results = module.jit(example.fn, mesh, *placed)(*placed)
    planned = jax.tree.leaves(plan.out_shardings(mesh))
    for array, sharding, value in zip(
        jax.tree.leaves(results), planned, jax.tree.leaves(wanted), strict=True
    ):
        assert array.sharding.is_equivalent_to(sharding, array.ndim)
        np.testing.assert_allclose(np.asarray(array), value, rtol=2e-3, atol=2e-4)


def test_static_arguments_are_passed_on() -> None:
    def scale(x: Any, times: int, y: Any) -> Any:
        return x * times + y

    x = np.ones((8, 4), np.float32)
    plan = sw.partition(
        scale, x, 3, x, mesh={"data": 4, "model": 2}, static_argnums=1,
        tactics=[sw.Pin("x", 0, "data")],
    )  # fmt: skip
    module = run(plan.to_python())
    mesh = module.make_mesh()
    placed = module.place(mesh, x, 3, x)
    out = module.jit(scale, mesh, *placed)(*placed)
    np.testing.assert_array_equal(np.asarray(out), 3 * x + x)
    assert placed[0].sharding.spec == plan.specs()["x"]


class Point(NamedTuple):
    x: Any
    y: Any


def _any_arguments(*xs: Any, **named: Any) -> Any:
    return {"sum": sum(x.sum() for x in xs), "named": named["a"] * 2, "none": None}


def _any_leaves(model: Any, batch: Any, *, scale: float) -> Any:
    return Point(model["activation"](batch.x @ model["w"]) * scale, [batch.y, None])


X = np.ones((8, 4), np.float32)
CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "any number of arguments": (_any_arguments, (X, 2 * X), {"a": X, "b": {"c": X}}),
    "leaves that are no arrays": (
        _any_leaves, ({"w": X.T, "activation": jnp.tanh, "name": "tanh"}, Point(X, {})),
        {"scale": 3.0},
    ),
    "an argument without leaves": (lambda empty, x: (empty, x + 1), ({}, X), {}),
    "a bare PartitionSpec inside": (
        lambda x: jax.lax.with_sharding_constraint(x + 1, jax.P("data")), (X,), {},
    ),
    "static in the jitted function": (jax.jit(lambda x, n: x * n, static_argnums=1), (X, 3), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_calls_of_any_form(case: str) -> None:
    fn, args, kwargs = CALLS[case]
    plan = sw.partition(fn, *args, mesh=MESH, device=DEVICES["balanced"], seconds=0.2, **kwargs)
    assert any(any(spec) for spec in plan.specs().values())
    module = run(plan.to_python())
    mesh = module.make_mesh()
    placed = module.place(mesh, *args, **kwargs)
    args, kwargs = placed if kwargs else (placed, {})
    out = module.jit(fn, mesh, *args, **kwargs)(*args, **kwargs)
    with jax.set_mesh(mesh):
        want = fn(*args, **kwargs)
    assert jax.tree.structure(out) == jax.tree.structure(want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), out, want)
