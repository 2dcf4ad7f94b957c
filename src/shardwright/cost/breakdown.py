"""What stands in memory at the peak: by kind, and the largest buffers with the user's lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.liveness import NO_POINT
from shardwright.cost.model import CostModel
from shardwright.program.types import Op
from shardwright.spmd.decisions import Decisions
from shardwright.spmd.ir import local_shape


@dataclass(frozen=True, slots=True)
class Buffer:
    """Buffers of one kind from one line."""

    kind: str  # "arguments", "optimiser state", "results", "activations" or "temporaries"
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
    program = model.analysis.program
    _, local = model.place([decisions])
    at, peak_bytes = model.peak(decisions)
    inputs, outputs = {*program.inputs, *program.consts}, set(program.outputs)
    tied = set(program.updates.values())
    stored = model.stored(decisions)
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    by_kind: dict[str, int] = {}
    for v in live_values(model, at):
        layout_index = int(model.layouts.of_value[v])
        layout = model.layouts.table[layout_index]
        whole = model.prices.buffer_bytes(int(local[0][layout_index]))
        size = int(whole * model.lifetimes.held[v])
        if v in inputs:
            kind = "optimiser state" if v in tied and layout.update else "arguments"
        else:
            kind = "results" if v in outputs else "activations"
        shape = local_shape(program, v, layout, stored[layout_index], model.mesh.sizes)
        key = (kind, program.where(v), shape)
        n, b = found.get(key, (0, 0))
        found[key] = (n + 1, b + size)
        by_kind[kind] = by_kind.get(kind, 0) + size
    copies = peak_bytes - sum(by_kind.values())
    if copies:
        by_kind["temporaries"] = copies
        op = running(model, at)
        found["temporaries", str(op.source or op.name), "moved copies"] = (1, copies)
    buffers = sorted(
        (Buffer(kind, where, shape, n, b) for (kind, where, shape), (n, b) in found.items()),
        key=lambda x: (-x.bytes, x.kind, x.where, x.shape),
    )
    here = running(model, at) if program.ops else None
    line = f"{here.source} `{here.name}`" if here is not None and here.source else "the results"
    return Breakdown(peak_bytes, line, dict(sorted(by_kind.items())), tuple(buffers))


def running(model: CostModel, at: int) -> Op:
    """The op that runs at a time; the last one in the end."""
    order = model.schedule.order
    return model.analysis.program.ops[int(order[min(at, len(order) - 1)])]


def live_values(model: CostModel, at: int) -> list[int]:
    """The values whose buffers exist at a time."""
    life = model.lifetimes
    alive: list[int] = np.flatnonzero(
        (life.first != NO_POINT) & (life.first <= at) & (life.last >= at)
    ).tolist()
    return alive
