"""Limits for CI: how much worse a plan may be than another before a build fails."""

from __future__ import annotations

from typing import Any

from shardwright.plan import Plan
from shardwright.record.types import PlanRecord
from shardwright.report.words import change, human_bytes, human_seconds, short_path, spec_text


def judged(old: Plan, new: Plan, **limits: Any) -> tuple[str, list[str], bool]:
    """(what differs, limits that are passed, whether that fails): any change does without limits"""
    changed, broken = old.diff(new), broken_limits(old.record, new.record, **limits)
    return changed, broken, bool(broken) if has_limits(**limits) else bool(changed)


def told(changed: str, broken: list[str]) -> list[str]:
    """What differs, and a line for each limit that is passed."""
    return [changed] * bool(changed) + [f"limit passed: {line}" for line in broken]


def has_limits(*, max_step: float | None, max_memory: float | None, same_shardings: bool) -> bool:
    """Whether any limit was given."""
    return max_step is not None or max_memory is not None or same_shardings


def broken_limits(
    old: PlanRecord, new: PlanRecord, *, max_step: float | None = None,
    max_memory: float | None = None, same_shardings: bool = False,
) -> list[str]:  # fmt: skip
    """The limits that the new plan passes, a sentence each; percent of the old plan's figures."""
    rows = (
        ("step", max_step, old.cost.step_s, new.cost.step_s, human_seconds),
        ("peak memory", max_memory, old.cost.peak_bytes, new.cost.peak_bytes, human_bytes),
    )
    out = [
        f"{what} {show(before)} -> {show(after)} ({change(after, before)}, at most +{limit:g}%)"
        for what, limit, before, after, show in rows
        if limit is not None and after > before * (1 + limit / 100)
    ]
    if same_shardings:
        for a, b in ((old.specs, new.specs), (old.result_specs, new.result_specs)):
            out += [
                f"{short_path(path)} {spec_text(a[path]) if path in a else 'absent'} ->"
                f" {spec_text(b[path]) if path in b else 'absent'}"
                for path in dict.fromkeys((*a, *b)) if a.get(path) != b.get(path)
            ]  # fmt: skip
    return out
