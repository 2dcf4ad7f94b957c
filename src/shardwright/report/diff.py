"""What two plans do differently, as text to review."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from shardwright.report.eject import starred
from shardwright.report.facts import Record, cost_of, entry_notes, mesh_text, movements
from shardwright.report.words import (
    change,
    columns,
    human_bytes,
    human_seconds,
    short_path,
    spec_text,
)  # fmt: skip

SPECS = 20  # rows shown


def diff_plans(record: Record, other: Record) -> str:
    """The differences from the first plan (-) to the second (+); empty when there are none."""
    parts = (_programs, _decisions, _specs, _costs)
    record, other = _as_saved(record), _as_saved(other)
    return "\n".join(line for part in parts for line in part(record, other))


def _as_saved(record: Record) -> Record:
    """The record as a file gives it back: tuples are lists there, and must not differ."""
    return json.loads(json.dumps(record))


def _programs(a: Record, b: Record) -> Iterator[str]:
    """What the plans are for."""
    rows = (
        ("program", a["program"], b["program"]),
        ("mesh", mesh_text(a), mesh_text(b)),
        ("device", a["device"]["name"], b["device"]["name"]),
    )
    for what, old, new in rows:
        if old != new:
            yield f"{what}: {old} -> {new}"
    if a["device"]["name"] == b["device"]["name"] and a["device"] != b["device"]:
        fields = [k for k in a["device"] if a["device"][k] != b["device"].get(k)]
        yield f"device: {a['device']['name']} with other {', '.join(fields)}"
    if a["fingerprint"] != b["fingerprint"]:
        yield f"the computation: {a['ops']} ops -> {b['ops']} ops"
    old, new = a["arguments"], b["arguments"]
    changed = [f"  {p}: {old.get(p, 'none')} -> {new.get(p, 'none')}" for p in _either(old, new)]
    if changed:
        yield "arguments"
        yield from _first(changed)


def _decisions(a: Record, b: Record) -> Iterator[str]:
    for axis in dict.fromkeys((*a["decisions"], *b["decisions"])):
        old, new = a["decisions"].get(axis), b["decisions"].get(axis)
        if old != new:
            yield f"decided for {axis}"
            yield f"  - {_entries(old)}"
            yield f"  + {_entries(new)}"
    if a["overrides"] != b["overrides"]:
        old, new = (
            {", ".join(row["what"]): row["stored"] for row in one["overrides"]} for one in (a, b)
        )
        yield "kept in another way than the lists say"
        for what in _either(old, new):
            stored = [one.get(what, "as listed") for one in (old, new)]
            yield f"  {short_path(what)}: {' -> '.join(stored)}"


def _entries(entries: list[dict[str, Any]] | None) -> str:
    if entries is None:
        return "no such axis"
    return ", ".join(_entry(e) for e in entries) or "nothing"


def _entry(entry: dict[str, Any]) -> str:
    notes = entry_notes(entry, resolved=bool(entry["bits"]))
    return entry["group"] + (f" ({', '.join(notes)})" if notes else "")


def _specs(a: Record, b: Record) -> Iterator[str]:
    for what, key in (("argument specs", "specs"), ("result specs", "result_specs")):
        old, new = a[key], b[key]
        both = {p: [old[p], new[p]] for p in _either(old, new) if p in old and p in new}
        if both:
            yield what
            rows = [
                (short_path(path), spec_text(x), "->", spec_text(y))
                for path, (x, y) in starred(both).items()
            ]
            yield from _first(columns(rows).splitlines())


def _costs(a: Record, b: Record) -> Iterator[str]:
    old, new = cost_of(a), cost_of(b)
    rows = [
        (what, show(x), "->", show(y), change(y, x))
        for what, x, y, show in (
            ("step", old.step_s, new.step_s, human_seconds),
            ("compute", old.compute_s, new.compute_s, human_seconds),
            ("links", old.link_s, new.link_s, human_seconds),
            ("peak memory", old.peak_bytes, new.peak_bytes, human_bytes),
        )
        if x != y
    ]
    before = {(m.kind, m.axes): m.bytes for m in movements(a)}
    after = {(m.kind, m.axes): m.bytes for m in movements(b)}
    for key in _either(before, after):
        x, y = before.get(key, 0.0), after.get(key, 0.0)
        what = f"{key[0]} {'+'.join(key[1])}"
        rows.append((what, human_bytes(x), "->", human_bytes(y), change(y, x)))
    if rows:
        yield "predicted"
        yield columns(rows)


def _either(a: Any, b: Any) -> list[Any]:
    """Keys of either whose values differ, in order."""
    return [k for k in dict.fromkeys((*a, *b)) if k not in a or k not in b or a[k] != b[k]]


def _first(lines: list[str]) -> Iterator[str]:
    yield from lines[:SPECS]
    if len(lines) > SPECS:
        yield f"  ... and {len(lines) - SPECS} more"
