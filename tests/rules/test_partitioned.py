"""custom_partitioning: the rule that was given to Shardy, whichever way it was given."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.custom_partitioning import custom_partitioning

import shardwright as sw

X, W = jnp.ones((64, 128)), jnp.ones((128, 32))
PLAIN = "([i,j],[j,k])->([i,k]) {i=64,j=128,k=32}"


def partitioned(**rule: Any) -> Any:
    """A matmul whose partitioning is its author's affair."""

    @custom_partitioning
    def multiply(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w

    def partition(mesh: Any, args: Any, result: Any) -> Any:
        return mesh, jnp.matmul, result.sharding, tuple(a.sharding for a in args)

    multiply.def_partition(partition, **rule)
    return multiply


def asked(mesh: Any, operands: Any, results: Any) -> str:
    assert [t.shape for t in (*operands, *results)] == [(64, 128), (128, 32), (64, 32)]
    return "i j, j k -> i k"


GIVEN: dict[str, tuple[dict[str, Any], str]] = {
    "a string": ({"sharding_rule": "i j, j k -> i k"}, PLAIN),
    "leading dims": ({"sharding_rule": "... j, j k -> ... k"}, PLAIN),
    "a reduction": (
        {"sharding_rule": "i j, j k -> i k", "reduction_factors": ("j",)},
        f"{PLAIN} reduction={{j}}",
    ),
    "a function": ({"sharding_rule": asked}, PLAIN),
    "a function, with factors": (
        {"sharding_rule": lambda *call: (asked(*call), {"need_replication_factors": ("j",)})},
        f"{PLAIN} need_replication={{j}}",
    ),
}


@pytest.mark.parametrize("given", GIVEN)
def test_the_rule_of_its_author(given: str) -> None:
    how, rule = GIVEN[given]
    assert str(sw.trace(partitioned(**how), X, W).ops[0].rule) == rule


def test_a_function_that_fails_is_said() -> None:
    multiply = partitioned(sharding_rule=lambda mesh, operands, results: 1 / 0)
    plan = sw.partition(lambda x, w: multiply(x, w), X, W, mesh={"data": 4}, seconds=0.1)
    (note,) = [note for note in plan.record.notes if "custom_partitioning" in note]
    assert "its sharding_rule, a function, failed: ZeroDivisionError" in note
    assert "test_partitioned.py" in note and "sw.rule(" in note
