"""docs/fidelity.md and its plots, from replayed rows and from single collectives."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import measured_links, memory, ops
from shardwright.cost.devices import device

if TYPE_CHECKING:
    from benchmarks.measured import Replay

# What was fitted to rows of measured.csv: device, field, what it is, the rows.
FITTED = (
    ("tpu-v5e", "matrix_sustained", "dots in a step, of what the compiler estimates", "12 rows"),
    ("tpu-v5p", "matrix_sustained", "the same", "6 rows"),
    ("h100", "matrix_sustained", "dots in a step, of NVIDIA's GEMM table", "14 rows"),
    ("h100-96", "matrix_sustained", "the same at 500 W", "5 rows"),
    ("a100-40", "matrix_sustained", "the same", "8 rows"),
    ("tpu-v5e", "dcn_latency_s", "one step of a ring of slices", "10 rows with 2 to 32 slices"),
)
COLORS = {
    "tpu-v5e": "#1b7f79", "tpu-v5p": "#2e5fa3", "tpu-v6e": "#7a3e9d", "h100": "#c2571a",
    "h100-96": "#d99000", "a100-40": "#a3303f", "a100-80": "#d0707c", "b200": "#555555",
    "gb200": "#999999", "tpu-7x": "#4a9bd4",
}  # fmt: skip
WIDTH, HEIGHT, MARGIN = 760, 380, 48
LOW, HIGH = 0.6, 1.4  # of the ratio axis


def ladders(replays: Sequence[Replay]) -> dict[str, list[Replay]]:
    """Rows that differ in the number of chips or in strategy only, by what they share."""
    found: dict[str, list[Replay]] = {}
    for one in replays:
        row = one.row
        same = (row.model, row.device, row["per_device_batch"], row["remat"], row["seq"])
        compiled = row["precision"] if "eager" not in row["precision"] else "eager"
        found.setdefault(" ".join((*same, compiled)), []).append(one)
    return {name: rows for name, rows in found.items() if len(rows) > 1}


def ordered_pairs(rows: Sequence[Replay]) -> tuple[int, int]:
    """(pairs of a ladder whose order is predicted, all pairs)."""
    pairs = list(itertools.combinations(rows, 2))
    right = sum(
        (a.row.measured_s - b.row.measured_s) * (a.cost.step_s - b.cost.step_s) > 0
        for a, b in pairs
    )
    return right, len(pairs)


def all_pairs(replays: Sequence[Replay]) -> tuple[int, int]:
    """(pairs whose order is predicted, all pairs) of all ladders."""
    found = [ordered_pairs(rows) for rows in ladders(replays).values()]
    return sum(right for right, _ in found), sum(pairs for _, pairs in found)


def table(replays: Sequence[Replay]) -> str:
    """One line per row, the worst first."""
    lines = [
        "| published step | measured | predicted | ratio | compute | links |",
        "|---|---|---|---|---|---|",
    ]
    for one in sorted(replays, key=lambda one: -abs(math.log(one.ratio))):
        cost = one.cost
        lines.append(
            f"| {one.row.name} | {one.row.measured_s:.3f} s | {cost.step_s:.3f} s "
            f"| {one.ratio:.2f} | {cost.compute_s:.3f} s | {cost.link_s:.3f} s |"
        )
    return "\n".join(lines)


def plausibility(replays: Sequence[Replay]) -> str:
    """One line per row that has no measured time."""
    lines = [
        "| step | predicted | MFU | compute | links | tokens/s/chip |",
        "|---|---|---|---|---|---|",
    ]
    for one in replays:
        row, cost = one.row, one.cost
        tokens = row.batch * float(row["seq"]) / float(row["chips"])
        lines.append(
            f"| {row.name} | {cost.step_s:.3f} s | {one.mfu:.0%} | {cost.compute_s:.3f} s "
            f"| {cost.link_s:.3f} s | {tokens / cost.step_s:,.0f} |"
        )
    return "\n".join(lines)


def ladder_table(replays: Sequence[Replay]) -> str:
    """One line per ladder: its steps in order of size, measured and predicted."""
    lines = [
        "| ladder | chips or strategy | measured | predicted | in order |",
        "|---|---|---|---|---|",
    ]
    for rows in ladders(replays).values():
        first, chips = rows[0].row, {one.row["chips"] for one in rows}
        alike = len(chips) == 1
        steps = [
            re.sub(r", microbatch \d+", "", one.row["mesh"]) if alike else one.row["chips"]
            for one in rows
        ]
        right, pairs = ordered_pairs(rows)
        lines.append(
            f"| {first.model} on {first.device} | {'; '.join(steps)} "
            f"| {', '.join(f'{one.row.measured_s:.2f}' for one in rows)} "
            f"| {', '.join(f'{one.cost.step_s:.2f}' for one in rows)} | {right} of {pairs} |"
        )
    return "\n".join(lines)


def constants() -> str:
    """What was fitted to the rows, with its value."""
    lines = ["| device | constant | value | what it is | fitted to |", "|---|---|---|---|---|"]
    for name, field, meaning, rows in FITTED:
        value = getattr(device(name), field)
        lines.append(f"| `{name}` | `{field}` | {value:g} | {meaning} | {rows} |")
    return "\n".join(lines)


class Dot(NamedTuple):
    """One row of a plot."""

    value: float  # measured
    ratio: float  # predicted / measured
    device: str
    name: str


def step_plot(replays: Sequence[Replay]) -> str:
    """Predicted / measured over measured seconds of a step."""
    dots = [Dot(o.row.measured_s, o.ratio, o.row.device, o.row.name) for o in replays]
    ticks = {1: "1 s", 2: "2 s", 5: "5 s", 10: "10 s", 20: "20 s"}
    return plot(dots, ticks, "measured seconds of a step")


def link_plot() -> str:
    """Predicted / measured over measured seconds of a collective."""
    dots = [
        Dot(row.seconds, row.predicted_s() / row.seconds, row.device, row.name)
        for row in measured_links.rows()
    ]
    ticks = {1e-5: "10 us", 1e-4: "100 us", 1e-3: "1 ms", 1e-2: "10 ms"}
    return plot(dots, ticks, "measured seconds of a collective")


def plot(dots: Sequence[Dot], ticks: Mapping[float, str], what: str) -> str:
    """An SVG: predicted / measured over a measured value, a dot for each row."""
    values = [dot.value for dot in dots]
    low, high = math.log(min(values) / 1.2), math.log(max(values) * 1.2)

    def x(value: float) -> float:
        return MARGIN + (math.log(value) - low) / (high - low) * (WIDTH - 2 * MARGIN)

    def y(ratio: float) -> float:
        share = (min(max(ratio, LOW), HIGH) - LOW) / (HIGH - LOW)
        return HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<rect x="{MARGIN}" y="{y(1.08):.1f}" width="{WIDTH - 2 * MARGIN}" '
        f'height="{y(0.92) - y(1.08):.1f}" fill="#e8f3f0"/>',
    ]
    for ratio in (0.6, 0.8, 1.0, 1.2, 1.4):
        at = y(ratio)
        parts.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{at:.1f}" y2="{at:.1f}" '
            f'stroke="#999" stroke-width="{1 if ratio == 1.0 else 0.3}"/>'
            f'<text x="{MARGIN - 6}" y="{at + 4:.1f}" text-anchor="end">{ratio:g}</text>'
        )
    for value, label in ticks.items():
        parts.append(
            f'<text x="{x(value):.1f}" y="{HEIGHT - MARGIN + 18}" '
            f'text-anchor="middle">{label}</text>'
        )
    for dot in dots:
        parts.append(
            f'<circle cx="{x(dot.value):.1f}" cy="{y(dot.ratio):.1f}" r="4" '
            f'fill="{COLORS.get(dot.device, "#000")}" fill-opacity="0.75">'
            f"<title>{escape(dot.name)}: {dot.ratio:.2f}</title></circle>"
        )
    devices = [name for name in COLORS if any(dot.device == name for dot in dots)]
    for i, name in enumerate(devices):
        at = MARGIN + 98 * i
        parts.append(
            f'<circle cx="{at}" cy="20" r="4" fill="{COLORS[name]}"/>'
            f'<text x="{at + 8}" y="24">{name}</text>'
        )
    parts.append(
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{what}; the band is 8 % around predicted = measured</text></svg>"
    )
    return "\n".join(parts) + "\n"


def page(replays: Sequence[Replay], found: dict[str, float], bars: dict[str, float]) -> str:
    """docs/fidelity.md."""
    right, pairs = all_pairs(replays)
    template = (Path(__file__).parent / "fidelity.md.in").read_text(encoding="utf-8")
    return template.format(
        rows=len(replays), right=right, pairs=pairs, ladders=ladder_table(replays),
        constants=constants(), table=table(replays), memory=memory.section(),
        link_summary=measured_links.summary_table(), links=measured_links.table(),
        ops=ops.section(), op_count=len(ops.OPS), memory_count=len(memory.read()), **found,
        **{f"bar_{name}": value for name, value in bars.items()},
    )  # fmt: skip
