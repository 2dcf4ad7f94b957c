"""Blocks: factors on subsets of one another's scopes, tabulated over the placements of each axis.

A block sees few layouts, so most placements of an axis look alike to it: they are of one *kind*.
Its tables are over kinds, and small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardwright.cost.factor_graph import Cell, FactorGraph
from shardwright.search.axis_placements import AxisPlacements
from shardwright.spmd.decisions import Placement

Kinds = tuple[int, ...]  # for each of the first axes, or of all of them


class Spent(Exception):
    """A limit was reached."""


class Work:
    """Counts the cells of the factor graph that are looked at; raises Spent after `limit`."""

    def __init__(self, limit: float = math.inf) -> None:
        self._seen: set[Cell] = set()
        self._limit = limit

    @property
    def cells(self) -> int:
        """How many cells were looked at."""
        return len(self._seen)

    def spend(self, cells: Sequence[Cell]) -> None:
        """Counts these cells; raises Spent when they are too many."""
        self._seen.update(cells)
        if len(self._seen) > self._limit:
            raise Spent


class Parts(NamedTuple):
    """The seconds of a block, nothing hidden, and its columns (see cost.hiding)."""

    seconds: np.ndarray  # [states]
    columns: np.ndarray  # [states, columns of the block]


class Block:
    """Some factors whose scopes lie within one."""

    def __init__(
        self, graph: FactorGraph, work: Work, scope: tuple[int, ...], factors: list[int],
        axes: Sequence[AxisPlacements],
    ) -> None:  # fmt: skip
        self.scope, self.factors = scope, factors
        self.columns = sorted({c for f in factors for c in graph.columns[f]})  # of Hiding
        self._graph, self._work = graph, work
        self._within = [[scope.index(i) for i in graph.factors[f].scope] for f in factors]
        self._places = [[self.columns.index(c) for c in graph.columns[f]] for f in factors]
        self.use(axes)

    def use(self, axes: Sequence[AxisPlacements]) -> None:
        """Tabulates over these placements from now on."""
        self.axes = axes
        found = [a.kinds(self.scope) for a in axes]
        self.kind = [kind for kind, _ in found]  # [axes][placements]
        self.example = [first.tolist() for _, first in found]  # [axes][kinds] a placement
        self._last: dict[Kinds, tuple[np.ndarray, Parts]] = {}
        self._responses: dict[tuple[int, Kinds], Parts] = {}

    def kinds(self, chosen: Sequence[int]) -> Kinds:
        """The kinds of one placement of each of the first axes."""
        return tuple([int(kind[n]) for kind, n in zip(self.kind, chosen, strict=False)])

    def _placements(self, axis: int, others: Kinds, kinds: np.ndarray) -> np.ndarray:
        """[kinds, scope, axes] the placements for these kinds of one axis, the others held."""
        count = len(self.axes)
        out = np.empty((len(kinds), len(self.scope), count), np.int64)
        fixed = [*others[:axis], 0, *others[axis:]]
        row = [example[k] for example, k in zip(self.example, fixed, strict=True)]
        rows = np.array(self.example[axis])[kinds]

        def followed(layout: int, start: Placement, until: int) -> Placement:
            """What the axes from len(start) on, to another, make of a placement."""
            for a in range(len(start), until):
                one = self.axes[a]
                start = (*start, int(one.table[row[a], one.column[layout][start]]))
            return start

        for s, layout in enumerate(self.scope):
            before = followed(layout, (), axis)
            one = self.axes[axis]
            atoms = one.table[rows, one.column[layout][before]]
            out[:, s, :axis], out[:, s, axis] = before, atoms
            if axis + 1 < count:
                for atom in set(atoms.tolist()):
                    after = followed(layout, (*before, atom), count)
                    out[atoms == atom, s, axis + 1 :] = after[axis + 1 :]
        return out

    def last(self, earlier: Kinds, wanted: np.ndarray) -> Parts:
        """[wanted] the parts for these kinds of the last axis, given those of the others."""
        if earlier not in self._last:
            count = len(self.example[-1])
            empty = Parts(np.zeros(count), np.zeros((count, len(self.columns))))
            self._last[earlier] = np.zeros(count, bool), empty
        known, parts = self._last[earlier]
        new = np.unique(wanted[~known[wanted]])
        if len(new):
            found = self._parts(self._placements(len(earlier), earlier, new))
            parts.seconds[new], parts.columns[new], known[new] = *found, True
        return Parts(parts.seconds[wanted], parts.columns[wanted])

    def response(self, axis: int, others: Kinds) -> Parts:
        """The parts for each kind of one axis, given the kinds of all others."""
        known = self._responses.get((axis, others))
        if known is None:
            kinds = np.arange(len(self.example[axis]))
            placements = self._placements(axis, others, kinds)
            known = self._responses[axis, others] = self._parts(placements)
        return known

    def _parts(self, placements: np.ndarray) -> Parts:
        """Given the placements [states, scope, axes]."""
        total = np.zeros(len(placements))
        columns = np.zeros((len(placements), len(self.columns)))
        for f, within, places in zip(self.factors, self._within, self._places, strict=True):
            seen = placements[:, within]
            cells = self._graph.cells.of_factor(f, seen)
            self._work.spend(cells)
            seconds, parts = self._graph.seconds(f, cells, seen)
            total += seconds
            columns[:, places] += parts
        return Parts(total, columns)


def find_blocks(graph: FactorGraph, axes: Sequence[AxisPlacements], work: Work) -> list[Block]:
    """Blocks that cover all factors: each joins the smallest scope that holds its own."""
    order = sorted(
        range(len(graph.factors)),
        key=lambda f: (-len(graph.factors[f].scope), graph.factors[f].scope),
    )
    within: dict[tuple[int, ...], list[int]] = {}
    holding: dict[int, list[tuple[int, ...]]] = {}  # layout -> roots
    for f in order:
        scope = graph.factors[f].scope
        near = min([holding.get(i, []) for i in scope], key=len) if scope else list(within)
        above = [root for root in near if set(scope).issubset(root)]
        root = min(above, key=lambda r: (len(r), r), default=scope)
        if root not in within:
            for i in root:
                holding.setdefault(i, []).append(root)
        within.setdefault(root, []).append(f)
    return [Block(graph, work, root, factors, axes) for root, factors in within.items()]
