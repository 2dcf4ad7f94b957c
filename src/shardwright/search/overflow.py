"""The error when nothing fits: the smallest memory that would do, where the peak is, ways out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.program.types import NO_OP, format_type
from shardwright.search.baselines import baselines
from shardwright.search.objective import Budget, Objective
from shardwright.search.refine import refine
from shardwright.search.roles import find_roles, is_backward
from shardwright.search.space import Space
from shardwright.search.tactics import Context, NotApplicable
from shardwright.spmd.decisions import State

SHOWN = 3  # lines at the peak
DOUBLINGS = 5  # how far to look for a number of devices that would do


class Line(NamedTuple):
    """A line of the user's code and the bytes it keeps on one device at the peak."""

    where: str
    type: str
    times: int
    local_bytes: float


def no_plan_fits(objective: Objective, memory: int) -> ShardwrightError:
    """The error; its text names the smallest peak found, the lines behind it and what to try."""
    model = objective.model
    assert objective.smallest is not None
    peak, state = objective.smallest
    ways = [f"memory={_up(peak)}"]
    devices = _enough_devices(model, state, memory)
    if devices is not None:
        ways.append(f"{devices.size} devices ({devices})")
    saved = _largest_saved(model, state)
    if saved is not None:
        ways.append(f"jax.checkpoint around {saved.where} (keeps {_gb(saved.local_bytes)})")
    lines = [
        f"{line.where} {line.times} x {line.type}, {_gb(line.local_bytes)}"
        for line in peak_lines(model, state)[:SHOWN]
    ]
    return ShardwrightError(
        f"no plan fits {_gb(memory)} per device",
        best=f"{_gb(peak)}  ({describe(model, state)})",
        at_peak="\n".join(lines),
        try_=", or ".join(ways),
    )


def describe(model: CostModel, state: State) -> str:
    """data: targets[0], embedding[1]; model: w1[1]"""
    groups = model.analysis.all_groups
    parts = [
        f"{name}: {', '.join(groups[e.group].label for e in entries)}"
        for name, entries in zip(model.mesh.names, state, strict=True)
        if entries
    ]
    return "; ".join(parts) or "nothing split"


def peak_lines(model: CostModel, state: State) -> list[Line]:
    """What exists at the peak, largest first, values of one line and type together."""
    return _lines(model, state, list(_live_values(model, state)))


def _live_values(model: CostModel, state: State) -> Iterator[int]:
    _, local = model.place([state])
    point = int(np.argmax(model.points.live @ local[0]))
    at = int(model.points.ops[point])
    lives = (model.lifetimes.first <= at) & (model.lifetimes.last >= at)
    yield from np.flatnonzero(lives & (model.lifetimes.last >= 0)).tolist()


def _lines(model: CostModel, state: State, values: list[int]) -> list[Line]:
    _, local = model.place([state])
    program = model.analysis.program
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for v in values:
        key = (program.where(v), format_type(program.values[v].type))
        count, size = found.get(key, (0, 0.0))
        found[key] = (count + 1, size + float(local[0, model.layouts.of_value[v]]))
    rows = [Line(where, type_, n, size) for (where, type_), (n, size) in found.items()]
    return sorted(rows, key=lambda r: (-r.local_bytes, r.where, r.type))


def _largest_saved(model: CostModel, state: State) -> Line | None:
    """The line whose activations wait longest in bytes for the backward pass."""
    program = model.analysis.program
    saved = [
        v for v in _live_values(model, state)
        if program.values[v].op != NO_OP
        and not is_backward(program, program.ops[program.values[v].op])
        and any(is_backward(program, program.ops[u]) for u in program.uses()[v])
    ]  # fmt: skip
    lines = _lines(model, state, saved)
    return lines[0] if lines else None


def _enough_devices(model: CostModel, state: State, memory: int) -> Mesh | None:
    """The smallest mesh, doubled axis by axis, on which a quick search fits."""
    mesh = model.mesh
    for _ in range(DOUBLINGS):
        found: list[tuple[float, Mesh]] = []
        for name in mesh.names:
            axes = tuple((n, size * 2 if n == name else size) for n, size in mesh.axes)
            larger = Mesh(axes, dcn=mesh.dcn, links=mesh.links, wrap=mesh.wrap)
            try:
                found.append((_smallest_peak(model, larger, state), larger))
            except ShardwrightError:  # the device has no such slice
                continue
        if not found:
            return None
        peak, mesh = min(found, key=lambda f: f[0])
        if peak <= memory:
            return mesh
    return None


def _smallest_peak(model: CostModel, mesh: Mesh, state: State) -> float:
    larger = CostModel(model.analysis, mesh, model.device, overlap=model.overlap)
    objective = Objective(larger, 1)  # every byte is too many: less memory is better
    context = Context(larger, find_roles(larger.analysis))
    known = [s for s in baselines(context).values() if not isinstance(s, NotApplicable)]
    objective([state, *known])
    assert objective.best is not None
    refine(Space(larger), objective, objective.best, Budget(evaluations=400))
    assert objective.smallest is not None
    return objective.smallest[0]


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"


def _up(size: float) -> int:
    """A little more than `size`, in three digits."""
    unit = 10 ** max(0, math.floor(math.log10(max(size, 1))) - 2)
    return math.ceil(size / unit) * unit
