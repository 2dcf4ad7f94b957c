"""The parts of the page as rows and numbers, each a function of the record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shardwright.cost.breakdown import KINDS
from shardwright.cost.cost import Cost
from shardwright.cost.timeline import Layer
from shardwright.record.types import PlanRecord, Spec
from shardwright.report import facts
from shardwright.report.causes import brief
from shardwright.report.charts import (
    HEIGHT,
    Bar,
    Point,
    Scale,
    memory_areas,
    search_path,
    time_axis,
)
from shardwright.report.claims import claims_of
from shardwright.report.eject import starred
from shardwright.report.mesh_drawing import draw_mesh
from shardwright.report.questions import local_shape
from shardwright.report.region_tree import link_s
from shardwright.report.words import (
    change,
    human_bytes,
    human_seconds,
    short_path,
    short_source,
    spec_text,
    times,
    type_bytes,
)  # fmt: skip

TACTICS, FUNCTIONS, DRAWINGS = 14, 10, 14  # rows, and different drawings of the mesh
TICKS = 4  # intervals of the axis of time
TRACK, TOUCHING = 22, 0.02  # the height of a track, and less than what can be seen on one
ALIKE = 0.02  # relative: layers that differ by less are shown as one row
OUTSIDE = "outside of layers"
POINTS = (  # kinds of points, and what they are called
    ("plan", "this plan"), ("best", "the best"), ("tactic", "named tactics"),
    ("mesh", "other mesh shapes"), ("variant", "other variants"),
)  # fmt: skip
HEADROOM = 1.5  # a limit within so many times the peak is drawn
_MATRIX = ("dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general")


def step_chart(
    record: PlanRecord, whole_s: float | None = None, highest: float | None = None
) -> dict[str, Any]:
    """Tracks of compute and links and the memory below them, on one axis of time."""
    bars, loops = time_axis(record, whole_s)
    tracks: dict[str, list[tuple[float, float, str]]] = {"compute": []}
    for bar in bars:
        if bar.span.compute_s:
            kind = "matrix" if bar.span.op in _MATRIX else "vector"
            tracks["compute"].append((bar.compute, bar.end - bar.compute, kind))
        at = bar.begin
        for row in bar.span.moves:
            c = record.collectives[row]
            width = (bar.compute - bar.begin) * c.seconds / (link_s(record, bar.span) or 1.0)
            track = tracks.setdefault(f"links over {'+'.join(c.axes)}", [])
            hidden = width * c.hidden_s / c.seconds if c.seconds else 0.0
            track += [(at, hidden, "hidden-link")] * (hidden > 0)
            track += [(at + hidden, width - hidden, "link")] * (width > hidden)
            at += width
    peak, limit = record.cost.peak_bytes, record.limit_bytes
    top = highest or (limit if peak <= limit <= HEADROOM * peak else peak) or 1
    return {
        "tracks": {name: _paths(rows) for name, rows in tracks.items()}, "loops": loops,
        "ticks": _ticks(record, whole_s),
        "depth": 1 + max((one.depth for one in loops), default=-1),
        "areas": memory_areas(bars, top), "top": top, "height": HEIGHT,
        "limit_y": HEIGHT * (1 - limit / top) if limit <= top else None,
        "hidden_s": record.cost.compute_s + record.cost.link_s - record.cost.step_s,
        "data": {
            "at": [[round(bar.begin, 2), round(bar.end, 2)] for bar in bars],
            "texts": [_readout(record, bar) for bar in bars],
        },
    }  # fmt: skip


def _paths(rows: list[tuple[float, float, str]]) -> dict[str, str]:
    """{kind: a path of the boxes (x, width, kind) of a track}; boxes that touch are one."""
    ends: dict[str, list[list[float]]] = {}
    for x, width, kind in rows:
        boxes = ends.setdefault(kind, [])
        if boxes and x - boxes[-1][1] < TOUCHING:
            boxes[-1][1] = x + width
        else:
            boxes.append([x, x + width])
    return {
        kind: "".join(f"M{a:.2f} 0H{b:.2f}V{TRACK}H{a:.2f}Z" for a, b in boxes)
        for kind, boxes in ends.items()
    }


def _ticks(record: PlanRecord, whole_s: float | None) -> list[tuple[float, str]]:
    """(percent of the width, time) along the axis, on which compute and links take turns."""
    whole_s = whole_s or record.cost.compute_s + record.cost.link_s
    return [(100 * i / TICKS, human_seconds(whole_s * i / TICKS)) for i in range(TICKS + 1)]


def _readout(record: PlanRecord, bar: Bar) -> list[str]:
    """What stands under the pointer: the line, its seconds, what moves, what is in memory."""
    span, runs = bar.span, bar.runs
    often = f" in {times(runs)[1:]} trips" if runs > 1 else ""
    where = short_source(span.source) or facts.NO_LINE
    texts = [where, f"{span.op}: {human_seconds(runs * span.compute_s)} of compute{often}"]
    if span.moves:
        rows = [record.collectives[row] for row in span.moves]
        named = dict.fromkeys(f"{c.kind} over {'+'.join(c.axes)} ({brief(c.cause)})" for c in rows)
        seconds = runs * link_s(record, span)
        hidden_s = runs * sum(c.hidden_s for c in rows)
        hidden = f" ({human_seconds(hidden_s)} of it hidden)" * (hidden_s > 0)
        texts.append(f"{human_seconds(seconds)} on links{hidden}: {', '.join(list(named)[:3])}")
    held = [f"{k} {human_bytes(b)}" for k, b in zip(KINDS, span.bytes, strict=True) if b]
    texts.append(f"{human_bytes(sum(span.bytes))} in memory: {', '.join(held)}")
    return texts


def arrays(record: PlanRecord) -> dict[str, Any]:
    """Arguments and large intermediates, and the drawings of the mesh that they share."""
    known = {path: (type_, record.specs[path]) for path, type_ in record.arguments.items()}
    rows = [(short_path(path), type_, spec, "arguments")
            for path, (type_, spec) in starred(known).items()]  # fmt: skip
    rows += [
        (f"{row.op} at {short_source(row.source)}", row.type, row.spec, "intermediates")
        for row in record.arrays
    ]
    used: dict[Spec, int] = {}
    out: list[dict[str, Any]] = []
    for name, type_, spec, group in rows:
        if spec not in used and len(used) == DRAWINGS:
            continue
        number = used.setdefault(spec, len(used))
        caption = array_caption(record, type_, spec)
        out.append({
            "number": len(out), "name": name, "group": group, "drawing": number, "caption": caption,
        })  # fmt: skip
    first = next((row["number"] for row in out if any(list(used)[row["drawing"]])), 0)
    drawings = [draw_mesh(record.mesh, spec) for spec in used]
    return {"rows": out, "drawings": drawings, "first": out[first] if out else None}


def array_caption(record: PlanRecord, type_: str, spec: Spec) -> str:
    """What each device holds of an array."""
    size, shards = type_bytes(type_), record.mesh.shards(spec)
    caption = (
        f"{local_shape(type_, spec, record.mesh.shape)}, {spec_text(spec)}: each device holds"
        f" {human_bytes(size / shards)} of {human_bytes(size)}"
    )
    if 1 < shards < record.mesh.size:
        caption += f"; each of {shards} shards is on {record.mesh.size // shards} devices"
    return caption


def scatter(points: Sequence[Point], limit: int | None = None) -> dict[str, Any]:
    """Time against memory: points, the front, ticks, and what a pointer reads."""
    across, up = Scale.of(p.step_s for p in points), Scale.of(p.peak_bytes for p in points)
    rows = [(across.at(p.step_s), round(100 - up.at(p.peak_bytes), 2), p) for p in points]
    front = sorted((row for row in rows if row[2].best), key=lambda row: row[:2])
    texts = [
        [
            p.name,
            f"{human_seconds(p.step_s)}, {human_bytes(p.peak_bytes)}"
            + (" (does not fit)" if not p.fits else "")
            + (", on the front" if p.best else ""),
        ]
        for p in points
    ]
    drawn = limit is not None and up.low < limit < up.high
    return {
        "points": rows, "front": " ".join(f"{x},{y}" for x, y, p in front),
        "kinds": [(kind, name) for kind, name in POINTS if any(p.kind == kind for p in points)],
        "across": [(across.at(v), human_seconds(v)) for v in across.ticks()],
        "up": [(round(100 - up.at(v), 2), human_bytes(v)) for v in up.ticks()],
        "limit": limit, "limit_y": round(100 - up.at(limit), 2) if limit and drawn else None,
        "unfit": any(not p.fits for p in points), "data": texts,
    }  # fmt: skip


def search_chart(record: PlanRecord) -> dict[str, Any]:
    """The best step while the search ran: a falling line, its corners, and the bound."""
    rows, bound = search_path(record), record.certificate.lower_bound_s
    out: dict[str, Any] = {
        "how": record.search.how, "evaluations": record.search.evaluations, "rows": rows,
        "bound": bound if 0 < bound < math.inf else None,
    }  # fmt: skip
    if rows:
        path = f"M{rows[0][0]} {100 - rows[0][1]}"
        path += "".join(f"H{x}V{100 - y:.2f}" for x, y, _ in rows[1:])
        out["path"] = f"{path}H100"
        out["first"] = change(rows[0][2].step_s, rows[-1][2].step_s)
        out["said"] = "; ".join(
            f"{human_seconds(row.step_s)} after {row.evaluations} plans ({row.stage})"
            for _, _, row in rows
        )
    return out


def by_layer(record: PlanRecord) -> list[dict[str, Any]]:
    """Seconds of each layer or loop, links split by collective; neighbours that are alike as one.

    >>> [(row["name"], row["count"]) for row in by_layer(record)]
    [('outside of layers', 1), ('layers[0]', 1), ('layers[1] to layers[79]', 79)]
    """
    folded: list[list[Layer]] = []
    for layer in record.timeline.layers:
        if folded and layer.name and folded[-1][0].name and _alike(folded[-1][0], layer):
            folded[-1].append(layer)
        else:
            folded.append([layer])
    links = [sum(sum(layer.moves.values()) for layer in rows) for rows in folded]
    longest = max(links, default=0.0)
    out = []
    for rows, seconds in zip(folded, links, strict=True):
        first, last, kinds = rows[0].name, rows[-1].name, dict[str, float]()
        for layer in rows:
            for kind, each in layer.moves.items():
                kinds[kind] = kinds.get(kind, 0.0) + each
        out.append({
            "name": f"{first} to {last}" if len(rows) > 1 else short_source(first) or OUTSIDE,
            "count": len(rows), "seconds": seconds, "compute_s": sum(x.compute_s for x in rows),
            "parts": _parts(sorted(kinds.items()), longest),
        })  # fmt: skip
    return out


def _alike(a: Layer, b: Layer) -> bool:
    """Whether two layers take as long, computing and moving."""
    pairs = [(a.compute_s, b.compute_s), (sum(a.moves.values()), sum(b.moves.values()))]
    return all(abs(x - y) <= ALIKE * max(x, y) for x, y in pairs)


def lists(record: PlanRecord) -> list[dict[str, Any]]:
    """Per axis: its size and what claims it."""
    out = []
    for axis, claims in claims_of(record).items():
        rows = []
        for claim in claims:
            notes = ["/".join(map(str, claim.sizes[:2])), *claim.about]
            rows.append({"label": claim.label, "notes": notes, "dims": claim.dims})
        out.append({"name": axis, "size": record.mesh.shape[axis], "claims": rows})
    return out


def _parts(rows: list[tuple[str, float]], total: float) -> list[dict[str, Any]]:
    """Parts of a bar: name, amount and share of the bar's width in percent."""
    return [
        {"name": name, "amount": amount, "width": round(100 * amount / total, 3) if total else 0}
        for name, amount in rows
        if amount
    ]


