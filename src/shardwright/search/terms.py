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
from shardwright.spmd.layout import WHOLE, Placement
from shardwright.spmd.weights import Together

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
        self._classes = model.classes.table
        self._choices: list[dict[tuple[Placement, ...], Choice]] = [{} for _ in self._classes]

    def choice(self, index: int, stored: Stored) -> Choice:
        """How one class is computed."""
        op = self._classes[index]
        key = tuple([stored[i] for i in op.key_layouts])
        known = self._choices[index].get(key)
        if known is None:
            self.calls += self._weight
            if self.calls > self._limit:
                raise Spent
            known = self._choices[index][key] = self.model.choose(op, key)
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
    whole = (WHOLE,) * len(model.mesh.sizes)

    def shared(s: Stored, t: Together) -> float:
        if s[t.layout] == whole:  # slices are free
            return 0.0
        return model._shared_s(t, [pricer.choice(c, s) for c, _ in t.members])

    def summed(s: Stored, t: Together) -> float:
        return model._sum_s(t, [pricer.choice(c, s) for c, _ in t.members])

    for groups, price in ((model.weights.shared, shared), (model.weights.sums, summed)):
        for t in groups:
            layouts = t.layouts(model.classes.table)
            terms.append(Term(layouts, lambda s, t=t, price=price: price(s, t)))  # type: ignore[misc]
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

    def __init__(self, terms: list[Term], of_block: tuple[int, ...]) -> None:
        self._layouts, self._terms = tuple(sorted(terms[0].layouts)), terms
        self._places = [of_block.index(i) for i in self._layouts]
        self._known: dict[tuple[Row, ...], float] = {}
        # By the id of a list of rows, which is kept so that no other list gets its id.
        self._seen: dict[int, tuple[list[Row], list[Row], list[int]]] = {}

    def seconds(self, rows: tuple[Row, ...]) -> float:
        """Given the rows of all axes, on these layouts alone."""
        known = self._known.get(rows)
        if known is None:
            stored = dict(zip(self._layouts, zip(*rows, strict=True), strict=True))
            known = self._known[rows] = sum([term.seconds(stored) for term in self._terms])
        return known

    def own(self, row: Row) -> Row:
        """A row of the block on these layouts alone."""
        return tuple([row[p] for p in self._places])

    def table(self, earlier: tuple[Row, ...], last: list[Row]) -> np.ndarray:
        """[rows] seconds for each of these rows of the last axis."""
        if id(last) not in self._seen:
            number: dict[Row, int] = {}
            which = [number.setdefault(self.own(row), len(number)) for row in last]
            self._seen[id(last)] = last, list(number), which
        _, rows, which = self._seen[id(last)]
        before = tuple([self.own(row) for row in earlier])
        return np.array([self.seconds((*before, row)) for row in rows])[which]


class Block:
    """Terms on one set of layouts, tabulated over the columns of each axis."""

    def __init__(self, layouts: frozenset[int], terms: list[Term], columns: list[Columns]) -> None:
        self.layouts = tuple(sorted(layouts))
        self.terms = terms
        by_layouts: dict[frozenset[int], list[Term]] = {}
        for term in terms:
            by_layouts.setdefault(term.layouts, []).append(term)
        self._parts = [_Part(same, self.layouts) for same in by_layouts.values()]
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
                rows = sum([part.table(earlier, distinct) for part in self._parts], np.zeros(1))
            else:
                rows = np.array([self.below((*earlier, row)).least for row in distinct])
            least = float(rows.min())
            known = self._below[earlier] = Below(number, rows, least, float(rows.max()) - least)
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
        return sum([part.seconds(tuple(map(part.own, rows))) for part in self._parts])


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
