"""Convolutions in parts: right numbers, and exactly the rows that were predicted.

XLA's own partitioning gives wrong numbers where positions and output channels are both split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shardwright as sw
from shardwright.referee.compiled import read_collectives, totals

MESH = {"a": 2, "b": 2, "c": 2}


def conv(strides: Any = (1, 1), padding: Any = "SAME", **more: Any) -> Callable[..., jax.Array]:
    numbers = ("NHWC", "HWIO", "NHWC")

    def run(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, w, strides, padding, dimension_numbers=numbers, **more
        )

    return run


CONVOLUTIONS = {
    "same": conv(),
    "stride 2": conv((2, 2)),
    "dilated kernel": conv(rhs_dilation=(2, 2)),
    "transposed": conv(padding=((1, 2), (1, 2)), lhs_dilation=(2, 2)),
    "causal": conv(padding=((2, 0), (2, 0))),
}
# Which dims of the image x [B, Y, X, C] and of the kernel w [y, x, C, O] each axis splits.
PINS = [
    [("x", 1, "a")],
    [("x", 0, "a"), ("x", 1, "b"), ("w", 3, "c")],
    [("x", 1, "a"), ("x", 2, "b"), ("w", 3, "c")],
    [("x", 1, "a"), ("x", 3, "b"), ("w", 3, "c")],
    [("x", 1, "a"), ("x", 1, "b"), ("x", 3, "c")],
]


def run(fn: Callable[..., jax.Array], x: jax.Array, w: jax.Array, pins: Any) -> dict[Any, Any]:
    """Bytes by (kind, axes), once numbers and predicted bytes are as they should be."""
    tactics = [*(sw.Pin(*pin) for pin in pins), *(sw.Limit(axis, []) for axis in MESH)]
    plan = sw.partition(fn, x, w, mesh=MESH, device="cpu", tactics=tactics)
    compiled = plan.jit(fn).lower(x, w).compile()
    np.testing.assert_allclose(compiled(*plan.place(x, w)), fn(x, w), rtol=1e-3, atol=1e-3)
    rows = (plan.collectives, read_collectives(compiled.as_text(), plan.mesh.shape))
    predicted, found = ({key: b for key, (_, b) in totals(table).items()} for table in rows)
    assert predicted == found
    return predicted


@pytest.mark.parametrize("pins", PINS, ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_numbers_and_bytes(name: str, pins: list[tuple[str, int, str]]) -> None:
    x = jax.random.normal(jax.random.key(0), (4, 16, 16, 8))
    w = jax.random.normal(jax.random.key(1), (3, 3, 8, 8))
    run(CONVOLUTIONS[name], x, w, pins)


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_groups_of_channels(groups: int) -> None:
    """Split groups move nothing, whether a part is one group or several."""
    x = jax.random.normal(jax.random.key(0), (4, 16, 16, 8))
    w = jax.random.normal(jax.random.key(1), (3, 3, 8 // groups, 16))
    assert run(conv(feature_group_count=groups), x, w, [("x", 3, "b")]) == {}


def test_gradient_with_groups() -> None:
    """The gradient of a kernel with groups is a convolution with groups of the batch."""
    x = jax.random.normal(jax.random.key(0), (4, 16, 16, 8))
    w = jax.random.normal(jax.random.key(1), (3, 3, 2, 16))

    def gradient(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.grad(lambda w: (conv(feature_group_count=4)(x, w) ** 2).sum() / 1e3)(w)

    assert run(gradient, x, w, [("x", 3, "b")]) == {}
