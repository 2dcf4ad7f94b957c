"""A predicted step beside a measured one: where they differ most."""

from __future__ import annotations

from typing import Any

from shardwright.record.types import PlanRecord
from shardwright.referee.profile import COMPUTE, Profile
from shardwright.report import facts
from shardwright.report.trace import MEASURED, Event, named, slice_of
from shardwright.report.words import change, columns, counted, human_seconds
from shardwright.spmd.ir import totals

LINES = 10  # of the user's code that are shown
DIFFERENCES = ("", "predicted", "measured", "difference", "")
SHARES = ("", "predicted", "", "measured", "")


def compare_profile(record: PlanRecord, profile: Profile) -> dict[str, Any]:
    """{by_kind, by_line: rows of what, predicted_s, measured_s}, largest difference first."""
    predicted = {COMPUTE: record.cost.compute_s}
    for (kind, _), total in totals(record.collectives).items():
        predicted[kind] = predicted.get(kind, 0.0) + total.seconds
    works = [(work.source, work.compute_s) for work in facts.lines_that_compute(record)]
    works += [
        (move.source or facts.NO_LINE, move.seconds) for move in facts.lines_that_move(record)
    ]
    lines: dict[str, float] = {}
    for source, seconds in works:
        line = source if source == facts.NO_LINE else source.split(" ")[0]
        lines[line] = lines.get(line, 0.0) + seconds
    measured_lines = profile.by_source()
    return {
        "profile": profile.path, "device": profile.device, "steps": profile.steps,
        "by_kind": _rows(predicted, profile.by_kind()),
        "by_line": _rows(lines, measured_lines) if measured_lines else [],
    }  # fmt: skip


def _rows(predicted: dict[str, float], measured: dict[str, float]) -> list[dict[str, Any]]:
    """Seconds of each, and their shares of the sums; largest difference first."""
    rows: list[dict[str, Any]] = [
        {"what": what} for what in dict.fromkeys((*predicted, *measured))
    ]  # fmt: skip
    for name, seconds in (("predicted", predicted), ("measured", measured)):
        total = sum(seconds.values()) or 1.0
        for row in rows:
            row[f"{name}_s"] = seconds.get(row["what"], 0.0)
            row[f"{name}_share"] = row[f"{name}_s"] / total
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
    titles, cells = (SHARES, _shares) if profile.on_host else (DIFFERENCES, _cells)
    table = columns([titles, *map(cells, found["by_kind"])], right=(1, 2, 3))
    blocks = ["\n".join(head), table]
    if found["by_line"]:
        rows = map(_cells, found["by_line"][:LINES])
        blocks.append("lines that differ most\n" + columns([DIFFERENCES, *rows], right=(1, 2, 3)))
    else:
        blocks.append("the profile names no source lines: collectives are compared by kind alone")
    return "\n\n".join(blocks)


def _shares(row: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """What a row takes, and its share of all: of a host and an accelerator those compare."""
    return (
        row["what"], human_seconds(row["predicted_s"]), f"{row['predicted_share']:.0%}",
        human_seconds(row["measured_s"]), f"{row['measured_share']:.0%}",
    )  # fmt: skip


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
    out = [named(MEASURED, "process_name", 0, f"measured: {profile.device}")]
    steps_s = max((op.begin_s + op.total_s for op in profile.ops), default=0.0) / profile.steps
    for op in profile.ops:
        if op.begin_s < steps_s:
            track = tracks.setdefault(op.kind, len(tracks) + 1)
            about = {"source": op.source}
            out.append(slice_of(MEASURED, track, op.name, op.begin_s, op.total_s, about))
    return out + [named(MEASURED, "thread_name", tid, kind) for kind, tid in tracks.items()]
