"""A predicted step beside a measured one: where they differ most."""

from __future__ import annotations

from typing import Any

from shardwright.record.types import PlanRecord
from shardwright.referee.profile import COMPUTE, Profile
from shardwright.report import facts
from shardwright.report.trace import MEASURED, MICRO, Event
from shardwright.report.words import change, columns, counted, human_seconds
from shardwright.spmd.ir import totals

LINES = 10  # of the user's code that are shown


def compare_profile(record: PlanRecord, profile: Profile) -> dict[str, Any]:
    """{by_kind, by_line: rows of what, predicted_s, measured_s}, largest difference first."""
    predicted = {COMPUTE: record.cost.compute_s}
    for (kind, _), total in totals(record.collectives).items():
        predicted[kind] = predicted.get(kind, 0.0) + total.seconds
    lines: dict[str, float] = {}
    for work in facts.lines_that_compute(record):
        line = work.source.split(" ")[0]
        lines[line] = lines.get(line, 0.0) + work.compute_s
    for move in facts.lines_that_move(record):
        line = move.source.split(" ")[0]
        lines[line] = lines.get(line, 0.0) + move.seconds
    measured_lines = profile.by_source()
    return {
        "profile": profile.path, "device": profile.device, "steps": profile.steps,
        "by_kind": _rows(predicted, profile.by_kind()),
        "by_line": _rows(lines, measured_lines) if measured_lines else [],
    }  # fmt: skip


def _rows(predicted: dict[str, float], measured: dict[str, float]) -> list[dict[str, Any]]:
    rows = [
        {
            "what": what,
            "predicted_s": predicted.get(what, 0.0),
            "measured_s": measured.get(what, 0.0),
        }
        for what in dict.fromkeys((*predicted, *measured))
    ]
    return sorted(rows, key=lambda row: -abs(row["measured_s"] - row["predicted_s"]))


def format_against(record: PlanRecord, profile: Profile) -> str:
    """The comparison as text."""
    found = compare_profile(record, profile)
    head = [
        f"predicted against measured, per step on {profile.device}"
        f" ({counted(profile.steps, 'step')} of {profile.module or 'the program'})"
    ]
    if profile.on_host:
        head.append(
            f"note: measured on a host, which stands in for {record.device.name}: compare shares"
        )
    titles = ("", "predicted", "measured", "difference", "")
    table = columns([titles, *map(_cells, found["by_kind"])], right=(1, 2, 3))
    blocks = ["\n".join(head), table]
    if found["by_line"]:
        rows = [titles, *map(_cells, found["by_line"][:LINES])]
        blocks.append("lines that differ most\n" + columns(rows, right=(1, 2, 3)))
    else:
        blocks.append("the profile names no source lines: collectives are compared by kind alone")
    return "\n\n".join(blocks)


def _cells(row: dict[str, Any]) -> tuple[str, str, str, str, str]:
    predicted, measured = row["predicted_s"], row["measured_s"]
    sign = "+" if measured >= predicted else "-"
    return (
        row["what"], human_seconds(predicted), human_seconds(measured),
        sign + human_seconds(abs(measured - predicted)), change(measured, predicted),
    )  # fmt: skip


def measured_events(profile: Profile) -> list[Event]:
    """The first step of a profile as events of a process beside the predicted one."""
    tracks = {COMPUTE: 1}
    out: list[Event] = [{
        "ph": "M", "pid": MEASURED, "name": "process_name",
        "args": {"name": f"measured: {profile.device}"},
    }]  # fmt: skip
    steps_s = max((op.begin_s + op.total_s for op in profile.ops), default=0.0) / profile.steps
    for op in profile.ops:
        if op.begin_s < steps_s:
            track = tracks.setdefault(op.kind, len(tracks) + 1)
            out.append({
                "ph": "X", "pid": MEASURED, "tid": track, "name": op.name,
                "ts": op.begin_s * MICRO, "dur": op.total_s * MICRO, "args": {"source": op.source},
            })  # fmt: skip
    names = [
        {"ph": "M", "pid": MEASURED, "tid": tid, "name": "thread_name", "args": {"name": kind}}
        for kind, tid in tracks.items()
    ]
    return out + names
