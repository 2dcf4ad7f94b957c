"""Liveness: which buffers exist at each point of the program, and the points that can be peaks.

A buffer lives from the op that writes it to the last op that reads it, directly or through
fused work. Arguments and results live throughout; a result that takes the place of a donated
argument has no buffer of its own, nor has elementwise work that can write over what it reads last.
An array in the host's memory has none on the device.
What a loop reads lives until the loop ends, what it returns from its start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.copies import SAME_BUFFER, Lasting, copy_owners
from shardwright.cost.devices import Device
from shardwright.cost.fusion import Fusion
from shardwright.cost.schedule import Schedule, region_spans
from shardwright.program.ties import Tie
from shardwright.program.types import LITERAL, NO_OP, Op, Program
from shardwright.rules.rule import MATRIX
from shardwright.spmd.opclass import OpClasses

NO_POINT = -1  # when a value that is never in memory is first there
# A repeated layer has at most this many points of one op class that can be peaks; the
# zoo has the same peaks with anything from 8 to 256.
PERIOD = 64


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """For each value the first and last time at which its buffer exists; NO_POINT: no buffer."""

    first: np.ndarray  # [values]
    last: np.ndarray  # [values]
    held: np.ndarray  # [values] part of the value's bytes that its buffer takes


@dataclass(frozen=True, slots=True)
class Points:
    """The points of the program that no others dominate."""

    times: np.ndarray  # [points] when
    temp_class: np.ndarray  # [points] op class whose moved copies exist there too, or NO_CLASS
    live: np.ndarray  # [points, layouts] buffers of each layout
    lasting: np.ndarray  # [points, columns of Lasting] copies that last


def find_lifetimes(
    program: Program, fusion: Fusion, schedule: Schedule, device: Device
) -> Lifetimes:
    """The lifetime of every buffer."""
    count, end_of_program = len(program.values), len(program.ops)
    time = schedule.time.tolist()
    _, region_end = region_spans(program, schedule)
    first = np.array([time[v.op] if v.op != NO_OP else 0 for v in program.values], np.int64)
    last = np.full(count, NO_POINT, np.int64)
    shared = np.zeros(count, bool)  # values without a buffer of their own
    aliased = {program.outputs[p] for p in program.aliases}
    for op in program.ops:
        at = time[op.index]
        if op.tie and op.body:
            ends = [region_end[r] for r in op.body]
            inside = program.regions[op.body[0]]
            if op.tie in SAME_BUFFER and not _made_inside(fusion, op):
                shared[list(op.results)] = True
            if op.tie is Tie.MANUAL_OUT:  # the shard that a device gives is the result's buffer
                shared[op.operands[0]] = True
                first[op.results[0]] = first[op.operands[0]]
                continue
            if op.tie is Tie.MANUAL_IN:  # read until the shard is last read, see below
                continue
            at = max(at, *ends)
            if at == time[op.index]:  # an exit: the loop's result exists since the loop began
                for r in op.results:
                    first[r] = min(first[r], time[inside.op])
        for v in op.operands:
            if v != LITERAL:
                last[v] = max(last[v], at)
    for op in reversed(program.ops):  # fused work reads its sources where it is itself read
        if op.tie is Tie.MANUAL_IN:
            last[op.operands[0]] = max(last[op.operands[0]], op.index, last[op.results[0]])
        if op.tie is Tie.MANUAL_OUT:  # fused work reads it under its name in the body
            last[op.results[0]] = max(last[op.results[0]], last[op.operands[0]])
        for v in op.results:
            if not fusion.materialised[v]:
                for s in fusion.sources[v]:
                    last[s] = max(last[s], last[v])
    if device.expands:
        for op in program.ops:
            for v in _copied(program, op):  # the copy is computed from what the value is
                for s in fusion.sources[v]:
                    last[s] = max(last[s], time[op.index])
    for v in (*program.inputs, *program.consts):
        first[v], last[v] = 0, end_of_program
    for op in program.ops:
        if op.tie is Tie.RETURN:
            operand, result = op.operands[0], op.results[0]
            first[result], last[result] = 0, end_of_program  # the caller allocates it
            if program.values[operand].op != NO_OP:
                # It is the result's buffer; a stack of a loop that reads the donated one is not.
                shared[operand] = not (result in aliased and _restacks(program, operand))
            if result in aliased:
                shared[result] = True
    _reuse(program, fusion, schedule, device, shared, last)
    host = np.array([v.type.host for v in program.values], bool)
    none = shared | ~fusion.materialised | (last == NO_POINT) | host
    first[none] = last[none] = NO_POINT
    return Lifetimes(first, last, fusion.held)


def _reuse(
    program: Program, fusion: Fusion, schedule: Schedule, device: Device, shared: np.ndarray,
    last: np.ndarray,
) -> None:  # fmt: skip
    """Elementwise work and updates in place write over an operand that nothing reads later."""
    for at, i in enumerate(schedule.order.tolist()):
        op = program.ops[i]
        if op.tie or len(op.results) != 1:
            continue
        v = program.values[op.results[0]]
        if shared[v.index] or not fusion.materialised[v.index]:
            continue
        for s in fusion.sources[v.index] if op.rule.fusible else _updated(op):
            source = program.values[s]
            if (
                last[s] == at and not shared[s] and source.op != NO_OP
                and program.ops[source.op].region == op.region
                and source.type == v.type
                and not (device.keeps_looped and _is_looped(program.ops[source.op], device))
            ):  # fmt: skip
                last[s] = at - 1
                break


def _made_inside(fusion: Fusion, op: Op) -> bool:
    """Whether the body that a tie enters computes the value itself."""
    return op.operands[0] != LITERAL and not fusion.materialised[op.operands[0]]


def _restacks(program: Program, value: int) -> bool:
    """Whether a loop gives a stack for one of the same type that it takes, such as a cache."""
    made = program.ops[program.values[value].op]
    if made.tie is not Tie.SCAN_YS:
        return False
    type_ = program.values[value].type
    return any(
        op.tie is Tie.SCAN_XS and op.body == made.body
        and program.values[op.operands[0]].type == type_ for op in program.ops
    )  # fmt: skip


def _copied(program: Program, op: Op) -> list[int]:
    """The operands that an op needs in another order of dims, and others as they are."""
    slots = [op.operands[slot] for slot, _ in op.rule.expanded.copies if slot >= 0]
    return [v for v in slots if v != LITERAL and len(program.uses()[v]) > 1]


def _is_looped(op: Op, device: Device) -> bool:
    """Whether a loop or branch returns what an op makes."""
    return (op.tie and bool(op.body)) or (device.expands and op.rule.expanded.words > 0)


def _updated(op: Op) -> tuple[int, ...]:
    """The operand that a scatter or an update in place overwrites: its dims are the result's."""
    rule = op.rule
    alone = len(op.operands) == 1  # a sort or a transform reads it to the end
    if alone or rule.unit == MATRIX or not rule.operands or rule.operands[0] != rule.results[0]:
        return ()
    return op.operands[:1] if op.operands[0] != LITERAL else ()


