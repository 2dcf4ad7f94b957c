"""search(): from a cost model to the best decisions found, and how good they provably are."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod

import numpy as np

from shardwright.cost.cost import Cost
from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.search.baselines import baselines
from shardwright.search.best_response import Responses
from shardwright.search.blocks import Spent
from shardwright.search.exact import (
    Certificate,
    certify,
    has_many_axes,
    limits_of,
    op_tables,
)
from shardwright.search.mcts import tree_search
from shardwright.search.nothing_fits import no_plan_fits
from shardwright.search.objective import (
    OVER_MEMORY_S,
    STRATEGIES,
    Budget,
    Objective,
    OutOfTime,
    Progress,
)
from shardwright.search.refine import (
    WORTHWHILE,
    LayoutRefinement,
    kept_copies,
    refine,
    unreduced_sums,
)
from shardwright.search.relaxation import OpTables
from shardwright.search.resolved_tactics import ResolvedTactics, resolve_tactics
from shardwright.search.roles import find_roles
from shardwright.search.space import Space
from shardwright.search.tactics import Context, NotApplicable, Tactic
from shardwright.spmd.decisions import Decisions, Placement, State
from shardwright.units import human_seconds

# Evaluations that a second of the user's budget buys, on the slowest machine we care about.
# Budgets are counted in evaluations so that the same seed gives the same plan everywhere.
EVALUATIONS_PER_S = 1000
DEFAULT_SECONDS = 3.0  # of search when the user says nothing
NEARLY = 0.1  # a gap that a better answer may close: it is proven once more
# A gap that is not worth a tree search; where lists are cut, its rollouts reach less than local
# search does.
CLOSE, CLOSE_CUT = 0.01, 0.02
MERGED_SECONDS = 0.3  # of search on each mesh of merged axes
STARTS = 8  # good states from which best responses start
ALIKE = 4000  # lists that are tried on all axes alike where no proof ended: 0.3 s
REFINED = 3  # good states that are changed entry by entry where not all lists are enumerated
# Of refining single layouts: states found before a proof that are looked at, and states near the
# best for each axis; the share of the cells that best responses may take where copies are kept; and
# the states of either kind that are refined. More states are, until so many factors were looked up:
# some 0.7 s, less for programs of fewer factors.
SCREENED, NEAR, RESPONSES_GIVEN, FIRST = 256, 16, 0.5, 4
MORE, LEAST = 1_500_000, 170
FAR = 1.25  # times the best: none so slow became the best one in twelve programs looked at


@dataclass(frozen=True, slots=True)
class Found:
    """The best decisions, what they cost, and how they were found."""

    decisions: Decisions
    cost: Cost
    certificate: Certificate
    baselines: dict[str, Cost | str]  # strategy -> its cost, or why it does not apply
    evaluations: int
    how: tuple[str, ...]  # what each stage did, one line each
    interrupted: bool = False
    timed_out: bool = False  # by the wall clock
    plain: State | None = None  # the best decisions without overrides
    notes: tuple[str, ...] = ()  # what the user's code says and is not followed
    pins_in_code: int = 0  # shardings in the user's code that are followed
    fixed: Decisions | None = None  # what the user's tactics decide
    history: tuple[tuple[str, int, float], ...] = ()  # (stage, evaluations, best seconds so far)


def search(
    model: CostModel,
    *,
    memory: int | None = None,
    tactics: Sequence[Tactic] | None = None,
    seconds: float | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    exact: bool = True,
    deadline: float | None = None,
) -> Found:
    """The best state found for one program on one mesh.

    `memory` is bytes per device (the device's usable memory when None). `seconds` scales the
    work that may be done; the clock decides nothing, so that a seed gives one plan everywhere.
    Ctrl-C returns the best so far, and so does a `deadline` (of `time.monotonic()`), with which
    another machine may find another plan.
    """
    memory = model.device.usable_bytes if memory is None else memory
    context = Context(model, find_roles(model.analysis))
    resolved = resolve_tactics(context, tactics)
    objective = Objective(model, memory, progress, resolved.overrides, deadline)
    space = Space(
        model, prefix=resolved.start, axes=resolved.axes, allowed=resolved.allowed,
        overrides=resolved.overrides,
    )  # fmt: skip
    budgets = _budgets(seconds)
    run = _Run(space, objective, budgets[0], seed, resolved, context, tactics)
    try:
        with _no_cycle_collection():
            run.in_turn(budgets, exact)
    except KeyboardInterrupt:
        run.interrupted = True
    except OutOfTime:
        run.timed_out = True
    return run.found(memory)


@contextmanager
def _no_cycle_collection() -> Iterator[None]:
    """A search makes many small objects and no cycles: looking for some takes a fifth of it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _budgets(seconds: float | None) -> list[Budget]:
    """Searches to run in turn, each with twice the work of the one before, from the default on.

    What less work finds is then found with more work too.
    """
    wanted = DEFAULT_SECONDS if seconds is None else float(seconds)
    rungs = [min(wanted, DEFAULT_SECONDS)]
    while sum(rungs) + 2 * rungs[-1] <= wanted:
        rungs.append(2 * rungs[-1])
    return [_budget(rung) for rung in rungs]


def _budget(wanted: float) -> Budget:
    evaluations = max(200, int(wanted * EVALUATIONS_PER_S))
    return Budget(
        evaluations=evaluations, patience=max(200, evaluations // 5),
        cells=Budget.cells * evaluations // Budget.evaluations,
    )  # fmt: skip


class _Run:
    """One search: the stages in order, and what each contributed."""

    responses: Responses  # of the turn that runs
    refinement: LayoutRefinement

    def __init__(
        self, space: Space, objective: Objective, budget: Budget, seed: int,
        resolved: ResolvedTactics, context: Context, tactics: Sequence[Tactic] | None,
    ) -> None:  # fmt: skip
        self.space, self.objective, self.budget = space, objective, budget
        self.seed, self.resolved, self.context, self.tactics = seed, resolved, context, tactics
        self.named: dict[str, State | NotApplicable] = {}
        self.seeds: list[State] = []  # of strategies
        self.before_proof: list[State] = []  # the best states, best first
        self.state: State = space.root
        self.overrides: dict[int, Placement] = {}
        self.certificate = Certificate.none()
        self.how: list[str] = []
        self.interrupted = self.timed_out = False
        self.ops: OpTables | None = None  # that the proofs of one turn share

    def in_turn(self, budgets: Sequence[Budget], exact: bool) -> None:
        """All stages with each budget, until a proof ends; keeps the best of all of them."""
        kept: tuple[float, State, dict[int, Placement]] | None = None
        for budget in budgets:
            if kept is not None and self.certificate.kind == "optimal":
                break
            self.budget = budget
            self.ops = None
            try:
                self.overrides = {}
                self.all_stages(exact)
            finally:
                if self.objective.best is not None and not self.overrides:
                    self.state = self.objective.best
                value = self._value()
                if kept is not None and kept[0] <= value:
                    value, self.state, self.overrides = kept
                kept = value, self.state, self.overrides

    def _value(self) -> float:
        """The objective of the answer as it stands."""
        decisions = self.objective.decisions(self.state).override(self.overrides)
        return float(self.objective.penalised(self.objective.model.evaluate([decisions]))[0])

    def all_stages(self, exact: bool) -> None:
        """Runs the stages in order; what is best is then in `state` and `overrides`."""
        objective, space = self.objective, self.space
        objective.begin(STRATEGIES)
        objective([space.root])
        self.named = baselines(self.context, self.resolved.pins, self.resolved.allowed)
        named = [s for s in self.named.values() if not isinstance(s, NotApplicable)]
        seeds = [s for s in named if self.resolved.any_strategy or space.contains(s)]
        self.seeds = seeds or [space.root]
        if seeds:
            values = objective(seeds)
            best = min(range(len(seeds)), key=lambda i: (values[i], i))
            self._note(f"best of {len(seeds)} strategies", float(values[best]))
        self._merge_axes()
        self.responses = Responses(space, objective, self.budget.cells)
        if exact:
            self._local_search()
            self.before_proof = objective.ranked(SCREENED)
            self._prove()
        close = CLOSE if self.responses.complete else CLOSE_CUT
        if space.actions and self.certificate.against(objective.best_s).gap > close:
            known_s = objective.best_s
            self._tree_search()
            if not self.certificate.counted:  # the proof looked at no states of its own
                self.before_proof = objective.ranked(SCREENED)
            near = self.certificate.counted and self.certificate.gap < NEARLY
            if near and objective.best_s < known_s:
                self._prove()
        assert objective.best is not None
        self.state = objective.best
        if self.resolved.free:  # what the user said is not overridden
            objective.begin("single layouts")
            self._refine_layouts()

    def _merge_axes(self) -> None:
        """Evaluates what a little search finds where the axes are merged into two.

        Axes that split alike act as one, and no response of a single axis leads there.
        """
        model, (names, sizes) = self.objective.model, zip(*self.objective.model.mesh.axes)  # noqa: B905
        told = self.tactics or self.resolved.pins_in_code or model.pinned
        if not has_many_axes(model) or told or model.mesh != Mesh(model.mesh.axes):
            return
        if any(op.rule.manual or op.rule.collectives for op in model.classes.table):
            return  # they name the axes
        self.objective.begin("merged axes")
        for cut in range(1, len(sizes)):
            parts = (names[:cut], sizes[:cut]), (names[cut:], sizes[cut:])
            mesh = Mesh(tuple([("+".join(some), prod(n)) for some, n in parts]))
            merged = CostModel(model.analysis, mesh, model.device, overlap=model.overlap)
            with suppress(ShardwrightError):
                found = search(
                    merged, memory=int(min(self.objective.memory, sys.maxsize)),
                    seconds=MERGED_SECONDS, exact=False, deadline=self.objective.deadline,
                )  # fmt: skip
                if found.interrupted:
                    raise KeyboardInterrupt
                lists = found.plain or found.decisions.lists
                state = tuple([
                    tuple([e for e in lists[int(axis >= cut)] if e in self.space.entries[axis]])
                    for axis in range(len(sizes))
                ])  # fmt: skip
                self.objective([state])
        self._note("merged axes", self.objective.best_s)

    def _tree_search(self) -> None:
        self.objective.begin("tree search")
        self.responses.evaluate_alike(ALIKE)
        with suppress(Spent):
            tree_search(self.responses, self.budget, seed=self.seed)
        self._note("tree search", self.objective.best_s)
        self._local_search()

    def _local_search(self) -> None:
        """Improves the best states of all so far: axis by axis, then entry by entry."""
        self.objective.begin("local search")
        self.responses.improve(self.objective.ranked(STARTS))
        for state in self.objective.ranked(1 if self.responses.complete else REFINED):
            refine(self.space, self.objective, state, self.budget)
        self._note("local search", self.objective.best_s)

    def _prove(self) -> None:
        """Proves how good the best is, and takes what the proof finds on its way."""
        objective = self.objective
        objective.begin("proof")
        self.ops = self.ops or op_tables(self.space, limits_of(self.budget))
        certificate, better = certify(
            self.space, objective, self.budget, ops=self.ops,
            improve=lambda state: self.responses.improve([state]),
        )  # fmt: skip
        if better is not None:
            objective([better])
            refine(self.space, objective, better, self.budget)
        if certificate.lower_bound_s >= self.certificate.lower_bound_s:
            self.certificate = certificate
        self._note(str(self.certificate.against(objective.best_s)), objective.best_s)

    def _refine_layouts(self) -> None:
        """Takes the state that is best once single layouts are stored in another way.

        Starts from the best states as they are, and from those that are best where every copy of
        an argument is kept whole: gathered once, weights may be split in other ways. What is best
        given the overrides of the best so far comes next, until nothing is better. None of this
        depends on the states that a proof happened to look at.
        """
        objective, pool = self.objective, self._pool()
        self.refinement = LayoutRefinement(objective)
        copies = kept_copies(objective.model)
        # Without copies the objective is the same, and local search would go the same ways again.
        kept = self._respond_given(copies, pool) if copies else None
        first = dict.fromkeys([
            *objective.ranked(FIRST, pool), *(kept.ranked(FIRST) if kept else ()),
            *self._best_unreduced(pool),
        ])  # fmt: skip
        either = np.minimum(objective(pool), kept(pool)) if kept else objective(pool)
        near = [i for i in np.argsort(either, kind="stable") if either[i] <= FAR * either.min()]
        more = dict.fromkeys([*first, *[pool[i] for i in near]])
        lookups = MORE * self.budget.evaluations / Budget.evaluations
        most = objective.evaluations + lookups / max(len(objective.model.graph.factors), LEAST)
        best_s = objective.best_s
        for number, state in enumerate(more):
            if number >= len(first) and objective.evaluations > most:
                break
            as_found = copies if kept and kept([state])[0] < objective([state])[0] else {}
            for start in self._starts(state, as_found):
                best_s = self._take_refined(state, start, best_s)
        before_s = objective.best_s
        while self.overrides and best_s < before_s * (1 - WORTHWHILE):
            before_s, given = best_s, objective.given(self.overrides)
            given(pool)
            refine(self.space, given, self.state, self.budget)
            for state in given.ranked(FIRST):
                best_s = self._take_refined(state, self.overrides, best_s)
        if self.overrides:
            objective.improved(best_s)
            self._note(f"{len(self.overrides)} exceptions for single arrays", best_s)

    def _take_refined(self, state: State, start: Mapping[int, Placement], best_s: float) -> float:
        """The best seconds so far, after single layouts of one more state are refined."""
        overrides, value = self.refinement.improve(state, start)
        if value >= best_s:
            return best_s
        self.state, self.overrides = state, overrides
        return value

    def _pool(self) -> list[State]:
        """The states that single layouts are refined in: found before a proof, and near the best.

        Near are those that are best when one axis of the best state may change.
        """
        best = self.objective.best
        assert best is not None
        near = self.responses.near(best, NEAR)
        return list(dict.fromkeys([best, *near, *self.before_proof]))

    def _starts(
        self, state: State, as_found: Mapping[int, Placement]
    ) -> list[Mapping[int, Placement]]:
        """These overrides, and with sums over the trips of loops kept whole if that is faster."""
        objective = self.objective
        late = unreduced_sums(objective.model, objective.decisions(state).override(as_found))
        if not late:
            return [as_found]
        both = {**as_found, **late}
        costs = objective.stored(state, [as_found, both])
        if costs.step_s[1] >= costs.step_s[0]:
            return [as_found]
        return [both] if costs.peak_bytes[1] <= objective.memory else [as_found, both]

    def _best_unreduced(self, pool: Sequence[State]) -> list[State]:
        """The states that are best where sums over the trips of loops are kept whole."""
        objective = self.objective
        if not any(layout.summed for layout in objective.model.layouts.table):
            return []
        values: dict[State, float] = {}
        for state in pool:
            late = unreduced_sums(objective.model, objective.decisions(state))
            if late:
                values[state] = float(objective.penalised(objective.stored(state, [late]))[0])
        return sorted(values, key=values.__getitem__)[:FIRST]

    def _respond_given(
        self, overrides: Mapping[int, Placement], pool: Sequence[State]
    ) -> Objective:
        """The objective where these overrides hold, after best responses to good states."""
        objective = self.objective.given(overrides)
        objective([*self.seeds, *pool])
        responses = Responses(
            self.space.given(overrides), objective, self.budget.cells * RESPONSES_GIVEN
        )
        responses.improve(objective.ranked(STARTS))
        return objective

    def _note(self, what: str, value: float) -> None:
        shown = "over memory" if value >= OVER_MEMORY_S else human_seconds(value)
        self.how.append(f"{what}: {shown}")

    def found(self, memory: int) -> Found:
        """What was found, as a value; raises NoPlanFits where nothing fits."""
        model = self.objective.model
        stopped = self.interrupted or self.timed_out
        if stopped and self.objective.best is not None and not self.overrides:
            self.state = self.objective.best
        pinned = self.objective.decisions  # whatever the user wants whole, nothing refined
        decisions = pinned(self.state).override(self.overrides)
        cost = model.cost(decisions)
        if cost.peak_bytes > memory:
            raise no_plan_fits(self.objective, memory, self.tactics, decisions)
        states = {n: s for n, s in self.named.items() if not isinstance(s, NotApplicable)}
        costs = model.evaluate([pinned(s) for s in states.values()]) if states else None
        rows: dict[str, Cost | str] = {n: str(s) for n, s in self.named.items() if n not in states}
        if costs is not None:
            rows |= {n: costs[i] for i, n in enumerate(states)}
        rows = {n: rows[n] for n in self.named}
        return Found(
            decisions, cost, self.certificate.against(cost.step_s), rows,
            self.objective.evaluations, tuple(self.how), self.interrupted, self.timed_out,
            self.objective.best, self.resolved.notes, self.resolved.pins_in_code,
            pinned(self.space.root), tuple(self.objective.history),
        )  # fmt: skip
