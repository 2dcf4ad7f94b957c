"""Seconds of moving one array between many pairs of placements at once.

Between even shards the moves depend on which axes share an atom alone (spmd/routes.py). So the
pairs of two lists of placements fall into few *patterns*: the routes of a pattern are worked out
once for all arrays, and priced for the size of each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from shardwright.cost.prices import DevicePrices
from shardwright.spmd.decisions import Placement
from shardwright.spmd.layout import REPLICATED, Layout
from shardwright.spmd.moves import ALL_REDUCE, Move
from shardwright.spmd.routes import SumAxes, even_reductions, even_ways

Made = tuple[Placement, SumAxes]  # where an array comes from: its placement, and its partial sums


class Step(NamedTuple):
    """One collective of a route."""

    kind: str
    axes: tuple[int, ...]
    shards: int  # of the array that travels
    part: float  # of the largest hideable one on its route


class Routes(NamedTuple):
    """The routes of some patterns, one after another."""

    steps: np.ndarray  # of all routes
    in_route: np.ndarray  # [steps] the route
    of: np.ndarray  # [routes] the pattern
    first: np.ndarray  # [patterns] the first route

    def total(self, each: np.ndarray) -> np.ndarray:
        """[routes] given that of each step."""
        return np.bincount(self.in_route, each[self.steps], len(self.of))

    def fastest(self, seconds: np.ndarray) -> np.ndarray:
        """[patterns] the fastest route of each, the first of equal ones, given those of all."""
        return np.lexsort((seconds, self.of))[self.first]  # type: ignore[no-any-return]


class _Book:
    """The routes of patterns by number."""

    def __init__(self) -> None:
        self.steps: dict[Step, int] = {}
        self._steps = array("q")  # of all routes, one after another
        self._start = array("q", [0])  # [routes + 1]
        self._first = array("q", [0])  # [patterns + 1] the first route

    def add(self, routes: Iterable[Sequence[Step]]) -> None:
        """The routes of the next pattern."""
        for route in routes:
            self._steps.extend([self.steps.setdefault(s, len(self.steps)) for s in route])
            self._start.append(len(self._steps))
        self._first.append(len(self._start) - 1)

    def routes(self, patterns: np.ndarray) -> Routes:
        """Those of some patterns."""
        first = np.array(self._first)
        route, of = _ranges(first[patterns], first[patterns + 1])
        start = np.array(self._start)
        at, in_route = _ranges(start[route], start[route + 1])
        steps = np.array(self._steps, np.int64)[at]
        return Routes(steps, in_route, of, np.searchsorted(of, np.arange(len(patterns))))


class Patterns:
    """All patterns met so far on one mesh, with their routes for an array that all axes divide."""

    def __init__(self, prices: DevicePrices, written_out: bool) -> None:
        self._prices, self._written_out = prices, written_out
        self._sums: dict[SumAxes, int] = {}
        self._number: dict[int, int] = {}  # code -> pattern
        self._pairs: list[tuple[Placement, SumAxes, Placement]] = []  # [patterns]
        self._known: dict[object, np.ndarray] = {}
        self._uneven: dict[int, int] = {}  # pattern -> its number in that book
        self._books = _Book(), _Book()  # of even shards; of uneven ones

    def find(self, sources: Sequence[Made], targets: Sequence[Placement]) -> np.ndarray:
        """[sources, targets] the pattern of each pair."""
        key = tuple(sources), tuple(targets)
        if key not in self._known:
            kind = [self._sums.setdefault(sums, len(self._sums)) for _, sums in sources]
            labels = _numbered(np.array([p for p, _ in sources]), np.array(targets))
            code = np.repeat(np.array(kind, np.int64), len(targets))
            for label in labels:
                code *= len(labels) + 1
                code += label - REPLICATED
            codes, first, inverse = np.unique(code, return_index=True, return_inverse=True)
            numbers = list[int]()
            for one, at in zip(codes.tolist(), first.tolist(), strict=True):
                if one not in self._number:
                    self._number[one] = len(self._number)
                    pair = [int(label[at]) for label in labels]
                    sums = sources[at // len(targets)][1]
                    self._pairs.append((tuple(pair[0::2]), sums, tuple(pair[1::2])))
                    self._books[0].add(self._routes(*self._pairs[-1]))
                numbers.append(self._number[one])
            self._known[key] = np.array(numbers)[inverse].reshape(len(sources), len(targets))
        return self._known[key]

    def even(self, patterns: np.ndarray) -> tuple[Routes, list[Step]]:
        """The routes of even shards, and all steps."""
        return self._books[0].routes(patterns), list(self._books[0].steps)

    def uneven(self, patterns: np.ndarray) -> tuple[Routes, list[Step]]:
        """The routes of which uneven shards take one, and all steps."""
        for n in patterns.tolist():
            if n not in self._uneven:
                self._uneven[n] = len(self._uneven)
                have, sums, need = self._pairs[n]
                ways = even_ways(have, sums, need, *self._how)
                self._books[1].add([Step(*step, 1.0) for step in way] for way in ways)
        numbers = np.array([self._uneven[n] for n in patterns.tolist()], np.int64)
        return self._books[1].routes(numbers), list(self._books[1].steps)

    @property
    def _how(self) -> tuple[tuple[int, ...], bool, bool]:
        prices = self._prices
        return prices.axis_sizes, prices.routes.scatters_at_once, self._written_out

    def _routes(self, have: Placement, sums: SumAxes, need: Placement) -> Iterator[list[Step]]:
        """The routes of one pattern."""
        moves = bool(sums) or have != need
        routes = even_reductions(have, sums, need, *self._how) if moves else [[]]
        for route in routes:
            hides = [s for (k, _, s), _ in route if k in self._prices.device.hides]
            most = min(hides, default=1)
            yield [Step(kind, axes, shards, most / shards) for (kind, axes, shards), _ in route]


def _ranges(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(all numbers from each start to its end, the range that each is in)"""
    count = end - start
    of = np.repeat(np.arange(len(start)), count)
    return np.arange(len(of)) - np.repeat(np.cumsum(count) - count - start, count), of


