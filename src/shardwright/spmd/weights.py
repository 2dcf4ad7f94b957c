"""How often each class counts in a step, and which movements several ops share.

- One value moved the same way for several uses in one place (same region, same remat body, same
  pass) is moved once: a *shared use*.
- Partial sums of dots that are only added up are reduced once, after the additions: a *sum*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.program.types import LITERAL, NO_OP, TOP, Op, Program
from shardwright.rules.rule import MATRIX
from shardwright.spmd.follow import Choice, sums_at_once
from shardwright.spmd.opclass import NO_CLASS, OpClasses

Member = tuple[int, int]  # (op class, operand or result number)


@dataclass(frozen=True, slots=True)
class Together:
    """Movements of several op classes that count as one where they are equal."""

    members: tuple[Member, ...]
    weight: float
    layout: int  # of the value that moves


@dataclass(frozen=True, slots=True)
class Weights:
    """Times per step."""

    compute: np.ndarray  # [classes]
    operands: list[np.ndarray]  # [classes][operands] moves of operands not shared
    results: list[np.ndarray]  # [classes][results] moves of results not summed
    shared: list[Together]
    sums: list[Together]
    region: list[float]  # [regions] runs per step, 0 for the lighter branches of a cond


def weigh(program: Program, classes: OpClasses, layout_of: np.ndarray) -> Weights:
    """Counts every op of the program into its class."""
    region = region_weights(program)
    compute = np.zeros(len(classes.table))
    operands = [np.zeros(len(c.operands)) for c in classes.table]
    results = [np.zeros(len(c.results)) for c in classes.table]
    uses: dict[tuple[int, int, int, bool], list[Member]] = defaultdict(list)
    sums = find_sums(program)
    summed = {op for leaves in sums for op in leaves}
    of_op = classes.of_op.tolist()
    for op in program.ops:
        c = of_op[op.index]
        if c == NO_CLASS:
            continue
        weight = region[op.region]
        compute[c] += weight
        if op.index not in summed:
            results[c] += weight
        slot = 0
        for v in op.operands:
            if v != LITERAL:
                uses[v, op.region, op.remat, op.transposed].append((c, slot))
                slot += 1
    shared: dict[tuple[int, frozenset[Member]], float] = defaultdict(float)
    for (v, at, _, _), members in uses.items():
        distinct = frozenset(members)
        if len(distinct) == 1:
            c, slot = members[0]
            operands[c][slot] += region[at]
        else:
            shared[int(layout_of[v]), distinct] += region[at]
    together: dict[tuple[int, tuple[Member, ...]], float] = defaultdict(float)
    for leaves in sums:
        layout = int(layout_of[program.ops[leaves[0]].results[0]])
        key = (layout, tuple(sorted((of_op[i], 0) for i in leaves)))
        together[key] += region[program.ops[leaves[0]].region]
    return Weights(
        compute, operands, results,
        [Together(tuple(sorted(m)), w, lay) for (lay, m), w in sorted(shared.items(), key=str)],
        [Together(m, w, lay) for (lay, m), w in sorted(together.items())],
        region,
    )  # fmt: skip


def region_weights(program: Program) -> list[float]:
    """Runs per step of each region; of a cond's branches only the heaviest counts."""
    work = [0.0] * len(program.regions)
    for op in program.ops:
        points = op.rule.work
        for size in op.rule.sizes:
            points *= size
        at = op.region
        while at != TOP:
            work[at] += points
            at = program.regions[at].parent
    weights = [1.0] * len(program.regions)
    for r in program.regions[1:]:
        weights[r.index] = weights[r.parent] * r.trips
        if r.kind == "cond":
            branches = program.ops[r.op].body
            heaviest = max(branches, key=lambda b: work[b])
            if r.index != heaviest:
                weights[r.index] = 0.0
    return weights


def find_sums(program: Program) -> list[tuple[int, ...]]:
    """Groups of ops whose partial results meet in additions and nowhere else."""
    uses = program.uses()
    leaves: dict[int, tuple[int, ...]] = {}  # value -> ops whose partial sums it adds up
    absorbed: set[int] = set()
    for op in program.ops:
        if op.tie or len(op.results) != 1:
            continue
        if _makes_sums(op):
            leaves[op.results[0]] = (op.index,)
            continue
        if not op.rule.fusible or not op.rule.linear:
            continue
        if any(op.rule.operands[i] not in (op.rule.results[0], ()) for i in op.rule.linear):
            continue  # only point by point: dims stay where they are
        inside = [op.operands[i] for i in op.rule.linear if op.operands[i] != LITERAL]
        parts = [v for v in inside if v in leaves and _only_use(program, uses, v, op)]
        if op.rule.additive:
            if len(inside) != 2 or len(set(parts)) != 2:
                continue
        elif len(parts) != 1 or len([v for v in op.operands if v != LITERAL]) != 1:
            continue
        leaves[op.results[0]] = tuple(i for v in parts for i in leaves[v])
        absorbed.update(parts)
    return [ops for v, ops in leaves.items() if v not in absorbed and len(ops) > 1]


def summed_once(choices: Sequence[Choice]) -> bool:
    """Whether the partial sums of these ops can be added before they are reduced."""
    first = choices[0]
    return bool(first.partial) and all(
        c.partial == first.partial and c.produced == first.produced for c in choices
    )


def _makes_sums(op: Op) -> bool:
    return op.rule.unit == MATRIX and sums_at_once(op.rule)


def _only_use(program: Program, uses: list[list[int]], value: int, op: Op) -> bool:
    source = program.values[value].op
    return (
        uses[value] == [op.index]
        and op.operands.count(value) == 1
        and source != NO_OP
        and program.ops[source].region == op.region
        and program.ops[source].remat == op.remat
    )
