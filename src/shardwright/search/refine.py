"""Refinement: local improvement of a found state, then of single layouts, to a local optimum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np

from shardwright.cost.model import CostModel, Costs
from shardwright.program.ties import CONSTS, Tie
from shardwright.program.types import LITERAL
from shardwright.search.objective import Budget, Objective
from shardwright.search.space import Space
from shardwright.spmd.decisions import AxisList, Decisions, State
from shardwright.spmd.layout import REPLICATED, Placement

# Parts of a step. An override must save this much: each one makes a plan harder to read.
WORTHWHILE = 2e-3
LEAST_GAIN = 1e-9  # less is rounding


def refine(space: Space, objective: Objective, state: State, budget: Budget) -> State:
    """A state that no single change of an entry improves."""
    best, best_s = state, float(objective([state])[0])
    limit = objective.evaluations + budget.evaluations
    while objective.evaluations < limit:
        around = list(dict.fromkeys(neighbours(space, best)))
        values = objective(around) if around else np.array([np.inf])
        i = int(np.argmin(values))
        if not values[i] < best_s * (1 - LEAST_GAIN):
            break
        best, best_s = around[i], float(values[i])
    return best


def neighbours(space: Space, state: State) -> Iterator[State]:
    """States of the space one change away: insert, remove, replace, move, exchange whole lists."""
    for axis in space.axes:
        fixed = len(space.root[axis])
        entries = state[axis]
        listed = {e.group for e in entries}
        options = space.entries[axis]
        others = [e for e in options if e.group not in listed]
        lists: list[AxisList] = []
        for i in range(fixed, len(entries)):
            rest, group = entries[:i] + entries[i + 1 :], entries[i].group
            lists.append(rest)
            lists += [(*rest[:j], entries[i], *rest[j:]) for j in range(fixed, len(entries))]
            able = [e for e in options if e.group == group or e.group not in listed]
            lists += [(*entries[:i], e, *entries[i + 1 :]) for e in able]
        for i in range(fixed, len(entries) + 1):
            lists += [(*entries[:i], e, *entries[i:]) for e in others]
        for changed in dict.fromkeys(lists):
            if changed != entries and space.allows(axis, changed):
                yield (*state[:axis], changed, *state[axis + 1 :])
    for order in permutations(space.axes):
        exchanged = list(state)
        for to, source in zip(space.axes, order, strict=True):
            exchanged[to] = state[source]
        if order != space.axes and space.contains(tuple(exchanged)):
            yield tuple(exchanged)


class LayoutRefinement:
    """Changes of single layouts that lower what a state costs."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        model = objective.model
        held = {*objective.overrides, *model.pins}
        self._free = [i for i in _candidates(model) if i not in held]
        summed = {i for i, layout in enumerate(model.layouts.table) if layout.summed}
        self._may_start = {*self._free, *(summed - held)}
        self._storable: dict[tuple[int, Placement], bool] = {}
        self._seen: set[tuple[Placement, ...]] = set()  # how all layouts were stored at some time

    def improve(
        self, state: State, start: Mapping[int, Placement]
    ) -> tuple[dict[int, Placement], float]:
        """Overrides of single layouts, until none lowers the cost; ({layout: placement}, value).

        Small norm gains that a strategy would gather at every use are kept whole, say, or weights
        that were gathered for the forward pass until the backward pass. What the user pinned stays.
        A start that does not fit is made to fit first, by what costs the least time for each byte.
        Where all is stored as on the way from an earlier state, that way is not gone once more.
        """
        objective = self.objective
        stored = objective.model.stored(objective.decisions(state))
        chosen = {i: p for i, p in start.items() if i in self._may_start}
        now = objective.stored(state, [chosen])
        while True:
            placed = list(stored)
            for i, p in chosen.items():
                placed[i] = p
            if tuple(placed) in self._seen:
                return {}, float("inf")
            self._seen.add(tuple(placed))
            better = self._better(state, stored, chosen, now)
            if not better:
                break
            rows = list(better.items())
            together = [{**chosen, **dict(rows[: n + 1])} for n in range(len(rows))]
            values = objective.stored(state, together)
            fits = np.flatnonzero(values.peak_bytes <= objective.memory)
            over = bool(now.peak_bytes[0] > objective.memory)
            # The fewest changes with which it fits; once it does, the best of all.
            best = int(fits[0] if over and len(fits) else np.argmin(objective.penalised(values)))
            chosen, now = together[best], values.only(best)
        return self._without_idle(state, chosen, float(objective.penalised(now)[0]))

    def _better(
        self, state: State, stored: Sequence[Placement], chosen: Mapping[int, Placement], now: Costs
    ) -> dict[int, Placement]:
        """The best change of each layout that is worthwhile, best layout first."""
        objective = self.objective
        changes = [
            (i, option) for i in self._free for option in self._options(i, stored[i], chosen.get(i))
        ]
        if now.peak_bytes[0] <= objective.memory and changes:  # those that save no time are out
            worth = WORTHWHILE / 2  # exact seconds decide below
            enough = float(now.step_s[0]) * (1 - worth)
            seconds = objective.changed_s(state, chosen, changes, worth)
            changes = [changes[k] for k in np.flatnonzero(seconds < enough).tolist()]
        if not changes:
            return {}
        values = objective.stored(state, [{**chosen, i: option} for i, option in changes])
        better: dict[int, Placement] = {}
        for k in _worthwhile(objective, now, values):
            better.setdefault(*changes[k])
        return better

    def _without_idle(
        self, state: State, chosen: dict[int, Placement], best_s: float
    ) -> tuple[dict[int, Placement], float]:
        """The overrides without those that bring nothing any more."""
        left = list(chosen)
        while left:
            fewer = [{j: p for j, p in chosen.items() if j != i} for i in left]
            values = self.objective.penalised(self.objective.stored(state, fewer))
            idle = np.flatnonzero(values <= best_s * (1 + WORTHWHILE))
            if not len(idle):
                break
            first = int(idle[0])
            chosen, best_s, left = fewer[first], float(values[first]), left[first + 1 :]
        return chosen, best_s

    def _options(
        self, layout: int, stored: Placement, chosen: Placement | None
    ) -> Iterator[Placement]:
        """Other ways to store a layout: as the lists say, whole, or one axis on another atom."""
        model = self.objective.model
        now = stored if chosen is None else chosen
        table, sizes = model.layouts.table[layout], model.mesh.sizes
        far = [p for p in (stored, (REPLICATED,) * len(sizes)) if p != now]
        near = [
            (*now[:axis], atom, *now[axis + 1 :])
            for axis in range(len(sizes)) for atom in (REPLICATED, *range(len(table.atoms)))
            if atom != now[axis]
        ]  # fmt: skip
        for placement in dict.fromkeys([*far, *near]):
            able = self._storable.get((layout, placement))
            if able is None:
                able = table.can_store(placement, sizes)
                self._storable[layout, placement] = able
            if able:
                yield placement


