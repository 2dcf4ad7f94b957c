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
from shardwright.spmd.moves import ALL_REDUCE
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
    hoisted: float | None  # times per step after the loop, if it can be there


class Payment(NamedTuple):
    """What one use pays of a transfer that it shares."""

    slot: int
    parts: tuple[tuple[Placement, float], ...]  # (needed placement, times per step)
    rest: float  # times per step, for all further placements

    def part(self, need: Placement) -> float:
        return next((part for known, part in self.parts if known == need), self.rest)


class Share(NamedTuple):
    """What an op class is charged, in times per step."""

    compute: float
    exchanges: float
    operands: np.ndarray
    results: np.ndarray
    payments: list[Payment]
    leaves: list[Leaf]


def shares(weights: Weights, near: Sequence[Choice], heavy: Sequence[float]) -> list[Share]:
    """[classes] what each is charged, so that all is charged where ops choose as in `near`.

    For a placement that is needed there those uses pay that need it, for others the heaviest ops.
    """
    out = [
        Share(float(c), float(e), operands, results, [], [])
        for c, e, operands, results in zip(
            weights.compute, weights.exchanges, weights.operands, weights.results, strict=True
        )
    ]
    for transfer in weights.shared:
        for c, payment in _payments(transfer, near, heavy):
            out[c].payments.append(payment)
    for one in weights.deferred:
        for c, _ in one.leaves:
            hoisted = one.after_loop if one.hoisted_past else None
            out[c].leaves.append(Leaf(one.sizes, 1.0 / len(one.leaves), one.weight, hoisted))
    return out


def _payments(
    transfer: SharedTransfer, near: Sequence[Choice], heavy: Sequence[float]
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
        yield use[0], Payment(use[1], parts, rest)


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
            need, weight = one.needs[s], float(share.operands[s])
            weight += sum(p.part(need) for p in share.payments if p.slot == s)
            return weight * routes.reshard(slot, stored, need).seconds if weight else 0.0
        if not one.partial:
            weight = float(share.results[r]) + sum(leaf.weight for leaf in share.leaves)
            return weight * routes.reshard(slot, one.produced[r], stored).seconds
        route = routes.reduce(self.op, slot, one, one.produced[r], stored)
        total = float(share.results[r]) * route.seconds
        for leaf in share.leaves:
            ways = [
                leaf.weight * route.seconds,
                leaf.weight * leaf.part * self._sum_s(route, leaf.sizes.here),
            ]
            if leaf.hoisted is not None and all(m.kind == ALL_REDUCE for m in route.moves):
                ways.append(leaf.hoisted * leaf.part * self._sum_s(route, leaf.sizes.hoisted))
            total += min(ways)
        return total

    def _sum_s(self, route: Route, element_bytes: int) -> float:
        """Seconds of a route when so many bytes are reduced for each element."""
        own = self.op.results[0].layout.itemsize
        moves = [m._replace(bytes=m.bytes * element_bytes // own) for m in route.moves]
        return sum(map(self.prices.move_s, moves))
