"""Why a plan splits the program as it does, in words."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.record.types import PlanRecord
from shardwright.report import facts
from shardwright.report.axes import axis_sentences
from shardwright.report.causes import sentence
from shardwright.report.claims import claims_of
from shardwright.report.facts import Baseline
from shardwright.report.pattern import pattern
from shardwright.report.text import certificate_words, format_rates
from shardwright.report.words import (
    change,
    counted,
    human_bytes,
    human_seconds,
    listed,
    percent,
    several,
    short,
    short_path,
    times,
    type_bytes,
    upper_first,
    wrapped,
)  # fmt: skip
from shardwright.spmd.ir import totals

# What a collective is there for, in a few words.
PURPOSE = {
    "all-gather": "shards are gathered before use",
    "reduce-scatter": "partial sums are added, each device holds a shard of the sum",
    "all-reduce": "partial sums are added, every device holds the sum",
    "all-to-all": "the split moves from one dim to another",
    "ragged-all-to-all": "rows go to the devices that need them",
    "collective-permute": "neighbours exchange borders",
}
SOURCES, DIMS, NAMES, LINES = 2, 4, 4, 5  # lines of a movement, dims of a group, names, lines


def explain(record: PlanRecord) -> str:
    """Why it is split like this: pattern, bound, movements, memory, what else was possible."""
    sections = (
        ("What", _what(record)), ("How", _how(record)), ("Time", _time(record)),
        ("Movements", _movements(record)), ("Memory", _memory(record)),
        ("Instead", _instead(record)), ("Proof", _proof(record)),
        ("Notes", record.notes), ("Warnings", facts.warnings(record)),
    )  # fmt: skip
    blocks = ["\n".join([title, *map(_line, lines)]) for title, lines in sections]
    return "\n\n".join(block for block in blocks if "\n" in block)


def _line(text: str) -> str:
    """A line of a section, wrapped; one that is indented hangs further in."""
    depth = len(text) - len(text.lstrip(" "))
    return wrapped(f"  {text}", indent=2 + depth + 2 * bool(depth))


def _what(record: PlanRecord) -> Iterator[str]:
    """Sentences on the strategy and on what each device holds."""
    yield f"{record.program} on {record.mesh.size} x {record.device.name}:"
    yield f"{pattern(record)}."
    if not any(record.decisions.values()):
        yield f"{upper_first(facts.why_nothing_is_split(record))}."
    else:
        for axis, sentence in axis_sentences(record).items():
            yield f"    {axis} ({record.mesh.shape[axis]}): {sentence}"
    tactic = facts.matching_baseline(record)
    if tactic:
        pins = " under the same pins" * facts.are_pinned(record)
        yield f"This costs exactly what {tactic.name} costs{pins}."
    split, replicated, total = argument_bytes(record)
    if total:
        held, same = human_bytes(split + replicated), human_bytes(replicated)
        yield (
            f"Of {human_bytes(total)} of arguments each device holds {held}"
            + (f", {same} of it replicated on every device." if replicated else ".")
        )


def _how(record: PlanRecord) -> Iterator[str]:
    """The lists that were decided, from which every placement follows."""
    if any(record.decisions.values()):
        yield "An array is split over an axis along the first of these dims that it has:"
    for axis, claims in claims_of(record).items():
        for i, claim in enumerate(claims):
            dims = listed(list(map(short_path, claim.dims)), DIMS)
            about = ", ".join([claim.label, *claim.about])
            yield f"    {axis} {i + 1}. {about}: {dims}"
    if record.overrides:
        yield "Except, because it is faster:"
    for row in record.overrides:
        what = listed(list(map(short, row.what)), NAMES)
        yield f"    {facts.stored_how(row)}, {row.stored}: {what}"


def argument_bytes(record: PlanRecord) -> tuple[float, float, float]:
    """(bytes held of split arguments, bytes held of replicated ones, bytes of all) per device."""
    split = replicated = total = 0.0
    for path, text in record.arguments.items():
        size = type_bytes(text)
        shards = record.mesh.shards(record.specs[path])
        total += size
        split += size / shards if shards > 1 else 0.0
        replicated += size if shards == 1 else 0.0
    return split, replicated, total


def _time(record: PlanRecord) -> Iterator[str]:
    """Sentences on what the step takes, and what bounds it."""
    cost = record.cost
    yield (
        f"{human_seconds(cost.step_s)} a step, {facts.bound(record)}:"
        f" {human_seconds(cost.compute_s)} of compute, {human_seconds(cost.link_s)} on the links"
        + (f", {human_seconds(cost.hidden_s)} hidden." if cost.hidden_s else ", none hidden.")
    )
    if rates := format_rates(record):
        yield f"{rates}."
    for line in facts.lines_that_compute(record)[:LINES]:
        yield f"    {human_seconds(line.compute_s)} of compute: {line.op} at {line.source}"
    if cost.link_s and cost.compute_s >= cost.exposed_s:
        yield (
            f"Perfect links would save {percent(cost.exposed_s, cost.step_s)};"
            " the rest is arithmetic and memory traffic that some device must do."
        )
    elif cost.link_s:
        yield (
            f"Devices wait for data {percent(cost.exposed_s, cost.step_s)} of the time:"
            " a larger batch, or fewer devices, would use them better."
        )


def _movements(record: PlanRecord) -> Iterator[str]:
    """Lines on the collectives by kind and axes, most seconds first, with their sources."""
    if not record.collectives:
        yield "Nothing moves between devices."
    lines, by_kind = facts.lines_that_move(record), totals(record.collectives)
    for (kind, axes), total in sorted(by_kind.items(), key=lambda row: -row[1].seconds):
        yield (
            f"{kind} over {'+'.join(axes)}: {human_seconds(total.seconds)},"
            f" {human_bytes(total.bytes)} in {counted(total.calls, 'call')};"
            f" {PURPOSE.get(kind, 'data moves')}"
        )
        rows = [line for line in lines if (line.kind, line.axes) == (kind, axes)]
        for line in rows[:SOURCES]:
            yield (
                f"    {human_seconds(line.seconds)} {line.source}:"
                f" {short_path(sentence(line.cause))},"
                f" {human_bytes(line.bytes)} {times(line.count)}"
            )
        if len(rows) > SOURCES:
            rest = sum(line.seconds for line in rows[SOURCES:])
            yield f"    {human_seconds(rest)} in {counted(len(rows) - SOURCES, 'other place')}"


def _memory(record: PlanRecord) -> Iterator[str]:
    """Lines on the peak and the largest buffers there."""
    peak, limit = record.cost.peak_bytes, record.limit_bytes
    yield (
        f"{human_bytes(peak)} of {human_bytes(limit)} per device"
        f" ({percent(peak, limit)}), most at {record.memory.at}:"
    )
    for b in record.memory.buffers[:4]:
        yield f"    {human_bytes(b.bytes)} {b.kind}: {several(b.count, b.shape, b.where)}"


def _instead(record: PlanRecord) -> Iterator[str]:
    """Sentences on the named tactics: which would be next, which do not fit or apply."""
    cost, rows = record.cost, facts.ranked_baselines(record)
    other = facts.next_best(record)
    faster = [b for b in rows if not b.fits and b.cost.step_s < cost.step_s]
    if faster:
        b = faster[0]
        yield (
            f"{b.name} would take {human_seconds(b.cost.step_s)}"
            f" ({change(b.cost.step_s, cost.step_s)}) but needs {human_bytes(b.cost.peak_bytes)}"
            f" per device: {human_bytes(b.cost.peak_bytes - record.limit_bytes)} too much."
        )
    if other is not None:
        yield _compared(record, other)
    unfit = sum(1 for b in rows if not b.fits)
    missing = facts.inapplicable(record)
    if rows:
        yield f"Of {len(rows)} named tactics {unfit} do not fit in memory."
    for reason, names in sorted(missing.items(), key=lambda row: (-len(row[1]), row[0]))[:2]:
        yield f"{len(names)} more do{'es' * (len(names) == 1)} not apply: {reason}."


def _compared(record: PlanRecord, other: Baseline) -> str:
    """What another tactic costs, and where the difference is."""
    cost, theirs = record.cost, other.cost
    head = f"{other.name} fits and would take {human_seconds(theirs.step_s)}"
    compute, links = theirs.compute_s - cost.compute_s, theirs.link_s - cost.link_s
    if theirs.step_s < cost.step_s:
        why = "The search was interrupted before it"
        if record.asked.tactics:  # pins bind all, so a strategy in them stands against
            why = "Your tactics do not allow it: search without them to get it"
        return f"{head}, {change(theirs.step_s, cost.step_s)}. {why}."
    differences = [
        f"{human_seconds(abs(delta))} {'more' if delta > 0 else 'less'} {what}"
        for what, delta in (("on the links", links), ("of compute", compute))
        if abs(delta) > 0.01 * abs(theirs.step_s - cost.step_s)
    ]
    return f"{head}, {change(theirs.step_s, cost.step_s)}: {' and '.join(differences)}."


def _proof(record: PlanRecord) -> Iterator[str]:
    yield f"{upper_first(certificate_words(record))}."
    yield f"{counted(record.search.evaluations, 'plan')} priced:"
    for line in record.search.how:
        yield f"    {line}"
