"""Seconds of one op class for many placements of its layouts at once, as a lower bound.

An op is computed as `follow.choose` says, worked out for all cells at once. Of what several ops pay
together it is charged a share (shares.py), so that the sum over op classes is never above the
seconds of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np

from shardwright.cost.prices import DevicePrices
from shardwright.cost.shares import Leaf, Phase, Share
from shardwright.spmd.decisions import Placement
from shardwright.spmd.follow import (
    Candidate,
    candidate,
    claimed,
    manual_claims,
    offered,
    result_route,
)
from shardwright.spmd.layout import REPLICATED
from shardwright.spmd.moves import ALL_REDUCE, Move
from shardwright.spmd.opclass import OpClass, Slot
from shardwright.spmd.routes import Route

TIE_S = 1e-13  # candidates that are less apart tie: sums are rounded in another order here
Domains = Sequence[Sequence[Placement]]  # [layouts] the placements of each


class Charge:
    """Seconds per step, affine in the weights of phases: base + sum of weight x slope."""

    def __init__(self, base: np.ndarray, slopes: dict[int, np.ndarray] | None = None) -> None:
        self.base = base  # [...] if all hideable links hide
        self.slopes = slopes or {}  # {phase: [...] hideable links less compute}

    def __add__(self, other: Charge) -> Charge:
        phases = dict.fromkeys([*self.slopes, *other.slopes])
        nothing = np.zeros(())
        return Charge(self.base + other.base, {
            k: self.slopes.get(k, nothing) + other.slopes.get(k, nothing) for k in phases
        })  # fmt: skip

    def __getitem__(self, at: np.ndarray) -> Charge:
        return Charge(self.base[at], {k: slope[at] for k, slope in self.slopes.items()})

    def weighed(self, weights: np.ndarray) -> np.ndarray:
        """Seconds under these weights [phases]."""
        total = self.base
        for k, slope in self.slopes.items():
            total = total + weights[k] * slope
        return total


def computing(seconds: np.ndarray, times: Sequence[tuple[Phase, float]]) -> Charge:
    """What compute is charged that runs so often in each phase."""
    out = Charge(np.zeros_like(seconds))
    for phase, n in times:
        out += Charge(n * seconds, {} if phase is None else {phase: -n * seconds})
    return out


def candidates_of(op: OpClass, domains: Domains, prices: DevicePrices) -> list[Candidate]:
    """Every candidate that some placements of the op's layouts offer."""
    sizes = prices.axis_sizes
    atoms: list[dict[int, None]] = [{} for _ in sizes]
    for slot in op.slots:
        for placement in domains[slot.layout_index]:
            for a, j in enumerate(placement):
                if j != REPLICATED:
                    atoms[a].update(dict.fromkeys(offered(op, slot, j, sizes[a])))
    for axis, atom in manual_claims(op, prices).items():
        atoms[axis] = {atom: None}
    every = product(*[dict.fromkeys((*found, REPLICATED)) for found in atoms])
    found = [candidate(op, claims, prices) for claims in every]
    return [one for one in found if one is not None]


class Movements:
    """The routes of a slot between one placement and those of its layout's domain that are met."""

    def __init__(
        self, domain: Sequence[Placement], route: Callable[[Placement], Route],
        prices: DevicePrices,
    ) -> None:  # fmt: skip
        self._domain, self._route, self._prices = domain, route, prices
        self.routes: list[Route | None] = [None] * len(domain)
        self.seconds = np.full(len(domain), np.nan)  # [domain] NaN: not met
        self.slack = np.full(len(domain), np.nan)  # [domain] seconds where there is slack, and
        self.hideable = np.full(len(domain), np.nan)  # of these beside compute; NaN: not asked for

    def meet(self, numbers: np.ndarray) -> Movements:
        """Itself, with the routes of these numbers of the domain."""
        for n in _new(self.seconds, numbers):
            route = self.routes[n] = self._route(self._domain[n])
            self.seconds[n] = route.seconds
        return self

    def hide(self, numbers: np.ndarray) -> None:
        """Works out what hides of the routes of these numbers, which were met."""
        for n in _new(self.slack, numbers):
            route = self.routes[n]
            assert route is not None
            self.slack[n] = self._prices.slack_s(route.moves)
            self.hideable[n] = self._prices.hideable_s(route.moves)


