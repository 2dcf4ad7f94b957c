"""Completions of a state: sequences of appends that a rollout tries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.search.space import MAX_UPDATES, Action, Space
from shardwright.spmd.decisions import UPDATES, State


def drawn(weights: np.ndarray, actions: np.ndarray, rng: np.random.Generator) -> list[int]:
    if not len(actions):
        return []
    length = min(1 + int(rng.geometric(0.4)), len(actions))
    return rng.choice(actions, length, replace=False, p=weights / weights.sum()).tolist()


def appends(space: Space, state: State) -> list[int]:
    """The appends that lead to a state."""
    return [
        i for axis, entries in enumerate(state) for e in entries[len(space.root[axis]) :]
        if (i := space.number.get(Action(axis, e))) is not None
    ]  # fmt: skip


def change(space: Space, order: list[int], rng: np.random.Generator) -> None:
    """Drops, adds, replaces or moves one append."""
    kind, at = int(rng.integers(4)), int(rng.integers(len(order) + 1))
    if kind == 0 or not order:
        order.insert(at, int(rng.integers(len(space.actions))))
    elif kind == 1:
        order.pop(at % len(order))
    elif kind == 2:
        order[at % len(order)] = int(rng.integers(len(space.actions)))
    else:
        order.insert(at % len(order), order.pop(int(rng.integers(len(order)))))


def follow(space: Space, state: State, order: Sequence[int]) -> State:
    """The state after those of these appends that are legal."""
    for action in order:
        if is_legal(space, state, action):
            state = space.after(state, action)
    return state


def is_legal(space: Space, state: State, action: int) -> bool:
    axis, entry = space.actions[action]
    entries = state[axis]
    late = sum(e.scope == UPDATES for e in entries)
    if any(e.group == entry.group for e in entries):
        return False
    return late < MAX_UPDATES if entry.scope == UPDATES else not late
