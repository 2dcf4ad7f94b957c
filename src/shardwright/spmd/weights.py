"""How often each class counts in a step, and which movements several ops share.

- One value resharded alike for several uses in one place (same region, same remat body, same
  pass) is moved once: a *shared transfer*.
- Partial sums that are only added up are reduced once, after the additions: a *deferred reduction*.
- A movement with slack hides behind the compute of its phase (slack.py): counted by phase too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwright.program.types import Op, Program
from shardwright.spmd.opclass import NO_CLASS, OpClasses
from shardwright.spmd.slack import BLOCKS, Slack
from shardwright.spmd.sums import Order, Sizes, Sum

Use = tuple[int, int]  # (op class, operand)
Place = tuple[int, int, int, bool]  # a value, and the region, remat body and pass that use it


@dataclass(frozen=True, slots=True)
class SharedTransfer:
    """One value that several ops use in one place: moved once for each placement they need."""

    layout: int
    uses: tuple[Use, ...]
    phase: int  # that it hides behind, or BLOCKS
    weight: float  # times per step


@dataclass(frozen=True, slots=True)
class DeferredReduction:
    """Partial results that are only added up: reduced once, after the additions."""

    sizes: Sizes  # bytes that are reduced for each element of a leaf
    leaves: tuple[tuple[int, Order], ...]  # (op class, order of its dims)
    # Op classes that must move nothing, or the reduction cannot be hoisted out of its loop.
    hoisted_past: tuple[int, ...]
    phase: int  # that it hides behind, or BLOCKS
    phase_after: int  # once it is hoisted
    weight: float  # times per step where the additions are
    after_loop: float  # times per step once it is hoisted


@dataclass(frozen=True, slots=True)
class Weights:
    """Times per step."""

    compute: np.ndarray  # [classes, phases]
    exchanges: np.ndarray  # [classes] exchanges with neighbours
    operands: list[np.ndarray]  # [classes][operands] moves of operands not shared
    results: list[np.ndarray]  # [classes][results] moves of results not summed
    # [classes] (slot, phase, times): of those moves the hideable ones; operands, then results.
    hideable: list[tuple[tuple[int, int, float], ...]]
    shared: list[SharedTransfer]
    deferred: list[DeferredReduction]
    region: list[float]  # [regions] runs per step, 0 for the lighter branches of a cond


def weigh(
    program: Program, sums: Sequence[Sum], classes: OpClasses, layout_of: np.ndarray, slack: Slack
) -> Weights:
    """The weights of all classes of a program: every op counts in its class."""
    region, runs = region_weights(program), region_runs(program)
    compute = np.zeros((len(classes.table), slack.phases))
    exchanges = np.zeros(len(classes.table))
    operands = [np.zeros(len(c.operands)) for c in classes.table]
    results = [np.zeros(len(c.results)) for c in classes.table]
    hideable: list[dict[tuple[int, int], float]] = [defaultdict(float) for _ in classes.table]
    uses: dict[Place, list[Use]] = defaultdict(list)
    summed = {leaf.op for one in sums for leaf in one.leaves}
    of_op = classes.of_op.tolist()
    for op in program.ops:
        c = of_op[op.index]
        if c == NO_CLASS:
            continue
        compute[c, slack.phase[op.index]] += region[op.region]
        exchanges[c] += runs[op.region]
        inputs = op.arrays
        if op.index not in summed:
            results[c] += runs[op.result_region]
            if slack.results[op.index] != BLOCKS:
                for slot in range(len(inputs), len(inputs) + len(op.results)):
                    hideable[c][slot, slack.results[op.index]] += runs[op.result_region]
        for slot, v in enumerate(inputs):
            uses[place_of(op, v)].append((c, slot))
    behind = transfer_phases(program, classes, slack)
    shared: dict[tuple[int, tuple[Use, ...], int], float] = defaultdict(float)
    for place, users in uses.items():
        v, at, *_ = place
        distinct, phase = tuple(sorted(set(users))), behind[place]
        if len(distinct) == 1:
            c, slot = distinct[0]
            operands[c][slot] += runs[at]
            if phase != BLOCKS:
                hideable[c][slot, phase] += runs[at]
        else:
            shared[int(layout_of[v]), distinct, phase] += runs[at]
    added: dict[tuple[Any, ...], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for one in sums:
        first, *rest = [(of_op[leaf.op], leaf.order) for leaf in one.leaves]
        past = tuple([of_op[i] for i in one.hoisted_past(program)])
        phase = slack.results[program.values[one.value].op]
        phase_after = slack.results[one.hoist.loop.carry] if one.hoist else BLOCKS
        key = (one.sizes(program), (first, *sorted(rest, key=str)), past, phase, phase_after)
        inside, after = added[key]
        inside += runs[program.ops[one.leaves[0].op].region]
        if one.hoist:
            after += runs[program.ops[one.hoist.loop.carry].region]
        added[key] = (inside, after)
    return Weights(
        compute, exchanges, operands, results,
        [tuple([(*key, times) for key, times in sorted(of.items())]) for of in hideable],
        [SharedTransfer(*key, weight) for key, weight in sorted(shared.items())],
        [
            DeferredReduction(sizes, leaves, past, phase, after, *times)
            for (sizes, leaves, past, phase, after), times in sorted(added.items(), key=str)
        ],
        region,
    )  # fmt: skip


def place_of(op: Op, value: int) -> Place:
    """Where an op uses a value."""
    return value, op.operand_region, op.remat, op.transposed


def transfer_phases(program: Program, classes: OpClasses, slack: Slack) -> dict[Place, int]:
    """{place: the phase that moves of a value there hide behind, or BLOCKS where uses differ}"""
    phases: dict[Place, set[int]] = defaultdict(set)
    for op in program.ops:
        if classes.of_op[op.index] != NO_CLASS:
            for v, phase in zip(op.arrays, slack.operands[op.index], strict=True):
                phases[place_of(op, v)].add(phase)
    return {place: next(iter(of)) if len(of) == 1 else BLOCKS for place, of in phases.items()}


def region_runs(program: Program) -> list[float]:
    """[regions] runs per step, every branch of a cond counted: what moves in it is not free."""
    return [float(program.trips(r.index)) for r in program.regions]


def region_weights(program: Program) -> list[float]:
    """[regions] runs per step; of a cond's branches only the heaviest counts."""
    work = [0.0] * len(program.regions)
    for op in program.ops:
        points = op.rule.work * math.prod(op.rule.sizes)
        for region in program.around(op.region):
            work[region.index] += points
    weights = [1.0] * len(program.regions)
    for r in program.regions[1:]:
        weights[r.index] = weights[r.parent] * r.trips
        if r.kind == "cond":
            branches = program.ops[r.op].body
            heaviest = max(branches, key=lambda b: work[b])
            if r.index != heaviest:
                weights[r.index] = 0.0
    return weights
