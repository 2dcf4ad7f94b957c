"""Refinement: local improvement of a found state, then of single layouts, to a local optimum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np

from shardwright.cost.model import CostModel, Costs
from shardwright.program.ties import CONSTS, Tie
from shardwright.program.types import LITERAL
from shardwright.search.objective import OVER_MEMORY_S, Budget, Objective
from shardwright.search.space import Space
from shardwright.spmd.decisions import UPDATES, AxisList, Decisions, Entry, State
from shardwright.spmd.layout import REPLICATED, Placement

# Parts of a step. An override must save this much: each one makes a plan harder to read.
WORTHWHILE = 2e-3
LEAST_GAIN = 1e-9  # less is rounding
BATCH = 64  # states that are evaluated at a time


def refine(space: Space, objective: Objective, state: State, budget: Budget) -> State:
    """A state that no single change of an entry improves."""
    best, best_s = state, float(objective([state])[0])
    limit = objective.evaluations + budget.evaluations
    while objective.evaluations < limit:
        better = _better(space, objective, best, best_s)
        if better is None:
            break
        best, best_s = better
    return best


def _better(
    space: Space, objective: Objective, state: State, best_s: float
) -> tuple[State, float] | None:
    """A faster state and its value, after changes that alone make it faster; None: there are none.

    The best comes first, then of the others each that still helps.
    """
    changes = _faster(space, objective, state, best_s)
    batch = BATCH if best_s < OVER_MEMORY_S else max(len(changes), 1)
    for at in range(0, len(changes), batch):
        part = changes[at : at + batch]
        values = objective([applied(space, state, change) or state for change in part])
        able = [i for i in np.argsort(values, kind="stable") if _is_less(values[i], best_s)]
        start_s = best_s
        for i in able[:BATCH]:
            after = applied(space, state, part[i])
            if after is not None and _is_less(value := float(objective([after])[0]), best_s):
                state, best_s = after, value
        if best_s < start_s:
            return state, best_s
    around = list(exchanged(space, state))
    values = objective(around)
    i = int(np.argmin(values)) if around else 0
    return (around[i], float(values[i])) if around and _is_less(values[i], best_s) else None


def _is_less(seconds: float, than: float) -> bool:
    return bool(seconds < than * (1 - LEAST_GAIN))


class Change(NamedTuple):
    """One change of the list of an axis: insert, remove, replace or move an entry."""

    axis: int
    out: Entry | None  # what is taken out
    put: Entry | None  # what is put in
    before: Entry | None  # where; None: at the end


def applied(space: Space, state: State, change: Change) -> State | None:
    """The state after a change; None where the space has no such state."""
    axis, out, put, before = change
    entries = state[axis]
    if (out is not None and out not in entries) or (before is not None and before not in entries):
        return None
    rest = [entry for entry in entries if entry != out]
    if put is not None:
        rest.insert(len(rest) if before is None else rest.index(before), put)
    after = tuple(rest)
    return (*state[:axis], after, *state[axis + 1 :]) if space.allows(axis, after) else None


def _faster(space: Space, objective: Objective, state: State, best_s: float) -> list[Change]:
    """The changes that make a state faster than `best_s` if it fits, most first.

    Others are not evaluated: single layouts are refined in what was, and states that hardly differ
    would take the place of those that do.
    """
    found: list[tuple[float, Change]] = []
    for axis in space.axes:
        changes, atoms = neighbours(space, state, axis)
        seconds = objective.around_s(state, axis, atoms)
        fast = np.flatnonzero(seconds < best_s * (1 - LEAST_GAIN)).tolist()
        found += [(float(seconds[i]), changes[i]) for i in fast]
    return [change for _, change in sorted(found, key=lambda one: one[0])]


def neighbours(space: Space, state: State, axis: int) -> tuple[list[Change], np.ndarray]:
    """(changes of the list of one axis, [changes, layouts] the atoms that it then splits).

    Of changes after which it splits all layouts alike the first, and none that changes nothing.
    """
    entries = state[axis]
    every = list(dict.fromkeys([*entries, *space.entries[axis]]))
    number = {entry: i for i, entry in enumerate(every)}
    claims = space.model.layouts.claims.claims(state, axis, every)
    nothing = np.full((1, claims.shape[1]), REPLICATED, np.int8)
    first = {_first(claims[[number[e] for e in entries]])[-1].tobytes(): -1}
    found: list[Change] = []
    atoms: list[np.ndarray] = []
    for rest, changes in _changes(space, axis, entries):
        mine = claims[[number[entry] for entry in rest]]
        ahead, behind = _first(mine), _first(mine[::-1], last=True)[::-1]
        at = [len(rest) if c.before is None else rest.index(c.before) for c in changes]
        put = [len(every) if c.put is None else number[c.put] for c in changes]
        rows = np.concatenate([claims, nothing])[put]
        rows = np.where(rows == REPLICATED, behind[at], rows)
        rows = np.where(ahead[at] == REPLICATED, rows, ahead[at])
        for change, row in zip(changes, rows, strict=True):
            if first.setdefault(row.tobytes(), len(found)) == len(found):
                found.append(change)
                atoms.append(row)
    return found, np.array(atoms, np.int8).reshape(len(atoms), claims.shape[1])


def _first(claims: np.ndarray, *, last: bool = False) -> np.ndarray:
    """[E + 1, S] what the first of the claims [E, S] so far take; or the last of them."""
    out = np.full((len(claims) + 1, claims.shape[1]), REPLICATED, np.int8)
    for i, mine in enumerate(claims):
        kept = (mine == REPLICATED) if last else (out[i] != REPLICATED)
        out[i + 1] = np.where(kept, out[i], mine)
    return out


def _changes(space: Space, axis: int, entries: AxisList) -> Iterator[tuple[AxisList, list[Change]]]:
    """(the entries that stay, the changes that leave them) that the space has."""
    fixed = len(space.root[axis])
    for i in (None, *range(fixed, len(entries))):
        out = None if i is None else entries[i]
        rest = entries if i is None else entries[:i] + entries[i + 1 :]
        if not space.allows(axis, rest):
            continue
        listed = {e.group for e in rest}
        after: list[Entry | None] = [*rest[fixed:], None]
        late = len(after) > 1 and rest[-1].scope == UPDATES  # nothing may follow
        changes: list[Change] = []
        if i is not None:
            changes.append(Change(axis, out, None, None))
        for entry in space.entries[axis]:
            if entry.group in listed:
                continue
            where = after[:-1] if late else after
            if entry.scope == UPDATES:
                where = [] if late else [None]
            if i is not None and entry != out:  # replaced where it stands
                where = [before for before in where if before == after[i - fixed]]
            changes += [Change(axis, out, entry, before) for before in where]
        yield rest, changes


def exchanged(space: Space, state: State) -> Iterator[State]:
    """The states of the space in which axes have exchanged their lists."""
    for order in permutations(space.axes):
        lists = list(state)
        for to, source in zip(space.axes, order, strict=True):
            lists[to] = state[source]
        if order != space.axes and space.contains(tuple(lists)):
            yield tuple(lists)


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
