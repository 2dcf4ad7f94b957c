"""The outlook: what evaluated states showed about the parts of a step, and what that promises.

A step's seconds are a sum of parts, and each part sees few layouts: a state that was never
evaluated mostly consists of parts that were. A state is looked at as a *choice* of one column
(columns.py) for each axis, as if what one axis splits did not depend on the others: promises only
say which states are worth an evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from shardwright.search.columns import columns_alone
from shardwright.search.space import Space
from shardwright.spmd.decisions import AxisList, State
from shardwright.spmd.layout import WHOLE

# Columns of an axis, and of all parts together; above, those of the shorter lists.
MOST_COLUMNS, MOST_OF_PARTS = 20_000, 6_000_000
MOST_CELLS = 1 << 20  # of the memory of what was seen; above, several things share a cell

POINTS = 12  # of the program, at which most bytes are held, looked at for the peak

Choice = tuple[int, ...]  # [axes] a column of each


class Parts:
    """The parts of a step, each within one of the largest: those that see no less than it."""

    def __init__(self, sees: Sequence[tuple[int, ...]]) -> None:
        """`sees` are the layouts that each part sees, in order."""
        self.count = len(sees)
        self.largest: list[tuple[tuple[int, ...], list[int]]] = []  # layouts, parts within
        self.places: list[list[int]] = [[]] * len(sees)  # where the largest has a part's layouts
        with_layout: dict[int, list[int]] = {}
        for u in sorted(range(len(sees)), key=lambda u: (-len(sees[u]), sees[u])):
            homes = [set(with_layout.get(i, ())) for i in sees[u]]
            home = min(set.intersection(*homes), default=None) if homes else None
            if home is None:
                home = len(self.largest)
                self.largest.append((sees[u], []))
                for i in sees[u]:
                    with_layout.setdefault(i, []).append(home)
            layouts, within = self.largest[home]
            within.append(u)
            self.places[u] = [layouts.index(i) for i in sees[u]]


class AxisView:
    """The columns of one axis, as the parts of a step see them.

    A part sees few layouts, so that to a part most columns look alike: a *way* is what they look
    like. Vectors [F] hold something for every way of every part, one part after the other.
    Parts are added up with the largest they are within before columns are looked at.
    """

    def __init__(self, space: Space, axis: int, parts: Parts) -> None:
        self.axis, self.size = axis, space.model.mesh.sizes[axis]
        most = min(MOST_COLUMNS, MOST_OF_PARTS // max(parts.count, 1))
        self.columns = columns_alone(space, axis, most)
        table = self.columns.table  # [C, layouts]
        self.split = table != WHOLE
        self.number = {row.tobytes(): i for i, row in enumerate(np.ascontiguousarray(table))}
        self.lists: dict[int, AxisList] = {}
        self.ways = np.ones(parts.count, np.int64)  # [U]
        self.of_column = np.empty((parts.count, len(table)), np.int32)  # [U, C] in [0, F)
        inner: list[tuple[int, np.ndarray]] = []  # parts, [ways of the largest] their ways
        largest: list[np.ndarray] = []  # [ways of the largest so far] of each column
        starts: list[int] = []
        width = 0
        for layouts, within in parts.largest:
            rows, number = self.columns.distinct(layouts)
            largest.append(number + len(starts))
            starts += [width + len(within) * i for i in range(len(rows))]
            width += len(within) * len(rows)
            for u in within:
                way_of: dict[tuple[int, ...], int] = {}
                seen = [tuple([row[p] for p in parts.places[u]]) for row in rows]
                inner.append((u, np.array([way_of.setdefault(s, len(way_of)) for s in seen])))
                self.ways[u], self.of_column[u] = len(way_of), inner[-1][1][number]
        first = np.cumsum(self.ways) - self.ways
        self.of_column += first[:, None].astype(np.int32)
        self.part = np.repeat(np.arange(parts.count), self.ways)  # [F]
        self.way = np.arange(len(self.part)) - first[self.part]  # [F]
        self.least = np.full(len(self.part), np.inf)  # [F] seconds seen with this way
        at = iter([first[u] + ways for u, ways in inner])
        self._inner = np.concatenate([
            np.stack([next(at) for _ in within], 1).ravel() for _, within in parts.largest
        ])  # fmt: skip
        self._starts = np.array(starts)
        entries = np.array(largest).T  # [C, largest]
        ends = np.arange(0, entries.size + 1, entries.shape[1])
        self._columns = csr_array(
            (np.ones(entries.size), entries.ravel(), ends), (len(entries), len(starts))
        )

    def totals(self, seconds: np.ndarray) -> np.ndarray:
        """[C] the sum over all parts, given the seconds of every way [F]."""
        totals: np.ndarray = self._columns @ np.add.reduceat(seconds[self._inner], self._starts)
        return totals


class Outlook:
    """What the states that one search evaluated showed."""

    def __init__(self, space: Space, memory: float) -> None:
        self.space, self.memory = space, memory
        self.model = space.model
        parts = Parts(self.model.parts)
        self.axes = [AxisView(space, axis, parts) for axis in space.axes]
        cells: np.ndarray = np.ones(parts.count, np.int64)  # [U] ways to see all axes at once
        self._stride: list[np.ndarray] = []  # [axes][U]
        for view in self.axes:
            self._stride.append(cells)
            cells = cells * view.ways
        self._first: np.ndarray = np.cumsum(cells) - cells  # [U] the first cell of each part
        self._seen = np.full(min(int(cells.sum()), MOST_CELLS), np.inf)  # seconds by cell
        self._least = np.full(parts.count, np.inf)  # [U]
        self._most = np.zeros(parts.count)  # [U]
        self._column: dict[tuple[int, AxisList], int | None] = {}
        self._bytes = np.array(
            [layout.local_bytes((), ()) for layout in self.model.layouts.table], float
        )
        live = self.model.points.live  # [points, layouts]
        self._live = live[np.argsort(-(live @ self._bytes), kind="stable")[:POINTS]].T

    def learn(self, states: Sequence[State], seconds: np.ndarray) -> None:
        """Remembers the seconds [B, parts] of evaluated states."""
        np.minimum(self._least, seconds.min(0), out=self._least)
        np.maximum(self._most, seconds.max(0), out=self._most)
        choices = self.choices(states)
        known = [b for b, choice in enumerate(choices) if choice is not None]
        if not known:
            return
        seconds, cells = seconds[known], self._first
        for axis, (view, stride) in enumerate(zip(self.axes, self._stride, strict=True)):
            at = view.of_column[:, [choices[b][axis] for b in known]].T  # type: ignore[index]
            np.minimum.at(view.least, at.ravel(), seconds.ravel())
            cells = cells + view.way[at] * stride
        np.minimum.at(self._seen, (cells % len(self._seen)).ravel(), seconds.ravel())

    def choices(self, states: Sequence[State]) -> list[Choice | None]:
        """The columns of states; None for lists that are longer than those looked at."""
        lists = dict.fromkeys((view.axis, s[view.axis]) for s in states for view in self.axes)
        new = [key for key in lists if key not in self._column]
        if new:
            root = self.space.root
            alone = [tuple(e if a == axis else () for a in range(len(root))) for axis, e in new]
            placed = self.model.place(self.space.decisions(alone))[0].astype(np.int8)
            number = {view.axis: view.number for view in self.axes}
            for (axis, entries), p in zip(new, placed, strict=True):
                column = np.ascontiguousarray(p[:, axis]).tobytes()
                self._column[axis, entries] = number[axis].get(column)
        out = [tuple([self._column[v.axis, s[v.axis]] for v in self.axes]) for s in states]
        return [None if None in choice else choice for choice in out]  # type: ignore[misc]

    def promises(self, choice: Choice, axis: int, *, hopeful: bool) -> np.ndarray:
        """[C] seconds with each column of one axis, the other columns as chosen.

        Parts that were not seen like this: if hopeful, as cheap as the dearest of the cheapest
        seen with one of the columns; else as dear as the dearest seen.
        """
        view, cells, floor = self.axes[axis], self._first, self._least
        for other, column in enumerate(choice):
            if other != axis:
                at = self.axes[other].of_column[:, column]
                cells = cells + self.axes[other].way[at] * self._stride[other]
                floor = np.maximum(floor, _known(self.axes[other].least[at], 0.0))
        cells = cells[view.part] + view.way * self._stride[axis][view.part]  # [F]
        unseen = self._most[view.part]
        if hopeful:
            unseen = np.maximum(floor[view.part], _known(view.least, 0.0))
        return view.totals(_known(self._seen[cells % len(self._seen)], unseen))

    def prospects(self, axis: int) -> np.ndarray:
        """[C] the least seconds seen of every part with each column, whatever else was chosen."""
        view = self.axes[axis]
        return view.totals(_known(view.least, self._most[view.part]))

    def best_columns(self, choice: Choice, axis: int, count: int, *, hopeful: bool) -> np.ndarray:
        """Columns of one axis, the most promising first; those that seem to fit before others."""
        seconds = self.promises(choice, axis, hopeful=hopeful)
        reach = count
        while True:
            top = _smallest(seconds, reach)
            excess = np.maximum(self._peaks(choice, axis, top) / self.memory, 1.0)
            if reach >= len(seconds) or excess.min() == 1.0:
                break
            reach *= 8
        return top[np.lexsort((seconds[top], excess))][:count]

    def _peaks(self, choice: Choice, axis: int, columns: np.ndarray) -> np.ndarray:
        """[columns] bytes at the peak, without copies."""
        held = self._bytes
        for other, column in enumerate(choice):
            if other != axis:
                view = self.axes[other]
                held = np.where(view.split[column], held / view.size, held)
        view = self.axes[axis]
        local = np.where(view.split[columns], held / view.size, held)
        peaks: np.ndarray = (local @ self._live).max(1)
        return peaks

    def with_column(self, state: State, axis: int, column: int) -> State:
        """The state with a list on one axis that leads to this column."""
        view = self.axes[axis]
        entries = view.lists.get(column)
        if entries is None:
            entries = view.lists[column] = view.columns.list_of(column)
            self._column[view.axis, entries] = column
        return (*state[: view.axis], entries, *state[view.axis + 1 :])


def _known(seen: np.ndarray, unseen: np.ndarray | float) -> np.ndarray:
    return np.where(np.isfinite(seen), seen, unseen)


def _smallest(values: np.ndarray, count: int) -> np.ndarray:
    """The indices of the smallest values, sorted; of equal ones the first."""
    if count >= len(values):
        return np.argsort(values, kind="stable")
    near = np.flatnonzero(values <= np.partition(values, count)[count])
    return near[np.argsort(values[near], kind="stable")][:count]
