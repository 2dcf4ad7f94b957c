"""The relaxation: small tables whose sum is never above the seconds of a state, made to agree.

Each op class gets a table over its own layouts (cost/op_table.py), whose cells are the placements
that the lists of all axes can give these layouts together. The sum of the least cells is a lower
bound, and a weak one: tables that share a layout each take it stored as suits them. `agree` moves
seconds between tables until they want the same: for each layout, every table's least seconds for
each placement (its *min-marginals*) are replaced by their mean over the tables. The sum of all
tables stays the same for every state, and the bound never falls. In the literature this is soft
arc consistency, or dual block-coordinate ascent (Werner 2007; Kolmogorov 2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.cost.op_table import (
    Charge,
    Chosen,
    SlotRoutes,
    candidates_of,
    charge,
    chosen_candidates,
    computing,
)
from shardwright.cost.shares import Share, shares
from shardwright.search.axis_placements import AxisPlacements, TooLarge, find_axis_placements
from shardwright.search.bounds import least_compute_s
from shardwright.search.space import Space
from shardwright.spmd.decisions import Decisions, Placement
from shardwright.spmd.opclass import OpClass

Scope = tuple[int, ...]  # layouts, ascending
# Of the bound: less gained in SWEEPS sweeps is nothing, or in a part of those that are allowed.
STEADY, SWEEPS, WINDOWS = 2e-4, 5, 25
MOST_KINDS = 1024  # of an axis, in a bundle: far fewer than placements
LEAST_STEP = 0.1  # of a weight: smaller ones change the bound by less than a percent


class Table(NamedTuple):
    """The seconds of a bundle for each kind of the next axis."""

    kind: np.ndarray  # [placements of the axis]
    seconds: np.ndarray  # [kinds]
    least: float
    spread: float  # what the axis can change


class Star:
    """A table over a few layouts: op classes whose layouts lie within one scope."""

    def __init__(self, scope: Scope, cells: np.ndarray, charge: Charge) -> None:
        self.scope = scope
        self.cells = cells  # [cells, scope] numbers of placements
        self.charge = charge  # [cells]
        self.seconds = charge.base  # [cells] as weighed, and moved between tables

    def place(self, axes: Sequence[AxisPlacements], domains: Domains) -> None:
        """Finds the cell of every combination of kinds of these axis placements."""
        found = [a.kinds(self.scope) for a in axes]
        self.kind = [kind for kind, _ in found]  # [axes][placements]
        columns = _grid(axes, [first for _, first in found], self.scope, domains)
        keys = _keys(self.cells, domains, self.scope)
        at = np.searchsorted(keys, _key(columns, domains, self.scope))
        self._cell = at  # [kinds of axis 0, of axis 1, ...]

    def of_axis(self, axis: int) -> np.ndarray:
        """[kinds of an axis] the least seconds of each."""
        rest = np.moveaxis(self.seconds[self._cell], axis, 0)
        return rest.reshape(len(rest), -1).min(1)  # type: ignore[no-any-return]

    def keep(self, numbers: Sequence[np.ndarray]) -> None:
        """From now on the placements of each axis are these, and the seconds stay."""
        self.kind = [kind[rows] for kind, rows in zip(self.kind, numbers, strict=True)]
        self._seconds = self.seconds[self._cell]
        self._slopes = {k: slope[self._cell] for k, slope in self.charge.slopes.items()}
        self._below: dict[tuple[int, ...], np.ndarray] = {}

    def slopes(self, chosen: Sequence[int], last: np.ndarray) -> dict[int, np.ndarray]:
        """{phase: [last] what a weight counts} for these placements of the last axis."""
        kinds = tuple([int(kind[n]) for kind, n in zip(self.kind, chosen, strict=False)])
        at = self.kind[-1][last]
        return {k: slope[kinds][at] for k, slope in self._slopes.items()}

    def below(self, chosen: Sequence[int]) -> np.ndarray:
        """[kinds of the next axis] the least seconds, given placements of those before it."""
        kinds = tuple([int(kind[n]) for kind, n in zip(self.kind, chosen, strict=False)])
        known = self._below.get(kinds)
        if known is None:
            rest = self._seconds[kinds]
            known = self._below[kinds] = rest.reshape(len(rest), -1).min(1)
        return known


class Bundle:
    """Stars that are added up kind by kind, before all placements of an axis are looked at."""

    def __init__(self, kind: np.ndarray, members: Sequence[tuple[int, np.ndarray]]) -> None:
        self.kind = kind  # [placements of the axis] what the members tell apart
        self.members = members  # (a star, [kinds] the kind that it sees)

    @staticmethod
    def of(stars: Sequence[Star], axis: int) -> list[Bundle]:
        """Bundles of all stars with few kinds each, for one axis."""
        out: list[Bundle] = []
        kind, parts = np.zeros(0, np.int64), list[int]()
        for n, star in enumerate(stars):
            mine = star.kind[axis]
            if parts:
                both = _numbered(kind * (int(mine.max()) + 1) + mine)
                if int(both.max()) < MOST_KINDS:
                    kind, parts = both, [*parts, n]
                    continue
                out.append(Bundle._made(kind, parts, stars, axis))
            kind, parts = mine, [n]
        return [*out, Bundle._made(kind, parts, stars, axis)] if parts else out

    @staticmethod
    def _made(kind: np.ndarray, parts: Sequence[int], stars: Sequence[Star], axis: int) -> Bundle:
        first = np.empty(int(kind.max()) + 1, np.int64)
        first[kind[::-1]] = np.arange(len(kind))[::-1]
        return Bundle(kind, [(n, stars[n].kind[axis][first]) for n in parts])

    def total(self, seconds: Callable[[int], np.ndarray]) -> np.ndarray:
        """[kinds] the seconds of all members, given those of each star for each kind it sees."""
        return sum((seconds(n)[seen] for n, seen in self.members), np.zeros(()))


def _numbered(codes: np.ndarray) -> np.ndarray:
    """The same, numbered without gaps."""
    seen = np.zeros(int(codes.max()) + 1, bool)
    seen[codes] = True
    return (np.cumsum(seen) - 1)[codes]  # type: ignore[no-any-return]


class SharedLayouts(NamedTuple):
    """Layouts that several stars hold, of which no two are held by one star."""

    cells: np.ndarray  # cells of all of them, by layout, star, and the placement of the layout
    starts: np.ndarray  # [layouts x stars x placements] the first of each
    counts: np.ndarray  # [layouts x stars x placements]
    pair: np.ndarray  # [layouts x stars x placements] a number for each placement of each layout
    stars: np.ndarray  # [pairs] how many stars hold the layout

    @staticmethod
    def of(layouts: Sequence[Sequence[tuple[int, np.ndarray]]]) -> SharedLayouts:
        """Given, for each layout and star, its first cell and [cells] placements of the layout."""
        cells, counts, pair, stars = [], [], [], list[int]()
        for held in layouts:
            for first, at in held:
                cells.append(np.argsort(at, kind="stable") + first)
                counts.append(np.bincount(at))
                pair.append(len(stars) + np.arange(len(counts[-1])))
            stars += [len(held)] * len(counts[-1])
        count = np.concatenate(counts)
        return SharedLayouts(
            np.concatenate(cells), np.cumsum(count) - count, count, np.concatenate(pair),
            np.array(stars),
        )  # fmt: skip

    def average(self, seconds: np.ndarray) -> None:
        """Gives all stars the same least seconds per placement (min-marginals): the mean."""
        mine = seconds[self.cells]
        least = np.minimum.reduceat(mine, self.starts)
        change = (np.bincount(self.pair, least) / self.stars)[self.pair] - least
        seconds[self.cells] = mine + np.repeat(change, self.counts)


class Domains:
    """The placements of each layout, numbered as they are met."""

    def __init__(self, layouts: int) -> None:
        self.placements: list[list[Placement]] = [[] for _ in range(layouts)]
        self._number: list[dict[Placement, int]] = [{} for _ in range(layouts)]

    def number(self, layout: int, placement: Placement) -> int:
        """The number of a placement in the domain of a layout, a new one where it is new."""
        known = self._number[layout]
        if placement not in known:
            known[placement] = len(known)
            self.placements[layout].append(placement)
        return known[placement]


def _grid(
    axes: Sequence[AxisPlacements], examples: Sequence[np.ndarray], scope: Scope, domains: Domains
) -> list[np.ndarray]:
    """[scope] the placement numbers of a layout for every combination of kinds of all axes."""
    out = []
    for layout in scope:
        met: list[Placement] = [()]
        at = np.zeros((), np.int64)  # [kinds of axis 0, ...] a number of `met`
        for axis, rows in zip(axes, examples, strict=True):
            columns = [axis.column[layout][earlier] for earlier in met]
            atoms = axis.table[rows][:, columns].T.astype(np.int64)  # [met, kinds]
            number: dict[tuple[int, int], int] = {}
            pairs = [(m, int(atom)) for m in range(len(met)) for atom in np.unique(atoms[m])]
            for pair in pairs:
                number[pair] = len(number)
            after = np.zeros(atoms.shape, np.int64)
            for (m, atom), n in number.items():
                after[m, atoms[m] == atom] = n
            met = [(*met[m], atom) for m, atom in pairs]
            at = after[at]
        out.append(np.array([domains.number(layout, p) for p in met], np.int64)[at])
    return out


def _key(columns: Sequence[np.ndarray], domains: Domains, scope: Scope) -> np.ndarray:
    """One number for each combination of placements of a scope."""
    key = np.zeros((), np.int64)
    for layout, column in zip(scope, columns, strict=True):
        key = key * len(domains.placements[layout]) + column
    return key


def _keys(cells: np.ndarray, domains: Domains, scope: Scope) -> np.ndarray:
    """[cells] the same of the cells of a star."""
    return _key([cells[:, i] for i in range(len(scope))], domains, scope)


class OpTables:
    """The tables of op classes over what the lists can give their layouts, made when asked for."""

    def __init__(self, space: Space, most_pairs: float, most_cells: int) -> None:
        """`most_pairs` limits the work: of a candidate of an op and a cell of its table."""
        self.space, self.model = space, space.model
        self.domains = Domains(len(self.model.layouts.table))
        self._left, self._most_cells = most_pairs, most_cells
        self._scopes: dict[Scope, np.ndarray | None] = {}
        self.routes = SlotRoutes(self.domains.placements, self.model.prices)
        # Ops of one shape on equal cells choose alike, and are charged alike for an equal share.
        self._chosen: dict[int, tuple[object, Chosen] | None] = {}  # of each op class
        self._by_shape: dict[object, tuple[object, Chosen]] = {}
        self._charges: dict[tuple[object, Share], Charge] = {}
        self.heavy = [_heavy(self.model, op) for op in self.model.classes.table]  # [classes]

    def cells(self, scope: Scope) -> np.ndarray | None:
        """[cells, scope] what the lists can give these layouts together; None: too many."""
        if scope not in self._scopes:
            self._scopes[scope] = self._find_cells(scope)
        return self._scopes[scope]

    def _find_cells(self, scope: Scope) -> np.ndarray | None:
        """[cells, scope] the placements that states can give a scope; None: too many."""
        try:
            axes = find_axis_placements(self.space, self._most_cells, scope)
        except TooLarge:
            return None
        examples = [a.kinds(scope)[1] for a in axes]
        if math.prod(map(len, examples)) > self._most_cells:
            return None
        columns = _grid(axes, examples, scope, self.domains)
        key = _key(columns, self.domains, scope)
        _, first = np.unique(key, return_index=True)
        if not scope:
            return np.zeros((1, 0), np.int64)
        return np.stack([c.reshape(-1)[first] for c in columns], 1)

    def charge(self, op: OpClass, share: Share) -> Charge | None:
        """[cells of its scope] what an op class is charged; None where that is too much work."""
        if op.index not in self._chosen:
            self._chosen[op.index] = self._choose(op)
        known = self._chosen[op.index]
        if known is None:
            return None
        alike, chosen = known
        key = (alike, share)
        if key not in self._charges:
            cells = self._columns(op)
            self._charges[key] = charge(op, share, cells, chosen, self.routes, self.model.prices)
        return self._charges[key]

    def _choose(self, op: OpClass) -> tuple[object, Chosen] | None:
        """(what ops that choose alike have in common, what they may choose in each cell).

        None where that is too much work.
        """
        cells = self.cells(_scope(op))
        if cells is None:
            return None
        candidates = candidates_of(op, self.domains.placements, self.model.prices)
        pairs = len(candidates) * len(cells)
        if pairs > self._left:
            return None
        self._left -= pairs
        columns, prices = self._columns(op), self.model.prices
        slots = [(self.routes.alike(i), columns[i].tobytes()) for i in op.key_layouts]
        key = (op.shape, *slots)
        known = self._by_shape.get(key)
        if known is None:
            chosen = chosen_candidates(op, columns, candidates, self.routes, prices)
            known = self._by_shape[key] = len(self._by_shape), chosen
        return known

    def _columns(self, op: OpClass) -> dict[int, np.ndarray]:
        """{layout: [cells] numbers of placements}"""
        scope = _scope(op)
        cells = self.cells(scope)
        assert cells is not None
        return {layout: cells[:, i] for i, layout in enumerate(scope)}


def _scope(op: OpClass) -> Scope:
    return tuple(sorted(set(op.key_layouts)))


class Relaxation:
    """The stars of a space, and a constant for what has no table."""

    def __init__(self, ops: OpTables, near: Decisions) -> None:
        """`near` is a good state: the bound is tightest around it.

        Heavy ops get their tables first; what has none has its least compute for a bound.
        """
        model = self.model = ops.model
        self.ops, self.domains = ops, ops.domains
        hiding = model.graph.hiding
        charged = shares(model.weights, model.choices(near), ops.heavy, hiding)
        self.constant = Charge(np.zeros(()))
        tables: dict[Scope, Charge] = {}
        for op in sorted(model.classes.table, key=lambda op: (-ops.heavy[op.index], op.index)):
            share, scope = charged[op.index], _scope(op)
            charge = ops.charge(op, share)
            if charge is not None:
                tables[scope] = tables[scope] + charge if scope in tables else charge
            elif share.compute:
                least_s = np.array(least_compute_s(model, op))
                self.constant += computing(least_s, share.compute)
        self._add_traffic(tables)
        self.stars = self._merged(tables)
        self._join()
        self.weights = np.zeros(len(hiding.phases))  # [phases]
        compute_s, link_s = model.columns(near)
        self.weigh((compute_s < link_s).astype(float))  # exact for this state

    def _add_traffic(self, tables: dict[Scope, Charge]) -> None:
        """What fused work moves through memory: in the first table that holds the layout."""
        sizes, hiding = self.model.mesh.sizes, self.model.graph.hiding
        first: dict[int, Scope] = {}
        for scope in tables:
            for layout in scope:
                first.setdefault(layout, scope)
        for factor in self.model.graph.factors:
            for layout, phase, per_byte in factor.traffic:
                table, times = (
                    self.model.layouts.table[layout],
                    [(hiding.number.get(phase), per_byte)],
                )
                scope = first.setdefault(layout, (layout,))
                cells = self.ops.cells(scope)
                if cells is None:
                    least = table.local_bytes((), ()) / math.prod(sizes)
                    self.constant += computing(np.array(least), times)
                    continue
                placements = self.domains.placements[layout]
                held = np.array([float(table.local_bytes(p, sizes)) for p in placements])
                more = computing(held, times)[cells[:, scope.index(layout)]]
                tables[scope] = tables[scope] + more if scope in tables else more

    def _merged(self, tables: dict[Scope, Charge]) -> list[Star]:
        """Stars; a table whose scope lies within another's is added to the smallest such."""
        stars: dict[Scope, Star] = {}
        holding: dict[int, list[Scope]] = {}  # layout -> scopes of stars
        for scope in sorted(tables, key=lambda s: (-len(s), s)):
            cells = self.ops.cells(scope)
            assert cells is not None
            order = np.argsort(_keys(cells, self.domains, scope), kind="stable")
            cells, charge = cells[order], tables[scope][order]
            near = min([holding.get(i, []) for i in scope], key=len) if scope else list(stars)
            above = [s for s in near if set(scope).issubset(s)]
            if not above:
                stars[scope] = Star(scope, cells, charge)
                for i in scope:
                    holding.setdefault(i, []).append(scope)
                continue
            into = min(above, key=lambda s: (len(stars[s].seconds), s))
            columns = [stars[into].cells[:, into.index(i)] for i in scope]
            at = np.searchsorted(
                _keys(cells, self.domains, scope), _key(columns, self.domains, scope)
            )
            stars[into] = Star(into, stars[into].cells, stars[into].charge + charge[at])
        return list(stars.values())

    def _join(self) -> None:
        """Puts the seconds of all stars into one array, of which each has its part."""
        ends = np.cumsum([0, *[len(star.cells) for star in self.stars]])
        self._starts = ends[:-1]  # [stars] the first cell of each
        self._seconds = np.concatenate([np.zeros(0), *[star.seconds for star in self.stars]])
        users: dict[int, list[tuple[int, int]]] = {}
        for n, star in enumerate(self.stars):
            star.seconds = self._seconds[ends[n] : ends[n + 1]]
            for column, layout in enumerate(star.scope):
                users.setdefault(layout, []).append((n, column))
        parts: list[tuple[set[int], list[int]]] = []  # (stars that are taken, layouts)
        for layout in sorted(users):
            stars = {n for n, _ in users[layout]}
            if len(stars) > 1:
                part = next((one for one in parts if one[0].isdisjoint(stars)), None)
                if part is None:
                    parts.append(part := (set(), []))
                part[0].update(stars)
                part[1].append(layout)
        self._shared = [
            SharedLayouts.of([
                [(int(self._starts[n]), self.stars[n].cells[:, column]) for n, column in users[i]]
                for i in layouts
            ])
            for _, layouts in parts
        ]  # fmt: skip

    def place(self, axes: Sequence[AxisPlacements]) -> None:
        """Finds what the stars take for each placement of these axes."""
        for star in self.stars:
            star.place(axes, self.domains)
        self._bundles = [Bundle.of(self.stars, axis) for axis in range(len(axes))]
        self._counts = [len(axis) for axis in axes]

    def bounds(self, axis: int) -> np.ndarray:
        """[placements of an axis] what any state with each takes at least."""
        total = np.full(self._counts[axis], self.constant_s)
        for bundle in self._bundles[axis]:
            total += bundle.total(lambda n: self.stars[n].of_axis(axis))[bundle.kind]
        return total

    def keep(self, numbers: Sequence[np.ndarray]) -> None:
        """From now on the placements of each axis are these, and the seconds stay."""
        for star in self.stars:
            star.keep(numbers)
        for bundles, rows in zip(self._bundles, numbers, strict=True):
            for bundle in bundles:
                bundle.kind = bundle.kind[rows]

    def below(self, chosen: Sequence[int]) -> list[Table]:
        """Tables of the least seconds for each placement of the next axis, given some before it."""
        tables = []
        for bundle in self._bundles[len(chosen)]:
            seconds = bundle.total(lambda n: self.stars[n].below(chosen))
            least, most = float(seconds.min()), float(seconds.max())
            tables.append(Table(bundle.kind, seconds, least, most - least))
        return tables

    def weigh(self, weights: np.ndarray) -> None:
        """Bounds what is hidden with these weights [phases] from now on."""
        for k in np.flatnonzero(weights != self.weights).tolist():
            for star in self.stars:
                if k in star.charge.slopes:
                    more = weights[k] - self.weights[k]
                    star.seconds += more * star.charge.slopes[k]
        self.weights = weights

    @property
    def constant_s(self) -> float:
        """Seconds of what has no table."""
        return float(self.constant.weighed(self.weights))

    @property
    def bound_s(self) -> float:
        """No state of the space takes less."""
        if not self.stars:
            return self.constant_s
        return self.constant_s + float(np.minimum.reduceat(self._seconds, self._starts).sum())

    def balance(self, enough_s: float, most_cells: float) -> Iterator[float]:
        """Looks for weights that raise the bound, phase by phase, in smaller and smaller steps.

        Yields the bound of all weights that are tried, and ends with the best of them. It may look
        at so many cells.
        """
        best_s, step = self.bound_s, 0.5
        kept = self.weights, self._seconds.copy()
        a_sweep = sum(star.cells.size for star in self.stars)
        while step >= LEAST_STEP and best_s < enough_s:
            before_s = best_s
            for k, side in product(range(len(self.weights)), (-step, step)):
                weights = kept[0].copy()
                weights[k] = np.clip(weights[k] + side, 0.0, 1.0)
                if weights[k] == kept[0][k] or best_s >= enough_s:
                    continue
                if most_cells < a_sweep * SWEEPS:
                    return
                self.weigh(weights)
                most_cells -= a_sweep * self.agree(enough_s, 4 * SWEEPS)
                yield self.bound_s
                if self.bound_s > best_s:
                    best_s, kept = self.bound_s, (weights, self._seconds.copy())
                self.weights = kept[0]
                self._seconds[:] = kept[1]
            step = step / 2 if best_s < before_s * (1 + STEADY) else step

    def agree(
        self, enough_s: float, sweeps: int, report: Callable[[float], None] | None = None
    ) -> int:
        """The sweeps, at most so many, that raised the bound until it was enough or steady."""
        before, window = self.bound_s, max(SWEEPS, sweeps // WINDOWS)
        for sweep in range(sweeps):
            for layouts in self._shared if sweep % 2 == 0 else reversed(self._shared):
                layouts.average(self._seconds)
            bound = self.bound_s
            if report is not None:
                report(bound)
            if bound >= enough_s or not self._shared:
                return sweep + 1
            if sweep % window == window - 1:
                if bound < before * (1 + STEADY):
                    return sweep + 1
                before = bound
        return sweeps


def _heavy(model: CostModel, op: OpClass) -> float:
    """Seconds of an op class when nothing is split: what its table can tell."""
    whole = model.prices.compute_s(op, op.sizes, [s.layout.local_bytes((), ()) for s in op.slots])
    return float(model.weights.compute[op.index].sum()) * whole