def _new(known: np.ndarray, numbers: np.ndarray) -> list[int]:
    """Those of these numbers that are not known yet."""
    unknown = np.isnan(known[numbers])
    return np.unique(numbers[unknown]).tolist() if unknown.any() else []


class SlotRoutes:
    """Routes of slots as arrays over the domains of their layouts, worked out once."""

    def __init__(self, domains: Domains, prices: DevicePrices) -> None:
        self.domains, self._prices = domains, prices
        self._known: dict[tuple[object, ...], Movements] = {}
        self._number: dict[tuple[Placement, ...], int] = {}  # of each domain that is another
        self._number_of: dict[tuple[int, int], int] = {}  # (layout, entries so far) -> the same

    def alike(self, layout: int) -> int:
        """A number that layouts share whose domains are equal, as far as they are known."""
        domain = self.domains[layout]
        key = (layout, len(domain))
        known = self._number_of.get(key)
        if known is None:
            known = self._number.setdefault(tuple(domain), len(self._number))
            self._number_of[key] = known
        return known

    def operand(self, slot: Slot, need: Placement) -> Movements:
        """From each placement to the one that an op needs."""
        reshard = self._prices.routes.reshard
        return self._movements(slot, ("operand", need), lambda have: reshard(slot, have, need))

    def result(self, op: OpClass, n: int, one: Candidate) -> Movements:
        """From how an op makes a result to each placement."""
        made, sums = one.produced[n], one.sum_axes[n]
        key: tuple[object, ...] = ("result", made)
        if op.results[n].unused:
            key = ("unused",)
        elif sums:
            picks = op.operands[0].layout.itemsize if op.picks else 0
            key = ("sum", made, sums, picks, op.at_once)
        routes = self._prices.routes
        return self._movements(op.results[n], key, lambda p: result_route(op, n, one, p, routes))

    def _movements(
        self, slot: Slot, how: tuple[object, ...], route: Callable[[Placement], Route]
    ) -> Movements:
        key = (slot.geometry, self.alike(slot.layout_index), how)
        known = self._known.get(key)
        if known is None:
            domain = self.domains[slot.layout_index]
            known = self._known[key] = Movements(domain, route, self._prices)
        return known


Cells = Mapping[int, np.ndarray]  # layout -> [cells] a number of its domain
Chosen = list[tuple[Candidate, np.ndarray]]  # candidates, and the cells in which each is chosen


def chosen_candidates(
    op: OpClass, cells: Cells, candidates: Sequence[Candidate], routes: SlotRoutes,
    prices: DevicePrices,
) -> Chosen:  # fmt: skip
    """The candidates that `follow.choose` picks in these cells; those that tie are all there."""
    table = _Choosing(op, cells, routes, prices)
    able = np.ones(table.count, bool)
    if op.rule.leader is not None:
        able = ~table.follow_leader(op.slots[op.rule.leader])
    fixed = manual_claims(op, prices)
    offers = table.offers()
    for one in sorted(candidates, key=lambda one: one.compute_s + one.exchange_s):
        if all(one.claims[a] == atom for a, atom in fixed.items()):
            here = able & (table.best > one.compute_s - TIE_S)
            for a, atom in enumerate(one.claims):
                if atom != REPLICATED and a not in fixed:
                    here &= offers[a, atom]
            table.try_candidate(one, np.flatnonzero(here))
    return table.chosen()


