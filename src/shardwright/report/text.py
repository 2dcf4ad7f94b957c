"""What print(plan) shows: the decision, the figures, where they come from, what else there was."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardwright.record.types import PlanRecord
from shardwright.report import facts
from shardwright.report.axes import axis_sentences
from shardwright.report.causes import brief
from shardwright.report.pattern import also_known_as
from shardwright.report.rates import mfu, throughput
from shardwright.report.words import (
    WIDTH,
    change,
    columns,
    counted,
    gap_text,
    human_bytes,
    human_count,
    human_seconds,
    listed,
    percent,
    several,
    short,
    short_source,
    times,
    wrapped,
)  # fmt: skip

COMPUTE, COLLECTIVES, BUFFERS, BASELINES, OVERRIDES = 3, 5, 3, 6, 4  # rows shown
LEAST = 1e-3  # of the peak: kinds of memory with less are not shown
SHOWN = 0.01  # of the compute: lines with less are not shown


def format_plan(record: PlanRecord) -> str:
    """The plan on one screen of 80 columns."""
    blocks = [
        wrapped(
            f"{record.program} on {record.mesh.size} x {record.device.name}"
            f"{' (the default device)' * record.asked.default_device}, mesh {record.mesh}"
        ),
        format_decisions(record),
        format_figures(record),
        format_time(record),
        format_memory(record),
        format_meshes(record),
        format_baselines(record),
        wrapped(f"proof: {certificate_words(record)}", indent=7),
    ]
    told = [f"note: {line}" for line in record.notes]
    told += [f"warning: {line}" for line in facts.warnings(record)]
    blocks.append("\n".join(wrapped(line, indent=2) for line in told))
    return "\n\n".join(block for block in blocks if block)


def format_decisions(record: PlanRecord) -> str:
    """A sentence per axis; single arrays that are stored otherwise."""
    if not any(record.decisions.values()):
        return wrapped(f"{facts.why_nothing_is_split(record)}.")
    rows = [
        (f"{axis} ({record.mesh.shape[axis]}):", sentence)
        for axis, sentence in axis_sentences(record).items()
    ]
    text = columns(rows, indent=0, width=WIDTH)
    if name := also_known_as(record):
        text += "\n" + wrapped(f"this is {name}", indent=2)
    if record.overrides:
        text += "\nexcept, because it is faster\n" + columns(_overrides(record), width=WIDTH)
    return text


def _overrides(record: PlanRecord) -> list[tuple[str, str, str]]:
    """How single arrays are stored, and what they are."""
    rows = [
        (
            facts.stored_how(row), row.stored,
            listed(list(map(short, row.what)), 2),
        )
        for row in record.overrides
    ]  # fmt: skip
    more = len(rows) - OVERRIDES
    return rows[:OVERRIDES] + ([("...", "", f"{more} more")] if more > 0 else [])


def format_figures(record: PlanRecord) -> str:
    """Seconds and bytes of one step on one device, and the rates that follow."""
    cost, memory, limit = record.cost, record.memory, record.limit_bytes
    rows = [("step", f"{human_seconds(cost.step_s)}: {time_split(record)}")]
    if rates := format_rates(record):
        rows.append(("", rates))
    kinds = sorted(memory.by_kind.items(), key=lambda row: (-row[1], row[0]))
    kinds = [(kind, size) for kind, size in kinds if size >= LEAST * cost.peak_bytes]
    rows += [
        ("memory", f"{human_bytes(cost.peak_bytes)} of {human_bytes(limit)}"
         f" ({percent(cost.peak_bytes, limit)}) per device: "
         + ", ".join(f"{kind} {human_bytes(size)}" for kind, size in kinds)),
    ]  # fmt: skip
    return columns(rows, indent=0, width=WIDTH)


def time_split(record: PlanRecord) -> str:
    """compute 4.19 s (91%), links 407 ms (9%)"""
    cost = record.cost
    hidden = f", of which {human_seconds(cost.exposed_s)} exposed" if cost.hidden_s else ""
    host = f"; copies to the host and back {human_seconds(cost.host_s)}" if cost.host_s else ""
    return (
        f"compute {human_seconds(cost.compute_s)} ({percent(cost.compute_s, cost.step_s)}),"
        f" links {human_seconds(cost.link_s)}{hidden} ({percent(cost.exposed_s, cost.step_s)})"
        f"{host}"
    )


def format_rates(record: PlanRecord) -> str:
    """MFU 54%, 114,000 tokens/s; nothing where the program does not show it."""
    share, rate = mfu(record), throughput(record)
    parts = [f"MFU {percent(share, 1.0)}"] if share is not None else []
    parts += [f"{human_count(rate[0])} {rate[1]}/s"] if rate is not None else []
    return ", ".join(parts)


def format_time(record: PlanRecord) -> str:
    """Where the time of a step goes: the user's lines that compute and move longest."""
    total = record.cost.compute_s
    lines = facts.lines_that_compute(record)
    shown = [line for line in lines[:COMPUTE] if line.compute_s >= SHOWN * total]
    table = [
        (
            human_seconds(line.compute_s),
            percent(line.compute_s, total),
            f"{line.op} at {line.source}",
        )
        for line in shown
    ]
    text = f"compute, {human_seconds(total)} in all\n{columns(table, right=(0, 1), width=WIDTH)}"
    left = lines[len(shown) :]
    if left:
        rest = sum(line.compute_s for line in left)
        text += f"\n  ... and {counted(len(left), 'more line')}, {human_seconds(rest)} together"
    return "\n".join([text] * bool(shown) + [format_collectives(record)])


