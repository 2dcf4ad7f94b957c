"""The step as one device runs it: what computes, what moves and what is in memory, in order.

Ops of one line that follow each other are one span. A loop's body stands there once, with the
trips of its region: a span happens `runs` times per step. The spans' seconds add up to the cost's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.cost.breakdown import memory_by_kind
from shardwright.cost.model import CostModel
from shardwright.cost.roofline import stream_s
from shardwright.cost.schedule import region_spans
from shardwright.program.layers import op_layers
from shardwright.program.ties import Kind
from shardwright.program.types import NO_OP, TOP, Op, Program
from shardwright.spmd.decisions import Decisions
from shardwright.spmd.ir import Collective
from shardwright.spmd.weights import region_runs

_BEFORE, _OP, _AFTER = -1, 0, 1  # what happens just before, at and just after an op


@dataclass(frozen=True, slots=True)
class Span:
    """Ops of one region that run one after the other."""

    region: int  # a position in Timeline.bodies
    source: str  # the user's line that takes most of it
    op: str  # the op that takes most of it
    compute_s: float  # of one run
    moves: tuple[int, ...]  # the collectives of one run, as rows of the plan's collectives
    bytes: tuple[int, ...]  # in memory where that is most, by kind (breakdown.KINDS)


@dataclass(frozen=True, slots=True)
class Body:
    """A region: the function itself, or the body of a loop or branch."""

    parent: int
    kind: Kind
    trips: int  # for each run of its parent


@dataclass(frozen=True, slots=True)
class LineWork:
    """What one line of the user's code computes in a step."""

    source: str
    op: str  # that takes most of it
    compute_s: float


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer or loop takes of a step, forward and backward."""

    name: str  # layers[3]; scan x32 at train.py:7 forward; nothing: outside of all layers
    compute_s: float
    moves: dict[str, float]  # {kind of collective: seconds}


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of one step in order; those of a region, and of regions in it, stand together.

    `lines` and `layers` are sums over all ops, which a span that stands for several is not.
    """

    bodies: tuple[Body, ...] = ()
    spans: tuple[Span, ...] = ()
    lines: tuple[LineWork, ...] = ()  # longest first; older files do not say
    layers: tuple[Layer, ...] = ()  # in order of the program; older files do not say

    def runs(self, region: int) -> int:
        """How often a region runs in one step."""
        trips = 1
        while region != TOP:
            trips *= self.bodies[region].trips
            region = self.bodies[region].parent
        return trips


@dataclass(frozen=True, slots=True)
class _Event:
    """Something at a time, in a region: work, a movement, or both once spans are merged."""

    at: tuple[int, int]  # time, and whether before, at or after it
    span: Span
    op: int
    link_s: float = 0.0  # of one run


def find_timeline(
    model: CostModel, decisions: Decisions, moves: Sequence[tuple[Collective, int]], most: int
) -> Timeline:
    """The step in about `most` spans; `moves` are its collectives, each with its row in the plan.

    Where there are more spans, short neighbours are merged: a span names what is longest in it.
    """
    program = model.analysis.program
    memory = memory_by_kind(model, decisions)
    runs = region_runs(program)
    events = sorted(
        [*_work(model, decisions, memory, runs), *_movements(model, moves, memory, runs)],
        key=lambda event: event.at,
    )
    bodies = tuple(Body(max(r.parent, TOP), r.kind, r.trips) for r in program.regions)
    spans = (event.span for event in events)
    lines = lines_of(LineWork(s.source, s.op, runs[s.region] * s.compute_s) for s in spans)
    return Timeline(
        bodies, tuple(e.span for e in _merged(events, runs, most)), lines,
        _layers(program, events, moves, runs),
    )  # fmt: skip


def lines_of(works: Iterable[LineWork]) -> tuple[LineWork, ...]:
    """The work of single ops by line, each named after the op that takes most; longest first."""
    by_op: dict[str, dict[str, float]] = {}
    for work in works:
        ops = by_op.setdefault(work.source, {})
        ops[work.op] = ops.get(work.op, 0.0) + work.compute_s
    rows = [
        LineWork(line, max(ops, key=lambda op: ops[op]), sum(ops.values()))
        for line, ops in by_op.items()
    ]
    return tuple(sorted((row for row in rows if row.compute_s), key=lambda row: -row.compute_s))


def _layers(
    program: Program, events: Sequence[_Event], moves: Sequence[tuple[Collective, int]],
    runs: Sequence[float],
) -> tuple[Layer, ...]:  # fmt: skip
    """What each layer computes and moves; nothing where there are none."""
    names = op_layers(program)
    compute: dict[str, float] = dict.fromkeys(names, 0.0)
    links: dict[str, dict[str, float]] = {name: {} for name in compute}
    for event in events:
        compute[names[event.op]] += runs[event.span.region] * event.span.compute_s
    for collective, _ in moves:
        kinds = links[names[collective.op]]
        seconds = collective.count * collective.seconds
        kinds[collective.kind] = kinds.get(collective.kind, 0.0) + seconds
    if len(compute) < 2:
        return ()
    return tuple(Layer(name, seconds, links[name]) for name, seconds in compute.items())


