"""Exact search: a lower bound for the whole space, then branch and bound over it, with a proof.

The relaxation (relaxation.py) bounds every state at once, often closely. Where the lists of an axis
can be enumerated as its placements (axis_placements.py), branch and bound closes the rest: once the
placements of the first axes are chosen, no completion costs less than the sum over the
relaxation's tables of the least that any completion costs *that table*. Placements whose bound
reaches the best known answer are dropped. What is left is looked at in the order of the bounds, so
that when a limit ends the search the bound of the next one is a proven lower bound for everything.

Limits count work, not seconds: the same program gives the same certificate on every machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from typing import Literal

import numpy as np

from shardwright.cost.hiding import hidden_s
from shardwright.cost.model import CostModel
from shardwright.search.axis_placements import AxisPlacements, TooLarge, find_axis_placements
from shardwright.search.blocks import Block, Spent, Work, find_blocks
from shardwright.search.free_choice import FreeChoice
from shardwright.search.objective import OVER_MEMORY_S, Budget, Objective
from shardwright.search.relaxation import OpTables, Relaxation, Table
from shardwright.search.space import Space
from shardwright.spmd.decisions import State
from shardwright.spmd.layout import REPLICATED

SAME = 1e-9  # costs closer than this are equal
BATCH = 64  # states that are evaluated at a time
INFINITE = {"null": float("inf")}  # what null stands for in a plan file: JSON has no infinity
MOST_CELLS = 1_000_000  # of one table of the relaxation
# Of three axes and more, states are looked at where the bound is so near, or there are so few.
NEAR, MOST_STATES = 0.1, 1_000_000
CLOSE = 5e-3  # of the best known: a bound that is so near is not raised where it proves no optimum
WORTH = 2e-2  # a state that is better by this part is worth another attempt
MOST_AXES = 3  # of a mesh whose ops have tables of their own
SWEEPS = 500  # in which the tables of the relaxation are made to agree


@dataclass(frozen=True, slots=True)
class Certificate:
    """How good an answer provably is within its space, under the cost model."""

    kind: Literal["optimal", "gap", "none"]  # nothing in the space is better; see gap; not tried
    lower_bound_s: float = field(metadata=INFINITE)  # no state of the space is faster and fits
    gap: float = field(metadata=INFINITE)  # the answer takes at most (1 + gap) times the best
    evaluated: int  # states that the proof evaluated one by one
    covered: float = field(default=0.0, metadata=INFINITE)  # states that it speaks for

    @staticmethod
    def none() -> Certificate:
        """No proof: nothing is known but that no time is negative."""
        return Certificate("none", 0.0, float("inf"), 0)

    @property
    def counted(self) -> bool:
        """Whether the space is small enough to look at all of its axis placements."""
        return 0 < self.covered < float("inf")

    def against(self, step_s: float) -> Certificate:
        """The certificate of an answer that takes `step_s`."""
        if self.lower_bound_s <= 0:
            return self
        gap = max(0.0, step_s / self.lower_bound_s - 1.0)
        return replace(self, kind="optimal" if gap <= 10 * SAME else "gap", gap=gap)

    def __str__(self) -> str:
        space = f"{self.covered:.3g} states" if self.counted else "all states"
        if self.kind == "optimal":
            return f"proven optimal among {space}"
        if self.kind == "gap":
            return f"proven within {self.gap:.1%} of the best of {space}"
        return "no proof"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a proof may do."""

    placements: int = 120_000  # of one axis
    cells: int = 80_000_000  # of the relaxation's tables, times the candidates of their ops
    evaluations: int = 2_000
    nodes: int = 3_000  # choices of placements for all axes but the last

    def scaled(self, share: float) -> Limits:
        """So many times as much."""
        return Limits(*[max(1, int(n * share)) for n in astuple(self)])


