"""Refinement: local improvement of a found state, then of single layouts, to a local optimum."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.program.types import LITERAL
from shardwright.search.objective import Budget, Objective
from shardwright.search.space import Action, Space
from shardwright.spmd.decisions import EVERYTHING, UPDATES, Entry, State
from shardwright.spmd.layout import WHOLE, Layout, Placement

# An override must save this part of a step: each one makes a plan harder to read.
WORTHWHILE = 1e-3
LEAST_GAIN = 1e-9


def refine(space: Space, objective: Objective, state: State, budget: Budget) -> State:
    """A state that no single change of an entry improves."""
    best, best_s = state, float(objective([state])[0])
    limit = objective.evaluations + budget.evaluations
    while objective.evaluations < limit and not budget.expired():
        around = list(dict.fromkeys(neighbours(space, best)))
        values = objective(around) if around else np.array([np.inf])
        i = int(np.argmin(values))
        if not values[i] < best_s * (1 - LEAST_GAIN):
            break
        best, best_s = around[i], float(values[i])
    return best


def neighbours(space: Space, state: State) -> Iterator[State]:
    """States one change away: insert, remove, replace, swap, move, flip bits, change scope."""
    for axis in space.axes:
        fixed = len(space.root[axis])
        entries = state[axis]
        options = [a.entry for a in space.actions if a.axis == axis]
        listed = {e.group for e in entries}

        def with_list(new: tuple[Entry, ...], axis: int = axis) -> State:
            return (*state[:axis], new, *state[axis + 1 :])

        for i in range(fixed, len(entries)):
            rest = entries[:i] + entries[i + 1 :]
            yield with_list(rest)
            for j in range(fixed, len(rest) + 1):  # move, which includes swaps of neighbours
                if j != i:
                    yield with_list((*rest[:j], entries[i], *rest[j:]))
            for e in options:
                if e.group not in listed or (e.group == entries[i].group and e != entries[i]):
                    yield with_list((*entries[:i], e, *entries[i + 1 :]))
        for e in options:
            if e.group not in listed:
                for i in range(fixed, len(entries) + 1):
                    if e.scope == EVERYTHING or i == len(entries):
                        yield with_list((*entries[:i], e, *entries[i:]))
    free = [a for a in space.axes if not space.root[a]]
    allowed = set(space.actions)
    for order in permutations(free):  # lists change places
        if order != tuple(free):
            swapped = list(state)
            for to, source in zip(free, order, strict=True):
                swapped[to] = state[source]
            if all(Action(a, e) in allowed or e.scope == UPDATES for a in free for e in swapped[a]):
                yield tuple(swapped)


def refine_layouts(
    objective: Objective, state: State, budget: Budget
) -> tuple[dict[int, Placement], float]:
    """Overrides of single layouts, until none lowers the cost; ({layout: placement}, value).

    Small norm gains that a strategy would gather at every use are kept whole, say. The model's
    own overrides (constraints of the user) stay.
    """
    model = objective.model
    given = dict(model.overrides)
    chosen: dict[int, Placement] = {}
    best_s = objective.penalised(model.evaluate([state]))[0]
    free = [i for i in _candidates(model) if i not in given]
    try:
        while not budget.expired():
            stored = model.stored(state)
            changes = [
                (i, option) for i in free
                for option in _options(model.layouts.table[i], stored[i], model.mesh.sizes)
            ]  # fmt: skip
            if not changes:
                break
            values = objective.penalised(model.evaluate_stored(state, changes))
            objective.evaluations += len(changes)
            best = int(np.argmin(values))
            if values[best] > best_s * (1 - WORTHWHILE):
                break
            best_s = values[best]
            chosen[changes[best][0]] = changes[best][1]
            model.overrides = {**given, **chosen}
    finally:
        model.overrides = given
    return chosen, float(best_s)


def _candidates(model: CostModel) -> list[int]:
    """Layouts that may differ: not inside a loop's border, where both sides are stored alike."""
    program, of_value = model.analysis.program, model.layouts.of_value
    tied = {
        int(of_value[v])
        for op in program.ops if op.tie for v in (*op.operands, *op.results) if v != LITERAL
    }  # fmt: skip
    return [
        i for i, layout in enumerate(model.layouts.table)
        if layout.atoms and not layout.made_up and (layout.border or i not in tied)
    ]  # fmt: skip


def _options(layout: Layout, stored: Placement, sizes: tuple[int, ...]) -> Iterator[Placement]:
    """Other ways to store a layout: one axis on another atom or on none, or no axis at all."""
    if sum(atom != WHOLE for atom in stored) > 1:
        yield (WHOLE,) * len(stored)
    for axis, atom in enumerate(stored):
        for other in (WHOLE, *range(len(layout.atoms))):
            placement = (*stored[:axis], other, *stored[axis + 1 :])
            if other != atom and layout.can_store(placement, sizes):
                yield placement
