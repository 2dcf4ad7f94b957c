"""Decisions: for each mesh axis an ordered list of (group, resolution, scope), and overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
Placement = tuple[int, ...]  # [axes] the atom that each mesh axis splits, or REPLICATED: layout.py


class Decisions(NamedTuple):
    """All that is decided about a program on a mesh: what every later stage works from.

    The lists give each layout its placement; an override gives one layout another.
    """

    lists: State
    overrides: tuple[tuple[int, Placement], ...] = ()  # (layout, placement), by layout

    def override(self, more: Mapping[int, Placement]) -> Decisions:
        """The decisions with more overrides; of one layout the new one counts."""
        return decide(self.lists, {**dict(self.overrides), **more})


def decide(lists: State, overrides: Mapping[int, Placement] | None = None) -> Decisions:
    """The decisions with these lists and overrides."""
    return Decisions(lists, tuple(sorted((overrides or {}).items())))


def decide_all(states: Iterable[State], overrides: Mapping[int, Placement]) -> list[Decisions]:
    """The decisions of many lists with the same overrides."""
    common = tuple(sorted(overrides.items()))
    return [Decisions(state, common) for state in states]


def empty(axes: int) -> State:
    """The state in which everything is replicated."""
    return ((),) * axes


def append(state: State, axis: int, entry: Entry) -> State:
    """The state with one more entry at the end of one axis' list."""
    return (*state[:axis], (*state[axis], entry), *state[axis + 1 :])
