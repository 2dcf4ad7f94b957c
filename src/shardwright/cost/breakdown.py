"""What stands in memory, by kind: over the whole step, and at its peak with the user's lines."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from shardwright.cost.copies import copy_owners
from shardwright.cost.liveness import NO_POINT
from shardwright.cost.model import CostModel
from shardwright.program.types import LITERAL
from shardwright.spmd.decisions import Decisions
from shardwright.spmd.ir import local_shape

KINDS = ("arguments", "optimiser state", "results", "activations", "temporaries")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Buffers of one kind from one line."""

    kind: str  # one of KINDS
    where: str
    shape: str
    count: int
    bytes: int  # all of them


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The peak of one state."""

    peak_bytes: int
    at: str  # the op that runs at the peak, and its line
    by_kind: dict[str, int]
    buffers: tuple[Buffer, ...]  # largest first


def peak_breakdown(model: CostModel, decisions: Decisions) -> Breakdown:
    """The peak's buffers, found by looking at every value that lives there."""
    program, order = model.analysis.program, model.schedule.order
    _, local = model.place([decisions])
    at, peak_bytes = model.peak(decisions)
    stored, kinds = model.stored(decisions), value_kinds(model)
    found: dict[tuple[str, str, str], list[int]] = defaultdict(list)  # bytes of each buffer
    for v in live_values(model, at):
        number = int(model.layouts.of_value[v])
        layout = model.layouts.table[number]
        shape = local_shape(program, v, layout, stored[number], model.mesh.sizes)
        size = model.prices.buffer_bytes(int(local[0][number])) * model.lifetimes.held[v]
        found[KINDS[kinds[v]], program.where(v), shape].append(int(size))
    running = program.ops[int(order[min(at, len(order) - 1)])] if program.ops else None
    copies = peak_bytes - sum(map(sum, found.values()))
    if copies and running is not None:
        found["temporaries", str(running.source or running.name), "moved copies"] = [copies]
    buffers = sorted(
        (Buffer(*key, len(sizes), sum(sizes)) for key, sizes in found.items()),
        key=lambda x: (-x.bytes, x.kind, x.where, x.shape),
    )
    by_kind = {
        kind: sum(b.bytes for b in buffers if b.kind == kind)
        for kind in sorted({b.kind for b in buffers})
    }
    line = f"{running.source} `{running.name}`" if running and running.source else "the results"
    return Breakdown(peak_bytes, line, by_kind, tuple(buffers))


def live_values(model: CostModel, at: int) -> list[int]:
    """The values whose buffers exist at a time."""
    life = model.lifetimes
    alive: list[int] = np.flatnonzero(
        (life.first != NO_POINT) & (life.first <= at) & (life.last >= at)
    ).tolist()
    return alive


def value_kinds(model: CostModel) -> np.ndarray:
    """[values] what each value is to memory, as a position in KINDS."""
    program, layouts = model.analysis.program, model.layouts
    tied = set(program.updates.values())
    kinds = np.full(len(program.values), KINDS.index("activations"))
    kinds[[v for v in program.outputs if v != LITERAL]] = KINDS.index("results")
    for v in (*program.inputs, *program.consts):
        state = v in tied and layouts.table[int(layouts.of_value[v])].update
        kinds[v] = KINDS.index("optimiser state" if state else "arguments")
    return kinds


def memory_by_kind(model: CostModel, decisions: Decisions) -> np.ndarray:
    """[times + 1, kinds] the bytes that exist on a device while each op runs, and in the end."""
    life, times = model.lifetimes, len(model.analysis.program.ops)
    placements, local = model.place([decisions])
    unit = model.device.buffer_bytes
    size = (np.ceil(local[0] / unit) * unit)[model.layouts.of_value] * life.held  # [values]
    change = np.zeros((times + 2, len(KINDS)))
    real, kinds = life.first != NO_POINT, value_kinds(model)
    np.add.at(change, (life.first[real], kinds[real]), size[real])
    np.add.at(change, (life.last[real] + 1, kinds[real]), -size[real])
    out = np.cumsum(change, 0)[: times + 1]
    if model.classes.table:
        runs = copy_owners(model.classes, model.lasting, model.schedule)
        rows = model.graph.rows(placements)
        at = model.graph.temp_columns(runs.tolist())
        copies = model.copied_bytes(rows, runs, at, model.lasting.count)[0]
        out[:, KINDS.index("temporaries")] += copies
    return out
