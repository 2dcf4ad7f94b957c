"""The step over time: its seconds add up to the cost, its memory is highest at the peak."""

from __future__ import annotations

import math

import pytest

import shardwright as sw
from shardwright.cost.model import model_collectives
from shardwright.cost.timeline import KINDS
from shardwright.record.build import matrix_flops, timeline_of
from shardwright.zoo import programs
from tests.report.records import plan_of

CASES = [
    ("transformer_train", "fsdp+tp"), ("transformer_scan_train", "fsdp+tp"),
    ("transformer_remat_train", "zero"), ("mlp_forward", "dp"), ("moe_train", "dp"),
]  # fmt: skip


@pytest.mark.parametrize("program, tactics", CASES)
def test_seconds_and_bytes_are_the_plans(program: str, tactics: str) -> None:
    record = plan_of(program, tactics).record
    line, runs = record.timeline, record.timeline.runs
    compute_s = sum(runs(span.region) * span.compute_s for span in line.spans)
    link_s = sum(
        runs(span.region) * record.collectives[row].seconds
        for span in line.spans for row in span.moves
    )  # fmt: skip
    assert compute_s == pytest.approx(record.cost.compute_s, rel=1e-9)
    assert link_s == pytest.approx(record.cost.link_s, rel=1e-9)
    hidden_s = sum(c.count * c.hidden_s for c in record.collectives)
    assert hidden_s == pytest.approx(record.cost.hidden_s, rel=1e-9)
    assert max(sum(span.bytes) for span in line.spans) == record.cost.peak_bytes
    at_peak = max(line.spans, key=lambda span: sum(span.bytes)).bytes
    kinds = dict(zip(KINDS, at_peak, strict=True))
    assert {kind: size for kind, size in kinds.items() if size} == record.memory.by_kind


@pytest.mark.parametrize("program", ["transformer_scan_train"])
def test_spans_of_a_region_stand_together(program: str) -> None:
    line = plan_of(program, "fsdp+tp").record.timeline
    order = [span.region for span in line.spans]
    changes = [r for i, r in enumerate(order) if i == 0 or order[i - 1] != r]
    inside = [r for r in changes if r != 0]
    assert sorted(inside) == sorted(set(inside))
    assert {line.bodies[r].kind for r in inside} == {"scan"}


@pytest.mark.parametrize("most", [5, 20, 10_000])
def test_a_long_program_takes_few_spans(most: int) -> None:
    """Merging changes neither the seconds nor the peak."""
    plan = plan_of("transformer_train", "fsdp+tp")
    model, decisions = plan._bound.model, plan._bound.decisions
    moved = model_collectives(model, decisions)
    line = timeline_of(model, decisions, moved, plan.collectives, most)
    assert len(line.spans) <= most
    assert sum(span.compute_s for span in line.spans) == pytest.approx(plan.cost.compute_s)
    assert max(sum(span.bytes) for span in line.spans) == plan.cost.peak_bytes


def test_recomputation_is_no_model_flops() -> None:
    """jax.checkpoint computes more, and asks for the same."""
    example = {n: programs("tiny")[f"transformer_{n}train"] for n in ("", "remat_")}
    flops = {n: matrix_flops(sw.trace(e.fn, *e.args)) for n, e in example.items()}
    assert flops[""] == flops["remat_"]


def test_flops_of_a_dot() -> None:
    b, i, o = 16, 32, 64
    fn = lambda w, x: x @ w  # noqa: E731
    import jax

    program = sw.trace(fn, jax.ShapeDtypeStruct((i, o), "float32"),
                       jax.ShapeDtypeStruct((b, i), "float32"))  # fmt: skip
    assert matrix_flops(program) == 2 * math.prod((b, i, o))