def _work(
    model: CostModel, decisions: Decisions, memory: np.ndarray, runs: Sequence[float]
) -> Iterator[_Event]:
    """What every op computes, and the traffic of fused work where its value is made."""
    program, weights = model.analysis.program, model.weights.region
    seconds = model.op_seconds(decisions)
    _, local = model.place([decisions])
    traffic = model.fusion.traffic * local[0][model.layouts.of_value]  # [values] bytes
    uses = program.uses()
    for v in np.flatnonzero(traffic).tolist():
        maker = program.values[v].op
        if maker == NO_OP:  # an argument, read by what uses it first
            maker = uses[v][0] if uses[v] else 0
        seconds[maker] += stream_s(model.device, float(traffic[v]))
    for op in program.ops:
        share = weights[op.region] / runs[op.region] if runs[op.region] else 0.0
        yield _event(model, memory, op, _OP, float(seconds[op.index]) * share)


def _movements(
    model: CostModel, moves: Sequence[tuple[Collective, int]], memory: np.ndarray,
    runs: Sequence[float],
) -> Iterator[_Event]:  # fmt: skip
    """Every collective in the region where it runs: an op's own, its loop's, or that around it."""
    program, schedule = model.analysis.program, model.schedule
    begins, ends = region_spans(program, schedule)
    for collective, row in moves:
        op = program.ops[collective.op]
        before = collective.cause.kind in ("operand", "halo")
        event = _event(model, memory, op, _BEFORE if before else _AFTER, 0.0)
        inside = op.body[0] if op.tie and op.body else op.region
        if collective.count == runs[op.region]:
            at = event.at
        elif collective.count == runs[inside]:  # in every trip, as a loop's entry or exit asks
            entry = event.at[0] < ends[inside]
            at = (begins[inside], _BEFORE) if entry else (ends[inside], _AFTER)
        else:  # after the loop
            at, inside = (ends[op.region], _AFTER + 1), program.regions[op.region].parent
        region = op.region if at == event.at else inside
        span = replace(event.span, region=region, moves=(row,))
        yield _Event(at, span, op.index, collective.seconds)


def _event(model: CostModel, memory: np.ndarray, op: Op, when: int, compute_s: float) -> _Event:
    at = int(model.schedule.time[op.index])
    live = tuple(int(size) for size in memory[at])
    source = str(op.source or "")
    return _Event((at, when), Span(op.region, source, op.name, compute_s, (), live), op.index)


def _merged(events: Sequence[_Event], runs: Sequence[float], most: int) -> list[_Event]:
    """Neighbours of one line as one event, then short neighbours until there are few enough."""
    out, total_s = _merge_once(events, runs, 0.0), sum(_seconds(e, runs) for e in events)
    shortest = total_s / most / 4
    while len(out) > most and 0 < shortest < 2 * total_s:
        out, shortest = _merge_once(out, runs, shortest), shortest * 2
    return out


def _merge_once(events: Sequence[_Event], runs: Sequence[float], shortest: float) -> list[_Event]:
    """Neighbours of one region as one: of one line, or together shorter than that many seconds."""
    out: list[_Event] = []
    for event in events:
        last = out[-1] if out else None
        if last is not None and last.span.region == event.span.region:
            same = last.span.source == event.span.source and not event.span.moves
            short = _seconds(last, runs) + _seconds(event, runs) < shortest
            idle = not event.span.compute_s and not event.span.moves
            if same or short or idle:
                out[-1] = _joined(last, event)
                continue
        out.append(event)
    peak = max((sum(e.span.bytes) for e in out), default=0)
    return [e for e in out if e.span.compute_s or e.span.moves or sum(e.span.bytes) == peak]


def _seconds(event: _Event, runs: Sequence[float]) -> float:
    return (event.span.compute_s + event.link_s) * runs[event.span.region]


def _joined(a: _Event, b: _Event) -> _Event:
    """Two neighbours as one, under the name of the longer."""
    longer = a.span if a.span.compute_s + a.link_s >= b.span.compute_s + b.link_s else b.span
    higher = max(a.span.bytes, b.span.bytes, key=sum)
    span = Span(
        a.span.region, longer.source, longer.op, a.span.compute_s + b.span.compute_s,
        a.span.moves + b.span.moves, higher,
    )  # fmt: skip
    return _Event(a.at, span, a.op, a.link_s + b.link_s)
