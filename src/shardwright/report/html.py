"""The plan as one self-contained page: no network, one script of ours, everything escaped.

The page is whole without its script, which adds sorting, filters and readouts. A policy in its
head lets no other script run, whatever the names in a plan are.
"""

from __future__ import annotations

import html
import math
from typing import Any

from shardwright.record.types import PlanRecord
from shardwright.report import facts, sections
from shardwright.report.axes import axis_sentences
from shardwright.report.charts import pareto
from shardwright.report.diff import changed_specs, cost_changes, diff_plans
from shardwright.report.explain import explain
from shardwright.report.mesh_drawing import draw_mesh
from shardwright.report.pages import render, script
from shardwright.report.pattern import also_known_as
from shardwright.report.questions import find_array
from shardwright.report.rates import mfu, throughput
from shardwright.report.text import certificate_words
from shardwright.report.words import human_count, percent, short_source

MOVES = 60  # rows shown


def to_html(record: PlanRecord) -> str:
    """One page with everything the plan says."""
    return render("plan.html.j2", view(record))


def first_screen(record: PlanRecord) -> str:
    """The page's first screen, without script."""
    return render("notebook.html.j2", header(record))


def array_page(record: PlanRecord, path: str) -> str:
    """A small page with one array on the mesh."""
    name, type_, spec = find_array(record, path)
    page = {
        "name": name, "mesh": str(record.mesh), "drawing": draw_mesh(record.mesh, spec),
        "caption": sections.array_caption(record, type_, spec),
    }  # fmt: skip
    return render("array.html.j2", page)


def in_a_frame(page: str, height: int) -> str:
    """A page as a piece of another: a frame that shares neither styles nor scripts with it."""
    return (
        f'<iframe sandbox srcdoc="{html.escape(page)}" title="Shardwright"'
        f' style="width:100%;height:{height}px;border:0"></iframe>'
    )


def side_by_side(a: PlanRecord, b: PlanRecord) -> str:
    """One page with two plans: figures, steps on one axis of time, what differs."""
    whole_s = max(one.cost.compute_s + one.cost.link_s for one in (a, b))
    highest = max(max(one.cost.peak_bytes for one in (a, b)), 1)
    plans = [
        header(one) | {"step": sections.step_chart(one, whole_s, highest)} for one in (a, b)
    ]  # fmt: skip
    page = {
        "plans": plans, "specs": changed_specs(a.specs, b.specs), "diff": diff_plans(a, b),
        "changes": cost_changes(a, b),
        "data": {"steps": [plan["step"]["data"] for plan in plans], "points": []},
    }  # fmt: skip
    return render("beside.html.j2", page | script())


def header(record: PlanRecord) -> dict[str, Any]:
    """The first screen: what is decided, and the figures."""
    cost, limit = record.cost, record.limit_bytes
    share, rate = mfu(record), throughput(record)
    split = any(record.decisions.values())
    return {
        "program": record.program, "device": record.device.name, "count": record.mesh.size,
        "mesh": str(record.mesh), "cost": cost, "limit": limit, "bound": facts.bound(record),
        "axes": [
            {"name": axis, "size": record.mesh.shape[axis], "sentence": text}
            for axis, text in axis_sentences(record).items()
        ] if split else [],
        "nothing": "" if split else facts.why_nothing_is_split(record),
        "tactic": also_known_as(record), "memory_share": percent(cost.peak_bytes, limit),
        "mfu": percent(share, 1.0) if share is not None else "",
        "rate": (human_count(rate[0]), rate[1]) if rate is not None else (),
        "proof": record.certificate, "infinity": math.inf, "steered": facts.constraints(record),
        "time": sections.time_parts(record), "memory": sections.memory_parts(record),
        "peak_at": short_source(record.memory.at),
    }  # fmt: skip


def view(record: PlanRecord) -> dict[str, Any]:
    """What the template shows, in its order."""
    moves, step = facts.lines_that_move(record), sections.step_chart(record)
    arrays, points = sections.arrays(record), sections.scatter(pareto(record), record.limit_bytes)
    return header(record) | script() | {
        "warnings": facts.warnings(record), "notes": record.notes,
        "step": step, "arrays": arrays, "points": points,
        "lists": sections.lists(record), "overrides": record.overrides,
        "buffers": record.memory.buffers[:12], "tactics": sections.tactics(record),
        "pinned": facts.are_pinned(record), "shapes": facts.mesh_shapes(record),
        "inapplicable": facts.inapplicable(record), "functions": sections.by_function(record),
        "layers": sections.by_layer(record), "kinds": sorted({line.kind for line in moves}),
        "moves": moves[:MOVES], "moves_left": max(0, len(moves) - MOVES),
        "specs": sections.arguments(record), "groups": sections.groups(record),
        "explanation": explain(record), "certificate": certificate_words(record),
        "search": sections.search_chart(record),
        "fingerprint": record.fingerprint, "ops": record.ops,
        "data": {
            "steps": [step["data"]], "points": points["data"],
            "captions": [array["caption"] for array in arrays["rows"]],
            "drawings": [array["drawing"] for array in arrays["rows"]],
        },
    }  # fmt: skip
