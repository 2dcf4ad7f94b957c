"""Refinement: local improvement of a found state, then of single layouts, to a local optimum."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

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
    """Overrides of single layouts of arguments that lower the cost; ({layout: placement}, value).

    Small norm gains that a strategy would gather at every use are kept whole, say. The model's
    own overrides (constraints of the user) stay.
    """
    model = objective.model
    chosen: dict[int, Placement] = {}
    given = dict(model.overrides)
    costs = model.evaluate([state])
    best_s = float(objective.penalised(costs.step_s, costs.peak_bytes)[0])
    stored = model.stored(state)
    borders = [
        i for i, layout in enumerate(model.layouts.table)
        if layout.border and layout.atoms and i not in given
    ]  # fmt: skip
    start = best_s
    try:
        for _ in range(2):
            improved = False
            for i in borders:
                if budget.expired():
                    break
                for option in _options(model.layouts.table[i], stored[i], model.mesh.sizes):
                    if chosen.get(i) == option:
                        continue
                    model.overrides = {**given, **chosen, i: option}
                    costs = model.evaluate([state])
                    objective.evaluations += 1
                    value = float(objective.penalised(costs.step_s, costs.peak_bytes)[0])
                    if value < best_s * (1 - WORTHWHILE):
                        best_s, improved = value, True
                        chosen[i] = option
            if not improved:
                break
    finally:
        model.overrides = given
    return (chosen, best_s) if best_s < start else ({}, start)


def _options(layout: Layout, stored: Placement, sizes: tuple[int, ...]) -> Iterator[Placement]:
    """Other ways to store a layout: one axis taken away, or all of them."""
    held = [a for a, atom in enumerate(stored) if atom != WHOLE]
    if len(held) > 1:
        yield tuple(WHOLE for _ in stored)
    for a in held:
        yield tuple(WHOLE if b == a else atom for b, atom in enumerate(stored))
