"""Proposals: states that are worth an evaluation, as far as is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.search.objective import Objective
from shardwright.search.outlook import Outlook
from shardwright.search.space import Action, Space
from shardwright.spmd.decisions import State

LOOKED_AT = 16  # columns for every state wanted: most are known, or split nothing else
REACH = 100.0  # how far down the ranking of prospects a recombination starts, on average
MOST_TURNS = 4  # of every axis in a recombination
ALIKE = 0.25  # how often a change makes two axes alike
MOST_CHANGES = 20  # of a state, until it is one not seen before


def respond(
    outlook: Outlook, objective: Objective, state: State, axis: int, count: int
) -> list[State]:
    """New states with another list on one axis: those that promise most."""
    choice = outlook.choices([state])[0]
    if choice is None:
        return []
    best = outlook.best_columns(choice, axis, LOOKED_AT * count, hopeful=True)
    return _new(objective, [outlook.with_column(state, axis, c) for c in best.tolist()], count)


def recombine(
    outlook: Outlook, objective: Objective, rng: np.random.Generator, count: int
) -> list[State]:
    """New states of parts that were seen before, in another combination.

    Starts with a list of good prospects for one axis. Then axis after axis takes the best list
    given the others, until none changes.
    """
    order = rng.permutation(len(outlook.axes)).tolist()
    ranking = np.argsort(outlook.prospects(order[-1]), kind="stable")
    choice = [0] * len(order)
    choice[order[-1]] = int(ranking[min(int(rng.exponential(REACH)), len(ranking) - 1)])
    steady = 0
    for axis in order * MOST_TURNS:
        best = outlook.best_columns(tuple(choice), axis, LOOKED_AT * count, hopeful=False)
        steady = steady + 1 if choice[axis] == best[0] else 0
        choice[axis] = int(best[0])
        if steady == len(order):
            break
    state = outlook.space.root
    for other, column in enumerate(choice):
        state = outlook.with_column(state, other, column)
    return _new(objective, [outlook.with_column(state, axis, c) for c in best.tolist()], count)


def _new(objective: Objective, states: Sequence[State], count: int) -> list[State]:
    """The first states whose placements were not evaluated."""
    unknown = [s for s in states if not objective.knows(s)]
    return objective.unseen(unknown[: 4 * count])[:count]


def changed(space: Space, objective: Objective, state: State, rng: np.random.Generator) -> State:
    """A state like this one with a few appends dropped, added, replaced or moved.

    Now and then one axis takes over the list of another: axes that split alike act as one.
    """
    order = [
        i for axis, entries in enumerate(state) for e in entries[len(space.root[axis]) :]
        if (i := space.number.get(Action(axis, e))) is not None
    ]  # fmt: skip
    for _ in range(MOST_CHANGES):
        _change(order, len(space.actions), rng)
        if len(space.axes) > 1 and rng.random() < ALIKE:
            order = _copied(space, order, *rng.permutation(space.axes)[:2].tolist())
        state = _follow(space, order)
        if not objective.knows(state):
            break
    return state


def _change(order: list[int], actions: int, rng: np.random.Generator) -> None:
    kind, at = int(rng.integers(4)), int(rng.integers(len(order) + 1))
    if kind == 0 or not order:
        order.insert(at, int(rng.integers(actions)))
    elif kind == 1:
        order.pop(at % len(order))
    elif kind == 2:
        order[at % len(order)] = int(rng.integers(actions))
    else:
        order.insert(at % len(order), order.pop(int(rng.integers(len(order)))))


def _copied(space: Space, order: Sequence[int], source: int, to: int) -> list[int]:
    """Appends after which one axis has the list of another."""
    kept = [i for i in order if space.actions[i].axis != to]
    same = [Action(to, space.actions[i].entry) for i in kept if space.actions[i].axis == source]
    return kept + [space.number[action] for action in same if action in space.number]


def _follow(space: Space, order: Sequence[int]) -> State:
    """The state after those of these appends that are legal."""
    state = space.root
    for action in order:
        if space.is_legal(state, action):
            state = space.after(state, action)
    return state
