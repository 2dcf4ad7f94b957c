"""What the page draws, as numbers: bars on a time axis, areas of memory, points, steps of a search.

Coordinates are in units of a drawing's viewBox.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwright.cost.timeline import KINDS, Span
from shardwright.record.types import PlanRecord
from shardwright.report import facts
from shardwright.report.schedule import Node, link_s, schedule_tree

WIDTH, HEIGHT = 1000.0, 200.0  # of the drawings' coordinates


@dataclass(frozen=True, slots=True)
class Bar:
    """One span on the axis of time; of a loop all trips, one after the other."""

    span: Span
    begin: float  # in WIDTH
    compute: float  # where its links end and its compute begins
    end: float
    runs: int


@dataclass(frozen=True, slots=True)
class Loop:
    """A region on the axis of time."""

    title: str
    begin: float
    end: float
    depth: int


def time_axis(record: PlanRecord, whole_s: float | None = None) -> tuple[list[Bar], list[Loop]]:
    """(bars, loops) of a step drawn from left to right; `whole_s` is as long as WIDTH.

    A span's movements stand before its compute. Bodies of loops are drawn once, as wide as all
    of their trips.
    """
    total = whole_s or (record.cost.compute_s + record.cost.link_s) or 1.0
    bars: list[Bar] = []
    loops: list[Loop] = []

    def walk(node: Node, at: float, runs: int, depth: int) -> float:
        """Where a node ends that begins here; its bars and loops are noted."""
        for item in node.items:
            if isinstance(item, Span):
                links = at + runs * link_s(record, item) / total * WIDTH
                end = links + runs * item.compute_s / total * WIDTH
                bars.append(Bar(item, at, links, end, runs))
                at = end
            else:
                begin = at
                at = walk(item, at, runs * item.trips, depth + 1)
                title = f"{item.kind} x{item.trips}" if item.trips > 1 else item.kind
                loops.append(Loop(title, begin, at, depth))
        return at

    walk(schedule_tree(record), 0.0, 1, 0)
    return bars, loops


def memory_areas(bars: Sequence[Bar], highest: float) -> list[tuple[str, str]]:
    """(kind, path) of areas stacked on each other, in the order of KINDS."""
    out = []
    below = [0.0] * len(bars)
    for i, kind in enumerate(KINDS):
        above = [low + bar.span.bytes[i] for low, bar in zip(below, bars, strict=True)]
        if above != below:
            out.append((kind, _area(bars, below, above, highest)))
        below = above
    return out


def _area(bars: Sequence[Bar], low: Sequence[float], high: Sequence[float], highest: float) -> str:
    """A path along the upper steps, and back along the lower ones."""
    there = _steps(bars, high, highest)
    back = list(reversed(_steps(bars, low, highest)))
    points = [*there, *back]
    head, *rest = [f"{x:.1f} {y:.1f}" for x, y in points]
    return f"M{head}L{' '.join(rest)}Z"


def _steps(
    bars: Sequence[Bar], values: Sequence[float], highest: float
) -> list[tuple[float, float]]:
    out: list[tuple[float, float]] = []
    for bar, value in zip(bars, values, strict=True):
        y = HEIGHT * (1 - value / highest) if highest else HEIGHT
        out += [(bar.begin, y), (bar.end, y)]
    return out


@dataclass(frozen=True, slots=True)
class Point:
    """A plan or tactic by its time and memory."""

    name: str
    step_s: float
    peak_bytes: int
    kind: str  # "plan", "tactic" or "mesh"
    fits: bool
    best: bool = False  # nothing that fits is as fast with less memory
    x: float = 0.0
    y: float = 0.0


def pareto(record: PlanRecord) -> list[Point]:
    """This plan, the named tactics and the mesh shapes, placed by time and memory."""
    limit = record.limit_bytes
    rows = [Point("this plan", record.cost.step_s, record.cost.peak_bytes, "plan", True)]
    for b in facts.ranked_baselines(record):
        rows.append(Point(b.name, b.cost.step_s, b.cost.peak_bytes, "tactic", b.fits))
    for row, note in facts.mesh_shapes(record):
        if row.step_s is not None and row.peak_bytes is not None and note != facts.CHOSEN:
            fits = row.peak_bytes <= limit
            rows.append(Point(f"mesh {row}", row.step_s, row.peak_bytes, "mesh", fits))
    front = {
        i for i, p in enumerate(rows)
        if p.fits and not any(_beats(q, p) for q in rows if q.fits)
    }  # fmt: skip
    x, y = _scale([p.step_s for p in rows]), _scale([float(p.peak_bytes) for p in rows])
    return [
        Point(p.name, p.step_s, p.peak_bytes, p.kind, p.fits, i in front,
              30 + x(p.step_s) * (WIDTH - 60), 20 + (1 - y(p.peak_bytes)) * (300 - 40))
        for i, p in enumerate(rows)
    ]  # fmt: skip


def _beats(a: Point, b: Point) -> bool:
    """Whether one is no slower and no larger, and better in one of the two."""
    no_worse = a.step_s <= b.step_s and a.peak_bytes <= b.peak_bytes
    return no_worse and (a.step_s < b.step_s or a.peak_bytes < b.peak_bytes)


def _scale(values: Sequence[float]) -> Callable[[float], float]:
    """A function to 0..1: logarithmic, since tactics differ by factors."""
    real = [math.log(v) for v in values if v > 0]
    low, high = (min(real), max(real)) if real else (0.0, 1.0)
    span = (high - low) or 1.0
    return lambda v: (math.log(v) - low) / span if v > 0 else 0.0


def search_steps(record: PlanRecord) -> tuple[str, float | None, list[tuple[float, float, str]]]:
    """(path of the best so far, y of the proven bound, points with their stages)."""
    rows, bound = record.search.history, record.certificate.lower_bound_s
    if not rows:
        return "", None, []
    known = [row.step_s for row in rows] + ([bound] if 0 < bound < math.inf else [])
    top, low = max(known), min(known)
    span = (top - low) or top or 1.0
    most = max(record.search.evaluations, rows[-1].evaluations, 1)

    def y(seconds: float) -> float:
        return 10 + (top - seconds) / span * 100

    points = [(row.evaluations / most * WIDTH, y(row.step_s), row.stage) for row in rows]
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    path += [f"H{x:.1f}V{at:.1f}" for x, at, _ in points[1:]]
    floor = y(bound) if 0 < bound < math.inf else None
    return "".join(path) + f"H{WIDTH:.0f}", floor, points
