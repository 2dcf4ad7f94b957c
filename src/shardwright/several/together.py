"""Functions that use the same parameters: one placement for all, and what each pays for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from jax.sharding import PartitionSpec

from shardwright.analysis.analysis import Analysis, analyze_program
from shardwright.cost.model import CostModel
from shardwright.errors import NoPlanFits, ShardwrightError
from shardwright.lowering.specs import partition_spec
from shardwright.mesh import Mesh
from shardwright.options import Options
from shardwright.program.fingerprint import argument_types, result_types
from shardwright.program.tracing import trace_call
from shardwright.record.build import specs_of
from shardwright.report.words import change, human_seconds
from shardwright.search.baselines import baselines
from shardwright.search.meshes import search_meshes
from shardwright.search.requests import constrained_model
from shardwright.search.roles import find_roles
from shardwright.search.screen import screen
from shardwright.search.search import Found
from shardwright.search.tactics import Context, NotApplicable
from shardwright.several.share import Call, Placed, Shared, place_as_in
from shardwright.spmd.decisions import Decisions, decide, empty
from shardwright.units import human_bytes

SCREENED = 8  # placements of the parameters that are looked at for all functions, fastest first
KEPT = 2  # of those, the ones that get a full search


@dataclass(frozen=True)
class Task:
    """One function to plan on one mesh."""

    analysis: Analysis
    mesh: Mesh
    options: Options
    weight: float = 1.0

    @property
    def name(self) -> str:
        """The function's name."""
        return self.analysis.program.name

    def shared(self, others: Sequence[Placed]) -> Shared:
        """What it has in common with others."""
        return place_as_in(self.analysis, others, self.mesh)

    def model(self, others: Sequence[Placed]) -> CostModel:
        """What it costs with parameters placed as others have them."""
        return constrained_model(
            self.analysis, self.mesh, self.options.device, self.options.tactics,
            overlap=self.options.overlap, pinned=self.shared(others).pinned,
        )  # fmt: skip

    def search(self, others: Sequence[Placed] = ()) -> tuple[CostModel, Found]:
        """The best decisions with parameters placed as others have them."""
        options = self.options
        model, found, _ = search_meshes(
            [self.mesh], lambda _: self.model(others), options.device, memory=options.memory,
            tactics=options.tactics, seconds=options.seconds, timeout=options.timeout,
            seed=options.seed, progress=options.progress,
        )  # fmt: skip
        return model, found

    def quick_s(self, others: Sequence[Placed]) -> float:
        """About the seconds of that, times its weight; infinite where it is not possible."""
        try:
            quick = screen(self.model(others), self.options.limit_bytes, self.options.tactics)
            return self.weight * quick.best_s
        except ShardwrightError:  # what the user asked for cannot be had with it
            return float("inf")

    def placements(self, model: CostModel, found: Found) -> Iterator[Placed]:
        """Where the found plan and the named strategies have the arrays, fastest first.

        Only the former when the user asked for something: that is kept.
        """
        yield self.placed(model, found.decisions)
        if self.options.tactics:
            return
        context = Context(model, find_roles(self.analysis))
        named = baselines(context, empty(len(self.mesh.sizes)), lambda *_: True).values()
        every = [decide(s) for s in named if not isinstance(s, NotApplicable)]
        costs = model.evaluate(every)
        for i in costs.step_s.argsort(kind="stable") if every else ():
            yield self.placed(model, every[i])

    def placed(self, model: CostModel, decisions: Decisions) -> Placed:
        """Where decisions have its arguments and results."""
        arguments, results = specs_of(model, decisions)
        program = self.analysis.program
        types = {**argument_types(program), **result_types(program), **argument_types(program)}
        return Placed(self.name, self.mesh, types, results | arguments)


def task_of(call: Call, mesh: Mesh, options: Options) -> Task:
    """The task of a call that is planned with another; its tactics are not about this one."""
    program = trace_call(
        call.fn, call.args, call.kwargs, call.static_argnums, call.donate_argnums, mesh, options.tie
    )
    mine = replace(options, tactics=None, labels=None)
    return Task(analyze_program(program), mesh, mine, call.weight)


def search_shared(task: Task) -> tuple[CostModel, Found]:
    """The best decisions with parameters where `share=` says; a note says what that costs."""
    others = [one for one in task.options.share if isinstance(one, Placed)]
    if not others:
        return _search_together(task)
    shared = task.shared(others)
    _, alone = task.search()
    try:
        model, found = task.search(others)
    except NoPlanFits as error:
        raise _not_with(task, shared, error, alone) from None
    note = f"{shared.arrays} arrays are placed as in the plan of {shared.names}: "
    notes = (*found.notes, note + _pays(found, alone), *_elsewhere(task, shared))
    return model, replace(found, notes=notes)


