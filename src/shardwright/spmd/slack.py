"""Slack: which movements may run beside compute, and beside whose.

A *phase* is a stretch that runs in one go: of each region the forward pass, the backward pass, and
what follows it. What is there when a phase begins can be moved before it is needed: weights are
gathered ahead. What a phase only hands on can be moved after it was made: gradients are reduced
late. Such movements are *hideable* behind the compute of their phase. Every other one stands
between two ops that need each other, or at an end of its phase, and blocks, unless the platform
splits the dot beside it (collective matmul): then its parts move while others are multiplied.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from shardwright.program.ties import CARRIES, ENTRIES, EXITS, INITS, LEAVES_TRIP, Tie
from shardwright.program.types import NO_OP, TOP, Op, Program
from shardwright.rules.rule import MATRIX, NOTHING, PASS
from shardwright.spmd.sums import find_sums

BLOCKS = -1  # in place of a phase: a movement that nothing hides
_BEFORE = -2  # of a value: there before any phase of its region begins


class Slack(NamedTuple):
    """The phases of a program, and for each movement the phase that it hides behind, or BLOCKS."""

    phases: int
    phase: list[int]  # [ops] in which each is computed
    value_phase: list[int]  # [values] in which each is written, an argument last read
    operands: list[tuple[int, ...]]  # [ops][operands but literals]
    results: list[int]  # [ops] all results of an op alike


def find_slack(program: Program, splits_bytes: float = 0.0) -> Slack:
    """The slack of every movement of a program.

    From arrays of `splits_bytes` on a platform splits the dot that reads or makes them; 0: none.
    """
    phase, begins, ends = _phases(program)
    splits = _beside_dots(program, splits_bytes) if splits_bytes else frozenset[tuple[int, int]]()
    made, ready = _made(program, phase, begins)
    needed = _needed(program, phase, made)

    def early(op: Op, at: int) -> list[bool]:
        """[operands but literals] whether each is there when a phase begins."""
        return [made[v] != at or ready[v] for v in op.arrays]

    works = [not (op.rule.fusible or op.tie or op.is_region) for op in program.ops]
    numbers = [i for i, is_work in enumerate(works) if is_work]
    # Of each phase the op that nothing runs before, and the one that nothing runs after.
    first, last = {phase[i]: i for i in reversed(numbers)}, {phase[i]: i for i in numbers}
    # What the function itself makes after its last dot or loop hides behind what follows.
    heavy = {phase[op.index]: op.index for op in program.ops if _is_heavy(op)}
    top = sorted({phase[op.index] for op in program.ops if op.region == TOP})
    follows = dict(pairwise(top))
    operands, results = [], []
    for op in program.ops:
        passes = op.rule.fusible or op.tie is not None
        handed_on = not op.is_region and not any(needed[v] for v in op.results)
        late = handed_on and last.get(phase[op.index]) != op.index
        here, moves_late = phase[op.index], late and passes
        if op.tie in LEAVES_TRIP:  # moved in every trip, not after the loop
            here, moves_late = ends[op.body[0]], not any(needed[v] for v in op.operands)
        there = begins[op.body[0]] if op.tie is Tie.SCAN_XS else phase[op.index]
        alone = op.region == TOP and op.tie is None and op.index > heavy.get(there, op.index)
        if handed_on and alone:
            here = there = follows.get(there, BLOCKS)
            late = moves_late = True
        found = [one and first.get(here) != op.index for one in early(op, here)]
        apart = [phase[op.index] if (op.index, v) in splits else BLOCKS for v in op.arrays]
        operands.append(tuple([
            here if one or moves_late else at for one, at in zip(found, apart, strict=True)
        ]))  # fmt: skip
        ahead = op.tie is Tie.SCAN_XS or (passes and op.tie not in EXITS and all(found))
        made_by_dots = any((op.index, v) in splits for v in op.results)
        results.append(there if late or ahead else phase[op.index] if made_by_dots else BLOCKS)
    readers = program.uses()
    by = [v.op if v.op != NO_OP else next(reversed(readers[v.index]), 0) for v in program.values]
    value_phase = [phase[i] if phase else 0 for i in by]
    return Slack(1 + max(phase, default=0), phase, value_phase, operands, results)


def _beside_dots(program: Program, least_bytes: float) -> frozenset[tuple[int, int]]:
    """{(op, value)} what a dot reads, or makes, or is added up of such, if it is large enough."""
    found = set[tuple[int, int]]()
    for op in program.ops:
        if op.rule.unit == MATRIX:
            found |= {(op.index, v) for v in (*op.arrays, *op.results)}
    for one in find_sums(program):
        if program.ops[one.leaves[0].op].rule.unit == MATRIX:
            found.add((program.values[one.value].op, one.value))
    return frozenset((op, v) for op, v in found if program.values[v].bytes >= least_bytes)


def _is_heavy(op: Op) -> bool:
    return op.is_region or op.rule.unit == MATRIX


def _is_light(op: Op) -> bool:
    """Elementwise work, and reductions over dims of size 1: reshapes to a compiler."""
    return op.rule.fusible or (
        op.rule.unit not in (MATRIX, NOTHING) and all(kind == PASS for kind in op.rule.kinds)
    )


def _phases(program: Program) -> tuple[list[int], list[int], list[int]]:
    """([ops] phase of each, [regions] first phase, [regions] last phase)."""
    first: dict[int, int] = {}  # region -> the first op of its backward pass
    last: dict[int, int] = {}
    for op in program.ops:
        if op.transposed:
            first.setdefault(op.region, op.index)
            last[op.region] = op.index
    number: dict[tuple[int, int], int] = {}
    phase = []
    begins, ends = [BLOCKS] * len(program.regions), [BLOCKS] * len(program.regions)
    for op in program.ops:
        passed = [op.index >= first.get(op.region, len(program.ops)),
                  op.index > last.get(op.region, len(program.ops))]  # fmt: skip
        phase.append(number.setdefault((op.region, sum(passed)), len(number)))
        ends[op.region] = phase[-1]
        if begins[op.region] == BLOCKS:
            begins[op.region] = phase[-1]
    return phase, begins, ends


def _made(program: Program, phase: list[int], begins: list[int]) -> tuple[list[int], list[bool]]:
    """([values] phase that computes each, [values] whether from what is there when it begins)."""
    made, ready = [_BEFORE] * len(program.values), [False] * len(program.values)
    for op in program.ops:
        if op.is_region or op.tie in ENTRIES:
            if op.tie in INITS:  # a carry: of the trip before
                for v, body in zip(op.results, op.body, strict=True):
                    made[v] = begins[body]
            continue
        at = phase[op.index]
        cheap = op.rule.fusible and op.tie is None
        found = cheap and all(made[v] != at or ready[v] for v in op.arrays)
        for v in op.results:
            made[v], ready[v] = at, found
    return made, ready


def _needed(program: Program, phase: list[int], made: list[int]) -> list[bool]:
    """[values] whether the phase that makes each needs it, or the backward pass that follows.

    What is not needed is handed on: to what follows both passes, or out of its region. Elementwise
    work on what is handed on waits with it. A carry hands on what the next trip only adds to.
    """
    backward = {phase[op.index] for op in program.ops if op.transposed}
    needed = [False] * len(program.values)
    before: list[bool] | None = None
    carries = any(op.tie in CARRIES for op in program.ops)
    while before is None or (carries and needed != before):
        before = list(needed)
        for op in reversed(program.ops):
            if op.tie in CARRIES:
                new, *old = op.operands
                needed[new] |= any(needed[v] for v in old)
            elif op.tie in EXITS or op.tie is Tie.RETURN:
                continue
            elif op.tie or not _is_light(op) or any(needed[v] for v in op.results):
                at = phase[op.index]
                for v in op.arrays:
                    needed[v] |= made[v] == at or at in backward
    return needed
