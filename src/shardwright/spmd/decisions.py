"""Decisions: for each mesh axis an ordered list of (group, resolution, scope)."""

from __future__ import annotations

from typing import NamedTuple

# Scopes: which values may claim.
EVERYTHING = 0
UPDATES = 1  # values that never feed a contraction: moments, gradients (ZeRO-1 and ZeRO-2)


class Entry(NamedTuple):
    """One element of an axis' list: this group may claim the axis.

    `bits` is the resolution: bit i decides the i-th group of conflict sets of the group.
    """

    group: int
    bits: int = 0
    scope: int = EVERYTHING


AxisList = tuple[Entry, ...]
State = tuple[AxisList, ...]  # one list per mesh axis, in mesh order


def empty(axes: int) -> State:
    """Nothing is split."""
    return ((),) * axes


def append(state: State, axis: int, entry: Entry) -> State:
    """The state with one more entry at the end of one axis' list."""
    return (*state[:axis], (*state[axis], entry), *state[axis + 1 :])