def _elsewhere(task: Task, shared: Shared) -> Iterator[str]:
    """What shardings of arguments say that are placed as in another plan, and not like that."""
    program, names = task.analysis.program, task.mesh.names
    for pin in program.pins:
        if pin.value in shared.pinned:
            here = partition_spec(
                tuple(tuple(names[a] for a in on) for on in shared.pinned[pin.value])
            )
            if PartitionSpec(*pin.sharding.spec) != here:
                where = program.where(pin.value)
                yield f"not followed: {pin.by}({pin.sharding.spec}) at {where}, which is shared"


def _pays(found: Found, alone: Found) -> str:
    """What a function pays for parameters that are not placed for it alone."""
    with_s, without_s = found.cost.step_s, alone.cost.step_s
    return (
        f"{human_seconds(with_s)} a step, {human_seconds(without_s)} alone"
        f" ({change(with_s, without_s)})"
    )


def _search_together(task: Task) -> tuple[CostModel, Found]:
    """The decisions of a task, with parameters where the weighted sum of all functions is least.

    Candidates are where each function's own best plan has them, and each named strategy; quick
    searches rank them, and full ones decide between the best.
    """
    calls = [one for one in task.options.share if isinstance(one, Call)]
    tasks = [task, *(task_of(call, task.mesh, task.options) for call in calls)]
    alone = [one.search() for one in tasks]
    candidates = _candidates(tasks, alone)
    quick = [sum(one.quick_s([c]) for one in tasks) for c in candidates]
    best_s, best = float("inf"), None
    for i in sorted(range(len(candidates)), key=quick.__getitem__)[:KEPT]:
        try:
            each = [one.search([candidates[i]]) for one in tasks]
        except NoPlanFits:
            continue
        total_s = sum(t.weight * f.cost.step_s for t, (_, f) in zip(tasks, each, strict=True))
        if total_s < best_s:
            best_s, best = total_s, each
    if best is None:
        raise _no_common(tasks, alone)
    rows = zip(tasks, best, alone, strict=True)
    pays = "; ".join(f"{t.name} x {t.weight:g} {_pays(f, a)}" for t, (_, f), (_, a) in rows)
    note = f"parameters are placed for {len(tasks)} functions: {pays}"
    model, found = best[0]
    return model, replace(found, notes=(*found.notes, note))


def _candidates(tasks: Sequence[Task], alone: Sequence[tuple[CostModel, Found]]) -> list[Placed]:
    """Where the parameters may be: as in each function's own plan, then as strategies have them."""
    rows = [list(t.placements(*a)) for t, a in zip(tasks, alone, strict=True)]
    seen: dict[tuple[str, ...], Placed] = {}
    for turn in zip_longest(*rows):  # the best of each function, then the second of each
        for placed in turn:
            if placed is not None:
                first = place_as_in(tasks[0].analysis, [placed], tasks[0].mesh).pinned
                seen.setdefault(tuple(sorted(map(str, first.items()))), placed)
    return list(seen.values())[:SCREENED]


def _not_with(task: Task, shared: Shared, error: NoPlanFits, alone: Found) -> ShardwrightError:
    """The error for parameters that leave no room for a function, which fits without them so."""
    names, facts = shared.names, error.facts
    return NoPlanFits(
        f"{error.what} for {task.name} with {shared.arrays} arrays placed as in the plan of"
        f" {names}",
        best=facts["best"], at_peak=facts["at_peak"], alone=_size(alone),
        try_=f"share=[sw.Call({task.name}, ...)] where {names} is planned, for a placement that"
        " fits both; or no share=, and move the parameters between the two",
    )  # fmt: skip


def _no_common(tasks: Sequence[Task], alone: Sequence[tuple[CostModel, Found]]) -> ShardwrightError:
    """The error for functions that fit one by one, and not with common parameters."""
    rows = zip(tasks, alone, strict=True)
    return NoPlanFits(
        "no placement of the parameters was found with which all functions fit",
        alone="\n".join(f"{t.name}: {_size(found)}" for t, (_, found) in rows),
        try_="memory=... of a larger device, more devices, or plan them apart and move the"
        " parameters between them",
    )


def _size(found: Found) -> str:
    return f"{human_bytes(found.cost.peak_bytes)} per device, {human_seconds(found.cost.step_s)}"
