"""The plan as one self-contained page: no network, no scripts, everything escaped."""

from __future__ import annotations

import functools
import math
from typing import Any

import jinja2

from shardwright.cost.cost import Cost
from shardwright.mesh import Mesh
from shardwright.record.types import Claim, PlanRecord
from shardwright.report import facts
from shardwright.report.causes import sentence
from shardwright.report.eject import starred
from shardwright.report.explain import explain
from shardwright.report.pattern import HIDDEN, also_known_as, axis_pattern, pattern, roles
from shardwright.report.text import format_certificate
from shardwright.report.words import (
    change,
    human_bytes,
    human_seconds,
    percent,
    short_path,
    spec_text,
    times,
)  # fmt: skip

KINDS = ("arguments", "optimiser state", "activations", "results", "temporaries")
ROWS, CELLS = 16, 32  # of the drawn mesh, at most
TACTICS, MOVES = 14, 60  # rows shown


def to_html(record: PlanRecord) -> str:
    """One page with everything the plan says."""
    return _template().render(view(record))


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("shardwright.report", "templates"),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {
        "seconds": human_seconds, "bytes": human_bytes, "times": times, "short": short_path,
        "spec": spec_text, "sentence": sentence,
    }  # fmt: skip
    return environment.get_template("plan.html.j2")


def view(record: PlanRecord) -> dict[str, Any]:
    """What the template shows, in its order."""
    cost, limit, moves = record.cost, record.limit_bytes, facts.lines_that_move(record)
    return {
        "program": record.program, "device": record.device.name,
        "count": record.mesh.size, "mesh": str(record.mesh), "pattern": pattern(record),
        "tactic": also_known_as(record), "cost": cost, "limit": limit, "bound": facts.bound(record),
        "memory_share": percent(cost.peak_bytes, limit), "certificate": format_certificate(record),
        "proof": record.certificate, "infinity": math.inf, "steered": facts.constraints(record),
        "pinned": facts.are_pinned(record),
        "warnings": facts.warnings(record), "notes": record.notes,
        "grid": mesh_grid(record.mesh), "axes": _axes(record), "time": _time(record),
        "memory": _memory(record), "peak_at": record.memory.at,
        "buffers": record.memory.buffers[:12], "tactics": _tactics(record),
        "shapes": facts.mesh_shapes(record),
        "inapplicable": facts.inapplicable(record), "moves": moves[:MOVES],
        "moves_left": max(0, len(moves) - MOVES),
        "specs": _specs(record), "groups": _groups(record), "explanation": explain(record),
        "fingerprint": record.fingerprint, "ops": record.ops,
        "evaluations": record.search.evaluations,
    }  # fmt: skip


def mesh_grid(mesh: Mesh) -> dict[str, Any]:
    """The mesh as rows and columns: the first axis down, the others across."""
    (first, rows), *rest = mesh.axes
    if not rest:
        first, rows, rest = "", 1, [(first, rows)]
    across = math.prod(size for _, size in rest)
    shown_rows, shown = min(rows, ROWS), min(across, CELLS)
    inner = rest[-1][1] if len(rest) > 1 else across
    return {
        "down": f"{first} = {rows}" if first else "",
        "across": " x ".join(f"{n} = {s}" for n, s in rest),
        "cells": [
            {"x": c * 18 + (c // inner) * 8, "y": r * 18, "number": r * across + c}
            for r in range(shown_rows) for c in range(shown)
        ],
        "width": shown * 18 + (max(shown - 1, 0) // inner) * 8, "height": shown_rows * 18,
        "cut": rows > ROWS or across > CELLS,
    }  # fmt: skip


def _axes(record: PlanRecord) -> list[dict[str, Any]]:
    """Per axis: its size, what it is used for, and what claims it."""
    groups, named = {g.label: g for g in record.groups}, roles(record)

    def view_of(claim: Claim) -> dict[str, Any]:
        group, role = groups.get(claim.group), named.get(claim.group, HIDDEN)
        about = ["/".join(map(str, group.sizes[:2])) if group else ""] + [role] * (role != HIDDEN)
        about += facts.claim_notes(claim, group)
        return {"label": claim.group, "notes": about, "dims": group.dims if group else ()}

    return [
        {
            "name": axis, "size": record.mesh.shape[axis], "pattern": axis_pattern(claims, named),
            "claims": [view_of(claim) for claim in claims],
        }
        for axis, claims in record.decisions.items()
    ]  # fmt: skip


def _parts(rows: list[tuple[str, float]], whole: float) -> list[dict[str, Any]]:
    """Parts of a bar: name, amount and share of the bar's width in percent."""
    return [
        {"name": name, "amount": amount, "width": round(100 * amount / whole, 3) if whole else 0}
        for name, amount in rows
        if amount
    ]


def _time(record: PlanRecord) -> list[dict[str, Any]]:
    cost = record.cost
    both = cost.compute_s + cost.link_s
    return _parts([("compute", cost.compute_s), ("links", cost.link_s)], both)


def _memory(record: PlanRecord) -> dict[str, Any]:
    """The peak by kind; the bar is as wide as the limit, or as the peak when that is more."""
    kinds = record.memory.by_kind
    order = [k for k in KINDS if k in kinds] + sorted(set(kinds) - set(KINDS))
    limit, peak = record.limit_bytes, record.cost.peak_bytes
    whole = max(limit, peak, 1)
    return {
        "parts": _parts([(kind, kinds[kind]) for kind in order], whole),
        "limit_at": round(100 * limit / whole, 3),
    }


def _tactics(record: PlanRecord) -> dict[str, Any]:
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


def _specs(record: PlanRecord) -> list[dict[str, Any]]:
    """Arguments with their types and specs; repeated layers as one row."""
    rows = starred({path: (type_, record.specs[path]) for path, type_ in record.arguments.items()})
    return [
        {"path": path, "type": type_, "spec": spec, "replicated": not any(spec)}
        for path, (type_, spec) in rows.items()
    ]


def _groups(record: PlanRecord) -> list[dict[str, Any]]:
    used: dict[str, list[str]] = {}
    for axis, claims in record.decisions.items():
        for claim in claims:
            used.setdefault(claim.group, []).append(axis)
    return [{"row": g, "axes": used.get(g.label, [])} for g in record.groups]
