"""The error when nothing fits: the smallest memory that would do, where the peak is, ways out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardwright.cost.breakdown import live_values, peak_breakdown
from shardwright.cost.model import CostModel
from shardwright.errors import NoPlanFits, ShardwrightError
from shardwright.mesh import Mesh
from shardwright.program.types import NO_OP, is_backward
from shardwright.search.objective import Objective
from shardwright.search.requests import constrained_model
from shardwright.search.screen import screen
from shardwright.search.tactics import Tactic
from shardwright.spmd.decisions import Decisions, State

SHOWN = 3  # lines at the peak
DOUBLINGS = 5  # how far to look for a number of devices that would do


def no_plan_fits(
    objective: Objective, memory: int, tactics: Sequence[Tactic] | None, answer: Decisions
) -> NoPlanFits:  # fmt: skip
    """The error; its text names the smallest peak found, the lines behind it and what to try.

    `answer` is what the search ends with: single layouts that shed bytes may need less than any
    state does.
    """
    model = objective.model
    assert objective.smallest is not None
    peak, state = objective.smallest
    decisions, how = objective.decisions(state), describe(model, state)
    if (least := int(model.evaluate([answer]).peak_bytes[0])) < peak:
        peak, state, decisions = least, answer.lists, answer
        how = f"{describe(model, state)}, with exceptions for single arrays"
    ways = [f"memory={_up(peak)}"]
    devices = _enough_devices(model, state, memory, tactics)
    if devices is not None:
        ways.append(f"{devices.size} devices ({devices})")
    saved = _largest_saved(model, decisions)
    if saved is not None:
        ways.append(f"jax.checkpoint around {saved[0]} (keeps {_gb(saved[1])})")
    lines = [
        f"{b.where} {b.count} x {b.shape}, {_gb(b.bytes)}"
        for b in peak_breakdown(model, decisions).buffers[:SHOWN]
    ]
    return NoPlanFits(
        f"no plan fits {_gb(memory)} per device",
        best=f"{_gb(peak)}  ({how})",
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


def _largest_saved(model: CostModel, decisions: Decisions) -> tuple[str, int] | None:
    """The line whose activations take most bytes while they wait for the backward pass."""
    program = model.analysis.program
    _, local = model.place([decisions])
    by_line: dict[str, int] = {}
    for v in live_values(model, model.peak(decisions)[0]):
        value = program.values[v]
        if (
            value.op != NO_OP
            and not is_backward(program, program.ops[value.op])
            and any(is_backward(program, program.ops[u]) for u in program.uses()[v])
        ):
            where = program.where(v)
            by_line[where] = by_line.get(where, 0) + int(local[0, model.layouts.of_value[v]])
    return max(by_line.items(), key=lambda row: (row[1], row[0]), default=None)


def _enough_devices(
    model: CostModel, state: State, memory: int, tactics: Sequence[Tactic] | None
) -> Mesh | None:
    """The smallest mesh, doubled axis by axis, on which a quick search fits."""
    mesh = model.mesh
    for _ in range(DOUBLINGS):
        found: list[tuple[float, Mesh]] = []
        for name in mesh.names:
            axes = tuple((n, size * 2 if n == name else size) for n, size in mesh.axes)
            larger = Mesh(axes, dcn=mesh.dcn, slices=mesh.slices, links=mesh.links, wrap=mesh.wrap)
            try:
                found.append((_smallest_peak(model, larger, state, tactics), larger))
            except ShardwrightError:  # the device has no such slice, or a pin no room on it
                continue
        if not found:
            return None
        peak, mesh = min(found, key=lambda f: f[0])
        if peak <= memory:
            return mesh
    return None


def _smallest_peak(
    model: CostModel, mesh: Mesh, state: State, tactics: Sequence[Tactic] | None
) -> float:
    larger = constrained_model(model.analysis, mesh, model.device, tactics, overlap=model.overlap)
    found = screen(larger, 1, tactics, also=[state])  # every byte is too many: less is better
    assert found.smallest is not None
    return found.smallest[0]


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"


def _up(size: float) -> int:
    """A little more than `size`, in three digits."""
    unit = 10 ** max(0, math.floor(math.log10(max(size, 1))) - 2)
    return math.ceil(size / unit) * unit
