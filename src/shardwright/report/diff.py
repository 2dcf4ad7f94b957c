"""What two plans do differently, as text to review."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from shardwright.record.types import PlanRecord, Spec
from shardwright.report.claims import Claimed, claims_of
from shardwright.report.eject import starred
from shardwright.report.words import (
    change,
    columns,
    human_bytes,
    human_seconds,
    short,
    short_path,
    spec_text,
)  # fmt: skip
from shardwright.spmd.ir import totals

SPECS = 20  # rows shown


def diff_plans(record: PlanRecord, other: PlanRecord) -> str:
    """The differences from the first plan (-) to the second (+); empty when there are none."""
    sections = (_programs, _decisions, _specs, _costs)
    return "\n".join(line for lines in sections for line in lines(record, other))


def _programs(a: PlanRecord, b: PlanRecord) -> Iterator[str]:
    """What the plans are for."""
    rows = (
        ("program", a.program, b.program),
        ("mesh", str(a.mesh), str(b.mesh)),
        ("device", a.device.name, b.device.name),
    )
    for what, old, new in rows:
        if old != new:
            yield f"{what}: {old} -> {new}"
    if a.device.name == b.device.name and a.device != b.device:
        names = [f.name for f in fields(a.device)]
        other = [name for name in names if getattr(a.device, name) != getattr(b.device, name)]
        yield f"device: {a.device.name} with other {', '.join(other)}"
    if a.fingerprint != b.fingerprint:
        yield f"the computation: {a.ops} ops -> {b.ops} ops"
    either = {
        path: (a.arguments.get(path, "none"), b.arguments.get(path, "none"))
        for path in _either(a.arguments, b.arguments)
    }
    changed = [
        f"  {short_path(path)}: {old} -> {new}" for path, (old, new) in starred(either).items()
    ]
    if changed:
        yield "arguments"
        yield from _first(changed)


def _decisions(a: PlanRecord, b: PlanRecord) -> Iterator[str]:
    """Lines on the axes whose lists differ, and on overrides."""
    for axis in _either(a.decisions, b.decisions):
        yield f"decided for {axis}"
        yield f"  - {_claims(claims_of(a).get(axis))}"
        yield f"  + {_claims(claims_of(b).get(axis))}"
    if a.overrides != b.overrides:
        before, after = (
            {", ".join(row.what): row.stored for row in one.overrides} for one in (a, b)
        )
        yield "exceptions: single arrays that are stored otherwise"
        for what in _either(before, after):
            stored = [one.get(what, "no exception") for one in (before, after)]
            yield f"  {short(what)}: {' -> '.join(stored)}"


def _claims(claims: Sequence[Claimed] | None) -> str:
    if claims is None:
        return "no such axis"
    texts = [c.label + (f" ({', '.join(c.notes)})" if c.notes else "") for c in claims]
    return ", ".join(texts) or "nothing"


def _specs(a: PlanRecord, b: PlanRecord) -> Iterator[str]:
    """Lines on arguments and results that both plans have, in different shardings."""
    for what, old, new in (
        ("argument specs", a.specs, b.specs),
        ("result specs", a.result_specs, b.result_specs),
    ):
        rows = [
            (short_path(path), spec_text(x), "->", spec_text(y))
            for path, (x, y) in changed_specs(old, new).items()
        ]
        if rows:
            yield what
            yield from _first(columns(rows).splitlines())


def changed_specs(old: dict[str, Spec], new: dict[str, Spec]) -> dict[str, tuple[Spec, Spec]]:
    """{path: both shardings} of what both have, in different shardings; layers alike as one."""
    return starred({p: (old[p], new[p]) for p in _either(old, new) if p in old and p in new})


def cost_changes(a: PlanRecord, b: PlanRecord) -> list[tuple[str, str, str, str]]:
    """(what, before, after, change) of seconds, bytes and collectives that differ."""
    old, new = a.cost, b.cost
    rows = [
        (what, show(x), show(y), change(y, x))
        for what, x, y, show in (
            ("step", old.step_s, new.step_s, human_seconds),
            ("compute", old.compute_s, new.compute_s, human_seconds),
            ("links", old.link_s, new.link_s, human_seconds),
            ("peak memory", old.peak_bytes, new.peak_bytes, human_bytes),
        )
        if x != y
    ]
    before, after = (
        {key: total.bytes for key, total in totals(one.collectives).items()} for one in (a, b)
    )
    for key in _either(before, after):
        x, y = before.get(key, 0.0), after.get(key, 0.0)
        what = f"{key[0]} {'+'.join(key[1])}"
        rows.append((what, human_bytes(x), human_bytes(y), change(y, x)))
    return rows


def _costs(a: PlanRecord, b: PlanRecord) -> Iterator[str]:
    """Lines on what differs in the costs."""
    rows = [(what, old, "->", new, more) for what, old, new, more in cost_changes(a, b)]
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