def time_parts(record: PlanRecord) -> list[dict[str, Any]]:
    """The step as parts of a bar: compute, and the links that do not hide behind it."""
    cost = record.cost
    parts = [("compute", cost.compute_s), ("exposed links", cost.step_s - cost.compute_s)]
    return _parts(parts, cost.step_s)


def memory_parts(record: PlanRecord) -> dict[str, Any]:
    """The peak by kind; the bar is as wide as the limit, or as the peak when that is more."""
    kinds = record.memory.by_kind
    order = [k for k in KINDS if k in kinds] + sorted(set(kinds) - set(KINDS))
    limit, peak = record.limit_bytes, record.cost.peak_bytes
    total = max(limit, peak, 1)
    return {
        "parts": _parts([(kind, kinds[kind]) for kind in order], total),
        "limit_at": round(100 * limit / total, 3),
    }


def tactics(record: PlanRecord) -> dict[str, Any]:
    """The plan and the fastest tactics as bars on one scale."""
    cost, shown = record.cost, facts.first_baselines(record, TACTICS)
    slowest = max([cost.step_s, *(b.cost.step_s for b in shown)])

    def row(
        name: str, c: Cost, fits: bool, mine: bool, also: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        other = "the same" if facts.same_cost(c, cost) else change(c.step_s, cost.step_s)
        return {
            "name": name, "cost": c, "fits": fits, "mine": mine, "also": also,
            "compute": round(100 * c.compute_s / slowest, 3) if slowest else 0,
            "links": round(100 * (c.step_s - c.compute_s) / slowest, 3) if slowest else 0,
            "change": "" if mine else other,
        }  # fmt: skip

    rows = [row("this plan", cost, cost.peak_bytes <= record.limit_bytes, True)]
    rows += [row(b.name, b.cost, b.fits, False, b.also) for b in shown]
    every = len(facts.ranked_baselines(record))
    return {"rows": rows, "left": every - len(shown), "all": every}


def by_function(record: PlanRecord) -> list[dict[str, Any]]:
    """Seconds on links by the function that causes them, split by collective."""
    found: dict[str, dict[str, float]] = {}
    for line in facts.lines_that_move(record):
        file, _, function = line.source.partition(" ")
        name = f"{function} ({file.partition(':')[0]})" if function else file
        kinds = found.setdefault(name, {})
        kinds[line.kind] = kinds.get(line.kind, 0.0) + line.seconds
    rows = sorted(found.items(), key=lambda row: -sum(row[1].values()))
    longest = sum(rows[0][1].values()) if rows else 1.0
    return [
        {"name": name, "seconds": sum(kinds.values()),
         "parts": _parts(sorted(kinds.items()), longest)}
        for name, kinds in rows[:FUNCTIONS]
    ]  # fmt: skip


def arguments(record: PlanRecord) -> list[dict[str, Any]]:
    """Arguments with types, specs and what a device holds; repeated layers as one row."""
    rows = starred({path: (type_, record.specs[path]) for path, type_ in record.arguments.items()})
    out = []
    for path, (type_, spec) in rows.items():
        held = type_bytes(type_) / record.mesh.shards(spec)
        out.append({
            "path": path, "type": type_, "spec": spec, "replicated": not any(spec),
            "local": local_shape(type_, spec, record.mesh.shape), "bytes": held,
        })  # fmt: skip
    return out


def groups(record: PlanRecord) -> list[dict[str, Any]]:
    """Groups of dims with the axes that they claim."""
    used: dict[str, list[str]] = {}
    for axis, claims in record.decisions.items():
        for claim in claims:
            used.setdefault(claim.group, []).append(axis)
    return [{"row": g, "axes": used.get(g.label, [])} for g in record.groups]
