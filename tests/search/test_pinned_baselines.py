"""Named tactics are priced under the pins that bind the search: none beats a proven optimum."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.cost.cost import Cost

BATCH, WIDTH = 64, 2048
TABLE = np.ones((WIDTH, WIDTH), np.float32)
MESH = {"data": 4, "model": 4}


def shape(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


ARGS = (shape(BATCH, WIDTH), shape(WIDTH, WIDTH), shape(WIDTH, WIDTH))


def plain(x: Any, w: Any, v: Any) -> Any:
    return jnp.tanh(x @ w) @ v


def constant(x: Any, w: Any, v: Any) -> Any:
    return jnp.tanh(x @ TABLE @ w) @ v


def constants_only(x: Any, w: Any, v: Any) -> Any:
    return jnp.tanh(x @ TABLE) @ TABLE


def constrained(x: Any, w: Any, v: Any) -> Any:
    return jax.lax.with_sharding_constraint(jnp.tanh(x @ w), P(None, "data")) @ v


def constrained_constant(x: Any, w: Any, v: Any) -> Any:
    return jax.lax.with_sharding_constraint(jnp.tanh(x @ TABLE), P("model", None)) @ v


PINNED: list[tuple[Callable[..., Any], list[Any]]] = [
    (plain, []),
    (constant, []),
    (constants_only, []),
    (constrained, []),
    (constrained_constant, []),
    (plain, [sw.Pin("x", 1, "data")]),
    (plain, [sw.Pin("x", 0, "model"), sw.Pin("v", 1, "data")]),
    (plain, [sw.Replicate("w")]),
    (plain, [sw.Replicate("x[0]")]),
    (plain, [sw.Limit("model", ["x[0]"])]),
    (constant, [sw.Pin("x", 1, "model"), sw.Replicate("v")]),
    (constrained, [sw.Pin("v", 1, "model")]),
]


@pytest.mark.parametrize(
    "fn, tactics", PINNED, ids=[f"{f.__name__}-{' '.join(map(str, t))}" for f, t in PINNED]
)
def test_no_named_tactic_beats_the_optimum(fn: Callable[..., Any], tactics: list[Any]) -> None:
    plan = sw.partition(fn, *ARGS, mesh=MESH, tactics=tactics, seconds=0.3)
    assert plan.certificate.kind == "optimal"
    fit = {
        name: cost.step_s for name, cost in plan.baselines.items()
        if isinstance(cost, Cost) and cost.peak_bytes <= plan.device.usable_bytes
    }  # fmt: skip
    faster = {name: s for name, s in fit.items() if s < plan.cost.step_s * (1 - 1e-9)}
    assert fit and not faster
    assert not re.search(
        r" -\d+\.\d%", f"{plan}\n{plan.explain()}"
    )  # nothing is said to be, either


def test_a_baseline_keeps_constants_whole() -> None:
    plan = sw.partition(constant, *ARGS, mesh=MESH, seconds=0.3)
    costs = [cost for cost in plan.baselines.values() if isinstance(cost, Cost)]
    assert min(cost.peak_bytes for cost in costs) >= TABLE.nbytes


def test_an_earlier_axis_leaves_room_for_a_pin() -> None:
    """8 rows over data=8 would leave none for model=4."""
    plan = sw.partition(
        lambda x: jnp.sum(jnp.sin(x), 1), shape(8, 1_000_003), mesh={"data": 8, "model": 4},
        tactics=[sw.Pin("x", 0, "model")], seconds=0.2,
    )  # fmt: skip
    assert plan.specs()["x"] == P("model")


@pytest.mark.parametrize("fn, tactics, leaves", [
    (plain, [], "nothing in the search space"),
    (plain, [sw.Pin("x", 1, "data")], "nothing in what your tactics leave open"),
    (constrained, [], "nothing in what the shardings in your code leave open"),
    (constrained, [sw.Pin("v", 1, "model")],
     "nothing in what your tactics and the shardings in your code leave open"),
])  # fmt: skip
def test_the_proof_says_what_bound_the_search(
    fn: Callable[..., Any], tactics: list[Any], leaves: str
) -> None:
    plan = sw.partition(fn, *ARGS, mesh=MESH, tactics=tactics, seconds=0.3)
    said = f"proof: optimal; under the cost model {leaves} is faster and fits"
    assert said in " ".join(str(plan).split())


@pytest.mark.parametrize("fn", [plain, constrained])
def test_a_faster_tactic_beside_a_proof_says_why_it_is_not_taken(fn: Callable[..., Any]) -> None:
    """Strategies that the user asks for may not be the best: only those rows may be faster."""
    plan = sw.partition(fn, *ARGS, mesh=MESH, tactics=[sw.FSDP("model")], seconds=0.3)
    rows = [line for line in str(plan).splitlines() if re.search(r" -\d+\.\d+%", line)]
    assert plan.certificate.kind == "optimal" and "your tactics" in str(plan).partition("proof")[2]
    assert rows and "faster ones are ruled out by your tactics" in " ".join(str(plan).split())
    assert "Your tactics do not allow it" in " ".join(plan.explain().split())


def test_mesh_shapes_are_screened_under_the_pins() -> None:
    plan = sw.partition(
        plain, *ARGS, mesh={"data": None, "model": None}, devices=16, seconds=0.2,
        tactics=[sw.Replicate("w"), sw.Pin("x", 1, "data")],
    )  # fmt: skip
    screened = [row.step_s for row in plan.record.meshes if row.step_s is not None]
    assert len(screened) > 1 and min(screened) >= plan.cost.step_s * (1 - 1e-9)


def test_more_devices_are_advised_only_where_the_pins_leave_something_to_split() -> None:
    def try_to_fit(*tactics: Any) -> str:
        with pytest.raises(sw.ShardwrightError, match="no plan fits") as error:
            sw.partition(
                plain, *ARGS, mesh={"data": 2}, tactics=tactics, memory=4 * WIDTH**2, seconds=0.2
            )
        return str(error.value)

    assert "4 devices" in try_to_fit()
    assert "devices" not in try_to_fit(sw.Replicate("w"), sw.Replicate("v")).partition("try")[2]
