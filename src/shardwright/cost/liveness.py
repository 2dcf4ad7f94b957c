"""Liveness: which buffers exist at each point of the program, and the points that can be peaks.

A buffer lives from the op that writes it to the last op that reads it, directly or through
fused work. Arguments and results live throughout; a result that takes the place of a donated
argument has no buffer of its own, nor has elementwise work that can write over what it reads last.
What a loop reads lives until the loop ends, what it returns from its start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.fusion import Fusion
from shardwright.program.ties import CONSTS, INITS, Tie
from shardwright.program.types import LITERAL, NO_OP, TOP, Op, Program
from shardwright.rules.rule import MATRIX
from shardwright.spmd.opclass import NO_CLASS

NO_POINT = -1
# A repeated layer has at most this many points of one op class that can be peaks.
PERIOD = 64
# Ties whose inner value is the outer buffer itself.
SAME_BUFFER = (*CONSTS, *INITS, Tie.COND_OPERAND, Tie.MANUAL_IN)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """For each value the first and last op at which its buffer exists; NO_POINT: no buffer."""

    first: np.ndarray  # [values]
    last: np.ndarray  # [values]


@dataclass(frozen=True, slots=True)
class Points:
    """The points of the program that no others dominate."""

    ops: np.ndarray  # [points] the op at the point
    temp_class: np.ndarray  # [points] op class whose moved copies exist there too, or NO_CLASS
    live: np.ndarray  # [points, layouts] buffers of each layout
    # [points, entering] how often the copies exist that each class of ties makes for its region.
    inside: np.ndarray


@dataclass(frozen=True, slots=True)
class Entering:
    """Ties through which values enter regions: one that moves a value makes a copy of it there."""

    classes: list[int]  # op classes of such ties
    inside: np.ndarray  # [ops + 1, classes] ties of each class into regions around an op


def find_lifetimes(program: Program, fusion: Fusion) -> Lifetimes:
    """The lifetime of every buffer."""
    count, end_of_program = len(program.values), len(program.ops)
    region_end = region_ends(program)
    first = np.array([max(v.op, 0) for v in program.values], np.int64)
    last = np.full(count, NO_POINT, np.int64)
    shared = np.zeros(count, bool)  # values without a buffer of their own
    aliased = {program.outputs[p] for p in program.aliases}
    for op in program.ops:
        at = op.index
        if op.tie and op.body:
            ends = [region_end[r] for r in op.body]
            inside = program.regions[op.body[0]]
            if op.tie in SAME_BUFFER:
                shared[list(op.results)] = True
            if op.tie is Tie.MANUAL_OUT:  # the shard that a device gives is the result's buffer
                shared[op.operands[0]] = True
                first[op.results[0]] = first[op.operands[0]]
                continue
            if op.tie is Tie.MANUAL_IN:  # read until the shard is last read, see below
                continue
            at = max(at, *ends)
            if at == op.index:  # an exit: the loop's result exists since the loop began
                for r in op.results:
                    first[r] = min(first[r], inside.op)
        for v in op.operands:
            if v != LITERAL:
                last[v] = max(last[v], at)
    for op in reversed(program.ops):  # fused work reads its sources where it is itself read
        if op.tie is Tie.MANUAL_IN:
            last[op.operands[0]] = max(last[op.operands[0]], op.index, last[op.results[0]])
        for v in op.results:
            if not fusion.materialised[v]:
                for s in fusion.sources[v]:
                    last[s] = max(last[s], last[v])
    for v in (*program.inputs, *program.consts):
        first[v], last[v] = 0, end_of_program
    for op in program.ops:
        if op.tie is Tie.RETURN:
            operand, result = op.operands[0], op.results[0]
            first[result], last[result] = 0, end_of_program  # the caller allocates it
            if program.values[operand].op != NO_OP:
                shared[operand] = True  # it is the result's buffer
            if result in aliased:
                shared[result] = True
    _reuse(program, fusion, shared, last)
    none = shared | ~fusion.materialised | (last == NO_POINT)
    first[none] = last[none] = NO_POINT
    return Lifetimes(first, last)


def _reuse(program: Program, fusion: Fusion, shared: np.ndarray, last: np.ndarray) -> None:
    """Elementwise work and updates in place write over an operand that nothing reads later."""
    for op in program.ops:
        if op.tie or len(op.results) != 1:
            continue
        v = program.values[op.results[0]]
        if shared[v.index] or not fusion.materialised[v.index]:
            continue
        for s in fusion.sources[v.index] if op.rule.fusible else _updated(op):
            source = program.values[s]
            if (
                last[s] == op.index and not shared[s] and source.op != NO_OP
                and program.ops[source.op].region == op.region
                and source.type == v.type
            ):  # fmt: skip
                last[s] = op.index - 1
                break


def _updated(op: Op) -> tuple[int, ...]:
    """The operand that a scatter or an update in place changes: dims and all it is the result."""
    rule = op.rule
    alone = len(op.operands) == 1  # a sort or a transform reads it to the end
    if alone or rule.unit == MATRIX or not rule.operands or rule.operands[0] != rule.results[0]:
        return ()
    return op.operands[:1] if op.operands[0] != LITERAL else ()


def region_ends(program: Program) -> list[int]:
    """The last op inside each region, nested ones included."""
    ends = [0] * len(program.regions)
    for op in program.ops:
        region = op.region
        while region != TOP:
            ends[region] = max(ends[region], op.index)
            region = program.regions[region].parent
    return ends


def live_counts(lifetimes: Lifetimes, layout_of: np.ndarray, layouts: int, ops: int) -> np.ndarray:
    """[ops + 1, layouts] how many buffers of each layout exist while an op runs."""
    change = np.zeros((ops + 2, layouts), np.int32)
    real = lifetimes.first != NO_POINT
    np.add.at(change, (lifetimes.first[real], layout_of[real]), 1)
    np.add.at(change, (lifetimes.last[real] + 1, layout_of[real]), -1)
    return np.cumsum(change, 0)[: ops + 1]


def find_entering(program: Program, op_class: np.ndarray) -> Entering:
    """The ties whose inner values are the outer buffers themselves, unless they are moved."""
    ties = [op for op in program.ops if op.tie in SAME_BUFFER]
    classes = sorted({int(op_class[op.index]) for op in ties})
    column, ends = {c: i for i, c in enumerate(classes)}, region_ends(program)
    change = np.zeros((len(program.ops) + 2, len(classes)), np.int32)
    for op in ties:
        at = column[int(op_class[op.index])]
        change[op.index, at] += 1
        change[max(op.index, *[ends[r] for r in op.body]) + 1, at] -= 1
    return Entering(classes, np.cumsum(change, 0)[: len(program.ops) + 1])


def peak_points(live: np.ndarray, op_class: np.ndarray, entering: Entering) -> Points:
    """Drops every point that another one dominates in all states.

    Points of one op class are compared with each other, since moved copies exist there too.
    Along repeated layers counts grow and shrink evenly: of such a row only the ends can be peaks.
    """
    owner = np.append(np.where(np.isin(op_class, entering.classes), NO_CLASS, op_class), NO_CLASS)
    every = np.concatenate([live, entering.inside], axis=1)
    kept: list[int] = []
    for c in np.unique(owner):
        rows = np.flatnonzero(owner == c)
        rows = rows[_first_of_equal(every[rows])]
        rows = rows[_run_ends(every[rows], 1)]
        rows = rows[_undominated(every[rows])]
        kept.extend(rows[_run_ends(every[rows], PERIOD)].tolist())
    ops = np.array(sorted(kept))
    free = ops[owner[ops] < 0]
    moving = ops[owner[ops] >= 0]
    if len(moving) and len(free):  # a point without copies is covered by one that has more
        covered = np.array([bool((every[moving] >= every[p]).all(1).any()) for p in free])
        ops = np.sort(np.concatenate([moving, free[~covered]]))
    counts = every[ops].astype(np.float64)
    width = live.shape[1]
    return Points(ops, owner[ops], counts[:, :width], counts[:, width:])


def _first_of_equal(rows: np.ndarray) -> np.ndarray:
    key = rows @ np.random.default_rng(0).integers(1, 1 << 40, rows.shape[1])
    _, index = np.unique(key, return_index=True)
    return np.sort(index)


def _run_ends(rows: np.ndarray, period: int) -> np.ndarray:
    """Drops each row on or below the middle of the two that stand k before and k after it.

    Of the rows that are largest in some state, the last has nothing as large after it, so it
    is never dropped: dropping for any k at once is safe.
    """
    inside = np.zeros(len(rows), bool)
    for k in range(1, min(period, (len(rows) - 1) // 2) + 1):
        inside[k:-k] |= (2 * rows[k:-k] <= rows[: -2 * k] + rows[2 * k :]).all(1)
    return np.flatnonzero(~inside)


def _undominated(rows: np.ndarray) -> np.ndarray:
    """Indices of rows that no other row covers in every column."""
    order = np.argsort(-rows.sum(1), kind="stable")
    kept: list[int] = []
    for i in order.tolist():
        if not kept or not (rows[kept] >= rows[i]).all(1).any():
            kept.append(i)
    return np.array(sorted(kept), np.int64)
