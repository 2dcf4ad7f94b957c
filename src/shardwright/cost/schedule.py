"""The order in which a compiler runs the ops: as the program has them, or near that.

Two kinds of ops run elsewhere. Updates of weights run as soon as what they read is there, so that
gradients do not wait in memory for each other (the TPU compiler). Gradients of weights wait, since
a scheduler that hides links fills gaps with them (XLA:GPU).

Breadth first is XLA:CPU's order, so that threads find work: whatever can run does, and what it
makes waits in memory for its readers. A loop or branch runs as a whole, its body in an order of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwright.cost.devices import Device
from shardwright.cost.fusion import Fusion
from shardwright.program.ties import ENTRIES, Tie
from shardwright.program.types import LITERAL, NO_OP, TOP, Op, Program
from shardwright.rules.rule import MATRIX


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which op runs when."""

    order: np.ndarray  # [times] op
    time: np.ndarray  # [ops] when it runs


def schedule_for(device: Device, program: Program, fusion: Fusion) -> Schedule:
    """The order in which a device's compiler runs a program."""
    if device.breadth_first:
        return breadth_first(program, fusion)
    return near_program_order(program, late=device.reorders, early=device.early_updates)


def breadth_first(program: Program, fusion: Fusion) -> Schedule:
    """Every op as soon as what it reads is there, in the order of the program among equals."""
    return _by_level(program, _levels(program, fusion))


def near_program_order(program: Program, *, late: bool, early: bool) -> Schedule:
    """As the program has it, but gradients of weights wait (late), updates do not (early)."""
    level = [(2 * unit + 1, unit) for unit in (_unit(program, op) for op in program.ops)]
    if late:
        for dot, reader in _waiting(program):
            level[dot] = 2 * reader, dot
    updates = _updates(program) if early else [False] * len(program.ops)
    for op in program.ops:
        unit = _unit(program, op)
        made = [program.values[v].op for v in op.operands if v != LITERAL]
        units = [_unit(program, program.ops[i]) for i in made if i != NO_OP]
        read = [level[u] for u in units if program.ops[u].region == program.ops[unit].region]
        level[unit] = max(read, default=(0, unit)) if updates[unit] else max([level[unit], *read])
    return _by_level(program, level)


def _waiting(program: Program) -> Iterator[tuple[int, int]]:
    """(a dot, the op that it waits for): the next dot, reduction or loop from which less follows.

    Of the two gradients of a dot the one from which more follows is first. Where nothing follows,
    as from gradients of weights, a dot waits for the end of a loop's body. In the function itself
    it waits half of the time: there a scheduler that hides links keeps such dots to fill gaps, from
    the end backwards (XLA:GPU, in GPTs of 3 and 6 layers).
    """
    follows = _following(program)
    works = [op for op in program.ops if op.is_region or not (op.rule.fusible or op.tie)]
    last = max([op.index for op in works if op.region == TOP], default=0)
    least: dict[int, list[Op]] = {}  # region -> ops ahead, from each of which less follows
    for op in reversed(works):
        ahead = least.setdefault(op.region, [])
        while ahead and follows[ahead[-1].index] >= follows[op.index]:
            ahead.pop()
        if op.rule.unit == MATRIX:
            end = (op.index + last) // 2 + 1 if op.region == TOP else len(program.ops)
            yield op.index, ahead[-1].index if ahead else end
        ahead.append(op)


def _updates(program: Program) -> list[bool]:
    """[ops] whether each is elementwise work that only makes results."""
    readers = program.uses()
    updates = [False] * len(program.ops)
    for op in reversed(program.ops):
        passes = op.tie is Tie.RETURN or (op.rule.fusible and not op.tie)
        only = all(updates[u] for v in op.results for u in readers[v])
        updates[op.index] = passes and only and op.region == TOP
    return updates


def _following(program: Program) -> list[int]:
    """[ops] how many ops that are not fused are on the longest path from each to the end."""
    after = [0] * len(program.ops)
    readers = program.uses()
    for op in reversed(program.ops):
        unit = _unit(program, op)
        for v in op.results:
            for u in readers[v]:
                reader = program.ops[u]
                if reader.region != op.region:
                    continue
                last = _unit(program, reader)
                if last != unit:
                    works = not (reader.rule.fusible or reader.tie) or last != u
                    after[unit] = max(after[unit], after[last] + works)
    return after


def _by_level(program: Program, level: Sequence[Any]) -> Schedule:
    """Ops of lower levels first, a loop or branch as a whole, its body in an order of its own."""
    inside: dict[int, tuple[Any, ...]] = {TOP: ()}  # region -> what the keys of its ops begin with
    keys: list[tuple[Any, ...]] = []
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


def region_spans(program: Program, schedule: Schedule) -> tuple[list[int], list[int]]:
    """([regions] the time of the first op inside each, of the last), nested ones included."""
    begins, ends = [len(program.ops)] * len(program.regions), [0] * len(program.regions)
    for op, at in zip(program.ops, schedule.time.tolist(), strict=True):
        region = op.region
        while region != TOP:
            begins[region], ends[region] = min(begins[region], at), max(ends[region], at)
            region = program.regions[region].parent
    return begins, ends


def _unit(program: Program, op: Op) -> int:
    """The op that this one runs with: a tie with its loop or branch."""
    return program.regions[op.body[0]].op if op.tie and op.body else op.index


def _levels(program: Program, fusion: Fusion) -> list[int]:
    """[ops] how many ops are on the longest path to each; fused work runs where it is read."""
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
