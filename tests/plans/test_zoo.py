"""Plans of the zoo run: numbers of one device, state that stays where it is, bytes as predicted.

This is the part that runs in minutes; exhaustive.py beside it runs every program, mesh and tactic.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwright as sw
from tests.plans.runs import DEVICES, MESHES, assert_same_numbers, plan_for, run_plan, schedules

LINK_TOLERANCE = 0.10

# Plans that the search finds: program, mesh, then what differs from `plan_for`'s defaults.
FOUND: list[tuple[str, str, dict[str, Any]]] = [
    ("mlp_forward", "8", {}),
    ("mlp_grad", "2x2x2", {"device": "slow links"}),
    ("attention_forward", "4x2", {"device": "fast links"}),
    ("attention_grad", "2x2x2", {"seed": 1}),
    ("transformer_forward", "8", {"seed": 2}),
    ("transformer_train", "4x2", {}),
    ("transformer_train", "8", {"memory_share": 0.4}),
    ("transformer_scan_train", "2x2x2", {}),
    ("transformer_prefill", "4x2", {"device": "slow links"}),
    ("transformer_decode", "2x2x2", {}),
    ("llama_decode", "4x2", {"memory_share": 0.5}),
    ("moe_forward", "4x2", {}),
    ("mixtral_train", "4x2", {}),
    ("deepseek_train", "8", {}),
    ("gnn_forward", "8", {"device": "slow links"}),
    ("vit_forward", "4x2", {"device": "fast links"}),
    ("resnet_forward", "8", {}),
]

# Every strategy of the design, on a program that has something for it to do.
STATIONARY = [sw.Pin("params['embedding']", 1, "data"), sw.Megatron("model")]  # weights never move
WRITTEN: list[tuple[str, str, list[Any]]] = [
    *[
        ("transformer_train", mesh, tactics)
        for mesh in ("8", "4x2")
        for name, tactics in schedules(MESHES[mesh]).items()
        if "Expert" not in name
    ],
    ("moe_forward", "8", [sw.ExpertParallel("x")]),
    ("moe_forward", "4x2", [sw.FSDP("data"), sw.ExpertParallel("model")]),
    ("transformer_decode", "4x2", STATIONARY),
]


def check(program: str, plan: sw.Plan) -> None:
    run = run_plan(plan, program)
    assert_same_numbers(program, run.results)
    assert run.moved == []
    assert run.rematerialisations == 0
    assert run.traffic.error <= LINK_TOLERANCE, run.table()


@pytest.mark.parametrize(
    "program, mesh, options", FOUND, ids=[f"{p}-{m}-{list(o.items())}" for p, m, o in FOUND]
)
def test_found(program: str, mesh: str, options: dict[str, Any]) -> None:
    check(program, plan_for(program, MESHES[mesh], seconds=0.5, **options))


@pytest.mark.parametrize(
    "program, mesh, tactics",
    WRITTEN,
    ids=[f"{p}-{m}-{' + '.join(map(str, t))}" for p, m, t in WRITTEN],
)
def test_written(program: str, mesh: str, tactics: list[Any]) -> None:
    check(program, plan_for(program, MESHES[mesh], tactics=tactics))


def test_images_split_by_rows() -> None:
    """The gradient of a kernel whose images are split by rows, with an axis to spare."""

    def gradient(x: jax.Array, w: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            y = jax.lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            return jnp.sum(y * y)

        return jax.grad(loss)(w)

    x = jax.random.normal(jax.random.key(0), (2, 16, 16, 4))
    w = jax.random.normal(jax.random.key(1), (3, 3, 4, 8))
    plan = sw.partition(
        gradient, x, w, mesh=MESHES["4x2"], device=DEVICES["balanced"],
        tactics=[sw.Pin("x", 1, "model"), sw.Limit("data", []), sw.Limit("model", [])],
    )  # fmt: skip
    assert plan.specs()["x"] == jax.sharding.PartitionSpec(None, "model")
    np.testing.assert_allclose(plan.jit(gradient)(x, w), gradient(x, w), rtol=1e-3, atol=1e-2)
