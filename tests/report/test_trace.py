"""Timeline files: the trace adds up to the plan, and a measured profile is laid beside it."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright.cost.breakdown import KINDS
from shardwright.cost.timeline import LineWork
from shardwright.referee.profile import read_profile
from shardwright.report import trace
from shardwright.report.against import compare_profile, format_against
from shardwright.report.trace import COMPUTE, LINKS, LOOPS, chrome_trace
from tests.report.records import MESH, plan_of, record_of


def slices(events: list[Any], track: int | None = None) -> list[Any]:
    return [e for e in events if e["ph"] == "X" and (track is None or e["tid"] == track)]


@pytest.mark.parametrize("program", ["transformer_train", "transformer_scan_train"])
@pytest.mark.parametrize("most", [trace.MOST_EVENTS, 0])
def test_the_trace_adds_up(program: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trip by trip, or with all but the first trips of a loop as one slice."""
    monkeypatch.setattr(trace, "MOST_EVENTS", most)
    record = record_of(program, "fsdp+tp")
    events = chrome_trace(record)["traceEvents"]
    compute_us = sum(e["dur"] for e in slices(events, COMPUTE))
    links_us = sum(e["dur"] for e in slices(events) if e["tid"] >= LINKS)
    assert compute_us == pytest.approx(record.cost.compute_s * 1e6)
    assert links_us == pytest.approx(record.cost.link_s * 1e6)
    assert max(e["ts"] + e["dur"] for e in slices(events)) == pytest.approx(
        (record.cost.compute_s + record.cost.link_s) * 1e6
    )
    trips = [e["args"]["trips"] for e in slices(events, LOOPS)]
    assert trips == [body.trips for body in record.timeline.bodies[1:]]
    live = [e["args"] for e in events if e["ph"] == "C"]
    assert all(set(row) == set(KINDS) for row in live)
    assert max(sum(row.values()) for row in live) == record.cost.peak_bytes


def test_slices_say_where_and_why() -> None:
    events = chrome_trace(record_of("transformer_train", "fsdp+tp"))["traceEvents"]
    moves = [e for e in slices(events) if e["tid"] >= LINKS]
    assert all({"source", "cause", "bytes", "axes"} <= set(e["args"]) for e in moves)
    assert any("is needed by dot_general" in e["args"]["cause"] for e in moves)
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"compute", "links over data", "links over model"} <= names


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_traces_are_written(name: str, tmp_path: Path) -> None:
    plan = plan_of("mlp_grad", "dp")
    plan.trace(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    assert json.loads(text)["otherData"]["predicted_step_s"] == plan.cost.step_s
    with pytest.raises(sw.ShardwrightError, match="cannot write a trace to"):
        plan.trace(tmp_path / "no" / name)


def tpu_profile(folder: Path, record: Any) -> Path:
    """A profile as XProf writes one for a TPU: a loop holds its ops, two steps were run."""
    pid = 3
    meta = [("process_name", None, "/device:TPU:0"), ("thread_name", 1, "XLA Modules"),
            ("thread_name", 2, "XLA Ops")]  # fmt: skip
    events: list[Any] = [
        {"ph": "M", "pid": pid, "name": what, "args": {"name": name}}
        | ({} if tid is None else {"tid": tid})
        for what, tid, name in meta
    ]
    for step in range(2):
        at = step * 1000.0
        events.append({"ph": "X", "pid": pid, "tid": 1, "ts": at, "dur": 900.0, "name": "jit_f"})
        rows = [
            ("while.1", 0.0, 800.0, ""), ("fusion.7", 0.0, 500.0, "/home/me/train.py:12"),
            ("all-gather-done.2", 500.0, 100.0, "/home/me/train.py:14"),
        ]  # fmt: skip
        for name, begin, dur, source in rows:
            events.append({"ph": "X", "pid": pid, "tid": 2, "ts": at + begin, "dur": dur,
                           "name": name, "args": {"source": source}})  # fmt: skip
    path = folder / "vm.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [*events, {}]}).encode()))
    return path


def test_a_profile_of_an_accelerator(tmp_path: Path) -> None:
    record = record_of("transformer_train", "fsdp+tp")
    tpu_profile(tmp_path, record)
    profile = read_profile(tmp_path)
    assert (profile.device, profile.steps, profile.on_host) == ("/device:TPU:0", 2, False)
    assert profile.by_kind() == pytest.approx({"compute": 700e-6, "all-gather": 100e-6})
    assert profile.by_source() == pytest.approx({"train.py:12": 500e-6, "train.py:14": 100e-6})
    found = compare_profile(record, profile)
    gathers = next(row for row in found["by_kind"] if row["what"] == "all-gather")
    assert gathers["predicted_s"] == pytest.approx(
        sum(c.count * c.seconds for c in record.collectives if c.kind == "all-gather")
    )
    assert found["by_line"][0]["what"] == "train.py:12"  # which the plan does not know
    assert "lines that differ most" in format_against(record, profile)


def test_work_of_no_line_is_one_row(tmp_path: Path) -> None:
    record = record_of("transformer_train", "fsdp+tp")
    tpu_profile(tmp_path, record)
    lines = (LineWork("", "exp", 1.0), *record.timeline.lines)
    record = replace(record, timeline=replace(record.timeline, lines=lines))
    rows = compare_profile(record, read_profile(tmp_path))["by_line"]
    assert {row["what"]: row["predicted_s"] for row in rows}["no line of yours"] >= 1.0
    assert "no" not in [row["what"] for row in rows]


def test_a_profile_of_this_machine(tmp_path: Path) -> None:
    """What jax.profiler writes here is read, and laid beside the prediction."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

    w, x = jnp.ones((64, 64)), jnp.ones((32, 64))
    plan = sw.partition(step, w, x, mesh=MESH, tactics=[sw.DataParallel("data")])
    run, args = plan.jit(step), plan.place(w, x)
    jax.block_until_ready(run(*args))
    with jax.profiler.trace(tmp_path):
        for _ in range(2):
            jax.block_until_ready(run(*args))
    profile = read_profile(tmp_path)
    assert profile.steps == 2 and profile.on_host and "step" in profile.module
    assert {"compute", "all-reduce"} <= set(profile.by_kind())
    rows = compare_profile(plan.record, profile)["by_kind"]
    assert sum(row["measured_share"] for row in rows) == pytest.approx(1)
    (compute,) = [line for line in format_against(plan.record, profile).splitlines()
                  if line.startswith("  compute")]  # fmt: skip
    assert compute.count("%") == 2  # seconds of a host and of an accelerator do not compare
    plan.trace(tmp_path / "both.json", against=tmp_path)
    events = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    assert {e["pid"] for e in slices(events)} == {trace.PREDICTED, trace.MEASURED}


@pytest.mark.parametrize("content, says", [
    (b"{}", "cannot read a profile from"),
    (b"\x1f\x8bnot gzip", "cannot read a profile from"),
    (b'{"traceEvents": []}', "has no ops of a device"),
    (None, "holds no"),
])  # fmt: skip
def test_what_is_no_profile(content: bytes | None, says: str, tmp_path: Path) -> None:
    path = tmp_path
    if content is not None:
        path = tmp_path / "x.trace.json.gz"
        path.write_bytes(content)
    with pytest.raises(sw.ShardwrightError, match=says):
        read_profile(path)