def live_counts(lifetimes: Lifetimes, layout_of: np.ndarray, layouts: int, ops: int) -> np.ndarray:
    """[times + 1, layouts] how many buffers of each layout exist while an op runs."""
    change = np.zeros((ops + 2, layouts))
    real = lifetimes.first != NO_POINT
    np.add.at(change, (lifetimes.first[real], layout_of[real]), lifetimes.held[real])
    np.add.at(change, (lifetimes.last[real] + 1, layout_of[real]), -lifetimes.held[real])
    return np.cumsum(change, 0)[: ops + 1]


def peak_points(
    live: np.ndarray, classes: OpClasses, lasting: Lasting, schedule: Schedule
) -> Points:
    """Drops every point that another one dominates in all states.

    Points of one op class are compared with each other, since moved copies exist there too.
    Along repeated layers counts grow and shrink evenly: of such a row only the ends can be peaks.
    """
    owner = copy_owners(classes, lasting, schedule)
    every = np.concatenate([live, lasting.count], axis=1)
    kept: list[int] = []
    for c in np.unique(owner):
        rows = np.flatnonzero(owner == c)
        rows = rows[_first_of_equal(every[rows])]
        rows = rows[_run_ends(every[rows], 1)]
        rows = rows[_undominated(every[rows])]
        kept.extend(rows[_run_ends(every[rows], PERIOD)].tolist())
    times = np.array(sorted(kept))
    free = times[owner[times] < 0]
    moving = times[owner[times] >= 0]
    if len(moving) and len(free):  # a point without copies is covered by one that has more
        covered = np.array([bool((every[moving] >= every[p]).all(1).any()) for p in free])
        times = np.sort(np.concatenate([moving, free[~covered]]))
    counts = every[times].astype(np.float64)
    width = live.shape[1]
    return Points(times, owner[times], counts[:, :width], counts[:, width:])


def _first_of_equal(rows: np.ndarray) -> np.ndarray:
    """Indices of the first of each set of equal rows, ascending."""
    first: dict[bytes, int] = {}
    for i, row in enumerate(rows):
        first.setdefault(row.tobytes(), i)
    return np.array(list(first.values()), np.int64)


def _run_ends(rows: np.ndarray, period: int) -> np.ndarray:
    """Indices of points above the chord of their neighbours k before and k after, for all k.

    A point on or below the chord is no larger than the larger of the two neighbours, whatever the
    bytes of a layout are: in a stack of equal layers only its first and last can be the peak. A
    point that is largest in some state, and the last such, is above every chord: it stays.
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
