"""What print(plan) shows: the plan on one screen."""

from __future__ import annotations

import math

from shardwright.record.types import PlanRecord
from shardwright.report import facts
from shardwright.report.causes import phrase
from shardwright.report.pattern import BATCH, RESIDUAL, SEQUENCE, also_known_as, axis_pattern, roles
from shardwright.report.words import (
    change,
    columns,
    human_bytes,
    human_seconds,
    listed,
    percent,
    short_path,
    short_source,
    times,
)  # fmt: skip

COLLECTIVES, BASELINES, ENTRIES = 6, 7, 6  # rows shown
WIDTH = 128  # columns; `explain` and the page show rows whole
NOTES = {BATCH: "batch", SEQUENCE: "sequence", RESIDUAL: "residual stream"}
LEAST = 1e-3  # of the peak: kinds of memory with less are not shown


def format_plan(record: PlanRecord) -> str:
    """The plan on one screen: decisions, cost, memory, movements, comparison, proof, notes."""
    blocks = [
        f"{record.program} on {record.mesh.size} x {record.device.name}"
        f"{' (the default device)' * record.asked.default_device}, mesh {record.mesh}",
        format_decisions(record),
        format_costs(record),
        format_collectives(record),
        format_meshes(record),
        format_baselines(record),
        format_certificate(record),
    ]
    told = [f"note: {line}" for line in record.notes]
    told += [f"warning: {line}" for line in facts.warnings(record)]
    blocks.append("\n".join(told))
    text = "\n\n".join(block for block in blocks if block)
    return "\n".join(_clipped(line) for line in text.splitlines())


def _clipped(line: str) -> str:
    """A row of a table cut to the screen; sentences stay whole."""
    return line if len(line) <= WIDTH or not line.startswith("  ") else line[: WIDTH - 3] + "..."


def format_decisions(record: PlanRecord) -> str:
    """One block per axis: what it is used for, then the dims that claim it, in order."""
    groups = {g.label: g for g in record.groups}
    named, heads, rows = roles(record), [], []
    for axis, claims in record.decisions.items():
        heads.append((f"{axis}={record.mesh.shape[axis]}", axis_pattern(claims, named)))
        for i, claim in enumerate(claims[:ENTRIES]):
            group = groups.get(claim.group)
            role = NOTES.get(named.get(claim.group, ""))
            about = [role] if role else []
            about += facts.claim_notes(claim, resolved=group is not None and group.bits > 0)
            dims = listed([short_path(d) for d in group.dims], 2) if group else ""
            sizes = "/".join(map(str, group.sizes[:2])) if group else ""
            rows.append((
                axis if i == 0 else "", claim.group, sizes,
                ", ".join(about) + (": " if about else "") + dims,
            ))  # fmt: skip
        if len(claims) > ENTRIES:
            rows.append(("", f"+{len(claims) - ENTRIES} more", "", ""))
    name = also_known_as(record)
    text = columns(heads, indent=0) + (f"\nin all: {name}" if name else "")
    text += "\n\nan array is split over an axis along the first of these dims that it has\n"
    text += columns(rows, right=(2,)) if rows else "  nothing is split"
    if record.overrides:
        text += "\n\nexcept these, which are stored as\n" + columns(_overrides(record))
    return text


def _overrides(record: PlanRecord) -> list[tuple[str, str]]:
    """How single layouts are stored, and what they are."""
    rows = [
        (row.stored, listed([short_source(short_path(what)) for what in row.what], 2))
        for row in record.overrides
    ]
    more = len(rows) - ENTRIES
    return rows[:ENTRIES] + ([(f"+{more} more", "")] if more > 0 else [])