def _worthwhile(objective: Objective, now: Costs, changed: Costs) -> list[int]:
    """The changes that save time, most first; over memory, bytes for the least time first."""
    values, best_s = objective.penalised(changed), float(objective.penalised(now)[0])
    order = values
    if now.peak_bytes[0] > objective.memory:
        saved = now.peak_bytes[0] - np.maximum(changed.peak_bytes, objective.memory)
        order = (changed.step_s - now.step_s[0]) / np.maximum(saved, 1.0)
    better = values < best_s * (1 - WORTHWHILE)  # of nothing there is nothing to save
    return [k for k in np.argsort(order, kind="stable").tolist() if better[k]]


def kept_copies(model: CostModel) -> dict[int, Placement]:
    """Overrides that keep every copy of an argument whole: a weight is gathered once, as cast."""
    program, whole = model.analysis.program, (REPLICATED,) * len(model.mesh.sizes)
    copies: dict[int, bool] = {}
    for v, layout in enumerate(model.layouts.of_value.tolist()):
        is_copy = program.values[v].path is None and program.origin(v) != v
        copies[layout] = copies.get(layout, True) and is_copy
    return {i: whole for i, is_copy in copies.items() if is_copy}


def unreduced_sums(model: CostModel, decisions: Decisions) -> dict[int, Placement]:
    """Overrides that keep what a loop adds up whole over the axes of its partial sums.

    Such a sum is reduced once, after the loop; a sum in shards is scattered in every trip.
    """
    program, found = model.analysis.program, dict[int, Placement]()
    stored, choices = model.stored(decisions), model.choices(decisions)
    of_value, of_op = model.layouts.of_value, model.classes.of_op
    for one in model.sums:
        if one.hoist is None:
            continue
        axes = set(choices[int(of_op[one.leaves[0].op])].partial)
        for layout in {int(of_value[v]) for v in one.in_loop(program)}:
            now = stored[layout]
            if any(now[a] != REPLICATED for a in axes):
                found[layout] = tuple(
                    [REPLICATED if a in axes else atom for a, atom in enumerate(now)]
                )
    return found


def _candidates(model: CostModel) -> list[int]:
    """Layouts that may differ. What a loop carries or stacks may not: it is stored alike all over.

    What a loop only reads may: then it is moved once, before the loop.
    """
    program, of_value = model.analysis.program, model.layouts.of_value
    alike = [op for op in program.ops if op.tie not in (None, Tie.RETURN, *CONSTS)]
    tied = {
        int(of_value[v]) for op in alike for v in (*op.operands, *op.results) if v != LITERAL
    }  # fmt: skip
    return [
        i for i, layout in enumerate(model.layouts.table)
        if layout.atoms and not layout.rematerialised and (layout.border or i not in tied)
    ]  # fmt: skip
