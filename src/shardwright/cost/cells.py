"""Addresses of the cells of a factor graph's tables: exact, so that nothing rests on hashes.

A factor's table has a cell for every combination of placements of its scope. The tables lie one
after another: a cell is a number, which moves by a known stride when one layout of the scope gets
another placement. Where no number can tell all cells apart, a table is *wide*: its cells are
addressed by the placements themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from shardwright.spmd.layout import REPLICATED, Layout

Cell = int | bytes  # the address of a cell
MOST_CELLS = 1 << 62  # of all tables that are addressed by numbers; a larger one is wide


class Cells:
    """The addresses of all cells, and the factors that see each layout."""

    def __init__(
        self, layouts: Sequence[Layout], scopes: Sequence[tuple[int, ...]], axes: int
    ) -> None:
        """`scopes` [F] are the layouts of each factor, ascending, on a mesh of so many axes."""
        self._scopes = scopes
        sizes = [(len(layout.atoms) + 1) ** axes for layout in layouts]
        self._radix = np.array(  # [S, A] the placement of a layout as a number
            [[(len(layout.atoms) + 1) ** a for a in range(axes)] for layout in layouts], np.int64
        ).reshape(len(sizes), axes)
        self._first = np.zeros(len(scopes), np.int64)  # [F] the first cell
        self._stride: list[np.ndarray] = []  # [F][scope]
        wide: list[int] = []
        used = 1
        for f, scope in enumerate(scopes):
            shape = [sizes[i] for i in scope]
            if used + prod(shape) > MOST_CELLS:
                wide.append(f)
                shape = [1] * len(shape)
            steps = [prod(shape[:k]) for k in range(len(shape))]
            self._first[f] = used
            self._stride.append(np.array(steps, np.int64) * (f not in wide))
            used += prod(shape)
        self.wide = frozenset(wide)  # factors
        self._flat = np.array([i for scope in scopes for i in scope], np.int64)
        widths = np.array([len(scope) for scope in scopes], np.int64)
        starts = np.cumsum(widths) - widths
        self._starts = np.minimum(starts, max(len(self._flat) - 1, 0))
        self._strides = np.concatenate([*self._stride, np.zeros(0, np.int64)])
        self._constant = np.flatnonzero(widths == 0)
        # The factors that see each layout, layout by layout, with its stride in each.
        order = np.argsort(self._flat, kind="stable")
        self.seeing = np.repeat(np.arange(len(scopes)), widths)[order]
        self._seeing_stride = self._strides[order]
        self.seen_by = np.bincount(self._flat, minlength=len(sizes))  # [S] how many factors
        self._seen_from = np.cumsum(self.seen_by) - self.seen_by  # [S] the first of them

    def of_state(self, placements: np.ndarray) -> np.ndarray:
        """[F] the cell of every factor, given the placements [S, A]; of wide ones anything."""
        if not len(self._flat):
            return self._first.copy()
        numbers = ((placements - REPLICATED) * self._radix).sum(1)  # [S]
        cells: np.ndarray = np.add.reduceat(numbers[self._flat] * self._strides, self._starts)
        cells[self._constant] = 0
        return cells + self._first

    def changed(
        self, placements: np.ndarray, change: np.ndarray, layouts: np.ndarray, changed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """([N] change, [N] factor, [N] its cell) of every factor that sees a changed layout.

        Changes are as in FactorGraph.rows_changed; the cells of wide factors are anything.
        """
        before = ((placements[layouts] - REPLICATED) * self._radix[layouts]).sum(1)
        moved = ((changed - REPLICATED) * self._radix[layouts]).sum(1) - before  # [K]
        seen = self.seen_by[layouts]
        pair = np.repeat(np.arange(len(layouts)), seen)  # [N]
        within = np.arange(len(pair)) - np.repeat(np.cumsum(seen) - seen, seen)
        at = np.repeat(self._seen_from[layouts], seen) + within
        key = change[pair] * len(self._scopes) + self.seeing[at]
        order = np.argsort(key, kind="stable")
        key = key[order]
        first = np.flatnonzero(np.diff(key, prepend=-1))
        change_of, factor = np.divmod(key[first], len(self._scopes))
        steps = (moved[pair] * self._seeing_stride[at])[order]
        return change_of, factor, self.of_state(placements)[factor] + np.add.reduceat(steps, first)

    def of_factor(self, factor: int, placements: np.ndarray) -> list[Cell]:
        """[R] the cells of one factor, given placements [R, scope, A] of its scope."""
        if factor in self.wide:
            return [self.exact(factor, 0, at) for at in placements]
        radix = self._radix[list(self._scopes[factor])]
        numbers = ((placements - REPLICATED) * radix).sum(2)
        cells: list[Cell] = (numbers @ self._stride[factor] + self._first[factor]).tolist()
        return cells

    def exact(self, factor: int, number: int, placements: np.ndarray) -> Cell:
        """The address of a cell with this number, given the placements [scope, A] of its scope."""
        if factor in self.wide:
            return factor.to_bytes(4, "little") + placements.astype(np.int8).tobytes()
        return number