def format_costs(record: PlanRecord) -> str:
    """Seconds and bytes of one step on one device, and what they are made of."""
    cost, memory, limit = record.cost, record.memory, record.limit_bytes
    kinds = sorted(memory.by_kind.items(), key=lambda row: (-row[1], row[0]))
    kinds = [(kind, size) for kind, size in kinds if size >= LEAST * cost.peak_bytes]
    step = cost.step_s
    lines = [
        f"predicted step  {human_seconds(step)}, {facts.bound(record)}: compute"
        f" {human_seconds(cost.compute_s)} ({percent(cost.compute_s, step)}), links"
        f" {human_seconds(cost.link_s)} ({percent(cost.link_s, step)})",
    ]
    if cost.hidden_s:
        lines.append(
            f"                of the links {human_seconds(cost.hidden_s)} hidden behind compute,"
            f" {human_seconds(cost.exposed_s)} exposed ({percent(cost.exposed_s, step)})"
        )
    lines += [
        f"peak memory     {human_bytes(cost.peak_bytes)} of {human_bytes(limit)}"
        f" ({percent(cost.peak_bytes, limit)}) at {memory.at}",
        "                " + ", ".join(f"{kind} {human_bytes(size)}" for kind, size in kinds),
    ]
    return "\n".join(lines)


def format_collectives(record: PlanRecord, most: int = COLLECTIVES) -> str:
    """The movements that take most seconds, with the user's line and the cause."""
    rows = facts.lines_that_move(record)
    if not rows:
        return "links: nothing moves between devices"
    total = sum(line.seconds for line in rows)
    shown = [
        (
            human_seconds(line.seconds), line.kind, "+".join(line.axes), human_bytes(line.bytes),
            times(line.count), f"{line.source}: {phrase(line.cause)}",
        )
        for line in rows[:most]
    ]  # fmt: skip
    left = rows[most:]
    more = ""
    if left:
        rest = sum(line.seconds for line in left)
        more = f"\n  ... and {len(left)} more, {human_seconds(rest)} together"
    return f"links, {human_seconds(total)} in all\n{columns(shown, right=(0, 3, 4))}{more}"


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
    return "mesh shapes\n" + columns(table, right=(1, 2))


def format_baselines(record: PlanRecord, most: int = BASELINES) -> str:
    """The plan among the named tactics, fastest first."""
    rows = facts.ranked_baselines(record)
    if not rows:
        return ""
    cost, shown = record.cost, facts.first_baselines(record, most)
    table = [("this plan", human_seconds(cost.step_s), human_bytes(cost.peak_bytes), "")]
    for b in shown:
        notes = [] if b.fits else ["over memory"]
        if facts.same_cost(b.cost, cost):
            notes.append("the same")
        else:
            notes.append(change(b.cost.step_s, cost.step_s))
        if b.fits and b.cost.step_s < cost.step_s and record.asked.tactics:
            notes.append("ruled out by your tactics")
        table.append(
            (b.name, human_seconds(b.cost.step_s), human_bytes(b.cost.peak_bytes), ", ".join(notes))
        )
    unfit = sum(1 for b in rows if not b.fits)
    missing = sum(len(names) for names in facts.inapplicable(record).values())
    tail = [f"{len(rows) - len(shown)} more" if len(rows) > len(shown) else ""]
    tail += [f"{unfit} of {len(rows)} over memory" if unfit else ""]
    tail += [f"{missing} do{'es' * (missing == 1)} not apply" if missing else ""]
    note = "; ".join(t for t in tail if t)
    return (
        f"against the named tactics{' under the same pins' * facts.are_pinned(record)}\n"
        + columns(table, right=(1, 2))
        + (f"\n  ... {note}" if note else "")
    )


def format_certificate(record: PlanRecord) -> str:
    """How good the plan provably is, in words.

    The proof speaks of the lists of dims. Single arrays stored otherwise come after it.
    """
    proof = record.certificate
    given = facts.constraints(record)
    space = f"what {given} leave open" if given else "the search space"
    if record.overrides and proof.kind == "optimal":
        return (
            f"proof: the lists are optimal; under the cost model none in {space} takes less than"
            f"\n       {human_seconds(proof.lower_bound_s)} and fits; arrays stored otherwise save"
            " more, which no proof covers"
        )
    if proof.kind == "optimal":
        return f"proof: optimal; under the cost model nothing in {space} is faster and fits"
    if proof.kind == "gap" and proof.gap < math.inf:
        return (
            f"proof: within {proof.gap:.1%} of the optimum; under the cost model nothing in"
            f" {space} takes less than {human_seconds(proof.lower_bound_s)}"
        )
    return "proof: none; the search did not bound what else is possible"
