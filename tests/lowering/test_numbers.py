"""Masks and tables made of numbers in the program: every device makes its part, none is moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw

SEQ, WIDTH = 256, 16


def causal(x: Any) -> Any:
    """One mask, needed by rows on the way forth and by columns on the way back."""
    at = jnp.arange(SEQ)
    mask = (at[:, None] >= at[None, :]) & (at[:, None] - at[None, :] < 64)
    scores = jnp.where(mask, x @ x.T, -1e9)
    return jax.nn.softmax(scores) @ x


def rotary(x: Any) -> Any:
    """Angles as positions take them, used on rows here and on columns there."""
    angle = jnp.arange(SEQ)[:, None] * 10.0 ** -(jnp.arange(WIDTH)[None, :] / WIDTH)
    return (x * jnp.cos(angle)) @ (x * jnp.sin(angle)).T


def long_recipe(x: Any) -> Any:
    """More steps than are worth repeating, each using the last one twice."""
    at = jnp.arange(SEQ, dtype=jnp.float32)
    for _ in range(40):
        at = at * at / (1.0 + at)
    return x * at[:, None]


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.checkpoint, jax.jit], ids=["", "remat", "jit"])
@pytest.mark.parametrize("fn", [causal, rotary, long_recipe])
def test_numbers_are_made_where_they_are_used(fn: Callable[..., Any], wrap: Any) -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(jnp.sin(wrap(fn)(x)))

    x = jax.ShapeDtypeStruct((SEQ, WIDTH), jnp.float32)
    plan = sw.partition(
        jax.grad(loss), x, mesh={"s": 8}, device="cpu", tactics=[sw.Pin("x", 0, "s")]
    )
    bytes_of_x = 4 * SEQ * WIDTH
    assert all(row.bytes <= bytes_of_x for row in plan.collectives)
    result = plan.verify(run=True)
    assert result.ok and result.link_error == 0.0, str(result)
