"""The predicted step as a Chrome trace: opens in Perfetto (ui.perfetto.dev) or chrome://tracing.

One process is one device: a track for loops, one for compute, one per set of mesh axes that
data moves over, and live bytes by kind as a counter. Compute and links come one after the other;
each collective says how much of it is hidden behind compute.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from shardwright.cost.breakdown import KINDS
from shardwright.cost.timeline import Span
from shardwright.errors import ShardwrightError
from shardwright.record.types import PlanRecord
from shardwright.report.causes import sentence
from shardwright.report.region_tree import Node, link_s, region_tree
from shardwright.report.words import human_seconds, short_path, short_source

PREDICTED = 1  # the process; a measured profile is laid beside it as MEASURED
MEASURED = 2
LOOPS, COMPUTE, LINKS = 1, 2, 3  # tracks; each set of axes has one from LINKS on
SPANS = 5_000  # of a plan whose program is at hand; its file has fewer
MOST_EVENTS = 40_000  # loops are written trip by trip as long as there are no more
SHOWN_TRIPS = 2  # of longer loops; the others are one slice
MICRO = 1e6  # a trace counts in microseconds

Event = dict[str, Any]


def chrome_trace(record: PlanRecord) -> dict[str, Any]:
    """The trace as plain data, ready for json.dump."""
    writer = _Writer(record)
    writer.node(region_tree(record), 0.0)
    return {
        "traceEvents": [*writer.metadata(), *writer.events],
        "displayTimeUnit": "ms",
        "otherData": {
            "program": record.program, "mesh": str(record.mesh), "device": record.device.name,
            "predicted_step_s": record.cost.step_s, "shardwright": record.shardwright,
        },
    }  # fmt: skip


def write_trace(trace: dict[str, Any], path: str | Path) -> None:
    """Writes a trace; compressed where the name ends in .gz."""
    data = json.dumps(trace).encode()
    try:
        Path(path).write_bytes(gzip.compress(data) if str(path).endswith(".gz") else data)
    except OSError as error:
        raise ShardwrightError(
            f"cannot write a trace to {path}: {error.strerror}",
            try_="a file in a folder that exists",
        ) from None


class _Writer:
    """Appends the events of spans and regions, each at its time."""

    def __init__(self, record: PlanRecord) -> None:
        self.record, self.events = record, list[Event]()
        axes = dict.fromkeys("+".join(c.axes) for c in record.collectives)
        self.tracks = {name: LINKS + i for i, name in enumerate(axes)}
        count = region_tree(record).one_run(lambda span: 2.0 + len(span.moves))
        self.every_trip = count <= MOST_EVENTS

    def metadata(self) -> list[Event]:
        """Names and the order of the process and its tracks."""
        tracks = {LOOPS: "loops", COMPUTE: "compute"}
        tracks |= {tid: f"links over {name}" for name, tid in self.tracks.items()}
        title = f"predicted: one of {self.record.mesh.size} {self.record.device.name}"
        rows = [named(PREDICTED, "process_name", 0, title)]
        for tid, name in tracks.items():
            rows.append(named(PREDICTED, "thread_name", tid, name))
            rows.append(_meta(PREDICTED, "thread_sort_index", tid, {"sort_index": tid}))
        return rows

    def node(self, node: Node, at: float) -> float:
        """Writes one run of a region, trip by trip where it is a loop; the time it ends."""
        for item in node.items:
            if isinstance(item, Span):
                at = self.span(item, at)
                continue
            begin, shown = at, item.trips if self.every_trip else min(SHOWN_TRIPS, item.trips)
            for _ in range(shown):
                at = self.node(item, at)
            if item.trips > shown:
                at = self.rest(item, item.trips - shown, at)
            self.slice(item.title, LOOPS, begin, at - begin, {"trips": item.trips})
        return at

    def rest(self, node: Node, trips: int, at: float) -> float:
        """The trips of a loop that are not written one by one, as one slice of either kind."""
        compute = trips * node.one_run(lambda span: span.compute_s)
        links = trips * node.one_run(lambda span: link_s(self.record, span))
        self.slice(f"{trips} more trips", COMPUTE, at, compute, {})
        if links:
            self.slice(f"links of {trips} more trips", LINKS, at + compute, links, {})
        return at + compute + links

    def span(self, span: Span, at: float) -> float:
        """The collectives of a span, then its compute, with the memory that is live; its end."""
        live = dict(zip(KINDS, span.bytes, strict=True))
        self.events.append({
            "ph": "C", "pid": PREDICTED, "name": "live bytes", "ts": at * MICRO, "args": live,
        })  # fmt: skip
        source = short_source(span.source)
        for row in span.moves:
            c = self.record.collectives[row]
            arguments = {
                "source": short_source(c.source), "cause": short_path(sentence(c.cause)),
                "bytes": c.bytes, "axes": "+".join(c.axes), "times per step": c.count,
                "hidden behind compute": human_seconds(c.hidden_s),
            }  # fmt: skip
            self.slice(c.kind, self.tracks["+".join(c.axes)], at, c.seconds, arguments)
            at += c.seconds
        if span.compute_s:
            self.slice(span.op, COMPUTE, at, span.compute_s, {"source": source})
        return at + span.compute_s

    def slice(self, name: str, track: int, at: float, seconds: float, arguments: Any) -> None:
        """Adds one event."""
        self.events.append(slice_of(PREDICTED, track, name, at, seconds, arguments))


def slice_of(
    process: int, track: int, name: str, begin_s: float, seconds: float, arguments: Any
) -> Event:
    """What a track does for some time."""
    return {
        "ph": "X", "pid": process, "tid": track, "name": name, "ts": begin_s * MICRO,
        "dur": seconds * MICRO, "args": arguments,
    }  # fmt: skip


def named(process: int, what: str, track: int, name: str) -> Event:
    """How a process or a track is called."""
    return _meta(process, what, track, {"name": name})


def _meta(process: int, what: str, track: int, arguments: dict[str, Any]) -> Event:
    return {"ph": "M", "pid": process, "tid": track, "name": what, "args": arguments}
