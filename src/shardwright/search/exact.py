"""Exact search: branch and bound over the same space, axis by axis, with a proof.

The lists of an axis are replaced by its columns (columns.py), the cost by blocks (terms.py).
Once the columns of the first axes are chosen, no completion can cost less than the sum over
blocks of the least that any completion costs *that block*: an admissible bound, and exact on
the last axis. Columns whose bound reaches the best known answer are dropped, most often after
a few blocks. What is left is looked at in the order of the bounds, so that when a limit ends
the search the bound of the next column is a proven lower bound for everything.

Limits count work, not seconds: the same program gives the same certificate on every machine.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from typing import Literal

import numpy as np

from shardwright.search.bounds import least_class_s, least_step_s
from shardwright.search.columns import Columns, TooLarge, find_columns
from shardwright.search.objective import OVER_MEMORY_S, Budget, Objective
from shardwright.search.space import Space
from shardwright.search.terms import Below, Block, Pricer, Spent, find_blocks, find_terms
from shardwright.spmd.decisions import State
from shardwright.spmd.layout import WHOLE

SAME = 1e-9  # costs closer than this are equal
BATCH = 64
INFINITE = {"null": float("inf")}  # what null stands for in a plan file: JSON has no infinity
# The bound for spaces with too many columns.
MOST_COLUMNS_OF_BLOCK, MOST_STATES_OF_BLOCK, MOST_CHOICES_RELAXED = 200, 2_000, 3_000


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
        """Whether the space is small enough to look at all of its columns."""
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

    columns: int = 120_000  # per axis
    choices: int = 40_000  # op classes looked at (see Pricer)
    evaluations: int = 8_000
    nodes: int = 4_000  # choices of columns for all axes but the last

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
        self.scale = 1.0 - self.model.overlap / 2.0  # c + l - o min(c, l) >= (c + l)(1 - o/2)
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

    def run(self) -> tuple[Certificate, State | None]:
        try:
            self.columns = find_columns(self.space, self.limits.columns)
        except TooLarge:
            return self._certificate(self._relaxed() * self.scale, float("inf")), None
        covered = float(np.prod([float(len(c)) for c in self.columns]))
        self.pricer = Pricer(self.model, self.limits.choices)
        self.blocks = find_blocks(find_terms(self.pricer), self.columns)
        try:
            bound = self._first_axis()
        except Spent:
            bound = max(self.floor, self._relaxed() * self.scale)
        return self._certificate(min(bound, self.incumbent), covered), self.better

    def _relaxed(self) -> float:
        """A bound for spaces with too many columns: every block gets its own best state."""
        self.pricer = Pricer(self.model)
        self.columns = []
        self.blocks = find_blocks(find_terms(self.pricer), self.columns)
        least = self._least_of_blocks()
        total = max(float(least.sum()), least_step_s(self.model))
        bounds = least.copy()
        for i in sorted(range(len(self.blocks)), key=lambda i: -least[i]):
            block = self.blocks[i]
            try:
                if self.pricer.calls > MOST_CHOICES_RELAXED:
                    break
                block.use(find_columns(self.space, MOST_COLUMNS_OF_BLOCK, block.layouts))
                if np.prod([len(c) for c in block.columns]) <= MOST_STATES_OF_BLOCK:
                    bounds[i] = max(bounds[i], block.below(()).least)
            except TooLarge:
                continue
        return max(total, float(bounds.sum()))

    def _certificate(self, bound: float, covered: float) -> Certificate:
        done = self.objective.evaluations - self.first
        return Certificate("gap", bound, float("inf"), done, covered).against(self.objective.best_s)

    def _first_axis(self) -> float:
        """Bounds every column of the first axis, block by block, then descends into the rest."""
        least = self._least_of_blocks()
        count = len(self.columns[0])
        bound = np.full(count, least.sum())
        alive = np.flatnonzero(self._may_fit((), np.arange(count)))
        self.floor = float(least.sum()) * self.scale
        order = sorted(range(len(self.blocks)), key=lambda b: -self._weight(self.blocks[b]))
        for b in order:
            self.objective.report()
            distinct, number = self.blocks[b].distinct(())
            seconds = np.zeros(len(distinct))
            for n in np.unique(number[alive]).tolist():
                seconds[n] = self._block_bound(self.blocks[b], (distinct[n],))
            bound[alive] += seconds[number[alive]] - least[b]
            if not len(alive):
                break
            self.floor = min(float(bound[alive].min()) * self.scale, self.incumbent)
            alive = alive[bound[alive] * self.scale < self.incumbent * (1 - SAME)]
        alive = alive[np.argsort(bound[alive], kind="stable")]
        if len(self.columns) == 1:
            self._finish((), alive, bound)
            return self.incumbent
        for column in alive.tolist():
            self.floor = min(float(bound[column]) * self.scale, self.incumbent)
            if bound[column] * self.scale >= self.incumbent * (1 - SAME):
                break
            self._descend((column,))
        return self.incumbent

    def _block_bound(self, block: Block, rows: tuple[tuple[int, ...], ...]) -> float:
        if len(rows) == len(self.columns):
            return block.exact(rows)
        return block.below(rows).least

    def _least_of_blocks(self) -> np.ndarray:
        """[blocks] seconds that hold in every state, without looking at columns."""
        least = least_class_s(self.model)
        return np.array([
            sum(least[t.op_class] for t in b.terms if t.op_class is not None) for b in self.blocks
        ])  # fmt: skip

    def _weight(self, block: Block) -> float:
        """How much a block costs when nothing is split: heavy blocks tell columns apart."""
        whole = tuple((WHOLE,) * len(block.layouts) for _ in self.columns)
        return block.exact(whole)

    def _descend(self, chosen: tuple[int, ...]) -> None:
        """Looks at all columns of the next axis, given one column of each earlier axis."""
        self.objective.report()
        self.nodes += 1
        if self.nodes > self.limits.nodes:
            raise Spent
        axis = len(chosen)
        total = np.full(len(self.columns[axis]), np.inf)
        rows, seconds = self._promising([b.below(b.rows(chosen)) for b in self.blocks])
        total[rows] = seconds
        rows = rows[self._may_fit(chosen, rows)]
        rows = rows[np.argsort(total[rows], kind="stable")]
        if axis + 1 == len(self.columns):
            self._finish(chosen, rows, total)
            return
        for column in rows.tolist():
            if total[column] * self.scale >= self.incumbent * (1 - SAME):
                break
            self._descend((*chosen, column))

    def _promising(self, tables: list[Below]) -> tuple[np.ndarray, np.ndarray]:
        """(columns that may be better than the best known, their bounds), block by block."""
        tables = sorted(tables, key=lambda t: -t.spread)  # telling ones first
        first, least = tables[0], sum(t.least for t in tables)
        enough = self.incumbent * (1 - SAME) / self.scale
        seconds = first.seconds + (least - first.least)
        rows = np.flatnonzero((seconds < enough)[first.number])
        total = seconds[first.number[rows]]
        for t in tables[1:]:
            if not len(rows) or not t.spread:
                break
            total = total + (t.seconds[t.number[rows]] - t.least)
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
        for axis, column in enumerate(chosen):
            taken = _at(self.columns[axis], earlier, np.array([column]))[0]
            held = np.where(taken == WHOLE, held, held / sizes[axis])
            earlier = [(*e, int(p)) for e, p in zip(earlier, taken, strict=True)]
        axis = len(chosen)
        later = float(np.prod(sizes[axis + 1 :]))
        out = []
        for part in np.array_split(rows, max(1, len(rows) // 2048)):
            placed = _at(self.columns[axis], earlier, part)
            local = np.where(placed == WHOLE, held, held / sizes[axis]) / later
            out.append((local @ model.points.live.T).max(1) <= self.objective.memory)
        return np.concatenate(out)

    def _finish(self, chosen: tuple[int, ...], rows: np.ndarray, total: np.ndarray) -> None:
        """Evaluates the states of the last axis, best bound first, until none can be better."""
        head = tuple(c.list_of(j) for c, j in zip(self.columns, chosen, strict=False))
        for at in range(0, len(rows), BATCH):
            part = [j for j in rows[at : at + BATCH].tolist()
                    if total[j] * self.scale < self.incumbent * (1 - SAME)]  # fmt: skip
            if not part:
                break
            if self.objective.evaluations - self.first > self.limits.evaluations:
                raise Spent
            before = self.objective.best_s
            self.objective([(*head, self.columns[-1].list_of(j)) for j in part])
            if self.objective.best_s < before:
                self.better = self.objective.best


def _at(columns: Columns, earlier: list[tuple[int, ...]], rows: np.ndarray) -> np.ndarray:
    """[rows, layouts] placements, each layout in its situation."""
    variants = [known[e] for known, e in zip(columns.variant, earlier, strict=True)]
    return columns.table[rows][:, variants]
