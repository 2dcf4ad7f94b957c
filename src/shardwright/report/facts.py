"""What follows from a plan's record: ranks, shares and totals that several pages show."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwright.cost.cost import Cost
from shardwright.cost.timeline import LineWork, lines_of
from shardwright.record.types import MeshRow, Override, PlanRecord
from shardwright.report.causes import alike
from shardwright.report.words import (
    any_layer,
    human_bytes,
    human_seconds,
    listed,
    short_path,
    short_source,
)
from shardwright.spmd.ir import Cause

CHOSEN = "chosen"
QUICK = "a quick look, not searched"
NO_LINE = "no line of yours"  # where what a step does comes of no line of the user's
SAME = 1e-6  # relative: costs closer than this are one cost


@dataclass(frozen=True, slots=True)
class Baseline:
    """One named tactic that applies; others with the same cost are behind it."""

    name: str
    cost: Cost
    fits: bool
    also: tuple[str, ...] = ()  # other names of the same cost


@dataclass(frozen=True, slots=True)
class Line:
    """The collectives of one line of the user's code that are alike in all layers."""

    kind: str
    axes: tuple[str, ...]
    bytes: int  # once
    source: str
    cause: Cause
    count: float = 0.0  # times per step
    seconds: float = 0.0  # per step
    hidden_s: float = 0.0  # of these, behind compute


def mesh_shapes(record: PlanRecord) -> list[tuple[MeshRow, str]]:
    """(mesh shape, note), fastest first; nothing when the user gave the shape."""
    if len(record.meshes) < 2:
        return []
    chosen = record.mesh.shape
    rows = sorted(
        record.meshes, key=lambda r: (r.step_s is None, r.step_s or 0.0, r.mesh != chosen)
    )
    return [
        (row, CHOSEN if row.mesh == chosen else row.why or QUICK * (not row.searched))
        for row in rows
    ]


def stored_how(row: Override) -> str:
    """Whether a single array that is an exception is split at all."""
    return "split" if "/" in row.stored else "replicated"


def bound(record: PlanRecord) -> str:
    """What the step waits for most: "compute-bound" or "link-bound"."""
    return "compute-bound" if record.cost.compute_s >= record.cost.exposed_s else "link-bound"


def constraints(record: PlanRecord) -> str:
    """Who limits what the search may do, in words; empty when nobody does."""
    given = ["your tactics"] if record.asked.tactics else []
    if record.search.pins_in_code:
        given.append("the shardings in your code")
    return " and ".join(given)


def are_pinned(record: PlanRecord) -> bool:
    """Whether pins bind the search, and with it the named tactics that are priced beside it."""
    binding = ("Pin(", "Replicate(", "Limit(", "Share(")
    asked = any(tactic.startswith(binding) for tactic in record.asked.tactics)
    return asked or record.search.pins_in_code > 0


def ranked_baselines(record: PlanRecord) -> list[Baseline]:
    """The named tactics that apply, fastest first; equal costs are one row.

    Its name is what the user asked for, or the simplest: compositions come in that order.
    """
    asked = " + ".join(record.asked.tactics)
    by_cost: dict[tuple[float, float, int], list[str]] = {}
    costs = {name: row for name, row in record.baselines.items() if isinstance(row, Cost)}
    for name, cost in costs.items():
        key = (float(f"{cost.compute_s:.6g}"), float(f"{cost.link_s:.6g}"), cost.peak_bytes)
        by_cost.setdefault(key, []).append(name)
    rows = []
    for names in by_cost.values():
        first, *also = sorted(names, key=lambda n: (n != asked, n.count("+")))
        fits = costs[first].peak_bytes <= record.limit_bytes
        rows.append(Baseline(first, costs[first], fits, tuple(also)))
    return sorted(rows, key=lambda b: (b.cost.step_s, b.cost.peak_bytes, b.name))


def first_baselines(record: PlanRecord, most: int) -> list[Baseline]:
    """The fastest baselines; the fastest that fits is among them."""
    rows = ranked_baselines(record)
    shown = rows[:most]
    first_fit = next((b for b in rows if b.fits), None)
    if first_fit is not None and first_fit not in shown:
        shown[-1] = first_fit
    return shown