def certify(
    space: Space,
    objective: Objective,
    budget: Budget,
    limits: Limits | None = None,
    ops: OpTables | None = None,
    improve: Callable[[State], None] | None = None,
) -> tuple[Certificate, State | None]:
    """(certificate of the objective's best state, a better state if the proof found one).

    How much it may do follows the budget, unless `limits` says otherwise. `improve` looks for
    states that are better still, before the next attempt.
    """
    limits = limits or limits_of(budget)
    ops, first = ops or op_tables(space, limits), objective.evaluations
    better: State | None = None
    while True:
        before_s = objective.best_s
        proof = _Proof(space, objective, limits, ops, first)
        certificate = proof.run()
        better = proof.better or better
        done = certificate.against(objective.best_s).kind == "optimal"
        if done or objective.best_s >= before_s * (1 - WORTH):  # also where a step is free
            return certificate, better
        if improve is not None and better is not None:
            improve(better)


def limits_of(budget: Budget) -> Limits:
    """How much a proof may do in a search with this budget."""
    return Limits().scaled(budget.evaluations / Budget().evaluations)


def op_tables(space: Space, limits: Limits) -> OpTables:
    """The tables that a proof needs; several proofs of one space may share them."""
    return OpTables(space, limits.cells, MOST_CELLS)


def has_many_axes(model: CostModel) -> bool:
    """Whether tables over all layouts of an op would be too large."""
    return sum(n > 1 for n in model.mesh.sizes) > MOST_AXES


