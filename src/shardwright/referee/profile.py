"""What a profiler measured: seconds per step on one device, by collective and by line.

Reads the trace.json.gz that `jax.profiler.trace` and XProf write. A device's ops are the events of
its "XLA Ops" track; on host CPUs they are events that name an HLO op and the device 0. Times are
self times: a loop does not count what runs inside it. The waits for asynchronous collectives count
as those collectives: what hides behind compute is no event of this track.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.cost.links import KINDS
from shardwright.errors import ShardwrightError

OPS, MODULES = "XLA Ops", "XLA Modules"  # tracks of a device, as XProf calls them
COMPUTE = "compute"
MOST_BYTES = 2**31  # of a trace that is opened; a profiler stops at a million events
_KIND = re.compile("|".join(sorted(KINDS, key=len, reverse=True)))
_LINE = re.compile(r"([^/\\\s]+\.py):(\d+)")


@dataclass(frozen=True, slots=True)
class MeasuredOp:
    """One event of a device's ops."""

    name: str
    kind: str  # a collective, or compute
    source: str  # train.py:12, where the profile says it
    begin_s: float  # since the first event
    self_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The ops of one device over some steps."""

    path: str
    device: str
    module: str
    steps: int
    ops: tuple[MeasuredOp, ...]

    @property
    def on_host(self) -> bool:
        """Whether host CPUs ran it, which stand in for other devices."""
        return not self.device.startswith("/device:")

    def by_kind(self) -> dict[str, float]:
        """{compute or a collective: seconds per step}"""
        return self._sums((op.kind, op.self_s) for op in self.ops)

    def by_source(self) -> dict[str, float]:
        """{train.py:12: seconds per step}; nothing where the profile names no lines."""
        return self._sums((op.source, op.self_s) for op in self.ops if op.source)

    def _sums(self, rows: Iterable[tuple[str, float]]) -> dict[str, float]:
        out: dict[str, float] = defaultdict(float)
        for key, seconds in rows:
            out[key] += seconds / self.steps
        return dict(out)


def read_profile(path: str | Path) -> Profile:
    """The profile in a trace.json.gz or trace.json, or the newest in a profiler's folder."""
    file = _find(Path(path))
    try:
        data = file.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = zlib.decompressobj(wbits=31).decompress(data, MOST_BYTES)
        events = json.loads(data)["traceEvents"]
        events = [e for e in events if isinstance(e, dict) and "ph" in e]
    except (OSError, ValueError, KeyError, TypeError, zlib.error, gzip.BadGzipFile) as error:
        raise ShardwrightError(
            f"cannot read a profile from {file}: {error}",
            try_="a trace.json.gz of jax.profiler.trace, or its folder",
        ) from None
    device, chosen = _device_events(events)
    if not chosen:
        raise ShardwrightError(
            f"{file} has no ops of a device",
            try_="profile a step that has been compiled before: with jax.profiler.trace(folder)",
        )
    modules: dict[str, float] = defaultdict(float)
    for event in chosen:
        modules[str(event["args"].get("hlo_module", ""))] += float(event.get("dur", 0.0))
    module = max(modules, key=lambda name: modules[name])
    chosen = [e for e in chosen if str(e["args"].get("hlo_module", "")) == module]
    return Profile(str(file), device, module, _steps(events, chosen), tuple(_ops(chosen)))


def _find(path: Path) -> Path:
    """A file; in a folder the newest trace."""
    if not path.is_dir():
        return path
    found = sorted(path.rglob("*.trace.json.gz"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise ShardwrightError(
            f"{path} holds no *.trace.json.gz", try_="the folder given to jax.profiler.trace"
        )
    return found[-1]


def _called(events: list[dict[str, Any]], what: str) -> dict[tuple[Any, Any], str]:
    """{(process, track): name} of the processes or of the tracks of a trace."""
    named = (e for e in events if e["ph"] == "M" and e["name"] == what)
    return {(e["pid"], e.get("tid")): e["args"]["name"] for e in named}


def _device_events(events: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """(name of the first device, its ops)"""
    names = {pid: name for (pid, _), name in _called(events, "process_name").items()}
    tracks = _called(events, "thread_name")
    timed = [e | {"args": e.get("args") or {}} for e in events if e["ph"] == "X"]
    for pid in sorted(names, key=lambda pid: names[pid]):
        if names[pid].startswith("/device:"):
            on_track = [e for e in timed if tracks.get((e["pid"], e.get("tid"))) == OPS]
            own = [e for e in on_track if e["pid"] == pid]
            if own:
                return names[pid], own
    host = [e for e in timed if "hlo_op" in e["args"]]
    first = min((str(e["args"].get("device_ordinal", "0")) for e in host), default="0")
    own = [e for e in host if str(e["args"].get("device_ordinal", "0")) == first]
    return (names.get(own[0]["pid"], "host") if own else ""), own


def _steps(events: list[dict[str, Any]], chosen: list[dict[str, Any]]) -> int:
    """How often the module ran: by its run ids, or by the events of its track."""
    runs = {e["args"]["run_id"] for e in chosen if "run_id" in e["args"]}
    if runs:
        return len(runs)
    tracks = _called(events, "thread_name")
    of_modules = [
        e for e in events if e["ph"] == "X" and e["pid"] == chosen[0]["pid"]
        and tracks.get((e["pid"], e.get("tid"))) == MODULES
    ]  # fmt: skip
    return max(1, len(of_modules))


def _ops(events: list[dict[str, Any]]) -> list[MeasuredOp]:
    """Events with their self times; traces count in microseconds."""
    start = min(float(e["ts"]) for e in events)
    out: list[MeasuredOp] = []
    by_track: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        by_track[event.get("tid")].append(event)
    for rows in by_track.values():
        rows.sort(key=lambda e: (float(e["ts"]), -float(e.get("dur", 0.0))))
        inside = [0.0] * len(rows)  # microseconds of what an event holds
        open_: list[int] = []
        for i, e in enumerate(rows):
            while open_ and float(e["ts"]) >= _end(rows[open_[-1]]):
                open_.pop()
            if open_:
                inside[open_[-1]] += float(e.get("dur", 0.0))
            open_.append(i)
        for e, held in zip(rows, inside, strict=True):
            total = float(e.get("dur", 0.0))
            out.append(MeasuredOp(
                str(e["name"]), _kind(str(e["name"])), _source(e["args"]),
                (float(e["ts"]) - start) * 1e-6, max(total - held, 0.0) * 1e-6, total * 1e-6,
            ))  # fmt: skip
    return sorted(out, key=lambda op: op.begin_s)


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"]) + float(event.get("dur", 0.0))


def _kind(name: str) -> str:
    found = _KIND.search(name)
    return found[0] if found else COMPUTE


def _source(arguments: dict[str, Any]) -> str:
    """The user's line, where the profile says it: train.py:12"""
    found = _LINE.search(str(arguments.get("source", "")))
    return f"{found[1]}:{found[2]}" if found else ""
