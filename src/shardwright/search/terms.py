"""Terms: a step's seconds as a sum of small functions, each of the placements of a few layouts.

What an op class costs depends on the layouts of its operands and results alone; movements that
several classes share depend on the layouts of those classes. Terms on subsets of one another's
layouts are added up into one *block*, whose table over all columns is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.search.columns import Columns
from shardwright.spmd.follow import Choice
from shardwright.spmd.layout import Placement

Stored = dict[int, Placement]  # layout -> placement
Row = tuple[int, ...]  # the atom that one axis splits, for each layout of a block


class Spent(Exception):
    """A limit was reached."""


class Pricer:
    """Seconds of op classes and shared movements, given how layouts are stored.

    Raises Spent after `limit` choices; on a third axis an op has about three times as many ways
    to be computed, so each counts three times, and so on.
    """

    def __init__(self, model: CostModel, limit: float = math.inf) -> None:
        self.model = model
        self.calls, self._limit = 0, limit
        self._weight = 3 ** max(0, len(model.mesh.sizes) - 2)
        self._choices: dict[tuple[int, tuple[Placement, ...]], Choice] = {}
        self._seconds: dict[tuple[int, tuple[Placement, ...]], float] = {}

    def choice(self, index: int, stored: Stored) -> Choice:
        op = self.model.classes.table[index]
        key = (index, tuple([stored[i] for i in op.key_layouts]))
        known = self._choices.get(key)
        if known is None:
            self.calls += self._weight
            if self.calls > self._limit:
                raise Spent
            known = self._choices[key] = self.model.choose(op, key[1])
        return known

    def class_s(self, index: int, stored: Stored) -> float:
        choice, w = self.choice(index, stored), self.model.weights
        link = float(np.dot(w.operands[index], choice.operand_s))
        link += float(np.dot(w.results[index], choice.result_s))
        return link + float(w.compute[index]) * (choice.exchange_s + choice.compute_s)


class Term:
    """One summand: the layouts it depends on, and its seconds given how they are stored."""

    __slots__ = ("layouts", "op_class", "seconds")

    def __init__(
        self,
        layouts: Sequence[int],
        seconds: Callable[[Stored], float],
        op_class: int | None = None,
    ) -> None:
        self.layouts = frozenset(layouts)
        self.seconds = seconds
        self.op_class = op_class


def find_terms(pricer: Pricer) -> list[Term]:
    """All summands of a step: classes, shared movements, sums, and traffic of fused work."""
    model = pricer.model
    terms = []
    for op in model.classes.table:
        terms.append(Term(op.key_layouts, lambda s, c=op.index: pricer.class_s(c, s), op.index))  # type: ignore[misc]
    for together, price in (
        *[(t, model._shared_s) for t in model.weights.shared],
        *[(t, model._sum_s) for t in model.weights.sums],
    ):
        layouts = {i for c, _ in together.members for i in model.classes.table[c].key_layouts}

        def seconds(s: Stored, t=together, price=price) -> float:  # type: ignore[no-untyped-def]
            return float(price(t, [pricer.choice(c, s) for c, _ in t.members]))

        terms.append(Term(tuple(layouts), seconds))
    for i, per_byte in enumerate(model._traffic_s.tolist()):
        if per_byte:
            layout = model.layouts.table[i]

            def traffic(s: Stored, i=i, layout=layout, per_byte=per_byte) -> float:  # type: ignore[no-untyped-def]
                return float(layout.local_bytes(s[i], model.mesh.sizes) * per_byte)

            terms.append(Term((i,), traffic))
    return terms


class Below(NamedTuple):
    """The least seconds of a block below each column of an axis."""

    number: np.ndarray  # [columns] which of the distinct rows a column has
    seconds: np.ndarray  # [rows]
    least: float
    spread: float  # what the column can change


class _Part:
    """The terms of a block on the same layouts, worked out once for every way to store them."""

    def __init__(self, terms: list[Term]) -> None:
        self._layouts, self._terms = tuple(sorted(terms[0].layouts)), terms
        self._known: dict[tuple[Placement, ...], float] = {}

    def seconds(self, stored: Stored) -> float:
        key = tuple([stored[i] for i in self._layouts])
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = sum([term.seconds(stored) for term in self._terms])
        return known


class Block:
    """Terms on one set of layouts, tabulated over the columns of each axis."""

    def __init__(self, layouts: frozenset[int], terms: list[Term], columns: list[Columns]) -> None:
        self.layouts = tuple(sorted(layouts))
        self.terms = terms
        by_layouts: dict[frozenset[int], list[Term]] = {}
        for term in terms:
            by_layouts.setdefault(term.layouts, []).append(term)
        self._parts = [_Part(same) for same in by_layouts.values()]
        self.columns = columns
        self._below: dict[tuple[Row, ...], Below] = {}
        self._distinct: dict[tuple[Row, ...], tuple[list[Row], np.ndarray]] = {}

    def use(self, columns: list[Columns]) -> None:
        """Tabulates over these columns from now on."""
        self.columns = columns
        self._below.clear()
        self._distinct.clear()

    def below(self, earlier: tuple[Row, ...]) -> Below:
        """The least seconds below each column, given the rows of the axes already decided.

        On the last axis the seconds are exact; before, they are the least over all that may
        follow.
        """
        known = self._below.get(earlier)
        if known is None:
            distinct, number = self.distinct(earlier)
            if len(earlier) + 1 == len(self.columns):
                rows = [self.exact((*earlier, row)) for row in distinct]
            else:
                rows = [self.below((*earlier, row)).least for row in distinct]
            least = min(rows)
            known = Below(number, np.array(rows), least, max(rows) - least)
            self._below[earlier] = known
        return known

    def distinct(self, earlier: tuple[Row, ...]) -> tuple[list[Row], np.ndarray]:
        """(distinct rows of the next axis' columns on these layouts, which one each column is)."""
        known = self._distinct.get(earlier)
        if known is None:
            columns = self.columns[len(earlier)]
            situations = zip(*earlier, strict=True) if earlier else [()] * len(self.layouts)
            at = zip(self.layouts, situations, strict=True)
            known = columns.distinct(tuple([columns.variant[i][s] for i, s in at]))
            self._distinct[earlier] = known
        return known

    def rows(self, chosen: Sequence[int]) -> tuple[Row, ...]:
        """The atoms of these layouts under one column of each of the first axes."""
        rows: tuple[Row, ...] = ()
        for column in chosen:
            distinct, number = self.distinct(rows)
            rows = (*rows, distinct[number[column]])
        return rows

    def exact(self, rows: tuple[Row, ...]) -> float:
        """Seconds when the columns of all axes are chosen."""
        stored = dict(zip(self.layouts, zip(*rows, strict=True), strict=True))
        return sum([part.seconds(stored) for part in self._parts])


def find_blocks(terms: Sequence[Term], columns: list[Columns]) -> list[Block]:
    """Blocks that cover all terms: each joins the smallest set of layouts that holds its own."""
    sets = sorted({t.layouts for t in terms}, key=lambda s: (-len(s), sorted(s)))
    roots: list[frozenset[int]] = []
    home: dict[frozenset[int], frozenset[int]] = {}
    for s in sets:
        above = [r for r in roots if s <= r]
        if above:
            home[s] = min(above, key=lambda r: (len(r), sorted(r)))
        else:
            roots.append(s)
            home[s] = s
    mine: dict[frozenset[int], list[Term]] = {r: [] for r in roots}
    for t in terms:
        mine[home[t.layouts]].append(t)
    return [Block(r, ts, columns) for r, ts in mine.items()]
