"""What the page draws, as numbers: bars on a time axis, areas of memory, points, steps of a search.

Coordinates of the step are in units of its viewBox, those of points in percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shardwright.cost.breakdown import KINDS
from shardwright.cost.timeline import Span
from shardwright.record.types import Improvement, PlanRecord
from shardwright.report import facts
from shardwright.report.region_tree import Node, link_s, region_tree

WIDTH, HEIGHT = 1000.0, 200.0  # of the drawings' coordinates
MARGIN = 1.08  # of a logarithmic axis beyond what stands on it


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
                loops.append(Loop(item.title, begin, at, depth))
        return at

    walk(region_tree(record), 0.0, 1, 0)
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
    kind: str  # "plan", "tactic", "mesh" or "variant"
    fits: bool
    best: bool = False  # nothing that fits is as fast with less memory


def pareto(record: PlanRecord) -> list[Point]:
    """This plan, tactics, mesh shapes and other variants, those on the front marked."""
    limit = record.limit_bytes
    rows = [Point("this plan", record.cost.step_s, record.cost.peak_bytes, "plan", True)]
    for b in facts.ranked_baselines(record):
        rows.append(Point(b.name, b.cost.step_s, b.cost.peak_bytes, "tactic", b.fits))
    for row, note in facts.mesh_shapes(record):
        if row.step_s is not None and row.peak_bytes is not None and note != facts.CHOSEN:
            fits = row.peak_bytes <= limit
            rows.append(Point(f"mesh {row}", row.step_s, row.peak_bytes, "mesh", fits))
    rows += [Point(v.name, v.step_s, v.peak_bytes, "variant", v.fits) for v in record.variants]
    front = {
        i for i, p in enumerate(rows)
        if p.fits and not any(_beats(q, p) for q in rows if q.fits)
    }  # fmt: skip
    return [replace(p, best=i in front) for i, p in enumerate(rows)]


def _beats(a: Point, b: Point) -> bool:
    """Whether one is no slower and no larger, and better in one of the two."""
    no_worse = a.step_s <= b.step_s and a.peak_bytes <= b.peak_bytes
    return no_worse and (a.step_s < b.step_s or a.peak_bytes < b.peak_bytes)


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic axis, since tactics differ by factors: values from 0 to 100% of its length."""

    low: float
    high: float

    @staticmethod
    def of(values: Iterable[float]) -> Scale:
        """An axis on which all of the values that are positive have a place."""
        real = [v for v in values if v > 0] or [1.0]
        return Scale(min(real) / MARGIN, max(real) * MARGIN)

    def at(self, value: float) -> float:
        """The place of a value, in percent."""
        if value <= 0:
            return 0.0
        return round(100 * math.log(value / self.low) / math.log(self.high / self.low), 2)

    def ticks(self) -> list[float]:
        """Round numbers along the axis: 1, 2 and 5 of each power of ten, or the powers alone."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        steps = (1, 2, 5) if last - first <= 2 else (1,)
        every = [step * 10.0**n for n in range(first, last + 1) for step in steps]
        return [v for v in every if self.low <= v <= self.high]


def search_path(record: PlanRecord) -> list[tuple[float, float, Improvement]]:
    """(x, y, improvement) of the best so far, in percent; y 100 is the first plan found."""
    rows, bound = record.search.history, record.certificate.lower_bound_s
    if not rows:
        return []
    low = bound if 0 < bound < math.inf else rows[-1].step_s
    span = (rows[0].step_s - min(low, rows[-1].step_s)) or 1.0
    across = Scale.of([max(row.evaluations, 1) for row in rows] + [record.search.evaluations])
    return [
        (across.at(max(row.evaluations, 1)),
         round(100 * (row.step_s - min(low, rows[-1].step_s)) / span, 2), row)
        for row in rows
    ]  # fmt: skip
