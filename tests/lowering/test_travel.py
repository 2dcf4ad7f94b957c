"""Rows that travel to the devices of their groups: products of each, and of sums over rows."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shardwright.lowering.travel import multiply_there

DEVICES, GROUPS, ROWS, K, N = 4, 8, 16, 6, 10  # rows of each device
SUM = lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])

RNG = np.random.default_rng(0)
X = RNG.normal(size=(DEVICES * ROWS, K)).astype(np.float32)
Y = RNG.normal(size=(DEVICES * ROWS, N)).astype(np.float32)
W = RNG.normal(size=(GROUPS, K, N)).astype(np.float32)

# [devices][groups] rows: alike, all of one group, of one device, of none, of no group.
SIZES = {
    "alike": [[2] * 8] * 4,
    "all of one group": [[0, 0, 0, 16, 0, 0, 0, 0]] * 4,
    "each of its own": [[16 * (g == d) for g in range(8)] for d in range(4)],
    "uneven": [[1, 0, 9, 0, 0, 6, 0, 0], [0] * 8, [0] * 7 + [16], [3, 2, 1, 0, 0, 1, 2, 3]],
}  # fmt: skip


def on_devices(fn: Any, *specs: Any) -> Any:
    mesh = jax.make_mesh((DEVICES,), ("e",), axis_types=(AxisType.Auto,))
    return jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=P("e"), check_vma=False))


def expected(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[rows, N] each row by the weights of its group; [groups, K, N] sums over a group's rows."""
    rows, sums = np.zeros((DEVICES * ROWS, N)), np.zeros((GROUPS, K, N))
    for device, of in enumerate(sizes):
        at = device * ROWS
        for group, size in enumerate(of):
            mine = slice(at, at + size)
            rows[mine] = X[mine] @ W[group]
            sums[group] += X[mine].T @ Y[mine]
            at += size
    return rows, sums


@pytest.mark.parametrize("case", SIZES)
def test_no_row_is_lost(case: str) -> None:
    sizes = np.array(SIZES[case], np.int32)
    rows, sums = expected(sizes)

    def product(x: Any, w: Any, sizes: Any) -> Any:
        return multiply_there(lax.ragged_dot, (x, w), (0, None, 0), sizes[0], "e")

    def summed(x: Any, y: Any, sizes: Any) -> Any:
        def dot(x: Any, y: Any, sizes: Any) -> Any:
            return lax.ragged_dot_general(x, y, sizes, SUM)

        return multiply_there(dot, (x, y), (0, 0, None), sizes[0], "e")

    spec = P("e")
    got = on_devices(product, spec, spec, spec)(X, W, sizes)
    np.testing.assert_allclose(got, rows, rtol=1e-5, atol=1e-5)
    got = on_devices(summed, spec, spec, spec)(X, Y, sizes)
    np.testing.assert_allclose(got, sums, rtol=1e-5, atol=1e-5)


def test_rows_along_another_dim() -> None:
    sizes = np.array(SIZES["uneven"], np.int32)

    def product(x: Any, w: Any, sizes: Any) -> Any:
        def dot(x: Any, w: Any, sizes: Any) -> Any:
            return lax.ragged_dot(x.T, w, sizes).T

        return multiply_there(dot, (x.T, w), (1, None, 1), sizes[0], "e").T

    got = on_devices(product, P("e"), P("e"), P("e"))(X, W, sizes)
    np.testing.assert_allclose(got, expected(sizes)[0], rtol=1e-5, atol=1e-5)
