"""Seconds of one op class for many placements of its layouts at once, as a lower bound.

An op is computed as `follow.choose` says, worked out for all cells at once. Where several ops share
a transfer or a reduction, each is charged a part of it here, so that the sum over op classes is
never above the seconds of a state:

- a transfer that several uses share is made once for each placement that some of them need: for
  each placement one use is named that pays for it, and the others pay nothing;
- of a reduction that n leaves share, either each leaf is reduced, or one does for all: a leaf pays
  the lesser of its own reduction and one n-th of the common one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from shardwright.cost.hiding import Hiding
from shardwright.cost.prices import DevicePrices
from shardwright.spmd.decisions import Placement
from shardwright.spmd.follow import (
    Candidate,
    Choice,
    Route,
    candidate,
    claimed,
    manual_claims,
    offered,
    result_s,
)
from shardwright.spmd.layout import REPLICATED
from shardwright.spmd.moves import ALL_REDUCE, Move
from shardwright.spmd.opclass import OpClass, Slot
from shardwright.spmd.sums import Sizes
from shardwright.spmd.weights import SharedTransfer, Use, Weights

ALIKE = 0.9  # ops of this part of the heaviest one's compute are as heavy
TIE_S = 1e-13  # candidates that are less apart tie: sums are rounded in another order here
Domains = Mapping[int, Sequence[Placement]]  # layout -> its placements


class Leaf(NamedTuple):
    """The part of one op class in a deferred reduction."""

    sizes: Sizes  # bytes that are reduced for each element
    part: float  # 1 / leaves
    weight: float  # times per step
    hidden: float  # the part of its hideable seconds that counts as hidden
    hoisted: float | None  # times per step after the loop, if it can be there
    hidden_after: float  # as `hidden`, there


class Payment(NamedTuple):
    """What one use pays of a transfer that it shares."""

    slot: int
    parts: tuple[tuple[Placement, float], ...]  # (needed placement, times per step)
    rest: float  # times per step, for all further placements
    hidden: float  # the part of its hideable seconds that counts as hidden

    def part(self, need: Placement) -> float:
        return next((part for known, part in self.parts if known == need), self.rest)


class Share(NamedTuple):
    """What an op class is charged, in times per step."""

    compute: float
    exchanges: float
    operands: np.ndarray
    results: np.ndarray
    links: list[tuple[int, float]]  # (slot, hideable seconds that count as hidden, per step)
    payments: list[Payment]
    leaves: list[Leaf]


def part_of(coefficients: np.ndarray, column: int | None) -> float:
    """The part of a column that counts as hidden; where there is none nothing hides."""
    return 0.0 if column is None else float(coefficients[column])


def shares(
    weights: Weights, near: Sequence[Choice], heavy: Sequence[float], hiding: Hiding,
    coefficients: np.ndarray,
) -> list[Share]:  # fmt: skip
    """[classes] what each is charged, so that all is charged where ops choose as in `near`.

    For a placement that is needed there those uses pay that need it, for others the heaviest ops.
    What is hidden behind compute is bounded by these coefficients (Hiding.coefficients).
    """

    def hidden(phase: int) -> float:
        return part_of(coefficients, hiding.link_column(phase))

    out = []
    for c, compute in enumerate(weights.compute.sum(1).tolist()):
        compute -= sum(times * coefficients[column] for column, times in hiding.compute[c])
        links = [(s, times * float(coefficients[column])) for s, column, times in hiding.links[c]]
        out.append(Share(
            float(compute), float(weights.exchanges[c]), weights.operands[c], weights.results[c],
            links, [], [],
        ))  # fmt: skip
    for transfer in weights.shared:
        for c, payment in _payments(transfer, near, heavy, hidden(transfer.phase)):
            out[c].payments.append(payment)
    for one in weights.deferred:
        hoisted = one.after_loop if one.hoisted_past else None
        leaf = Leaf(
            one.sizes, 1.0 / len(one.leaves), one.weight, hidden(one.phase), hoisted,
            hidden(one.phase_after),
        )  # fmt: skip
        for c, _ in one.leaves:
            out[c].leaves.append(leaf)
    return out


def _payments(
    transfer: SharedTransfer, near: Sequence[Choice], heavy: Sequence[float], hidden: float
) -> Iterator[tuple[int, Payment]]:
    """(op class, what it pays) for all uses."""
    needed: dict[Placement, list[Use]] = {}
    for c, slot in transfer.uses:
        needed.setdefault(near[c].needs[slot], []).append((c, slot))
    most = max(heavy[c] for c, _ in transfer.uses)
    heaviest = [use for use in transfer.uses if heavy[use[0]] >= most * ALIKE]
    for use in transfer.uses:
        parts = tuple([
            (need, transfer.weight / len(by) if use in by else 0.0) for need, by in needed.items()
        ])  # fmt: skip
        rest = transfer.weight / len(heaviest) if use in heaviest else 0.0
        yield use[0], Payment(use[1], parts, rest, hidden)


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


def op_seconds(
    op: OpClass, share: Share, domains: Domains, cells: Mapping[int, np.ndarray],
    candidates: Sequence[Candidate], prices: DevicePrices,
) -> np.ndarray:  # fmt: skip
    """[cells] the seconds per step that the class is charged, computed as `follow.choose` says.

    `cells` gives for each layout of the op [cells] a number of its domain. Of candidates that tie
    the one that is charged least counts.
    """
    table = _OpTable(op, share, domains, cells, prices)
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
    return table.charged()


class _OpTable:
    """The candidates of one op class, over the cells in which each is the cheapest so far."""

    def __init__(
        self, op: OpClass, share: Share, domains: Domains, cells: Mapping[int, np.ndarray],
        prices: DevicePrices,
    ) -> None:  # fmt: skip
        self.op, self.share, self.domains, self.cells, self.prices = (
            op, share, domains, cells, prices,
        )  # fmt: skip
        self.count = len(next(iter(cells.values()))) if cells else 1
        self.best = np.full(self.count, np.inf)  # [cells] seconds of the cheapest candidate, once
        self._tried: list[tuple[Candidate, np.ndarray, np.ndarray]] = []

    def offers(self) -> dict[tuple[int, int], np.ndarray]:
        """{(axis, op atom): [cells] whether some slot gives the axis to the atom}"""
        out: dict[tuple[int, int], np.ndarray] = {}
        for slot in self.op.slots:
            domain = self.domains[slot.layout_index]
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
        for number, placement in enumerate(self.domains[slot.layout_index]):
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
            total += self._of_slot(self._once_s, one, s, slot, rows)
            keep = total <= self.best[rows] + TIE_S
            rows, total = rows[keep], total[keep]
        self.best[rows] = np.minimum(self.best[rows], total)
        self._tried.append((one, rows, total))

    def charged(self) -> np.ndarray:
        """[cells] seconds per step of the chosen candidates."""
        out, share = np.full(self.count, np.inf), self.share
        for one, rows, once in self._tried:
            rows = rows[once <= self.best[rows] + TIE_S]
            if len(rows):
                alone = share.compute * one.compute_s + share.exchanges * one.exchange_s
                total = np.full(len(rows), alone)
                for s, slot in enumerate(self.op.slots):
                    total += self._of_slot(self._charged_s, one, s, slot, rows)
                out[rows] = np.minimum(out[rows], total)
        return out

    def _of_slot(
        self, price: Callable[[Candidate, int, Slot, Placement], float], one: Candidate, s: int,
        slot: Slot, rows: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """[rows] the price of moving one slot."""
        at, domain = self.cells[slot.layout_index][rows], self.domains[slot.layout_index]
        table = np.zeros(len(domain))
        for number in np.flatnonzero(np.bincount(at, minlength=len(domain))).tolist():
            table[number] = price(one, s, slot, domain[number])
        return table[at]  # type: ignore[no-any-return]

    def _once_s(self, one: Candidate, s: int, slot: Slot, stored: Placement) -> float:
        """Seconds that `follow.choose` counts for one slot."""
        routes, r = self.prices.routes, s - len(self.op.operands)
        if r < 0:
            return routes.reshard(slot, stored, one.needs[s]).seconds
        return result_s(self.op, slot, one, one.produced[r], stored, routes)

    def _charged_s(self, one: Candidate, s: int, slot: Slot, stored: Placement) -> float:
        """Seconds per step that the class is charged for one slot."""
        share, routes, r = self.share, self.prices.routes, s - len(self.op.operands)
        if r < 0:
            need = one.needs[s]
            route = routes.reshard(slot, stored, need)
            if not route.moves:
                return 0.0
            ways = [(p.part(need), p.hidden) for p in share.payments if p.slot == s]
            total = float(share.operands[s]) * route.seconds
            total += sum(part * self._exposed_s(route.moves, hidden) for part, hidden in ways)
            return total - self._hidden_s(s, route)
        made = one.produced[r]
        if not one.partial:
            route = routes.reshard(slot, made, stored)
        else:
            route = routes.reduce(self.op, slot, one, made, stored)
        total = float(share.results[r]) * route.seconds - self._hidden_s(s, route)
        return total + sum(self._leaf_s(leaf, one, route.moves) for leaf in share.leaves)

    def _leaf_s(self, leaf: Leaf, one: Candidate, moves: Sequence[Move]) -> float:
        """Seconds per step of a leaf: reduced itself, or its part of the common reduction."""
        ways = [leaf.weight * self._exposed_s(moves, leaf.hidden)]
        if one.partial:
            here = self._scaled(moves, leaf.sizes.here)
            ways.append(leaf.weight * leaf.part * self._exposed_s(here, leaf.hidden))
            if leaf.hoisted is not None and all(m.kind == ALL_REDUCE for m in moves):
                after = self._scaled(moves, leaf.sizes.hoisted)
                ways.append(leaf.hoisted * leaf.part * self._exposed_s(after, leaf.hidden_after))
        return min(ways)

    def _scaled(self, moves: Sequence[Move], element_bytes: int) -> list[Move]:
        """The moves when so many bytes are reduced for each element."""
        own = self.op.results[0].layout.itemsize
        return [m._replace(bytes=m.bytes * element_bytes // own) for m in moves]

    def _exposed_s(self, moves: Sequence[Move], hidden: float) -> float:
        """Seconds of moves, less this part of those that can hide."""
        seconds = sum(map(self.prices.move_s, moves))
        return seconds - hidden * self.prices.hideable_s(moves) if hidden else seconds

    def _hidden_s(self, s: int, route: Route) -> float:
        """Seconds per step of one slot's own moves that count as hidden."""
        times = sum(times for slot, times in self.share.links if slot == s)
        return times * self.prices.hideable_s(route.moves) if times else 0.0
