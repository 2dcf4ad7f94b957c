"""A judged sharding as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.analysis.text import human_bytes

if TYPE_CHECKING:
    from shardwright.check import Check


def format_check(check: Check) -> str:
    """Cost, memory, where data moves and why, warnings, and what a better plan would save."""
    cost = check.cost
    lines = [
        f"step {cost.step_s * 1e3:.3f} ms: compute {cost.compute_s * 1e3:.3f} ms,"
        f" links {cost.link_s * 1e3:.3f} ms",
        f"peak {human_bytes(cost.peak_bytes)} per device: "
        + ", ".join(f"{k} {human_bytes(b)}" for k, b in check.memory.by_kind.items()),
    ]
    moves = sorted(check.collectives, key=lambda c: -c.count * c.seconds)[:8]
    if moves:
        lines.append("data moves")
    lines += [
        f"  {c.kind} over {'+'.join(c.axes)}  {human_bytes(c.bytes)} x{c.count:g}"
        f"  {c.count * c.seconds * 1e3:.3f} ms  {c.source}: {c.cause}"
        for c in moves
    ]
    lines += [f"warning: {w}" for w in check.warnings]
    if check.better is not None:
        lines.append(
            f"a better plan takes {check.better.cost.step_s * 1e3:.3f} ms"
            f" ({100 * check.saves:.0f}% less) and"
            f" {human_bytes(check.better.cost.peak_bytes)}: check.better"
        )
    else:
        lines.append("no better plan was found")
    return "\n".join(lines)
