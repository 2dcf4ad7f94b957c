"""Beside its peers: the pages say what the rows say, and every case has its ways."""

from __future__ import annotations

import json

import pytest

from benchmarks.peers import report
from benchmarks.peers.cases import CASES, ROOT, program
from benchmarks.peers.judged import sent_bytes
from benchmarks.peers.large_report import scaling_plot
from benchmarks.peers.ways import OURS, tactics_of, ways
from shardwright.referee.compiled import CompiledCollective


def test_pages_are_written_from_the_rows() -> None:
    docs, why = ROOT / "docs", "run: python -m benchmarks.peers.report"
    assert (docs / "peers.md").read_text() == report.page(), why
    assert (docs / "pictures" / "peers.svg").read_text() == report.speedup_plot(), why
    assert (docs / "pictures" / "scaling.svg").read_text() == scaling_plot(), why
    readme = (ROOT / "README.md").read_text()
    assert readme == report.with_headline(readme), why


@pytest.mark.parametrize("name", CASES)
def test_every_row_is_of_a_way_of_its_case(name: str) -> None:
    path, case = report.RESULTS / f"{name}.json", CASES[name]
    rows = json.loads(path.read_text())["ways"] if path.exists() else {}
    assert set(rows) <= set(ways(case.kind, case.target.split(":")[0]))
    assert program(case).args


def test_every_lost_case_has_a_cause() -> None:
    assert set(report.lost(report.cases_with_rows())) <= set(report.CAUSES)


def test_a_faster_expert_is_a_loss() -> None:
    rows = {OURS: {"step_s": 1.02}, "FSDP": {"step_s": 1.0}, "DP": {"error": "none"}}
    assert report.lost({"gpt_b8": rows}) == ["gpt_b8"]
    assert report.lost({"gpt_b8": {**rows, OURS: {"step_s": 1.005}}}) == []
    assert report.best_other(rows) == ("FSDP", {"step_s": 1.0})


def test_every_expert_has_a_schedule() -> None:
    for expert in report.EXPERTS:
        assert {tactic.axis for tactic in tactics_of(expert)} == {"data", "model"}


@pytest.mark.parametrize(
    "kind, axes, sent",
    [
        ("all-reduce", ("data",), 2 * 3 / 4 * 1000),
        ("all-gather", ("data",), 3 / 4 * 1000),
        ("reduce-scatter", ("data", "model"), 7 / 8 * 1000),
        ("all-to-all", ("model",), 1 / 2 * 1000),
        ("collective-permute", ("data",), 1000),
    ],
)
def test_sent_bytes_follow_the_ring(kind: str, axes: tuple[str, ...], sent: float) -> None:
    row = CompiledCollective(kind=kind, axes=axes, bytes=500, count=2)
    assert sent_bytes(row, {"data": 4, "model": 2}) == sent
