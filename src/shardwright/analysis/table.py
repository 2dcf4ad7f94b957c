"""An Analysis as a table."""

from __future__ import annotations

from shardwright.analysis.analysis import Analysis
from shardwright.units import human_bytes

_ASIDE = {
    "tiny": "too small to matter",
    "loop": "stepped over by loops",
    "indivisible": "that no axis divides",
}


def format_analysis(analysis: Analysis) -> str:
    """One row per group worth deciding, then what was set aside."""
    header = ("group", "size", "colors", "arguments", "activations", "conflicts", "dims")
    sets_of = analysis.set_group
    rows = [header]
    for g in sorted(
        analysis.groups, key=lambda g: (-(g.argument_bytes + g.activation_bytes), g.index)
    ):
        sets = sum(1 for k in sets_of if k in g.conflict_sets)
        conflicts = f"{sets} set{'s' * (sets != 1)}, {len(g.conflict_sets)} bit" if sets else "-"
        rows.append((
            g.label, "/".join(map(str, g.sizes[:3])), str(len(g.colors)),
            human_bytes(g.argument_bytes), human_bytes(g.activation_bytes), conflicts,
            ", ".join(g.dims[:3]) + (f", +{len(g.dims) - 3}" if len(g.dims) > 3 else ""),
        ))  # fmt: skip
    widths = [max(len(r[i]) for r in rows) for i in range(len(header))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    aside = [g.set_aside for g in analysis.all_groups if g.set_aside]
    reasons = [f"{aside.count(why)} {text}" for why, text in _ASIDE.items()]
    if "indivisible" not in aside:
        reasons.pop()
    lines.append(
        f"{len(analysis.groups)} groups, {len(analysis.colors)} colors,"
        f" {len(analysis.conflict_sets)} conflict sets;"
        f" {len(aside)} groups set aside ({', '.join(reasons)})"
    )
    return "\n".join(lines)
