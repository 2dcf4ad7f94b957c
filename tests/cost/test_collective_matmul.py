"""A sum between two dots hides only where the platform splits the dots, and only if it is large."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright.cost.devices import device

ROWS, WIDTH, HIDDEN = 4096, 4096, 16384
MOVED_BYTES = 2 * ROWS * WIDTH  # of the array that Megatron sums, bf16


def forward(weights: Any, x: jax.Array) -> jax.Array:
    for up, down in weights:
        x = jnp.tanh(x @ up) @ down
    return x


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


ARGS = ([(bf16(WIDTH, HIDDEN), bf16(HIDDEN, WIDTH))] * 2, bf16(ROWS, WIDTH))
TACTICS = [sw.Megatron("model")]


@pytest.mark.parametrize("splits_bytes, hides", [(0, False), (MOVED_BYTES, True), (1e12, False)])
def test_hides_by_platform_and_size(splits_bytes: float, hides: bool) -> None:
    hw = sw.Device.like("h100", name="mine", splits_bytes=splits_bytes)
    plan = sw.partition(forward, *ARGS, mesh={"model": 8}, device=hw, tactics=TACTICS)
    assert {row.kind for row in plan.collectives} <= {"all-reduce"}
    share = device("h100").hides["all-reduce"]
    assert plan.cost.link_s > 0
    assert plan.cost.hidden_s == pytest.approx(share * plan.cost.link_s if hides else 0.0)


def test_a_search_uses_it_and_its_proof_holds() -> None:
    """What splits dots is never slower, and the optimum under it is proven as any other."""
    plain, split = [
        sw.partition(
            forward, *ARGS, mesh={"data": 2, "model": 4},
            device=sw.Device.like("h100", name="mine", splits_bytes=splits_bytes),
        )
        for splits_bytes in (0, 1)
    ]  # fmt: skip
    assert split.cost.step_s <= plain.cost.step_s
    assert split.certificate.kind == plain.certificate.kind == "optimal"
    assert split.certificate.lower_bound_s <= split.cost.step_s * (1 + 1e-9)
