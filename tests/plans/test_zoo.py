"""Plans of the zoo run: numbers of one device, state that stays where it is, bytes as predicted.

This is the part that runs in minutes; exhaustive.py beside it runs every program, mesh and tactic.
"""

from __future__ import annotations

from typing import Any

import pytest

import shardwright as sw
from tests.plans.runs import MESHES, assert_same_numbers, plan_for, run_plan, schedules

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
    ("gnn_forward", "8", {"device": "slow links"}),
    ("vit_forward", "4x2", {"device": "fast links"}),
    ("resnet_forward", "8", {}),
]

# Every tactic on a program that has something for it to do.
WRITTEN: list[tuple[str, str]] = [
    *[("transformer_train", name) for name in schedules(MESHES["4x2"]) if "Expert" not in name],
    ("moe_forward", "FSDP(data) + ExpertParallel(model)"),
]


def check(program: str, plan: sw.Plan) -> None:
    run = run_plan(plan, program)
    assert_same_numbers(program, run.results)
    assert run.moved == []
    assert run.rematerialisations == 0
    assert run.link_error <= LINK_TOLERANCE, run.table()


@pytest.mark.parametrize(
    "program, mesh, options", FOUND, ids=[f"{p}-{m}-{list(o.items())}" for p, m, o in FOUND]
)
def test_found(program: str, mesh: str, options: dict[str, Any]) -> None:
    check(program, plan_for(program, MESHES[mesh], seconds=0.5, **options))


@pytest.mark.parametrize("program, tactic", WRITTEN)
def test_written(program: str, tactic: str) -> None:
    mesh = MESHES["4x2"]
    check(program, plan_for(program, mesh, tactics=schedules(mesh)[tactic]))
