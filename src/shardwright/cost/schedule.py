"""The order in which a compiler runs the ops: as the program has them, or breadth first.

Breadth first is XLA:CPU's order, so that threads find work: whatever can run does, and what it
makes waits in memory for its readers. A loop or branch runs as a whole, its body in an order of
its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.fusion import Fusion
from shardwright.program.ties import ENTRIES, Tie
from shardwright.program.types import LITERAL, TOP, Op, Program


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which op runs when."""

    order: np.ndarray  # [times] op
    time: np.ndarray  # [ops] when it runs


def program_order(program: Program) -> Schedule:
    """Every op where the program has it."""
    order = np.arange(len(program.ops))
    return Schedule(order, order)


def breadth_first(program: Program, fusion: Fusion) -> Schedule:
    """Every op as soon as what it reads is there, in the order of the program among equals."""
    level = _levels(program, fusion)
    inside: dict[int, tuple[int, ...]] = {TOP: ()}  # region -> what the keys of its ops begin with
    keys: list[tuple[int, ...]] = []
    for op in program.ops:
        unit = _unit(program, op)
        if op.region not in inside:
            loop = program.ops[program.regions[op.region].op]
            inside[op.region] = (*inside[loop.region], level[loop.index], loop.index, op.index)
        keys.append((*inside[op.region], level[unit], unit, op.index))
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    time = np.empty_like(order)
    time[order] = np.arange(len(order))
    return Schedule(order, time)


def _unit(program: Program, op: Op) -> int:
    """The op that this one runs with: a tie with its loop or branch."""
    return program.regions[op.body[0]].op if op.tie and op.body else op.index


def _levels(program: Program, fusion: Fusion) -> list[int]:
    """[ops] how many ops must run before, one after the other; fused work runs where it is read."""
    ready = [0] * len(program.values)  # the level of what makes it
    level = [0] * len(program.ops)
    for op in program.ops:
        unit = _unit(program, op)
        before = max((ready[v] for v in op.operands if v != LITERAL), default=0)
        if op.tie is Tie.RETURN:
            level[unit] = len(program.ops)  # handed over in the end
        elif unit == op.index or op.tie in ENTRIES:
            level[unit] = max(level[unit], before + 1)
        for v in op.results:
            fused = not fusion.materialised[v]
            ready[v] = 0 if op.tie in ENTRIES else before if fused else level[unit]
    return level
