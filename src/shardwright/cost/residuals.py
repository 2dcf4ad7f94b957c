"""Residuals: what the forward pass leaves for the backward pass, and what else could be done.

A residual that is recomputed, or offloaded to the host, is not in memory between its last use going
forward and its first use going backward; of a stack that a scan fills, one entry is there at a
time. Recomputing costs the seconds of the ops between it and what is kept (arguments, other
residuals, what enters a trip of its loop), and saves its traffic: work that is done again in place
is fused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.cost.breakdown import memory_by_kind
from shardwright.cost.liveness import NO_POINT
from shardwright.cost.model import CostModel, model_collectives
from shardwright.cost.roofline import stream_s
from shardwright.program.ties import CONSTS, Tie
from shardwright.program.types import LITERAL, NO_OP, Op, is_backward
from shardwright.rules.rule import MATRIX
from shardwright.spmd.decisions import Decisions
from shardwright.spmd.ir import local_shape
from shardwright.spmd.weights import region_runs

# Policies of jax.checkpoint: which residuals they keep.
NO_DOTS, NOTHING = "dots_saveable", "nothing_saveable"
# Exponentials that a compiler keeps are written, summed and divided in the forward pass, and again
# where it is repeated.
SOFTMAXES = 2 * 3


@dataclass(frozen=True, slots=True)
class Residual:
    """Residuals of one line, or all that a policy would not save, per device."""

    what: str  # the user's line, or a policy of jax.checkpoint
    shape: str  # bf16[8/4,2048]; empty for a policy
    count: int
    bytes: int  # of all of them
    saves_bytes: int  # that the peak falls by if they are not kept
    recompute_s: float  # that a step takes longer
    offload_s: float | None  # to the host and back, as far as nothing hides it; None: not known
    dots: int  # that are computed again


@dataclass(frozen=True, slots=True)
class _Kept:
    """One residual: a value, what makes it, when it is not needed, its bytes."""

    value: int
    made: int  # the value inside the scan that fills the stack; else the value itself
    idle: tuple[int, int]  # between its last use forward and its first use backward
    bytes: float
    stays: float = 0.0  # bytes that are there all the same: an entry of a stack, not fused
    looped: bool = False  # whether it is a stack


def find_residuals(model: CostModel, decisions: Decisions, most: int) -> list[Residual]:
    """What two policies of jax.checkpoint would not save, then the lines with most bytes.

    What `nothing_saveable` does depends on where layers begin, so it is only told of loops.
    """
    work = _Work(model, decisions)
    by_line: dict[tuple[str, str], list[_Kept]] = {}
    for kept in work.kept:
        by_line.setdefault(work.name(kept), []).append(kept)
    lines = sorted(by_line.items(), key=lambda row: -sum(k.bytes for k in row[1]))
    rows = [
        work.row(NO_DOTS, "", [k for k in work.kept if not work.is_dot(k.made)], keep_dots=True),
        work.row(NOTHING, "", [k for k in work.kept if k.looped]),
        *(work.row(where, shape, kept) for (where, shape), kept in lines[:most]),
    ]
    return [row for row in rows if row.saves_bytes > 0]


@dataclass(frozen=True, slots=True)
class _Again:
    """What is done again."""

    seconds: float
    dots: int
    kept: frozenset[int]  # values that must be kept for that, and are not yet


class _Work:
    """The residuals of a program as decided, and what their ops take."""

    def __init__(self, model: CostModel, decisions: Decisions) -> None:
        self.model, self.program = model, model.analysis.program
        self.memory = memory_by_kind(model, decisions).sum(1)  # [times + 1]
        _, local = model.place([decisions])
        self.bytes = local[0][model.layouts.of_value]  # [values]
        self.stored = model.stored(decisions)
        self.runs = region_runs(self.program)
        self.seconds = model.op_seconds(decisions)  # [ops] per step
        self.seconds *= [self.runs[op.region] for op in self.program.ops]
        for c in model_collectives(model, decisions):
            self.seconds[c.op] += c.count * c.seconds
        self.kept = list(self._find())
        self.saved = {k.made for k in self.kept} | {k.value for k in self.kept}

    def _find(self) -> Iterable[_Kept]:
        """Values that the forward pass makes and the backward pass reads."""
        program, life, time = self.program, self.model.lifetimes, self.model.schedule.time
        backward = [is_backward(program, op) for op in program.ops]
        readers = self._readers()
        for v in program.values:
            if v.op == NO_OP or life.first[v.index] == NO_POINT or backward[v.op]:
                continue
            maker = program.ops[v.op]
            later = [op for op in readers[v.index] if backward[op.index]]
            if not later or (maker.tie and maker.tie is not Tie.SCAN_YS):
                continue
            earlier = [int(time[op.index]) for op in readers[v.index] if not backward[op.index]]
            idle = (
                max([int(life.first[v.index]), *earlier]),
                min(int(time[op.index]) for op in later),
            )
            size = float(self.bytes[v.index])
            if maker.tie is not Tie.SCAN_YS:
                yield _Kept(v.index, v.index, idle, size)
            elif maker.operands[0] != LITERAL and all(op.tie is Tie.SCAN_XS for op in later):
                whole = int(life.first[v.index]) - 1, int(life.last[v.index]) + 1
                made, trips = maker.operands[0], program.regions[maker.body[0]].trips
                yield _Kept(v.index, made, whole, size, size / trips * self.is_dot(made), True)

    def _readers(self) -> list[list[Op]]:
        """[values] the ops that read each buffer, be it to compute an operand on the fly."""
        readers: list[list[Op]] = [[] for _ in self.program.values]
        fusion = self.model.fusion
        for op in self.program.ops:
            for u in dict.fromkeys(op.operands):
                if u != LITERAL:
                    for source in (u,) if fusion.materialised[u] else fusion.sources[u]:
                        readers[source].append(op)
        return readers

    def name(self, kept: _Kept) -> tuple[str, str]:
        """(the user's line, the local shape)"""
        layout = int(self.model.layouts.of_value[kept.value])
        table, sizes = self.model.layouts.table, self.model.mesh.sizes
        shape = local_shape(self.program, kept.value, table[layout], self.stored[layout], sizes)
        return self.program.where(kept.made), shape

    def is_dot(self, value: int) -> bool:
        """Whether a dot or convolution makes it."""
        return self.program.ops[self.program.values[value].op].rule.unit == MATRIX

    def row(
        self, what: str, shape: str, kept: Sequence[_Kept], *, keep_dots: bool = False
    ) -> Residual:
        """What it would bring not to keep these; with `keep_dots`, no dot is computed again."""
        again = self.recompute(kept, keep_dots)
        size, rate = sum(k.bytes for k in kept), self.model.device.host_bytes_per_s
        return Residual(
            what, shape, len(kept), int(size), int(self.saves(kept, again)),
            again.seconds - self.traffic_s(kept, again),
            2 * size / rate if rate and not keep_dots else None, again.dots,
        )  # fmt: skip

    def saves(self, kept: Sequence[_Kept], again: _Again) -> float:
        """Bytes that the peak falls by."""
        change = np.zeros(len(self.memory) + 1)
        for k in kept:
            start, end = k.idle
            change[start + 1] -= k.bytes - k.stays
            change[max(end, start + 1)] += k.bytes - k.stays
        begin = min((k.idle[0] for k in kept), default=0) + 1
        end = max(begin, *(k.idle[1] for k in kept)) if kept else begin
        for v in again.kept:  # at the latest from the first to the last
            change[begin] += self.bytes[v] * self.trips(v)
            change[end] -= self.bytes[v] * self.trips(v)
        return float(self.memory.max() - (self.memory + np.cumsum(change)[:-1]).max())

    def traffic_s(self, kept: Sequence[_Kept], again: _Again) -> float:
        """Seconds of memory traffic that fused recomputing saves, less what else is kept."""
        times, total = self.model.fusion.traffic, 0.0
        for v in (k.made for k in kept if not self.is_dot(k.made)):
            less = times[v] - (SOFTMAXES if v in self.model.fusion.exponentials else 0)
            total += float(less * self.bytes[v]) * self.runs[self._region(v)]
        for v in again.kept:  # onto a stack and off it, or read once more
            total -= float(self.bytes[v]) * self.trips(v) * (2 if self.trips(v) > 1 else 1)
        return math.copysign(stream_s(self.model.device, abs(total)), total)

    def trips(self, value: int) -> int:
        """Entries of a stack of a value: one for each trip of its loop."""
        return self.program.trips(self._region(value))

    def _region(self, value: int) -> int:
        op = self.program.ops[self.program.values[value].op]
        return op.body[0] if op.body else op.region

    def recompute(self, kept: Sequence[_Kept], keep_dots: bool) -> _Again:
        """What it takes to compute these again from what is kept."""
        program, dropped = self.program, {k.made for k in kept} | {k.value for k in kept}
        ops: dict[int, Op] = {}
        more: set[int] = set()
        todo = [k.made for k in kept]
        while todo:
            v = todo.pop()
            at = program.values[v].op
            if at == NO_OP or at in ops or (v in self.saved and v not in dropped):
                continue
            op = program.ops[at]
            if op.tie in CONSTS or op.tie is Tie.SCAN_XS:
                pass  # what a loop reads is there
            elif op.tie or op.is_region or (keep_dots and op.rule.unit == MATRIX):
                more.add(v)  # what enters a trip, or leaves a loop: no loop runs again
            else:
                ops[at] = op
                todo += [u for u in op.operands if u != LITERAL]
        seconds = float(sum(self.seconds[i] for i in ops))
        dots = sum(op.rule.unit == MATRIX for op in ops.values())
        return _Again(seconds, dots, frozenset(more))
