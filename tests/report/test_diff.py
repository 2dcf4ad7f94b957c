"""diff: empty for equal plans, and each difference is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import shardwright as sw
from shardwright.report.diff import diff_plans
from tests.report.records import plan_of, record_of


def test_equal_plans_do_not_differ() -> None:
    plan = plan_of("transformer_train", "fsdp+tp")
    assert plan.diff(plan) == ""
    assert diff_plans(plan.record, record_of("transformer_train", "fsdp+tp")) == ""


def test_a_saved_plan_does_not_differ(tmp_path: Path) -> None:
    plan = plan_of("transformer_train", "fsdp+tp")
    plan.save(tmp_path / "plan.json")
    assert plan.diff(sw.load(tmp_path / "plan.json")) == ""


def test_differences_are_named() -> None:
    text = plan_of("transformer_train", "dp").diff(plan_of("transformer_train", "fsdp+tp"))
    for words in (
        "decided for data\n  - targets[0]\n  + targets[0], embedding[1]",
        "decided for model\n  - nothing\n  + w1[1], wk[1], embedding[0]",
        "state.params.layers[*].w1", "P()  ->  P('data', 'model')",
        "peak memory", "all-gather data",
    ):  # fmt: skip
        assert words in text


def test_other_programs_meshes_and_devices_are_named() -> None:
    old = record_of("transformer_train", "dp")
    new = replace(
        old, program="other", fingerprint="x", ops=3, device=replace(old.device, name="h100"),
        mesh=replace(old.mesh, axes={"data": 8, "model": 2}),
        arguments=old.arguments | {"batch['more']": "f32[2]"},
    )  # fmt: skip
    assert diff_plans(old, new).splitlines()[:6] == [
        "program: train_step -> other",
        "mesh: data=4 x model=2 -> data=8 x model=2",
        "device: tpu-v5e -> h100",
        f"the computation: {old.ops} ops -> 3 ops",
        "arguments",
        "  batch.more: none -> f32[2]",
    ]
