"""An Analysis as a table."""

from __future__ import annotations

from shardwright.analysis.analysis import Analysis


def human_bytes(count: float) -> str:
    """1.5 GB, in powers of ten as devices are sold."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def human_seconds(seconds: float) -> str:
    """Three digits and a unit: 4.56 s, 349 ms, 12.0 us.

    >>> human_seconds(0.34863)
    '349 ms'
    """
    if not seconds:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)):
        shown = seconds * scale
        if shown >= 0.9995 or unit == "ns":
            digits = max(0, 3 - len(str(int(round(shown, 2)))))
            return f"{shown:.{min(digits, 2)}f} {unit}"
    raise AssertionError


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
