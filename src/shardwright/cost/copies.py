"""Copies of moved values: for how long each exists in memory.

Most exist only while the op that needs them runs. Others last, on some devices or where a region
reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardwright.cost.devices import Device
from shardwright.cost.fusion import Fusion
from shardwright.cost.schedule import Schedule, region_spans
from shardwright.program.ties import CONSTS, INITS, Tie
from shardwright.program.types import LITERAL, NO_OP, Op, Program
from shardwright.spmd.opclass import NO_CLASS, OpClasses, stays
from shardwright.spmd.slack import BLOCKS, Slack

_TIE = -1  # in place of an operand
# Ties whose inner value is the outer buffer itself.
SAME_BUFFER = (*CONSTS, *INITS, Tie.COND_OPERAND, Tie.MANUAL_IN)


@dataclass(frozen=True, slots=True)
class Lasting:
    """Copies that exist for longer than the op runs which needs them.

    A tie that moves a value into a region makes a copy that exists as long as the region runs. A
    compiler that runs what it can copies and moves an operand as soon as it is there. One that
    hides gathers moves an operand while the op before it that waits for such a gather runs.
    """

    ties: list[int]  # op classes of ties whose inner values are the outer buffers, unless moved
    operands: list[tuple[int, int]]  # (op class, operand) of copies that wait
    count: np.ndarray  # [times + 1, ties + operands] how many exist


def find_lasting(
    program: Program, op_class: np.ndarray, fusion: Fusion, schedule: Schedule, device: Device,
    slack: Slack | None,
) -> Lasting:  # fmt: skip
    """The copies of each class of ties, and of operands that are moved before their op runs.

    `slack` is given where gathers are hidden.
    """
    time, (_, ends) = schedule.time.tolist(), region_spans(program, schedule)
    spans: list[tuple[tuple[int, int], int, int]] = []  # (class, operand), first and last time
    for op in program.ops:
        c, at = int(op_class[op.index]), time[op.index]
        if op.tie in SAME_BUFFER:
            spans.append(((c, _TIE), at, max(at, *[ends[r] for r in op.body])))
        elif device.breadth_first and c != NO_CLASS and not op.tie:
            operands = [v for v in op.operands if v != LITERAL]
            for slot, v in enumerate(operands):
                spans.append(((c, slot), _ready(program, fusion, time, v), at - 1))
    ahead = [] if slack is None else gathered_ahead(program, slack, schedule, device)
    for op, slot, first in ahead:
        spans.append(((int(op_class[op.index]), slot), time[first], time[op.index] - 1))
    ties = sorted({c for (c, slot), _, _ in spans if slot == _TIE})
    waiting = sorted({key for key, first, last in spans if key[1] != _TIE and first <= last})
    column = {key: i for i, key in enumerate([*[(c, _TIE) for c in ties], *waiting])}
    change = np.zeros((len(program.ops) + 2, len(column)), np.int32)
    for key, first, last in spans:
        if first <= last:
            change[first, column[key]] += 1
            change[last + 1, column[key]] -= 1
    return Lasting(ties, waiting, np.cumsum(change, 0)[: len(program.ops) + 1])


def gathered_ahead(
    program: Program, slack: Slack, schedule: Schedule, device: Device
) -> Iterator[tuple[Op, int, int]]:
    """(op, operand, the op from which on that operand is moved).

    One such op ahead in a phase; for the first since the phase began, where gathers start early.
    """
    before: dict[int, int] = {}  # phase -> its first op, then the last with such an operand
    for op in (program.ops[i] for i in schedule.order.tolist()):
        phase = slack.phase[op.index]
        if device.reorders:
            before.setdefault(phase, op.index)
        if op.tie or op.is_region or op.rule.fusible:
            continue
        slots = [i for i, hidden in enumerate(slack.operands[op.index]) if hidden != BLOCKS]
        if slots and phase in before:
            yield from ((op, slot, before[phase]) for slot in slots)
        if slots:
            before[phase] = op.index


def _ready(program: Program, fusion: Fusion, time: list[int], value: int) -> int:
    """The first time at which a value can be copied, or computed into its copy."""
    behind = (value,) if fusion.materialised[value] else fusion.sources[value]
    made = [program.values[v].op for v in behind]
    return max([time[i] + 1 for i in made if i != NO_OP], default=0)


def copy_owners(classes: OpClasses, lasting: Lasting, schedule: Schedule) -> np.ndarray:
    """[times + 1] the op class whose moved copies exist at that time alone, or NO_CLASS."""
    runs = classes.of_op[schedule.order]  # [times]
    without = [*lasting.ties, *[op.index for op in classes.table if stays(op)]]
    return np.append(np.where(np.isin(runs, without), NO_CLASS, runs), NO_CLASS)
