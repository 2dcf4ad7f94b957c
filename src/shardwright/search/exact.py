"""Exact search: branch and bound over the same space, axis by axis, with a proof.

The lists of an axis are replaced by its placements (axis_placements.py), the factor graph by
blocks of factors (blocks.py). Once the placements of the first axes are chosen, no completion can
cost less than the sum over blocks of the least that any completion costs *that block*: an
admissible bound, and exact on the last axis. Placements whose bound reaches the best known answer
are dropped, most often after a few blocks. What is left is looked at in the order of the bounds, so
that when a limit ends the search the bound of the next one is a proven lower bound for everything.

Limits count work, not seconds: the same program gives the same certificate on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Literal

import numpy as np

from shardwright.search.axis_placements import AxisPlacements, TooLarge, find_axis_placements
from shardwright.search.blocks import Block, Kinds, Spent, Table, Work, find_blocks
from shardwright.search.bounds import least_factor_s
from shardwright.search.objective import OVER_MEMORY_S, Budget, Objective
from shardwright.search.space import Space
from shardwright.spmd.decisions import State
from shardwright.spmd.layout import REPLICATED

SAME = 1e-9  # costs closer than this are equal
BATCH = 64
INFINITE = {"null": float("inf")}  # what null stands for in a plan file: JSON has no infinity
# The bound for spaces with too many placements: of an axis as a block sees them, of all axes, and
# the cells looked at for it.
MOST_OF_BLOCK, MOST_STATES_OF_BLOCK, MOST_CELLS_RELAXED = 200, 2_000, 3_000


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
    # Of the factor graph. On a third axis an op has about three times as many ways to be computed,
    # so that a cell takes three times as long, and so on: see _Proof.
    cells: int = 120_000
    evaluations: int = 8_000
    nodes: int = 4_000  # choices of placements for all axes but the last

    def scaled(self, share: float) -> Limits:
        """So many times as much."""
        return Limits(*[max(1, int(n * share)) for n in astuple(self)])


def certify(
    space: Space, objective: Objective, budget: Budget, limits: Limits | None = None
) -> tuple[Certificate, State | None]:
    """(certificate of the objective's best state, a better state if the proof found one).

    How much it may do follows the budget, unless `limits` says otherwise.
    """
    share = budget.evaluations / Budget().evaluations
    proof = _Proof(space, objective, limits or Limits().scaled(share))
    return proof.run()


class _Proof:
    def __init__(self, space: Space, objective: Objective, limits: Limits) -> None:
        self.space, self.objective, self.limits = space, objective, limits
        self.model = space.model
        # c + l - o min(c, l) >= (c + l)(1 - o/2), for the user's o; what the model itself hides
        # is bounded in each block (see Block.count_hidden).
        self.scale = 1.0 - (self.model.overlap or 0.0) / 2.0
        self.shares = self._shares()
        self.first = objective.evaluations
        self.nodes = 0
        self.better: State | None = None
        self.full_bytes = np.array(
            [lay.local_bytes((), ()) for lay in self.model.layouts.table], float
        )

    @property
    def incumbent(self) -> float:
        best = self.objective.best_s
        return best if best < OVER_MEMORY_S else float("inf")

    def _shares(self) -> np.ndarray:
        """[phases] of compute, for bounds of what is hidden that are exact for the best state."""
        phases, best = len(self.model.graph.hiding.phases), self.objective.best
        if best is None or not phases:
            return np.zeros(phases)
        compute_s, link_s = self.model.columns(self.objective.decisions(best))
        shares: np.ndarray = (compute_s < link_s).astype(float)
        return shares

    def _find_blocks(self, axes: Sequence[AxisPlacements], work: Work) -> list[Block]:
        blocks = find_blocks(self.model.graph, axes, work)
        for block in blocks:
            block.count_hidden(self.shares)
        return blocks

    def run(self) -> tuple[Certificate, State | None]:
        axes = len(self.model.mesh.sizes)
        work = Work(self.limits.cells / 3 ** max(0, axes - 2))
        try:
            self.axes = find_axis_placements(self.space, self.limits.placements)
        except TooLarge:
            return self._certificate(self._relaxed() * self.scale, float("inf")), None
        covered = float(np.prod([float(len(a)) for a in self.axes]))
        try:
            self.blocks = self._find_blocks(self.axes, work)
            bound = self._first_axis()
        except Spent:
            bound = max(self.floor, self._relaxed() * self.scale)
        return self._certificate(min(bound, self.incumbent), covered), self.better

    def _relaxed(self) -> float:
        """A bound for spaces with too many placements: every block gets its own best state."""
        work = Work()
        blocks = self._find_blocks([], work)
        bounds = self._least_of_blocks(blocks)
        for i in sorted(range(len(blocks)), key=lambda i: -bounds[i]):
            block = blocks[i]
            if work.cells > MOST_CELLS_RELAXED:
                break
            try:
                block.use(find_axis_placements(self.space, MOST_OF_BLOCK, block.scope))
            except TooLarge:
                continue
            if np.prod([len(a) for a in block.axes]) <= MOST_STATES_OF_BLOCK:
                bounds[i] = max(bounds[i], block.below(()).least)
        return float(bounds.sum())

    def _certificate(self, bound: float, covered: float) -> Certificate:
        done = self.objective.evaluations - self.first
        return Certificate("gap", bound, float("inf"), done, covered).against(self.objective.best_s)

    def _first_axis(self) -> float:
        """Bounds every placement of the first axis, block by block, then descends into the rest."""
        least = self._least_of_blocks(self.blocks)
        count = len(self.axes[0])
        bound = np.full(count, least.sum())
        alive = np.flatnonzero(self._may_fit((), np.arange(count)))
        self._raise_floor(float(least.sum()) * self.scale)
        # Heavy blocks tell placements apart.
        order = sorted(range(len(self.blocks)), key=lambda b: -self.blocks[b].replicated_s())
        for b in order:
            self.objective.report()
            block = self.blocks[b]
            kind, seconds = block.kind[0], np.zeros(len(block.example[0]))
            for k in np.unique(kind[alive]).tolist():
                seconds[k] = self._block_bound(block, (k,))
            bound[alive] += seconds[kind[alive]] - least[b]
            if not len(alive):
                break
            self._raise_floor(min(float(bound[alive].min()) * self.scale, self.incumbent))
            alive = alive[bound[alive] * self.scale < self.incumbent * (1 - SAME)]
        alive = alive[np.argsort(bound[alive], kind="stable")]
        if len(self.axes) == 1:
            self._finish((), alive, bound)
            return self.incumbent
        for first in alive.tolist():
            self._raise_floor(min(float(bound[first]) * self.scale, self.incumbent))
            if bound[first] * self.scale >= self.incumbent * (1 - SAME):
                break
            self._descend((first,))
        return self.incumbent

    def _raise_floor(self, bound_s: float) -> None:
        """What is proven so far, which progress shows."""
        self.floor = bound_s
        self.objective.bound_s = max(self.objective.bound_s, bound_s)

    def _block_bound(self, block: Block, kinds: Kinds) -> float:
        if len(kinds) == len(self.axes):
            return block.bound(kinds)
        return block.below(kinds).least

    def _least_of_blocks(self, blocks: Sequence[Block]) -> np.ndarray:
        """[blocks] seconds that hold in every state, whatever the placements are."""
        least = least_factor_s(self.model, self.shares)
        return np.array([least[block.factors].sum() for block in blocks])

    def _descend(self, chosen: tuple[int, ...]) -> None:
        """Looks at all placements of the next axis, given one of each earlier axis."""
        self.objective.report()
        self.nodes += 1
        if self.nodes > self.limits.nodes:
            raise Spent
        axis = len(chosen)
        total = np.full(len(self.axes[axis]), np.inf)
        rows, seconds = self._promising([b.below(b.kinds(chosen)) for b in self.blocks])
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
        """(placements that may be better than the best known, their bounds), block by block."""
        tables = sorted(tables, key=lambda t: -t.spread)  # telling ones first
        first, least = tables[0], sum(t.least for t in tables)
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

    def _may_fit(self, chosen: tuple[int, ...], rows: np.ndarray) -> np.ndarray:
        """[rows] whether memory suffices if later axes split everything and nothing is copied."""
        if not np.isfinite(self.objective.memory) or not len(rows):
            return np.ones(len(rows), bool)
        model, sizes = self.model, self.model.mesh.sizes
        held = self.full_bytes.copy()
        earlier: list[tuple[int, ...]] = [()] * len(held)
        for axis, number in enumerate(chosen):
            taken = _at(self.axes[axis], earlier, np.array([number]))[0]
            held = np.where(taken == REPLICATED, held, held / sizes[axis])
            earlier = [(*e, int(p)) for e, p in zip(earlier, taken, strict=True)]
        axis = len(chosen)
        later = float(np.prod(sizes[axis + 1 :]))
        out = []
        for part in np.array_split(rows, max(1, len(rows) // 2048)):
            placed = _at(self.axes[axis], earlier, part)
            local = np.where(placed == REPLICATED, held, held / sizes[axis]) / later
            out.append((local @ model.points.live.T).max(1) <= self.objective.memory)
        return np.concatenate(out)

    def _finish(self, chosen: tuple[int, ...], rows: np.ndarray, total: np.ndarray) -> None:
        """Evaluates the states of the last axis, best bound first, until none can be better."""
        head = tuple(a.list_of(j) for a, j in zip(self.axes, chosen, strict=False))
        for at in range(0, len(rows), BATCH):
            part = [j for j in rows[at : at + BATCH].tolist()
                    if total[j] * self.scale < self.incumbent * (1 - SAME)]  # fmt: skip
            if not part:
                break
            if self.objective.evaluations - self.first > self.limits.evaluations:
                raise Spent
            before = self.objective.best_s
            self.objective([(*head, self.axes[-1].list_of(j)) for j in part])
            if self.objective.best_s < before:
                self.better = self.objective.best


def _at(axis: AxisPlacements, earlier: list[tuple[int, ...]], rows: np.ndarray) -> np.ndarray:
    """[rows, layouts] the atoms of each layout in its situation."""
    columns = [known[e] for known, e in zip(axis.column, earlier, strict=True)]
    return axis.table[rows][:, columns]
