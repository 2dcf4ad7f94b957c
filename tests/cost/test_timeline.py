"""The step over time: its seconds add up to the cost, its memory is highest at the peak."""

from __future__ import annotations

import math

import pytest

import shardwright as sw
from shardwright.cost.breakdown import KINDS
from shardwright.program.layers import path_layers
from shardwright.record.build import matrix_flops, over_time
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
    assert sum(row.compute_s for row in line.lines) == pytest.approx(compute_s, rel=1e-9)
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


LAYERS = {
    "transformer_train": ["", "layers[0]", "layers[1]"],
    "transformer_scan_train": ["", "scan x2 at transformer.py:269 forward"],
    "unet_train": ["", "down[0]", "down[1]", "block1", "block2", "up[0]", "up[1]"],
}


@pytest.mark.parametrize("program, layers", LAYERS.items())
def test_layers_share_the_seconds(program: str, layers: list[str]) -> None:
    """All of them together are the step; repeated layers take the same, forward and backward."""
    plan = plan_of(program, "fsdp+tp")
    rows = {row.name: row for row in plan.record.timeline.layers}
    assert list(rows) == layers
    assert sum(row.compute_s for row in rows.values()) == pytest.approx(plan.cost.compute_s)
    links_s = sum(sum(row.moves.values()) for row in rows.values())
    assert links_s == pytest.approx(plan.cost.link_s)
    if program == "transformer_train":
        first, second = rows["layers[0]"].moves, rows["layers[1]"].moves
        assert first["all-gather"] == pytest.approx(second["all-gather"])


@pytest.mark.parametrize("paths, layers", [
    (["p['layers'][0]['w']", "p['layers'][1]['w']", "p['head']"], ["layers[0]", "layers[1]", ""]),
    (["p['Block_0']['Dense_0']['kernel']", "p['Block_1']['Dense_0']['kernel']"],
     ["Block_0", "Block_1"]),
    (["m.layer1.conv", "m.layer2.conv"], ["layer1", "layer2"]),
    (["p['w1']", "p['w2']"], ["", ""]),  # two weights, no layers
    (["opt[0].mu['layers'][0]['w']", "opt[0].mu['layers'][1]['w']", "opt[0].count"],
     ["layers[0]", "layers[1]", ""]),
])  # fmt: skip
def test_layers_of_paths(paths: list[str], layers: list[str]) -> None:
    assert list(path_layers(paths).values()) == layers


@pytest.mark.parametrize("most", [5, 20, 10_000])
def test_a_long_program_takes_few_spans(most: int) -> None:
    """Merging changes neither the seconds nor the peak."""
    plan = plan_of("transformer_train", "fsdp+tp")
    model, decisions = plan._bound.model, plan._bound.decisions
    _, line = over_time(model, decisions, most)
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