def inapplicable(record: PlanRecord) -> dict[str, list[str]]:
    """{why a tactic does not apply: the tactics}; of a composition, why its part does not."""
    out: dict[str, list[str]] = {}
    for name, row in record.baselines.items():
        if isinstance(row, str):
            out.setdefault(row.rpartition("): ")[2], []).append(name)
    return out


def same_cost(a: Cost, b: Cost) -> bool:
    """Whether two costs are equal but for rounding: the plans then do the same."""
    pairs = ((a.compute_s, b.compute_s), (a.link_s, b.link_s), (a.peak_bytes, b.peak_bytes))
    return all(abs(x - y) <= SAME * max(abs(x), abs(y)) for x, y in pairs)


def matching_baseline(record: PlanRecord) -> Baseline | None:
    """The named tactic that costs exactly what the plan costs, if any."""
    cost = record.cost
    return next((b for b in ranked_baselines(record) if same_cost(b.cost, cost)), None)


def next_best(record: PlanRecord) -> Baseline | None:
    """The fastest named tactic that fits and is not the plan itself."""
    cost = record.cost
    return next(
        (b for b in ranked_baselines(record) if b.fits and not same_cost(b.cost, cost)), None
    )


def lines_that_move(record: PlanRecord) -> list[Line]:
    """The collectives with those of repeated layers as one row, most seconds first."""
    out: dict[Line, Line] = {}
    for c in record.collectives:
        key = Line(c.kind, c.axes, c.bytes, short_source(c.source), alike(c.cause))
        known = out.get(key, key)
        out[key] = replace(
            key, count=known.count + c.count, seconds=known.seconds + c.count * c.seconds,
            hidden_s=known.hidden_s + c.count * c.hidden_s,
        )  # fmt: skip
    return sorted(out.values(), key=lambda line: -line.seconds)


def lines_that_compute(record: PlanRecord) -> tuple[LineWork, ...]:
    """The user's lines by the seconds that they compute, most first."""
    line = record.timeline
    rows = line.lines or [  # an older file has the lines that its spans are named after
        LineWork(span.source, span.op, line.runs(span.region) * span.compute_s)
        for span in line.spans
    ]
    return lines_of(replace(row, source=short_source(row.source) or NO_LINE) for row in rows)


def why_nothing_is_split(record: PlanRecord) -> str:
    """Why one device is as fast as all of them: what the best split would save and add."""
    cost, head = record.cost, "nothing is split: every device computes the whole step"
    given = constraints(record)
    if given:
        return f"{head}, as {given} ask"
    best = next_best(record)
    if best is None:
        return f"{head}; no named tactic applies"
    saved, added = cost.compute_s - best.cost.compute_s, best.cost.link_s - cost.link_s
    if saved <= 0:
        return f"{head}; the best split, {best.name}, would not even save compute"
    return (
        f"{head}. It is small, {human_seconds(cost.step_s)} on one device: the best split,"
        f" {best.name}, would save {human_seconds(saved)} of compute and add"
        f" {human_seconds(added)} on the links. A larger batch or model would gain"
    )


def warnings(record: PlanRecord) -> list[str]:
    """What the user should know before trusting the plan."""
    out = []
    if record.opaque:
        names = [f"{name} x{count}" for name, count in record.opaque.items()]
        out.append(
            f"no rule for {listed(names, 4)}: computed in full on every device;"
            " see shardwright.rule"
        )  # fmt: skip
    if record.replicated and any(record.decisions.values()):  # else nothing is split at all
        sizes: dict[str, int] = {}
        for row in record.replicated:
            path = short_path(any_layer(row.path))
            sizes[path] = sizes.get(path, 0) + row.bytes
        rows = [f"{path} ({human_bytes(size)})" for path, size in sizes.items()]
        out.append(f"replicated on every device: {listed(rows, 3)}")
    if record.search.interrupted:
        out.append("the search was interrupted: this is the best found so far")
    if record.search.timed_out:
        out.append(
            f"the wall clock ended the search (timeout={record.asked.timeout:g}): this is the best"
            " found so far, and another machine may find another plan"
        )
    peak, limit = record.cost.peak_bytes, record.limit_bytes
    if limit < peak:
        out.append(f"over memory: {human_bytes(peak)} of {human_bytes(limit)}")
    return out