def _numbered(sources: np.ndarray, targets: np.ndarray) -> list[np.ndarray]:
    """[2 x axes][pairs] source and target of each axis in turn, atoms numbered as they are met."""
    count = len(sources) * len(targets)
    every = np.arange(count)
    number = np.full((int(max(sources.max(), targets.max())) + 2) * count, REPLICATED, np.int8)
    met, out = np.zeros(count, np.int8), []
    for source, target in zip(sources.T, targets.T, strict=True):
        for atom in (np.repeat(source, len(targets)), np.tile(target, len(sources))):
            at = (atom + 1) * count + every  # of what is replicated in the first row
            label = number.take(at)
            new = np.flatnonzero((atom != REPLICATED) & (label == REPLICATED))
            label[new] = number[at[new]] = met[new]
            met[new] += 1
            out.append(label)
    return out


class PairTable:
    """The pairs of one array, as lower bounds.

    Even shards go the way that is known. Uneven ones go one of a few ways, and are no smaller than
    even ones. Minor atoms of a dim move in ways of their own: such pairs count as free.
    """

    def __init__(
        self, layout: Layout, sources: Sequence[Made], targets: Sequence[Placement],
        patterns: Patterns, prices: DevicePrices,
    ) -> None:  # fmt: skip
        self._prices = prices
        self._whole = layout.itemsize * prod(a.size for a in layout.atoms)
        pattern = patterns.find(sources, targets)
        even, apart = _even(layout, [p for p, _ in sources], targets, prices.axis_sizes)
        known, of_known = np.unique(pattern[even & apart], return_inverse=True)
        loose, of_loose = np.unique(pattern[~even & apart], return_inverse=True)
        self._free = len(known) + len(loose)
        self.cell = np.full(pattern.shape, self._free)  # [sources, targets]
        self.cell[even & apart] = of_known
        self.cell[~even & apart] = len(known) + of_loose
        self._even, self._uneven = patterns.even(known), patterns.uneven(loose)
        seconds = self._each(self._even[1], None, 1, 1)
        self._fastest = self._even[0].fastest(self._even[0].total(seconds))
        self._exposed: dict[object, np.ndarray] = {}

    def exposed(self, weight: float | None, times: int = 1, over: int = 1) -> np.ndarray:
        """[cells] seconds that are not hidden, of elements times / over as large.

        With a weight, of what can run beside compute this part counts; without, nothing hides.
        """
        key = weight, times, over
        if key not in self._exposed:
            (even, steps), (uneven, ways) = self._even, self._uneven
            one = even.total(self._each(steps, weight, times, over))[self._fastest]
            two = uneven.total(self._each(ways, weight, times, over))
            two = np.minimum.reduceat(two, uneven.first) if len(two) else two
            self._exposed[key] = np.concatenate([one, two, np.zeros(1)])
        return self._exposed[key]

    def _each(
        self, steps: Sequence[Step], weight: float | None, times: int, over: int
    ) -> np.ndarray:
        """[steps]"""
        prices, out = self._prices, np.zeros(len(steps))
        for n, s in enumerate(steps):
            move = Move(s.kind, s.axes, self._whole // s.shards * times // over, ())
            if weight is None:
                out[n] = prices.move_s(move)
                continue
            out[n] = prices.combined_s(move)
            if s.kind in prices.device.hides:
                out[n] *= 1.0 - (1.0 - weight) * prices.hides(move, s.part)
        return out

    def all_reduce(self) -> np.ndarray:
        """[cells] whether all moves may be all-reduces."""
        (even, steps), (uneven, _) = self._even, self._uneven
        one = even.total(np.array([s.kind != ALL_REDUCE for s in steps], float))[self._fastest]
        return np.concatenate([one == 0.0, np.ones(len(uneven.first) + 1, bool)])


def _even(
    layout: Layout, sources: Sequence[Placement], targets: Sequence[Placement],
    axis_sizes: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """[sources, targets] (whether all axes of both divide each atom, whether all are major)."""
    rows, columns = np.array(sources)[:, None], np.array(targets)[None]
    even, major = np.ones((2, len(sources), len(targets)), bool)
    for j, atom in enumerate(layout.atoms):
        if atom.size % prod(axis_sizes) or atom.place:
            shards = np.ones(even.shape, np.int64)
            for a, n in enumerate(axis_sizes):
                split = (rows[..., a] == j) | (columns[..., a] == j)
                shards = np.where(split, shards * n, shards)
            even &= atom.size % shards == 0
            major &= (shards == 1) | (atom.place == 0)
    return even, major
