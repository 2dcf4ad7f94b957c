"""Advice as text and as a page."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.cost.residuals import NO_DOTS, NOTHING, Residual
from shardwright.record.comparison import AdviceRecord, Row
from shardwright.report.pages import render
from shardwright.report.words import (
    WIDTH,
    change,
    columns,
    human_bytes,
    human_seconds,
    percent,
    several,
    wrapped,
)

POLICIES = {
    NO_DOTS: "all but results of dots, jax.checkpoint with policy dots_saveable",
    NOTHING: "all inside loops, jax.checkpoint around the loop's body",
}
BUFFERS = 6  # shown of the peak
LEAST = 1e-3  # of a step: a mesh that saves less is no better


def format_advice(record: AdviceRecord) -> str:
    """The peak, what could be recomputed or offloaded, and what could be done instead."""
    now, cost = record.now, record.now.cost
    assert cost is not None
    (at_peak, _, held), (again, names, residuals), (title, _, others) = _sections(record)
    table = columns([(*names[:-1], ""), *residuals], right=(0, 1, 2, 3), width=WIDTH)
    blocks = [
        wrapped(
            f"{record.program} on {now.mesh}, {now.devices} x {now.device}:"
            f" {human_seconds(cost.step_s)} a step, {human_bytes(cost.peak_bytes)} of"
            f" {human_bytes(now.limit_bytes)} per device"
        ),
        f"{at_peak}\n" + columns(held, right=(0,), width=WIDTH),
        f"{again}\n{table if residuals else '  nothing that would lower the peak'}",
        f"{title}\n" + columns(others, width=WIDTH),
        "\n".join(wrapped(f"note: {line}", indent=2) for line in record.notes),
    ]
    return "\n\n".join(block for block in blocks if block)


def peak(record: AdviceRecord) -> list[tuple[str, str]]:
    """(bytes, what) of what stands at the peak."""
    kinds = sorted(record.memory.by_kind.items(), key=lambda row: -row[1])
    rows = [(human_bytes(size), f"{kind}, all") for kind, size in kinds]
    return rows + [
        (human_bytes(b.bytes), f"{b.kind}: {several(b.count, b.shape, b.where)}")
        for b in record.memory.buffers[:BUFFERS]
    ]


def residual(record: AdviceRecord, row: Residual) -> tuple[str, str, str, str, str]:
    """(bytes, bytes saved, seconds to recompute, seconds to offload, what)"""
    step_s = record.now.cost.step_s if record.now.cost else 0.0
    sign = "-" if row.recompute_s < 0 else "+"
    recompute = f"{sign}{human_seconds(abs(row.recompute_s))}"
    share = change(step_s + row.recompute_s, step_s)
    offload = "-" if row.offload_s is None else f"+{human_seconds(row.offload_s)}"
    what = POLICIES.get(row.what) or several(row.count, row.shape, row.what)
    return (
        human_bytes(row.bytes), human_bytes(row.saves_bytes), f"{recompute} ({share})", offload,
        what,
    )  # fmt: skip


def instead(record: AdviceRecord, row: Row) -> str:
    """What another batch, mesh or number of devices brings."""
    now = record.now
    if row.cost is None or row.item_s is None or now.item_s is None or now.cost is None:
        return row.why
    where = "" if row.mesh == now.mesh else f"{row.mesh}: "
    same_work = row.items == now.items and row.devices == now.devices
    if same_work and row.item_s > (1 - LEAST) * now.item_s:
        return f"no other shape of {row.devices} devices is faster"
    return (
        f"{where}{human_seconds(row.item_s)} per {record.per}"
        f" ({change(row.item_s, now.item_s)}), {human_bytes(row.cost.peak_bytes)}"
        f" ({percent(row.cost.peak_bytes, row.limit_bytes)}) per device"
    )


def advice_html(record: AdviceRecord) -> str:
    """One self-contained page."""
    return render("advice.html.j2", {"record": record, "sections": list(_sections(record))})


Table = list[tuple[str, ...]]


def _sections(record: AdviceRecord) -> Iterator[tuple[str, tuple[str, ...], Table]]:
    """(heading, names of the columns, rows)"""
    yield f"At the peak, {record.memory.at}", ("bytes", "what"), [*peak(record)]
    yield (
        "Could be recomputed, or offloaded to the host",
        ("bytes", "saves", "recompute", "offload", "what"),
        [residual(record, row) for row in record.residuals],
    )
    rows: Table = [(row.variant, instead(record, row)) for row in record.instead]
    yield "Instead", ("what", "brings"), rows