class _Choosing:
    """The candidates of one op class, over the cells in which each is the cheapest so far."""

    def __init__(self, op: OpClass, cells: Cells, routes: SlotRoutes, prices: DevicePrices) -> None:
        self.op, self.cells, self.routes, self.prices = op, cells, routes, prices
        self.count = len(next(iter(cells.values()))) if cells else 1
        self.best = np.full(self.count, np.inf)  # [cells] seconds of the cheapest candidate, once
        self._tried: list[tuple[Candidate, np.ndarray, np.ndarray]] = []

    def offers(self) -> dict[tuple[int, int], np.ndarray]:
        """{(axis, op atom): [cells] whether some slot gives the axis to the atom}"""
        out: dict[tuple[int, int], np.ndarray] = {}
        for slot in self.op.slots:
            domain = self.routes.domains[slot.layout_index]
            given: dict[tuple[int, int], np.ndarray] = {}
            for number, placement in enumerate(domain):
                for a, j in enumerate(placement):
                    n = self.prices.axis_sizes[a]
                    for atom in offered(self.op, slot, j, n) if j != REPLICATED else ():
                        given.setdefault((a, atom), np.zeros(len(domain), bool))[number] = True
            for key, by_number in given.items():
                here = by_number[self.cells[slot.layout_index]]
                out[key] = out[key] | here if key in out else here
        return out

    def follow_leader(self, slot: Slot) -> np.ndarray:
        """[cells] whether the op is computed as its leader is stored."""
        led = np.zeros(self.count, bool)
        for number, placement in enumerate(self.routes.domains[slot.layout_index]):
            one = candidate(self.op, claimed(slot, placement), self.prices)
            if one is not None:
                here = self.cells[slot.layout_index] == number
                led |= here
                self.try_candidate(one, np.flatnonzero(here))
        return led

    def try_candidate(self, one: Candidate, rows: np.ndarray) -> None:
        """Looks where a candidate is the cheapest so far, slot by slot."""
        total = np.full(len(rows), one.compute_s + one.exchange_s)
        for s, slot in enumerate(self.op.slots):
            if not len(rows):
                return
            at = self.cells[slot.layout_index][rows]
            total += self._once_s(one, s, slot, at)[at]
            keep = total <= self.best[rows] + TIE_S
            rows, total = rows[keep], total[keep]
        self.best[rows] = np.minimum(self.best[rows], total)
        self._tried.append((one, rows, total))

    def _once_s(self, one: Candidate, s: int, slot: Slot, at: np.ndarray) -> np.ndarray:
        """[domain] seconds that `follow.choose` counts for one slot (see follow.result_s).

        Only at these numbers of the domain.
        """
        r = s - len(self.op.operands)
        if r < 0:
            return self.routes.operand(slot, one.needs[s]).meet(at).seconds
        made = one.produced[r]
        seconds = self.routes.result(self.op, r, one).meet(at).seconds
        if one.sum_axes[r] and self.op.trips > 1:
            domain = self.routes.domains[slot.layout_index]
            trips = np.array([self.op.trips if p == made else 1 for p in domain])
            seconds = seconds / trips
        return seconds

    def chosen(self) -> Chosen:
        """What is cheapest in each cell."""
        found = [(one, rows[once <= self.best[rows] + TIE_S]) for one, rows, once in self._tried]
        return [(one, rows) for one, rows in found if len(rows)]


def charge(
    op: OpClass, share: Share, cells: Cells, chosen: Chosen, routes: SlotRoutes,
    prices: DevicePrices,
) -> Charge:  # fmt: skip
    """[cells] what the class is charged; of candidates that tie the least of each part."""
    count = len(next(iter(cells.values()))) if cells else 1
    row = {phase: 1 + i for i, phase in enumerate(share.phases)}
    least = np.full((1 + len(row), count), np.inf)  # the base, then the slope of each phase
    for one, rows in chosen:
        mine = np.zeros((len(least), len(rows)))
        mine[0] = share.exchanges * one.exchange_s
        for phase, times in share.compute:
            mine[0] += times * one.compute_s
            if phase is not None:
                mine[row[phase]] -= times * one.compute_s
        for s, slot in enumerate(op.slots):
            at = cells[slot.layout_index][rows]
            moved = _charge_slot(op, share, one, s, slot, at, row, routes, prices)
            if moved is not None:
                mine += moved[:, at]
        least[:, rows] = np.minimum(least[:, rows], mine)
    return Charge(least[0], {phase: least[i] for phase, i in row.items()})


