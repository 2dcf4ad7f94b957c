"""Prices: what a compiler combines, and what it copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardwright.analysis.analysis import analyze_program
from shardwright.cost.devices import Device
from shardwright.cost.model import CostModel
from shardwright.cost.prices import STACK_PASSES, DevicePrices
from shardwright.cost.roofline import stream_s
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.program.tracing import trace
from shardwright.spmd.follow import choose
from shardwright.spmd.layout import REPLICATED
from shardwright.spmd.moves import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    Move,
)

LIMIT = 1_000_000  # bytes of results
ON = Device.like(
    "h100", name="combines", combines=dict.fromkeys((ALL_GATHER, REDUCE_SCATTER), LIMIT)
)
PRICES = DevicePrices(Mesh.of({"x": 2, "y": 8}), ON)
N = 8


@pytest.mark.parametrize(
    "kind, bytes, full",
    [
        (ALL_GATHER, LIMIT // 10, LIMIT),  # results are what is gathered
        (ALL_GATHER, LIMIT * 2, None),  # goes alone
        (REDUCE_SCATTER, LIMIT, N * LIMIT),  # results are one N-th of what is reduced
        (REDUCE_SCATTER, N * LIMIT + 1, None),
        (ALL_REDUCE, 1000, None),  # this device combines none
        (ALL_TO_ALL, 1000, None),
    ],
)
def test_a_collective_that_can_wait(kind: str, bytes: int, full: int | None) -> None:
    move = Move(kind, (1,), bytes, ())
    alone = PRICES.move_s(move)
    if full is None:
        assert PRICES.combined_s(move) == alone
    else:
        whole = PRICES.network.seconds(kind, ("y",), full)
        assert PRICES.combined_s(move) == pytest.approx(bytes / full * whole)
        assert PRICES.combined_s(move) < alone


def test_a_threshold_of_no_collective_is_refused() -> None:
    with pytest.raises(ShardwrightError, match="combines"):
        Device.like("h100", name="odd", combines={"gather": 1})


@pytest.mark.parametrize("rows, padded", [(8, 1), (2, 4)])
def test_a_cache_that_a_scan_takes_and_gives_back(rows: int, padded: int) -> None:
    """It is copied out of one stack and into another, in tiles of 8 rows; carried, it is not."""
    stack, new = jnp.ones((3, 16, rows, 128)), jnp.ones((1, rows, 128))
    device = Device.like("tpu-v5e", name="tiles", op_overhead_s=0.0)

    def given(stack: jax.Array) -> jax.Array:
        return jax.lax.scan(
            lambda at, one: (at + 1, jax.lax.dynamic_update_slice(one, new, (at, 0, 0))), 0, stack
        )[1]

    def alone(one: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(one, new, (0, 0, 0))

    def update_s(fn: Callable[..., Any], *args: Any) -> float:
        program = trace(fn, *args)
        model = CostModel(analyze_program(program), Mesh.of({"x": 2}), device)
        named = [program.ops[c.example].name for c in model.classes.table]
        op = model.classes.table[named.index("dynamic_update_slice")]
        return choose(op, [(REPLICATED,)] * len(op.slots), model.prices).compute_s

    bytes_ = 16 * rows * 128 * 4
    copies = STACK_PASSES * padded * stream_s(device, bytes_)
    assert update_s(given, stack) - update_s(alone, stack[0]) == pytest.approx(copies, rel=1e-3)
