"""The space that every search walks: appends of (axis, entry) to lists that start from a prefix.

Invariants
- a group stands at most once in the list of an axis;
- entries of scope UPDATES come last, at most MAX_UPDATES of them;
- an action that can never change a placement on its axis is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, NamedTuple

from shardwright.cost.model import CostModel
from shardwright.spmd.decisions import (
    EVERYTHING,
    UPDATES,
    AxisList,
    Decisions,
    Entry,
    Placement,
    State,
    append,
    decide_all,
    empty,
)
from shardwright.spmd.division import can_divide

MAX_UPDATES = 1  # that actions append to the list of one axis: it keeps the space small
# A group with more resolution bits than this is offered with all of them 0 or all of them 1.
MAX_BITS = 3


class Action(NamedTuple):
    """One append."""

    axis: int
    entry: Entry


class Space:
    """What may be appended where, after a prefix that stays."""

    def __init__(
        self,
        model: CostModel,
        *,
        prefix: State | None = None,
        axes: Iterable[int] | None = None,
        allowed: Callable[[int, int], bool] | None = None,
        overrides: Mapping[int, Placement] | None = None,
    ) -> None:
        """`axes` may grow; `allowed(axis, group)` limits them; `overrides` hold in every state."""
        self.model, self.overrides = model, dict(overrides or {})
        sizes = model.mesh.sizes
        self.root: State = prefix or empty(len(sizes))
        self.axes = tuple(range(len(sizes)) if axes is None else axes)
        held, updated = _holders(model)
        self.actions: list[Action] = []
        for axis in self.axes:
            for group in model.analysis.groups:
                g = group.index
                if sizes[axis] == 1 or not _divisible(model, g, sizes[axis]):
                    continue
                if allowed is not None and not allowed(axis, g):
                    continue
                for bits in resolutions(len(group.conflict_sets)):
                    self.actions.append(Action(axis, Entry(g, bits)))
                    if g in updated and g in held:
                        self.actions.append(Action(axis, Entry(g, bits, UPDATES)))
        self.entries: list[dict[Entry, None]] = [{} for _ in sizes]  # [axes] that may be appended
        for axis, entry in self.actions:
            self.entries[axis][entry] = None
        self.walked: dict[object, Any] = {}  # lists of an axis that were enumerated

    def given(self, overrides: Mapping[int, Placement]) -> Space:
        """The space in which these overrides hold as well."""
        other = copy(self)
        other.overrides = {**overrides, **self.overrides}
        return other

    def legal(self, state: State) -> list[int]:
        """Numbers of the actions that may follow."""
        return [i for i in range(len(self.actions)) if self.is_legal(state, i)]

    def is_legal(self, state: State, action: int) -> bool:
        """Whether an action may follow."""
        axis, entry = self.actions[action]
        entries = state[axis]
        if any(e.group == entry.group for e in entries):
            return False
        late = sum(e.scope == UPDATES for e in entries)
        return late < MAX_UPDATES if entry.scope == UPDATES else not late

    def after(self, state: State, action: int) -> State:
        """The state after an action."""
        axis, entry = self.actions[action]
        return append(state, axis, entry)

    def contains(self, state: State) -> bool:
        """Whether appends lead from the root to this state."""
        return all(self.allows(axis, entries) for axis, entries in enumerate(state))

    def allows(self, axis: int, entries: AxisList) -> bool:
        """Whether appends lead to this list of an axis."""
        fixed = self.root[axis]
        rest = entries[len(fixed) :]
        if entries[: len(fixed)] != fixed or len({e.group for e in entries}) < len(entries):
            return False
        late = [e.scope == UPDATES for e in rest]
        known = self.entries[axis].keys() >= set(rest)
        return known and sum(late) <= MAX_UPDATES and late == sorted(late)

    def decisions(self, states: Iterable[State]) -> list[Decisions]:
        """The states with the overrides that hold here."""
        return decide_all(states, self.overrides)


def resolutions(bits: int) -> list[int]:
    """The values that the resolution of a group with so many bits may take."""
    return list(range(1 << bits)) if bits <= MAX_BITS else [0, (1 << min(bits, 31)) - 1]


def _divisible(model: CostModel, group: int, size: int) -> bool:
    return any(
        atom.group == group and can_divide(atom.size, 1, size, pads=layout.pads(j))
        for layout in model.layouts.table
        if layout.units and layout.pinned is None
        for j, atom in enumerate(layout.atoms)
    )


def _holders(model: CostModel) -> tuple[set[int], set[int]]:
    """Groups on arguments that feed contractions, and groups on arguments that never do."""
    held: set[int] = set()
    updated: set[int] = set()
    for layout in model.layouts.table:
        if layout.border:
            (updated if layout.update else held).update(a.group for a in layout.atoms)
    return held, updated


__all__ = ["EVERYTHING", "UPDATES", "Action", "Space", "resolutions"]
