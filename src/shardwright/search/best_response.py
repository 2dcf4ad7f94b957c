"""Best responses: what every placement of one axis costs, the other axes held, exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np

from shardwright.cost.hiding import hidden_s
from shardwright.search.axis_placements import find_axis_placements
from shardwright.search.blocks import Spent, Work, find_blocks
from shardwright.search.objective import Objective
from shardwright.search.space import Space
from shardwright.spmd.decisions import State
from shardwright.spmd.layout import REPLICATED

Chosen = tuple[int, ...]  # [axes] a placement of each axis
# Of one axis; above, those of the shorter lists. A response adds them up for every block: 20,000
# placements and 100 blocks take some 5 ms.
MOST_PLACEMENTS = 20_000
# The fastest placements are looked at, so many times more while none of them seems to fit, at the
# points of the program that hold most bytes.
LOOKED_AT, WIDER, POINTS = 64, 8, 12
BATCH = 256  # states evaluated at once


class Responses:
    """The placements of every axis, and what each brings when the others are held."""

    def __init__(self, space: Space, objective: Objective, cells: float = math.inf) -> None:
        """Raises Spent once it has looked at so many cells of the factor graph."""
        self.space, self.objective = space, objective
        model = space.model
        work = Work(cells)
        self.axes = find_axis_placements(space, MOST_PLACEMENTS, cut=True)
        self.complete = all(axis.complete for axis in self.axes)
        self._blocks = find_blocks(model.graph, self.axes, work)
        self._seconds: dict[tuple[int, Chosen], np.ndarray] = {}
        self._extensions: dict[tuple[int, int], np.ndarray] = {}
        self._bytes = np.array([lay.local_bytes((), ()) for lay in model.layouts.table], float)
        live = model.points.live  # [points, layouts]
        heavy = np.argsort(-(live @ self._bytes), kind="stable")[:POINTS]
        self._live = np.ascontiguousarray(live[heavy].T)  # [layouts, points]
        self._all_fit = float((live @ self._bytes).max()) <= objective.memory

    def chosen(self, state: State) -> Chosen | None:
        """The axis placements of a state; None where a list is longer than those looked at."""
        placements, _ = self.space.model.place(self.space.decisions([state]))
        placed = [tuple(p) for p in placements[0].tolist()]
        found: list[int] = []
        for a, axis in enumerate(self.axes):
            columns = [known[p[:a]] for known, p in zip(axis.column, placed, strict=True)]
            same = (axis.table[:, columns] == placements[0, :, a]).all(1)
            if not same.any():
                return None
            found.append(int(same.argmax()))
        return tuple(found)

    def state(self, chosen: Sequence[int]) -> State:
        """A state with these axis placements."""
        return tuple([axis.list_of(n) for axis, n in zip(self.axes, chosen, strict=True)])

    def seconds(self, axis: int, chosen: Chosen) -> np.ndarray:
        """[placements of the axis] seconds of a step, the other axes as chosen."""
        key = (axis, (*chosen[:axis], *chosen[axis + 1 :]))
        known = self._seconds.get(key)
        if known is None:
            known = np.zeros(len(self.axes[axis]))
            columns = np.zeros((self.space.model.graph.hiding.columns, len(known)))
            for block in self._blocks:
                kinds, kind = block.kinds(chosen), block.kind[axis]
                parts = block.response(axis, (*kinds[:axis], *kinds[axis + 1 :]))
                known += parts.seconds[kind]
                for c, values in zip(block.columns, parts.columns.T, strict=True):
                    columns[c] += values[kind] if np.ptp(values) else values[0]
            known -= hidden_s(columns.T)
            self._seconds[key] = known
        return known

    def extensions(self, axis: int, number: int) -> np.ndarray:
        """Placements of an axis that split all that this one splits, in the same way."""
        known = self._extensions.get((axis, number))
        if known is None:
            table = self.axes[axis].table
            split = table[number] != REPLICATED
            agree = (table[:, split] == table[number, split]).all(1)
            known = self._extensions[axis, number] = np.flatnonzero(agree)
        return known

    def best(self, axis: int, chosen: Chosen, among: np.ndarray, count: int) -> list[int]:
        """The fastest placements of an axis that seem to fit, or those nearest to it."""
        seconds, reach = self.seconds(axis, chosen)[among], LOOKED_AT
        if self._all_fit:
            return among[_smallest(seconds, count)].tolist()  # type: ignore[no-any-return]
        while True:
            top = _smallest(seconds, reach)
            excess = np.maximum(self._peaks(axis, chosen, among[top]) / self.objective.memory, 1.0)
            if reach >= len(among) or excess.min() == 1.0:
                return among[top[np.lexsort((seconds[top], excess))][:count]].tolist()  # type: ignore[no-any-return]
            reach *= WIDER

    def _peaks(self, axis: int, chosen: Chosen, numbers: np.ndarray) -> np.ndarray:
        """[numbers] bytes of the buffers at the peak, copies that are moved left out."""
        sizes, held = self.space.model.mesh.sizes, self._bytes
        situations: list[tuple[int, ...]] = [()] * len(held)
        for a, (one, n) in enumerate(zip(self.axes, sizes, strict=True)):
            rows = numbers if a == axis else np.array([chosen[a]])
            columns = [known[s] for known, s in zip(one.column, situations, strict=True)]
            atoms = one.table[rows][:, columns]  # [rows, layouts]
            held = np.where(atoms == REPLICATED, held, held / n)
            # What later axes do is taken from the placement that is chosen now.
            now = one.table[chosen[a]][columns]
            situations = [(*s, int(j)) for s, j in zip(situations, now, strict=True)]
        peaks: np.ndarray = (held @ self._live).max(1)
        return peaks

    def descend(
        self, chosen: Chosen, order: Sequence[int], *, extending: Chosen | None = None,
        count: int = 4,
    ) -> tuple[float, Chosen]:  # fmt: skip
        """(objective, placements) after axis after axis has responded, until none changes.

        With `extending`, only placements that extend these are looked at. The `count` fastest of a
        response are evaluated: bytes of moved copies are not known before.
        """
        value, steady, turn = float(self.objective([self.state(chosen)])[0]), 0, 0
        while steady < len(order):
            axis = order[turn % len(order)]
            turn, steady = turn + 1, steady + 1
            start = self.extensions(axis, extending[axis]) if extending else None
            among = np.arange(len(self.axes[axis])) if start is None else start
            options = [
                (*chosen[:axis], n, *chosen[axis + 1 :])
                for n in self.best(axis, chosen, among, count)
            ]
            values = self.objective([self.state(option) for option in options])
            best = int(values.argmin())
            if values[best] < value:
                value, chosen, steady = float(values[best]), options[best], 1
        return value, chosen

    def evaluate_alike(self, count: int) -> None:
        """Evaluates states in which all axes have one list, for the `count` shortest lists.

        Axes that split alike act as one, and no response of a single axis leads there.
        """
        space = self.space
        if len(space.axes) < 2:
            return
        first = self.axes[space.axes[0]]
        for at in range(0, min(count, len(first)), BATCH):
            lists = [first.list_of(n) for n in range(at, min(at + BATCH, count, len(first)))]
            states = [
                tuple(entries if a in space.axes else fixed for a, fixed in enumerate(space.root))
                for entries in lists
            ]
            self.objective([state for state in states if space.contains(state)])

    def near(self, state: State, count: int) -> list[State]:
        """The states that are best when one axis of a state may change, `count` for each axis."""
        chosen, found = self.chosen(state), list[State]()
        if chosen is not None:
            with suppress(Spent):
                for axis in self.space.axes:
                    every = np.arange(len(self.axes[axis]))
                    for n in self.best(axis, chosen, every, count):
                        found.append(self.state((*chosen[:axis], n, *chosen[axis + 1 :])))
        return found

    def improve(self, states: Iterable[State]) -> None:
        """Descends from each of these states, until the cells that may be looked at are spent."""
        with suppress(Spent):
            for state in states:
                chosen = self.chosen(state)
                if chosen is not None:
                    self.descend(chosen, self.space.axes)


def _smallest(values: np.ndarray, count: int) -> np.ndarray:
    """The indices of the smallest values, sorted; of equal ones the first."""
    if count >= len(values):
        return np.argsort(values, kind="stable")
    near = np.flatnonzero(values <= np.partition(values, count)[count])
    return near[np.argsort(values[near], kind="stable")][:count]
