"""A comparison as text and as a page."""

from __future__ import annotations

import functools
from typing import Any

import jinja2

from shardwright.record.comparison import ComparisonRecord, Row
from shardwright.report.pages import environment
from shardwright.report.words import change, columns, counted, human_bytes, human_seconds, percent

QUICK = "quick look: cannot be best"  # of a row that was not searched


def format_comparison(record: ComparisonRecord) -> str:
    """The table, fastest first, then what has no plan; the best row and the Pareto front."""
    order = ranked(record)
    front = set(record.pareto)
    head = ("", "variant", "mesh", "devices", f"per {record.per}", "step", "memory", "")
    table = [head]
    for i in order:
        row = record.rows[i]
        mark = "*" if i == record.best else "+" if i in front else ""
        table.append((
            mark, row.variant, row.mesh, f"{row.devices} x {row.device}", *_figures(row),
            note(record, row),
        ))  # fmt: skip
    lines = [columns(table, right=(4, 5, 6), indent=0)]
    if record.best is not None:
        row = record.rows[record.best]
        lines.append(f"* best: {row.variant} on {row.mesh}, {row.devices} x {row.device}")
    else:
        lines.append("no variant fits")
    if len(front) > 1:
        lines.append("* + the Pareto front of time against memory")
    return "\n".join(lines)


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
    if row.why:
        return row.why
    said = [f"the same program as {row.same_as}"] if row.same_as else []
    best = record.rows[record.best].item_s if record.best is not None else None
    if best and row.item_s and row.item_s > best and not row.same_as:
        said.append(change(row.item_s, best))
    if not row.searched:
        said.append(QUICK)
    return ", ".join(said)


def comparison_html(record: ComparisonRecord) -> str:
    """One self-contained page: the table, and every row as a point of time and memory."""
    return _template().render(
        record=record, rows=[(i, record.rows[i]) for i in ranked(record)], points=points(record),
        note=functools.partial(note, record),
    )  # fmt: skip


@functools.cache
def _template() -> jinja2.Template:
    return environment(counted=counted, percent=percent).get_template("comparison.html.j2")


WIDTH, HEIGHT = 640, 280  # of the drawing, in its own units


def points(record: ComparisonRecord) -> dict[str, Any]:
    """Rows with a plan as points: seconds per item across, bytes up, both from 0."""
    known = [(i, r) for i, r in enumerate(record.rows) if r.cost is not None]
    most_s = max((r.item_s or 0.0 for _, r in known), default=0.0) or 1.0
    most_bytes = max((r.cost.peak_bytes for _, r in known if r.cost), default=0) or 1
    at = {
        i: (
            round(WIDTH * (r.item_s or 0.0) / most_s, 1),
            round(HEIGHT * (1 - (r.cost.peak_bytes if r.cost else 0) / most_bytes), 1),
        )
        for i, r in known
    }
    return {
        "at": at, "front": [at[i] for i in record.pareto], "width": WIDTH, "height": HEIGHT,
        "most_s": most_s, "most_bytes": most_bytes,
    }  # fmt: skip
