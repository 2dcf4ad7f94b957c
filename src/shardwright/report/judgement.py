"""A judged sharding as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.report.text import format_collectives
from shardwright.report.words import change, human_bytes, human_seconds

if TYPE_CHECKING:
    from shardwright.check import Check

MOVES = 8  # rows shown


def format_check(check: Check) -> str:
    """Cost, memory, where data moves and why, warnings, and what a better plan would save."""
    cost = check.cost
    lines = [
        f"step {human_seconds(cost.step_s)}: compute {human_seconds(cost.compute_s)},"
        f" links {human_seconds(cost.link_s)}"
        + (f", {human_seconds(cost.hidden_s)} of them hidden" if cost.hidden_s else ""),
        f"peak {human_bytes(cost.peak_bytes)} per device: "
        + ", ".join(f"{kind} {human_bytes(size)}" for kind, size in check.memory.by_kind.items()),
        format_collectives(check.plan.record, MOVES),
    ]
    lines += [f"note: {note}" for note in check.plan.record.notes]
    lines += [f"warning: {w}" for w in check.warnings]
    better = check.better
    if better is not None:
        lines.append(
            f"a better plan takes {human_seconds(better.cost.step_s)}"
            f" ({change(better.cost.step_s, cost.step_s)}) and"
            f" {human_bytes(better.cost.peak_bytes)}: check.better"
        )
    else:
        lines.append("no better plan was found")
    return "\n".join(lines)