class _Proof:
    """One attempt: it ends early where it finds a much better state, for another one from there."""

    def __init__(
        self, space: Space, objective: Objective, limits: Limits, ops: OpTables, first: int
    ) -> None:
        self.space, self.objective, self.limits, self.ops = space, objective, limits, ops
        self.model = space.model
        # c + l - o min(c, l) >= (c + l)(1 - o/2), for the user's o; what the model itself hides
        # is bounded in each table.
        self.scale = 1.0 - (self.model.overlap or 0.0) / 2.0
        self.first, self.before_s = first, objective.best_s
        self.nodes = 0
        self.blocks: list[Block] | None = None  # once they are needed
        self.floor = 0.0  # seconds that no state that is left goes below
        self.better: State | None = None
        self.full_bytes = np.array(
            [lay.local_bytes((), ()) for lay in self.model.layouts.table], float
        )

    @property
    def incumbent(self) -> float:
        """Seconds of the best state that fits."""
        best = self.objective.best_s
        return best if best < OVER_MEMORY_S else float("inf")

    def run(self) -> Certificate:
        """The certificate, after as much of the proof as the limits allow."""
        if has_many_axes(self.model):
            self._relax_freely()
            return self._certificate(float("inf"))
        self._relax()
        try:
            self.axes = find_axis_placements(self.space, self.limits.placements)
        except TooLarge:
            deque(self._balanced(1 - CLOSE), 0)
            return self._certificate(float("inf"))
        covered = float(np.prod([float(len(a)) for a in self.axes]))
        few = covered <= MOST_STATES or len(self.axes) < 3
        if not few:
            deque(self._balanced(), 0)
        near = self.floor >= self.incumbent * (1 - NEAR)
        if self.floor < self.incumbent * (1 - SAME) and (few or near):
            with suppress(Spent):
                self._first_axis()
                self.floor = self.incumbent
        return self._certificate(covered)

    def _relax(self) -> None:
        """The bound of the relaxation."""
        assert self.objective.best is not None
        near = self.objective.decisions(self.objective.best)
        relaxed = self.relaxed = Relaxation(self.ops, near)
        self._raise(relaxed.bound_s)
        relaxed.agree(self.incumbent / self.scale, SWEEPS, self._raise)

    def _relax_freely(self) -> None:
        """The bound where ops choose freely, for meshes of many axes."""
        assert self.objective.best is not None
        relaxed = FreeChoice(self.ops, self.objective.decisions(self.objective.best))
        self._raise(relaxed.bound_s)
        relaxed.agree(self.incumbent / self.scale, SWEEPS, self._raise)

    def _balanced(self, enough: float = 1.0) -> Iterator[None]:
        """Raises the bound by better weights, to so much of the best; yields after each try."""
        enough_s = enough * self.incumbent / self.scale
        for bound_s in self.relaxed.balance(enough_s, self.limits.cells):
            self._raise(max(bound_s, self.floor / self.scale))
            yield

    def _raise(self, seconds: float) -> None:
        """A lower bound of compute and links of every state that is left."""
        self.floor = min(seconds * self.scale, self.incumbent)
        self.objective.bound_s = max(self.objective.bound_s, self.floor)
        self.objective.report()

    def _certificate(self, covered: float) -> Certificate:
        done = self.objective.evaluations - self.first
        one = Certificate("gap", self.floor, float("inf"), done, covered)
        return one.against(self.objective.best_s)

    def _first_axis(self) -> None:
        """Bounds every placement of each axis, then descends from those of the first axis."""
        relaxed, enough = self.relaxed, self.incumbent * (1 - SAME) / self.scale
        relaxed.place(self.axes)
        bounds = [relaxed.bounds(axis) for axis in range(len(self.axes))]
        for _ in self._balanced():  # each placement has its best weights
            more = [relaxed.bounds(axis) for axis in range(len(self.axes))]
            bounds = [np.maximum(old, new) for old, new in zip(bounds, more, strict=True)]
        self.numbers = [np.flatnonzero(bound < enough) for bound in bounds]  # [axes] that are left
        self.numbers[0] = self.numbers[0][np.argsort(bounds[0][self.numbers[0]], kind="stable")]
        relaxed.keep(self.numbers)
        bound = bounds[0][self.numbers[0]]
        alive = np.arange(len(bound))
        alive = alive[self._may_fit((), alive)]
        if len(self.axes) == 1:
            self._finish((), alive, bound)
            return
        for i, first in enumerate(alive.tolist()):
            if bound[first] * self.scale >= self.incumbent * (1 - SAME):
                break
            self.objective.trying = f"placement {i + 1} of {len(alive)} of the first axis"
            self._raise(max(float(bound[first]), self.floor / self.scale))
            self._descend((first,))

    def _descend(self, chosen: tuple[int, ...]) -> None:
        """Looks at all placements of the next axis, given one of each earlier axis."""
        self.nodes += 1
        if self.nodes > self.limits.nodes:
            raise Spent
        axis = len(chosen)
        total = np.full(len(self.numbers[axis]), np.inf)
        rows, seconds = self._promising(self.relaxed.below(chosen))
        if axis + 1 == len(self.axes) and len(rows):
            rows, seconds = self._best_weighed(chosen, rows, seconds)
        total[rows] = seconds
        rows = rows[self._may_fit(chosen, rows)]
        rows = rows[np.argsort(total[rows], kind="stable")]
        if axis + 1 == len(self.axes):
            self._finish(chosen, rows, total)
            return
        for number in rows.tolist():
            if total[number] * self.scale >= self.incumbent * (1 - SAME):
                break
            self._descend((*chosen, number))

    def _promising(self, tables: list[Table]) -> tuple[np.ndarray, np.ndarray]:
        """(placements that may be better than the best known, their bounds), table by table."""
        tables = sorted(tables, key=lambda t: -t.spread)  # telling ones first
        first, least = tables[0], self.relaxed.constant_s + sum(t.least for t in tables)
        enough = self.incumbent * (1 - SAME) / self.scale
        seconds = first.seconds + (least - first.least)
        rows = np.flatnonzero((seconds < enough)[first.kind])
        total = seconds[first.kind[rows]]
        for t in tables[1:]:
            if not len(rows) or not t.spread:
                break
            total = total + (t.seconds[t.kind[rows]] - t.least)
            keep = total < enough
            rows, total = rows[keep], total[keep]
        return rows, total

    def _best_weighed(
        self, chosen: tuple[int, ...], rows: np.ndarray, total: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of these placements of the last axis those that are promising with their own weights."""
        relaxed = self.relaxed
        slopes = {k: np.full(len(rows), slope) for k, slope in relaxed.constant.slopes.items()}
        for star in relaxed.stars:
            for k, slope in star.slopes(chosen, rows).items():
                slopes[k] = slopes[k] + slope if k in slopes else slope
        for k, slope in slopes.items():  # a weight is best at 1 where it adds, else at 0
            total = total + ((slope > 0) - relaxed.weights[k]) * slope
        keep = total < self.incumbent * (1 - SAME) / self.scale
        return rows[keep], total[keep]

    def _may_fit(self, chosen: tuple[int, ...], rows: np.ndarray) -> np.ndarray:
        """[rows] whether memory suffices if later axes split everything and nothing is copied."""
        if not np.isfinite(self.objective.memory) or not len(rows):
            return np.ones(len(rows), bool)
        model, sizes = self.model, self.model.mesh.sizes
        held = self.full_bytes.copy()
        earlier: list[tuple[int, ...]] = [()] * len(held)
        for axis, number in enumerate(chosen):
            taken = _at(self.axes[axis], earlier, self.numbers[axis][[number]])[0]
            held = np.where(taken == REPLICATED, held, held / sizes[axis])
            earlier = [(*e, int(p)) for e, p in zip(earlier, taken, strict=True)]
        axis = len(chosen)
        later = float(np.prod(sizes[axis + 1 :]))
        out = []
        for part in np.array_split(rows, max(1, len(rows) // 2048)):
            placed = _at(self.axes[axis], earlier, self.numbers[axis][part])
            local = np.where(placed == REPLICATED, held, held / sizes[axis]) / later
            out.append((local @ model.points.live.T).max(1) <= self.objective.memory)
        return np.concatenate(out)

    def _finish(self, chosen: tuple[int, ...], rows: np.ndarray, total: np.ndarray) -> None:
        """Evaluates the states of the last axis, fastest first, until none can be better."""
        if len(rows) > BATCH:  # many look alike to most blocks, so their seconds are soon added up
            total[rows] = self._seconds(chosen, self.numbers[-1][rows])
            rows = rows[np.argsort(total[rows], kind="stable")]
        numbers = [int(self.numbers[a][j]) for a, j in enumerate(chosen)]
        head = tuple(a.list_of(j) for a, j in zip(self.axes, numbers, strict=False))
        for at in range(0, len(rows), BATCH):
            part = [j for j in rows[at : at + BATCH].tolist()
                    if total[j] * self.scale < self.incumbent * (1 - SAME)]  # fmt: skip
            if not part:
                break
            if self.objective.evaluations - self.first > self.limits.evaluations:
                raise Spent
            before = self.objective.best_s
            last = self.numbers[-1][part].tolist()
            self.objective([(*head, self.axes[-1].list_of(j)) for j in last])
            if self.objective.best_s < before:
                self.better = self.objective.best
                if self.objective.best_s < self.before_s * (1 - WORTH):
                    raise Spent

    def _seconds(self, chosen: tuple[int, ...], last: np.ndarray) -> np.ndarray:
        """[last] seconds for these placements of the last axis."""
        if self.blocks is None:
            self.blocks = find_blocks(self.model.graph, self.axes, Work())
        numbers = [int(self.numbers[a][j]) for a, j in enumerate(chosen)]
        total = np.zeros(len(last))
        columns = np.zeros((len(last), self.model.graph.hiding.columns))
        for block in self.blocks:
            parts = block.last(block.kinds(numbers), block.kind[-1][last])
            total += parts.seconds
            columns[:, block.columns] += parts.columns
        return total - hidden_s(columns)  # type: ignore[no-any-return]


def _at(axis: AxisPlacements, earlier: list[tuple[int, ...]], rows: np.ndarray) -> np.ndarray:
    """[rows, layouts] the atoms of each layout in its situation."""
    columns = [known[e] for known, e in zip(axis.column, earlier, strict=True)]
    return axis.table[rows][:, columns]
