"""Answers to single questions: why not this tactic, what is this collective, how is this stored.

An answer is a table of facts; its `text` says them in a few lines.
"""

from __future__ import annotations

import difflib
import math
from typing import Any

from shardwright.analysis.labels import fits
from shardwright.cost.cost import Cost
from shardwright.errors import ShardwrightError
from shardwright.record.types import PlanRecord, Spec
from shardwright.report import facts
from shardwright.report.causes import sentence
from shardwright.report.words import (
    change,
    human_bytes,
    human_seconds,
    listed,
    percent,
    short_path,
    short_source,
    spec_text,
    times,
    type_bytes,
    type_shape,
    wrapped,
)  # fmt: skip

Answer = dict[str, Any]


def why_not(record: PlanRecord, tactic: str) -> Answer:
    """What a named tactic would cost beside the plan, or why it does not apply."""
    wanted = "".join(tactic.split())
    found = next((name for name in record.baselines if "".join(name.split()) == wanted), None)
    if found is None:
        near = difflib.get_close_matches(tactic, record.baselines, n=3)
        raise ShardwrightError(
            f"{tactic!r} is none of the {len(record.baselines)} tactics that were priced",
            try_="; ".join(near) or "plan with --tactic to price it",
        )
    row, mine = record.baselines[found], record.cost
    if not isinstance(row, Cost):
        return {"tactic": found, "applies": False, "text": f"{found} does not apply: {row}"}
    fits_ = row.peak_bytes <= record.limit_bytes
    lines = [
        f"{found} takes {human_seconds(row.step_s)}, this plan {human_seconds(mine.step_s)}"
        f" ({change(row.step_s, mine.step_s)}):",
        f"  compute {human_seconds(row.compute_s)} against {human_seconds(mine.compute_s)}",
        f"  links   {human_seconds(row.link_s)} against {human_seconds(mine.link_s)}",
        f"  memory  {human_bytes(row.peak_bytes)} against {human_bytes(mine.peak_bytes)}"
        f" of {human_bytes(record.limit_bytes)}",
    ]
    lines.append(_verdict(record, row, fits_))
    return {
        "tactic": found, "applies": True, "fits": fits_, "step_s": row.step_s,
        "compute_s": row.compute_s, "link_s": row.link_s, "peak_bytes": row.peak_bytes,
        "text": "\n".join(lines),
    }  # fmt: skip


def _verdict(record: PlanRecord, row: Cost, fits_: bool) -> str:
    """One sentence: why another plan was not taken."""
    mine = record.cost
    if facts.same_cost(row, mine):
        return "It is this plan."
    if not fits_:
        over = human_bytes(row.peak_bytes - record.limit_bytes)
        return f"It does not fit: {over} too much per device."
    if row.step_s < mine.step_s:
        given = facts.constraints(record)
        return f"It is faster, but {given} ask for something else." if given else "It is faster."
    if row.link_s > mine.link_s and row.compute_s <= mine.compute_s:
        return "It moves more than it saves."
    if row.compute_s > mine.compute_s:
        return "It leaves devices with more to compute."
    return "It is slower."


def about_collective(record: PlanRecord, number: int) -> Answer:
    """What the collective that takes `number`th most time is there for; layers are one row."""
    rows = facts.lines_that_move(record)
    if not rows:
        raise ShardwrightError("nothing moves between devices in this plan")
    if not 1 <= number <= len(rows):
        raise ShardwrightError(
            f"the plan has {len(rows)} kinds of collectives, not {number}", try_="--collective 1"
        )
    line = rows[number - 1]
    total = sum(row.seconds for row in rows)
    text = [
        f"{line.kind} over {'+'.join(line.axes)}: {human_bytes(line.bytes)} {times(line.count)}",
        f"  at     {line.source}",
        wrapped(f"  why    {short_path(sentence(line.cause))}", indent=9),
        f"  takes  {human_seconds(line.seconds)} a step,"
        f" {percent(line.seconds, total)} of the links"
        + (f"; {percent(line.hidden_s, line.seconds)} of it is hidden" if line.hidden_s else ""),
    ]
    return {
        "kind": line.kind, "axes": line.axes, "bytes": line.bytes, "count": line.count,
        "seconds": line.seconds, "hidden_s": line.hidden_s, "source": line.source,
        "cause": short_path(sentence(line.cause)), "text": "\n".join(text),
    }  # fmt: skip


def about_array(record: PlanRecord, path: str) -> Answer:
    """How an array is stored, what a device holds of it, and which decision says so."""
    name, type_, spec = find_array(record, path)
    shards = record.mesh.shards(spec)
    local = local_shape(type_, spec, record.mesh.shape)
    bytes_ = type_bytes(type_)
    text = [f"{short_path(name)}: {type_}", f"  spec    {spec_text(spec)}"]
    text.append(f"  local   {local}, {human_bytes(bytes_ / shards)} of {human_bytes(bytes_)}")
    copies = record.mesh.size // shards
    held = "every device holds all of it" if shards == 1 else f"{shards} shards"
    text.append(f"  held    {held}, {copies} copies" if 1 < copies < record.mesh.size else
                f"  held    {held}")  # fmt: skip
    text += [f"  because {why}" for why in _claims_on(record, name, spec)]
    return {
        "path": name, "type": type_, "spec": spec, "local": local, "bytes": bytes_,
        "local_bytes": bytes_ / shards, "shards": shards, "text": "\n".join(text),
    }  # fmt: skip


def find_array(record: PlanRecord, path: str) -> tuple[str, str, Spec]:
    """(path, type, spec) of the first argument, result or intermediate that fits a path.

    An intermediate is named by its line, file.py:12, or by line and function.
    """
    known = {
        **{p: (record.arguments[p], spec) for p, spec in record.specs.items()},
        **{p: (record.results[p], spec) for p, spec in record.result_specs.items()},
    }
    for pattern in (path, f"*.{path}"):
        for name, (type_, spec) in known.items():
            if fits(name, pattern):
                return name, type_, spec
    for row in record.arrays:
        line = short_source(row.source)
        if path in (line, line.split(" ")[0], f"{row.op} at {line}"):
            return f"{row.op} at {line}", row.type, row.spec
    short = [short_path(name) for name in known]
    near = difflib.get_close_matches(path, short, n=3, cutoff=0.4)
    raise ShardwrightError(f"the plan has no array {path!r}", try_=listed(near or short, 6))


def local_shape(type_: str, spec: Spec, sizes: dict[str, int]) -> str:
    """f32[8/4,16]: the type with what each dim is divided by."""
    shape = type_shape(type_)
    parts = [math.prod(sizes[axis] for axis in on) for on in spec] or [1] * len(shape)
    texts = [f"{n}/{p}" if p > 1 else str(n) for n, p in zip(shape, parts, strict=True)]
    return f"{type_.partition('[')[0]}[{','.join(texts)}]"


def _claims_on(record: PlanRecord, path: str, spec: Spec) -> list[str]:
    """The decisions that split an array: over which axis, with which other dims."""
    groups = {g.label: g for g in record.groups}
    out = []
    for dim, on in enumerate(spec):
        for axis in on:
            here = [groups[c.group] for c in record.decisions[axis] if c.group in groups]
            claimed = [g.label for g in here if any(fits(f"{path}[{dim}]", d) for d in g.dims)]
            why = f", like all of {claimed[0]}" if claimed else ""
            out.append(f"dim {dim} is split over {axis}{why}")
    return out
