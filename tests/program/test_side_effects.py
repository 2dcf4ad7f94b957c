"""Changes that compiled code would lose are errors that say what to write; the others are none."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw

W, X = {"w": jnp.ones((8, 8)), "b": jnp.ones(8)}, {"x": jnp.ones((4, 8))}


def loss_of(params: Any, batch: Any) -> Any:
    return jnp.sum((batch["x"] @ params["w"] + params["b"]) ** 2)


def updates_and_keeps(params: Any, batch: Any) -> Any:
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    for name in params:
        params[name] = params[name] - 0.1 * grads[name]
    return loss


def logs(params: Any, batch: Any) -> Any:
    batch["mean"] = params["w"].mean()
    return loss_of(params, batch)


def updates_and_returns(params: Any, batch: Any) -> Any:
    params["w"] = params["w"] * 2
    return params


def prepares_in_place(params: Any, batch: Any) -> Any:
    batch["x"] = batch["x"] / 255
    batch["again"] = batch["x"]
    return loss_of(params, batch)


@pytest.mark.parametrize(
    "fn, path, line, head",
    [
        (updates_and_keeps, "params['b'] (and 1 more)", "updates_and_keeps", "params"),
        (logs, "batch['mean']", "logs", "batch"),
    ],
)
def test_a_lost_change_is_an_error(fn: Any, path: str, line: str, head: str) -> None:
    with pytest.raises(sw.ShardwrightError) as error:
        sw.partition(fn, dict(W), dict(X), mesh={"data": 8})
    assert error.value.what == (
        f"{fn.__name__} changes its argument {path} and does not return it: compiled, the change"
        " is lost"
    )
    assert error.value.facts["at"].startswith("test_side_effects.py:")
    assert error.value.facts["at"].endswith(line)
    assert error.value.facts["try"] == (
        f"return {head} too, and pass what was returned the next time"
    )


@pytest.mark.parametrize("fn", [updates_and_returns, prepares_in_place])
def test_what_is_returned_or_used_is_fine(fn: Any) -> None:
    params, batch = dict(W), dict(X)
    run = sw.jit(fn, mesh={"data": 8}, seconds=0.1)
    for got, want in zip(
        jax.tree.leaves(run(params, batch)), jax.tree.leaves(fn(dict(W), dict(X))), strict=True
    ):
        assert jnp.allclose(got, want)
    assert list(batch) == ["x"]  # as under jax.jit: the caller's own is not touched


class Keys:
    def __init__(self) -> None:
        self.key = jax.random.key(0)

    def next(self) -> Any:
        self.key, fresh = jax.random.split(self.key)
        return fresh


def test_a_key_holder_that_is_changed_is_an_error() -> None:
    keys = Keys()

    def step(x: Any) -> Any:
        return x + jax.random.normal(keys.next(), x.shape)

    with pytest.raises(sw.ShardwrightError) as error:
        sw.partition(step, X["x"], mesh={"data": 8})
    assert error.value.what == (
        "step replaces keys.key while it is traced: compiled code would not, and keys.key now"
        " holds a value that does not exist"
    )
    assert "pass keys.key as an argument and return its new value" in error.value.facts["try"]


def test_a_leak_that_nothing_names_is_told_when_it_is_used() -> None:
    seen: list[Any] = [[1.0]]

    def remember(x: Any) -> Any:
        return seen[-1][0] + _append(seen, x)

    with pytest.raises(sw.ShardwrightError) as error:
        sw.jit(remember, mesh={"data": 8}, seconds=0.1)(X["x"])
    assert error.value.what == (
        "remember uses a traced value that is no argument: it is left from an earlier trace, or"
        " belongs to a traced function around it"
    )
    assert error.value.facts["try"] == (
        "pass it as an argument, and return the new value of what is kept between calls"
    )


def _append(seen: list[Any], x: Any) -> Any:
    seen.append([x * 2])
    return x
