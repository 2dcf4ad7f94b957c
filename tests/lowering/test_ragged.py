"""Ragged dots whose rows are split: each device multiplies its own, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shardwright as sw

MESH = {"data": 4, "model": 2}
ROWS, K, N, GROUPS, F32 = 64, 16, 32, 4, 4

X = jax.random.normal(jax.random.key(0), (ROWS, K))
W = jax.random.normal(jax.random.key(1), (GROUPS, K, N))
TOKENS = sw.Pin("x", 0, "data")

# A group within a shard, over several, empty ones, rows of no group.
SIZES = [(16, 16, 16, 16), (1, 40, 3, 20), (0, 0, 64, 0), (5, 0, 20, 7), (0, 0, 0, 0)]


def experts(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    return lax.ragged_dot(x, w, sizes)


def gradients(x: jax.Array, w: jax.Array, sizes: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.grad(lambda x, w: jnp.sum(jnp.sin(lax.ragged_dot(x, w, sizes))), (0, 1))(x, w)


@pytest.mark.parametrize("tactics", [[TOKENS], [TOKENS, sw.Pin("w", 1, "model")]])
def test_numbers(tactics: Sequence[sw.Pin]) -> None:
    """Rows that no group has are zero, on shards as on the whole."""
    first = jnp.array(SIZES[0], jnp.int32)
    for fn in (experts, gradients):
        plan = sw.partition(fn, X, W, first, mesh=MESH, tactics=[*tactics], seconds=0.2)
        run = plan.jit(fn)
        for sizes in SIZES:
            args = X, W, jnp.array(sizes, jnp.int32)
            for got, want in zip(
                jax.tree.leaves(run(*args)), jax.tree.leaves(fn(*args)), strict=True
            ):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_tokens_split_without_moving() -> None:
    sizes = jnp.array(SIZES[1], jnp.int32)
    plan = sw.partition(experts, X, W, sizes, mesh={"data": 8}, tactics=[TOKENS])
    assert not plan.collectives
    (row,) = [row for row in plan.ir().rows if row.name == "ragged_dot_general"]
    assert dict(row.claims) == {"data": "i"}
    assert plan.verify().ok


def test_gradients_of_the_weights_are_summed_over_the_tokens() -> None:
    sizes = jnp.array(SIZES[1], jnp.int32)
    plan = sw.partition(
        gradients, X, W, sizes, mesh={"data": 4}, tactics=[TOKENS, sw.Replicate("w")]
    )
    moved = {key: total.bytes for key, total in plan.ir().totals().items()}
    assert sum(moved.values()) == GROUPS * K * N * F32
    assert plan.verify().ok


def test_work_does_not_grow_with_the_groups() -> None:
    """FLOP of rows x k x n: as one dot, whatever the number of groups."""
    shapes = {"x": (4096, 1024), "w": (1024, 1024)}
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes.values())
    dot = sw.trace(jnp.matmul, x, w).ops[0].rule
    many = jax.ShapeDtypeStruct((8, *w.shape), w.dtype)
    ragged = sw.trace(experts, x, many, jax.ShapeDtypeStruct((8,), jnp.int32)).ops[0].rule
    assert ragged.work * np.prod(ragged.sizes) == dot.work * np.prod(dot.sizes)
