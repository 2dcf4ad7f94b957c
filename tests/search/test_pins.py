"""Pins: what is refused and what would do instead; constraints in the code that reshard a value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import with_sharding_constraint as constrain
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.errors import ShardwrightError
from shardwright.search import Pin

# {pins of x f32[16, 8], which a reshape makes (16, 2, 4), on axes a=4 and b=2: what is said}
REFUSED: dict[str, tuple[list[Pin], str]] = {
    "a reshape": (
        [Pin("x", 1, "a")],
        "cannot split dim 1 of x over a=4\n  pin     Pin('x', 1, 'a')\n  shape   (16, 8)\n  cause  "
        " a reshape makes the dim 2 x 4, and the first of these is split first\n  try     axis 'b'"
        " or an axis of size 2",
    ),
    "another axis": (
        [Pin("y", 0, "a"), Pin("y", 0, "b")],
        "cannot split dim 0 of y over b=2\n  pin     Pin('y', 0, 'b')\n  shape   (4,)\n"
        "  cause   a=4 leaves 1 of it\n  try     another dim",
    ),
    "uneven": (
        [Pin("z", 0, "a")],
        "cannot split dim 0 of z over a=4\n  pin     Pin('z', 0, 'a')\n  shape   (6,)\n"
        "  try     axis 'b' or an axis of size 2, 3, 6",
    ),
    "no entries": (
        [Pin("empty", 1, "a")],
        "cannot split dim 1 of empty over a=4\n  pin     Pin('empty', 1, 'a')\n  shape   (0, 8)\n"
        "  cause   the array has no entries\n  try     no pin of it",
    ),
    "no such dim": (
        [Pin("x", 2, "a")],
        "Pin('x', 2, 'a'): no matching argument has something to split there\n  shape   (16, 8)\n"
        "  try     dim 0 or 1",
    ),
    "no path": ([Pin(3, 0, "a")], "a tactic names 3, which is no argument path and no label"),  # type: ignore[arg-type]
}


def reshaped(x: jax.Array, y: jax.Array, z: jax.Array, empty: jax.Array) -> Any:
    return x.reshape(16, 2, 4).sum(2), y * 2, z * 2, empty * 2


def reshaped_plan(*pins: Pin, mesh: dict[str, int]) -> sw.Plan:
    args = (jnp.ones((16, 8)), jnp.ones(4), jnp.ones(6), jnp.ones((0, 8)))
    return sw.partition(reshaped, *args, mesh=mesh, tactics=pins, seconds=0.1)


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_pin_says_what_would_do(case: str) -> None:
    pins, says = REFUSED[case]
    with pytest.raises(ShardwrightError) as error:
        reshaped_plan(*pins, mesh={"a": 4, "b": 2})
    assert str(error.value).startswith(says)


def test_pins_share_a_dim_that_a_reshape_takes_apart() -> None:
    """8 = 2 x 4: the axis of 2 takes the first part, the axis of 4 the second."""
    plan = reshaped_plan(Pin("x", 1, "a"), Pin("x", 1, "b"), mesh={"a": 2, "b": 4})
    assert plan.specs()["x"] == jax.sharding.PartitionSpec(None, ("a", "b"))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_pin_resolves_a_conflict(dim: int) -> None:
    """x + x.T has one group on both dims: the one that is pinned is split."""
    x = jnp.ones((8, 8))
    plan = sw.partition(
        lambda x: x + x.T, x, mesh={"a": 4}, tactics=[Pin("x", dim, "a")], seconds=0.1
    )
    assert plan.record.specs["x"][dim] == ("a",)


# Constraints that reshard -----------------------------------------------------------------------


def directly(x: jax.Array, w: jax.Array) -> jax.Array:
    return constrain(constrain(x, P("a", None)), P(None, "a")) @ w


def later(x: jax.Array, w: jax.Array) -> jax.Array:
    return constrain(jnp.sin(constrain(x * 2, P("a", None))), P(None, "a")) @ w


def beside(x: jax.Array, w: jax.Array) -> Any:
    y = x * 2
    return constrain(y, P("a", None)) @ w, constrain(y, P(None, "a")) @ w


def in_layers(x: jax.Array, w: jax.Array) -> jax.Array:
    for _ in range(3):
        x = later(x, w[:, :8])
    return x


def in_a_scan(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda y, _: (later(y, w[:, :8]), None), x, length=3)[0]


def in_a_gradient(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.grad(lambda x: later(x, w).sum())(x)


# {program: times per step that its constraints move a value from one dim to the other, at least}
RESHARDS: dict[Callable[..., Any], int] = {
    directly: 1, later: 1, beside: 1, in_layers: 3, in_a_scan: 3, in_a_gradient: 1,
}  # fmt: skip


@pytest.mark.parametrize("fn", RESHARDS, ids=lambda fn: fn.__name__)
def test_two_constraints_are_a_reshard(fn: Any, tmp_path: Path) -> None:
    """Each value is where its own constraint says; XLA moves what was predicted."""
    x, w = jnp.arange(128.0).reshape(16, 8) / 128, jnp.arange(256.0).reshape(8, 32) / 256
    plan = sw.partition(fn, x, w, mesh={"a": 4, "b": 2}, device="h100", seconds=0.2)
    moves = [c for c in plan.collectives if (c.kind, c.axes) == ("all-to-all", ("a",))]
    assert sum(c.count for c in moves) >= RESHARDS[fn]
    assert plan.verify()
    plan.save(tmp_path / "plan.json")
    again = sw.load(tmp_path / "plan.json").bind(fn, x, w)
    assert str(again.ir()) == str(plan.ir())
    wanted = sw.partition(fn, x, w, mesh={"a": 1}, seconds=0.1).jit()(x, w)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), again.jit()(x, w), wanted
    )


@pytest.mark.parametrize("dim", [0, 1])
def test_both_dims_of_a_square_weight_have_an_axis(dim: int) -> None:
    """The axis of the state does not take the dim of the weight that is pinned to another."""

    def recurrent(state: Any, weights: Any) -> Any:
        return jax.lax.scan(lambda c, w: (jnp.tanh(c + c @ w), None), state, weights)[0]

    args = (jnp.ones(8), jnp.ones((2, 8, 8)))
    pins = [Pin("weights", 1 + dim, "b"), Pin("state", 0, "a")]
    plan = sw.partition(recurrent, *args, mesh={"a": 4, "b": 2}, tactics=pins, seconds=0.1)
    assert "b" in plan.specs()["weights"][1 + dim] and "a" in plan.specs()["state"][0]