def _charge_slot(
    op: OpClass, share: Share, one: Candidate, s: int, slot: Slot, at: np.ndarray,
    row: Mapping[int, int], routes: SlotRoutes, prices: DevicePrices,
) -> np.ndarray | None:  # fmt: skip
    """[base and slopes, domain] what the class is charged for moving one slot; None: nothing.

    Only at these numbers of the domain.
    """
    r = s - len(op.operands)
    moves = [(phase, times) for at, phase, times in share.moves if at == s]
    if r < 0:
        need = one.needs[s]
        moves += [(p.phase, p.part(need)) for p in share.payments if p.slot == s]
    leaves = share.leaves if r >= 0 else ()
    moves = [(phase, times) for phase, times in moves if times]
    if not moves and not leaves:
        return None
    found = routes.operand(slot, need) if r < 0 else routes.result(op, r, one)
    found.meet(at)
    out = np.zeros((1 + len(row), len(found.routes)))
    if any(phase is not None for phase, _ in moves):
        found.hide(at)
    for phase, times in moves:
        if phase is None:
            out[0] += times * found.seconds
        else:
            out[0] += times * (found.slack - found.hideable)
            out[row[phase]] += times * found.hideable
    for leaf in leaves:
        mine = _charge_leaf(op, leaf, one, found, np.unique(at), prices)
        out[0] += mine.base
        for phase, slope in mine.slopes.items():
            out[row[phase]] += slope
    return out


def _charge_leaf(
    op: OpClass, leaf: Leaf, one: Candidate, found: Movements, met: np.ndarray,
    prices: DevicePrices,
) -> Charge:  # fmt: skip
    """[domain] a leaf's own reduction, or its part of the common one, whichever is less.

    Only at the numbers that are `met`.

    The lesser of several is concave in the weights and rises with each of them, so it is nowhere
    below the affine function that meets it where all weights are 0 and where one of them is 1.
    """
    after = leaf.phase_after if leaf.hoisted is not None else None
    phases = {p for p in (leaf.phase, after) if p is not None}

    def least(raised: Phase) -> np.ndarray:
        """With one weight 1 and all others 0."""
        here = 0.0 if leaf.phase is None or leaf.phase == raised else 1.0  # the part that hides
        late = 0.0 if after is None or after == raised else 1.0
        out = np.full(len(found.routes), np.nan)
        for n in met.tolist():
            route = found.routes[n]
            assert route is not None
            ways = [leaf.weight * _exposed_s(prices, route.moves, leaf.phase, here)]
            if one.partial:
                common = _scaled(op, route.moves, leaf.sizes.here)
                ways.append(leaf.weight * leaf.part * _exposed_s(prices, common, leaf.phase, here))
                if leaf.hoisted is not None and all(m.kind == ALL_REDUCE for m in route.moves):
                    common = _scaled(op, route.moves, leaf.sizes.hoisted)
                    ways.append(leaf.hoisted * leaf.part * _exposed_s(prices, common, after, late))
            out[n] = min(ways)
        return out

    base = least(None)
    return Charge(base, {k: least(k) - base for k in phases})


def _scaled(op: OpClass, moves: Sequence[Move], element_bytes: int) -> list[Move]:
    """The moves when so many bytes are reduced for each element."""
    own = op.results[0].layout.itemsize
    return [m._replace(bytes=m.bytes * element_bytes // own) for m in moves]


def _exposed_s(prices: DevicePrices, moves: Sequence[Move], phase: Phase, hidden: float) -> float:
    """Seconds of moves in a phase, less this part of those that can hide."""
    if phase is None:
        return sum(map(prices.move_s, moves))
    return prices.slack_s(moves) - hidden * prices.hideable_s(moves)
