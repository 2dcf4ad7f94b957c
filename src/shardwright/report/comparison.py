"""A comparison as text and as a page."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from shardwright.record.comparison import ComparisonRecord, Row
from shardwright.report.charts import Point
from shardwright.report.pages import render, script
from shardwright.report.sections import scatter
from shardwright.report.words import (
    WIDTH,
    change,
    columns,
    human_bytes,
    human_seconds,
    percent,
    wrapped,
)  # fmt: skip

QUICK = "quick look"  # at a row that was not searched


def format_comparison(record: ComparisonRecord) -> str:
    """The table, fastest first, then what has no plan; the best row and the Pareto front.

    A mesh or device that all rows have in common stands above them. Names come last in a row: they
    may be long, and are wrapped.
    """
    order = [i for i in ranked(record) if record.rows[i].cost is not None]
    rows, front = [record.rows[i] for i in order], set(record.pareto)
    mesh, devices = _same(row.mesh for row in rows), _same(map(_devices, rows))
    table = [("", f"per {record.per}", "step", "memory", "", "variant")]
    for i, row in zip(order, rows, strict=True):
        mark = "*" if i == record.best else "+" if i in front else ""
        where = ", ".join(
            text for text, common in ((row.mesh, mesh), (_devices(row), devices)) if not common
        )
        name = row.variant + (f" on {where}" if where else "")
        said = "; ".join((name, *remarks(row)))
        table.append((mark, *_figures(row), against_best(record, row), said))
    lines = [f"all on {', '.join(filter(None, (mesh, devices)))}"] * bool(mesh or devices)
    lines += [columns(table, right=(1, 2, 3), indent=0, width=WIDTH)] * bool(rows)
    if record.best is not None:
        row = record.rows[record.best]
        lines.append(wrapped(f"* best: {row.variant} on {row.mesh}, {_devices(row)}", indent=2))
    else:
        lines.append("no variant fits")
    if len(front) > 1:
        lines.append("* + the Pareto front of time against memory")
    if any(not row.searched for row in rows):
        lines.append(f"{QUICK}: named tactics only, since no plan of it could be the fastest")
    why: dict[tuple[str, str], list[str]] = {}
    for row in record.rows:
        if row.cost is None:
            why.setdefault((row.variant, row.why), []).append(row.mesh)
    lines += [
        wrapped(f"no plan: {variant} on {'; '.join(dict.fromkeys(meshes))}: {text}", indent=9)
        for (variant, text), meshes in why.items()
    ]
    return "\n".join(lines)


def _devices(row: Row) -> str:
    """8 x h100; h100 alone for a variant that did not trace, whose mesh was not looked at."""
    return f"{row.devices} x {row.device}" if row.devices else row.device


def _same(texts: Iterable[str]) -> str:
    """What all texts are, where there are several; nothing where they differ."""
    found = list(texts)
    return found[0] if len(found) > 1 and len(set(found)) == 1 else ""


def ranked(record: ComparisonRecord) -> list[int]:
    """Rows by seconds per item, those without a plan last."""
    rows = record.rows
    return sorted(range(len(rows)), key=lambda i: (rows[i].cost is None, rows[i].item_s or 0.0, i))


def _figures(row: Row) -> tuple[str, str, str]:
    if row.cost is None or row.item_s is None:
        return "-", "-", "-"
    share = percent(row.cost.peak_bytes, row.limit_bytes)
    return (
        human_seconds(row.item_s), human_seconds(row.cost.step_s),
        f"{human_bytes(row.cost.peak_bytes)} ({share})",
    )  # fmt: skip


def note(record: ComparisonRecord, row: Row) -> str:
    """What else there is to say of a row: why it has no plan, or how it stands to the best."""
    return row.why or ", ".join(filter(None, (against_best(record, row), *remarks(row))))


def against_best(record: ComparisonRecord, row: Row) -> str:
    """How much longer it takes than the best: +7.8%; nothing where it takes no longer."""
    best = record.rows[record.best].item_s if record.best is not None else None
    if best and row.item_s and row.item_s > best and not row.same_as:
        return change(row.item_s, best)
    return ""


def remarks(row: Row) -> list[str]:
    """What a row has in common with another, and how closely it was looked at."""
    said = [f"the same program as {row.same_as}"] if row.same_as else []
    return said if row.searched else [*said, QUICK]


def comparison_html(record: ComparisonRecord) -> str:
    """One self-contained page: the table, and every row as a point of time and memory."""
    shown = points(record)
    plot = scatter(shown) if shown else None
    page = {
        "record": record, "rows": [(i, record.rows[i]) for i in ranked(record)], "points": plot,
        "note": functools.partial(note, record),
        "data": {"steps": [], "points": plot["data"] if plot else []},
    }  # fmt: skip
    return render("comparison.html.j2", page | script())


def points(record: ComparisonRecord) -> list[Point]:
    """Rows with a plan as points of seconds per item and bytes, the best one first."""
    order = sorted(ranked(record), key=lambda i: i != record.best)
    rows = [(i, record.rows[i]) for i in order]
    return [
        Point(
            row.name, row.item_s or 0.0, row.cost.peak_bytes,
            "best" if i == record.best else "variant", row.fits, i in record.pareto,
        )
        for i, row in rows if row.cost is not None
    ]  # fmt: skip
