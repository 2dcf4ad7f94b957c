"""How often each class counts in a step, and which movements several ops share.

- One value resharded alike for several uses in one place (same region, same remat body, same
  pass) is moved once: a *shared transfer*.
- Partial sums that are only added up are reduced once, after the additions: a *deferred reduction*.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwright.program.types import LITERAL, TOP, Program
from shardwright.spmd.opclass import NO_CLASS, OpClasses
from shardwright.spmd.sums import Order, Sizes, find_sums

Use = tuple[int, int]  # (op class, operand)


@dataclass(frozen=True, slots=True)
class SharedTransfer:
    """One value that several ops use in one place: moved once for each placement they need."""

    layout: int
    uses: tuple[Use, ...]
    weight: float  # times per step


@dataclass(frozen=True, slots=True)
class DeferredReduction:
    """Partial results that are only added up: reduced once, after the additions."""

    sizes: Sizes  # bytes that are reduced for each element of a leaf
    leaves: tuple[tuple[int, Order], ...]  # (op class, order of its dims)
    # Op classes that must move nothing, or the reduction cannot be hoisted out of its loop.
    hoisted_past: tuple[int, ...]
    weight: float  # times per step where the additions are
    after_loop: float  # times per step once it is hoisted


@dataclass(frozen=True, slots=True)
class Weights:
    """Times per step."""

    compute: np.ndarray  # [classes]
    exchanges: np.ndarray  # [classes] exchanges with neighbours
    operands: list[np.ndarray]  # [classes][operands] moves of operands not shared
    results: list[np.ndarray]  # [classes][results] moves of results not summed
    shared: list[SharedTransfer]
    deferred: list[DeferredReduction]
    region: list[float]  # [regions] runs per step, 0 for the lighter branches of a cond


def weigh(program: Program, classes: OpClasses, layout_of: np.ndarray) -> Weights:
    """The weights of all classes of a program: every op counts in its class."""
    region, runs = region_weights(program), region_runs(program)
    compute, exchanges = np.zeros(len(classes.table)), np.zeros(len(classes.table))
    operands = [np.zeros(len(c.operands)) for c in classes.table]
    results = [np.zeros(len(c.results)) for c in classes.table]
    uses: dict[tuple[int, int, int, bool], list[Use]] = defaultdict(list)
    sums = find_sums(program)
    summed = {leaf.op for one in sums for leaf in one.leaves}
    of_op = classes.of_op.tolist()
    for op in program.ops:
        c = of_op[op.index]
        if c == NO_CLASS:
            continue
        compute[c] += region[op.region]
        exchanges[c] += runs[op.region]
        if op.index not in summed:
            results[c] += runs[op.result_region]
        slot = 0
        for v in op.operands:
            if v != LITERAL:
                uses[v, op.operand_region, op.remat, op.transposed].append((c, slot))
                slot += 1
    shared: dict[tuple[int, tuple[Use, ...]], float] = defaultdict(float)
    for (v, at, _, _), users in uses.items():
        distinct = tuple(sorted(set(users)))
        if len(distinct) == 1:
            c, slot = distinct[0]
            operands[c][slot] += runs[at]
        else:
            shared[int(layout_of[v]), distinct] += runs[at]
    added: dict[tuple[Any, ...], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for one in sums:
        first, *rest = [(of_op[leaf.op], leaf.order) for leaf in one.leaves]
        past = tuple([of_op[i] for i in one.hoisted_past(program)])
        key = (one.sizes(program), (first, *sorted(rest, key=str)), past)
        inside, after = added[key]
        inside += runs[program.ops[one.leaves[0].op].region]
        if one.hoist:
            after += runs[program.ops[one.hoist.loop.carry].region]
        added[key] = (inside, after)
    return Weights(
        compute, exchanges, operands, results,
        [SharedTransfer(*key, weight) for key, weight in sorted(shared.items())],
        [
            DeferredReduction(sizes, leaves, past, weight, after)
            for (sizes, leaves, past), (weight, after) in sorted(added.items(), key=str)
        ],
        region,
    )  # fmt: skip


def region_runs(program: Program) -> list[float]:
    """[regions] runs per step, every branch of a cond counted: what moves in it is not free."""
    return [float(program.trips(r.index)) for r in program.regions]


def region_weights(program: Program) -> list[float]:
    """[regions] runs per step; of a cond's branches only the heaviest counts."""
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