def format_collectives(record: PlanRecord, most: int = COLLECTIVES) -> str:
    """The movements that take most seconds, with what moves and the user's line."""
    rows = facts.lines_that_move(record)
    if not rows:
        return "links: nothing moves between devices"
    total = sum(line.seconds for line in rows)
    shown = [
        (
            human_seconds(line.seconds), line.kind, "+".join(line.axes), human_bytes(line.bytes),
            times(line.count), f"{brief(line.cause)}, {line.source.split(' ')[0]}",
        )
        for line in rows[:most]
    ]  # fmt: skip
    left = rows[most:]
    more = ""
    if left:
        rest = sum(line.seconds for line in left)
        more = f"\n  ... and {len(left)} more, {human_seconds(rest)} together"
    table = columns(shown, right=(0, 3, 4), width=WIDTH)
    return f"links, {human_seconds(total)} in all\n{table}{more}"


def format_memory(record: PlanRecord) -> str:
    """Where the memory goes at the peak: the largest buffers there."""
    buffers = record.memory.buffers[:BUFFERS]
    if not buffers:
        return ""
    rows = [(human_bytes(b.bytes), b.kind, several(b.count, b.shape, b.where)) for b in buffers]
    head = wrapped(f"memory, highest at {short_source(record.memory.at)}", indent=2)
    return f"{head}\n{columns(rows, right=(0,), width=WIDTH)}"


def format_meshes(record: PlanRecord) -> str:
    """The mesh shapes that were compared, when the user left the shape open."""
    rows = facts.mesh_shapes(record)
    if not rows:
        return ""
    table = [
        (
            str(row), human_seconds(row.step_s) if row.step_s is not None else "-",
            human_bytes(row.peak_bytes) if row.peak_bytes is not None else "-", note,
        )
        for row, note in rows
    ]  # fmt: skip
    return "mesh shapes\n" + columns(table, right=(1, 2), width=WIDTH)


def format_baselines(record: PlanRecord) -> str:
    """The plan among the named tactics, fastest first."""
    rows = facts.ranked_baselines(record)
    if not rows:
        return ""
    shown = facts.first_baselines(record, BASELINES)
    table = [
        (human_seconds(b.cost.step_s), human_bytes(b.cost.peak_bytes), _note(record, b), b.name)
        for b in shown
    ]
    cost = record.cost
    table = [(human_seconds(cost.step_s), human_bytes(cost.peak_bytes), "", "this plan"), *table]
    tail = ", ".join(_not_shown(record, len(rows) - len(shown)))
    return (
        f"what else was possible{' under the same pins' * facts.are_pinned(record)}\n"
        + columns(table, right=(0, 1), width=WIDTH)
        + (f"\n{wrapped(f'  ... {tail}', indent=6)}" if tail else "")
    )


def _note(record: PlanRecord, b: facts.Baseline) -> str:
    """How a tactic compares with the plan."""
    cost = record.cost
    if facts.same_cost(b.cost, cost):
        return "the same"
    note = change(b.cost.step_s, cost.step_s)
    return note if b.fits else f"{note}, OOM"


def _not_shown(record: PlanRecord, left: int) -> Iterator[str]:
    """What is to be said of tactics without a row."""
    rows = facts.ranked_baselines(record)
    unfit = sum(1 for b in rows if not b.fits)
    missing = sum(len(names) for names in facts.inapplicable(record).values())
    if left:
        yield f"{left} more"
    if unfit:
        yield f"{unfit} of {len(rows)} over memory (OOM)"
    if missing:
        yield f"{missing} do{'es' * (missing == 1)} not apply"
    if record.asked.tactics and any(b.fits and b.cost.step_s < record.cost.step_s for b in rows):
        yield "faster ones are ruled out by your tactics"


def certificate_words(record: PlanRecord) -> str:
    """The proof as a sentence without an end."""
    proof = record.certificate
    given = facts.constraints(record)
    space = f"what {given} leave open" if given else "the search space"
    if record.overrides and proof.kind == "optimal":
        least_s = proof.lower_bound_s
        least = "fits" if math.isinf(least_s) else f"takes less than {human_seconds(least_s)}"
        return (
            f"no plan without exceptions is faster and fits; under the cost model none in {space}"
            f" {least}. The exceptions come on top, and no proof covers them"
        )
    if proof.kind == "optimal":
        return f"optimal; under the cost model nothing in {space} is faster and fits"
    if proof.kind == "gap" and proof.gap < math.inf:
        return (
            f"within {gap_text(proof.gap)} of the optimum; under the cost model nothing in {space}"
            f" takes less than {human_seconds(proof.lower_bound_s)}"
        )
    return "none; the search did not bound what else is possible"
