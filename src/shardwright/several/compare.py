"""compare(): variants of a program, on meshes of devices, planned in one go.

Every case gets a quick look first: the named strategies, and a bound that holds however the program
is split. Those that cannot be best are left at that; the others are searched.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from shardwright import cache
from shardwright.api import plan_program
from shardwright.cost.cost import Cost
from shardwright.errors import ShardwrightError
from shardwright.notebook import cell_progress
from shardwright.options import Options
from shardwright.plan import Plan
from shardwright.record.comparison import ComparisonRecord, Row, best_row, pareto_front
from shardwright.record.plain import encode
from shardwright.record.types import PlanRecord, VariantRow
from shardwright.search.bounds import least_factor_s
from shardwright.search.items import Items, count_items
from shardwright.search.objective import OVER_MEMORY_S, Progress
from shardwright.search.requests import constrained_model
from shardwright.search.screen import screen
from shardwright.several.forks import run_all
from shardwright.several.variants import Case, read_cases, read_variants, reason

Per = str | Callable[..., float] | None
NOT_BEST = "a quick look found no plan that fits, and none could be the fastest"


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, and the plans behind them."""

    record: ComparisonRecord
    plans: tuple[Plan | None, ...]  # of the rows that were searched; bind() one to run it
    best: Plan | None  # ready to run; None: nothing fits

    @property
    def rows(self) -> tuple[Row, ...]:
        """One row per variant, mesh and device, in the order asked for."""
        return self.record.rows

    @property
    def pareto(self) -> list[Row]:
        """Rows that no other beats in both time and memory, fastest first."""
        return [self.rows[i] for i in self.record.pareto]

    def __str__(self) -> str:
        from shardwright.report.comparison import format_comparison

        return format_comparison(self.record)

    def to_html(self) -> str:
        """The comparison as one self-contained page."""
        from shardwright.report.comparison import comparison_html

        return comparison_html(self.record)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data, for JSON."""
        return encode(self.record)


def compare(
    variants: Mapping[str, Any] | Callable[..., Any],
    /,
    *args: Any,
    mesh: Any,
    device: Any = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    per: Per = None,
    processes: int | None = None,
    **given: Any,
) -> Comparison:
    """The plans of all variants on all meshes and devices, and which of them is best.

        sw.compare({"full": step_a, "dots": step_b}, state, batch, mesh=[{"data": 8}, 16])
        sw.compare(make_step, state, batch, mesh=8, grid={"remat": ["full", "dots"]})

    - `variants`: functions by name, or a factory that is called with every point of the `grid`. A
      function with arguments of its own is a pair (function, arguments);
    - `mesh`, `device`: one or a list, each as partition() takes it;
    - `per`: what is counted: "token", "example" or "step", or a function of a variant's arguments
      that gives a number. By default tokens where all variants have a sequence, else examples;
    - `processes`: how many plan at once, by default one per CPU;
    - `progress`: called with a Progress when a row is done; its `best_s` is per item.

    Other keywords are options of partition(), or arguments of the functions. A variant that does
    not trace or fit is a row that says why.
    """
    options = {f.name: given.pop(f.name) for f in fields(Options) if f.name in given}
    progress = options.get("progress") or cell_progress()
    cases = read_cases(read_variants(variants, args, given, grid), mesh, device, options)
    unit, items = count(cases, per)
    if options.get("share"):  # whose functions are traced while planning: no work for a child
        processes = 1
    found = plan_cases(cases, items, processes, progress)
    rows = make_rows(cases, found, items)
    best = best_row(rows)
    plans = [Plan(one.record) if one.record is not None else None for one in found]
    if best is not None and (plan := plans[best]) is not None:
        variant = cases[best].variant
        plan = Plan(replace(plan.record, variants=other_rows(rows, best)))
        plans[best] = plan.bind(variant.fn, *variant.args, **variant.kwargs)
    return Comparison(
        ComparisonRecord(per=unit, rows=rows, best=best, pareto=pareto_front(rows)),
        tuple(plans),
        None if best is None else plans[best],
    )


class Outcome(NamedTuple):
    """What is known of one case."""

    mesh: str = ""  # the best of its candidates
    cost: Cost | None = None
    bound_s: float = 0.0  # no plan is faster; of what was not searched
    record: PlanRecord | None = None  # None: it was not searched, or there is no plan
    why: str = ""


def plan_cases(
    cases: Sequence[Case], items: Sequence[float] | None, processes: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Outcome]:  # fmt: skip
    """What is found for each case; those that decide the same are planned once.

    With the number of items that each processes, those are searched that may be the fastest.
    """
    watch = _Watch(progress, items)
    first: dict[str, int] = {}
    like = [i if case.why else first.setdefault(case.same, i) for i, case in enumerate(cases)]
    found = {i: Outcome(why=case.why) for i, case in enumerate(cases) if case.why}
    for i in first.values():
        record = cache.find(cases[i].key) if cache.wanted(cases[i].options) else None
        if record is not None:
            found[i] = _planned(record)
    rest = [i for i in first.values() if i not in found]
    hopeful = rest
    if items is not None:
        told = watch.stage("quick look", rest)
        looks = run_all([functools.partial(look, cases[i]) for i in rest], processes, told)
        found |= dict(zip(rest, looks, strict=True))
        reached_s = [one.cost.step_s / items[i] for i, one in found.items() if one.cost is not None]
        fastest_s = min(reached_s, default=math.inf)
        hopeful = [i for i in rest if found[i].bound_s / items[i] <= fastest_s]
    told = watch.stage("search", hopeful)
    searched = run_all([functools.partial(search_case, cases[i]) for i in hopeful], processes, told)
    for i, one in zip(hopeful, searched, strict=True):
        if one.record is not None and cache.wanted(cases[i].options):
            one = one._replace(record=cache.keep(cases[i].key, one.record))
        found[i] = one
    return [found[i] for i in like]


class _Watch:
    """Tells how a comparison goes: the row, the best seconds per item so far, plans priced."""

    def __init__(
        self, progress: Callable[[Progress], None] | None, items: Sequence[float] | None
    ) -> None:
        self.progress, self.items = progress, items
        self.start, self.best_s, self.evaluations = time.monotonic(), float(OVER_MEMORY_S), 0

    def stage(self, name: str, rows: Sequence[int]) -> Callable[[int, Outcome], None]:
        """What hears of each result of a stage; `rows` are the cases in its order."""
        done = itertools.count(1)

        def told(i: int, found: Outcome) -> None:
            if found.cost is not None:
                each = self.items[rows[i]] if self.items is not None else 1.0
                self.best_s = min(self.best_s, found.cost.step_s / each)
            if found.record is not None:
                self.evaluations += found.record.search.evaluations
            if self.progress is not None:
                self.progress(Progress(
                    name, self.evaluations, self.best_s, time.monotonic() - self.start,
                    trying=f"row {next(done)} of {len(rows)}",
                ))  # fmt: skip

        return told


def look(case: Case) -> Outcome:
    """A quick look at a case: the best named strategy on each mesh, and a bound on all plans."""
    assert case.analysis is not None
    bound_s, best, mesh, why = math.inf, None, case.asked, ""
    for candidate in case.meshes:
        try:
            model = constrained_model(
                case.analysis, candidate, case.options.device, case.options.tactics,
                overlap=case.options.overlap,
            )  # fmt: skip
            quick = screen(model, case.options.limit_bytes, case.options.tactics)
        except ShardwrightError as error:
            why = why or reason(error)
            continue
        assert quick.best is not None
        bound_s = min(bound_s, float(least_factor_s(model).sum()))
        cost = model.cost(quick.decisions(quick.best))
        if cost.peak_bytes <= case.options.limit_bytes and (
            best is None or cost.step_s < best.step_s
        ):
            best, mesh = cost, str(candidate)
    if best is None and bound_s < math.inf:
        why = NOT_BEST
    return Outcome(mesh, best, bound_s, why="" if best is not None else why)


def search_case(case: Case) -> Outcome:
    """The plan of a case, or why there is none."""
    assert case.analysis is not None
    options = replace(case.options, progress=lambda _: None)  # rows are not told one by one
    try:
        return _planned(plan_program(case.variant.fn, case.analysis, case.meshes, options).record)
    except ShardwrightError as error:
        return Outcome(case.asked, why=reason(error))


def _planned(record: PlanRecord) -> Outcome:
    return Outcome(str(record.mesh), record.cost, record=record)


def make_rows(
    cases: Sequence[Case], found: Sequence[Outcome], items: Sequence[float]
) -> tuple[Row, ...]:
    """The rows of a table, one per case."""
    first: dict[str, str] = {}  # case: the variant that has the same program on the same mesh
    rows = []
    for case, one, n in zip(cases, found, items, strict=True):
        other = case.variant.name if case.why else first.setdefault(case.same, case.variant.name)
        rows.append(Row(
            variant=case.variant.name, mesh=one.mesh or case.asked,
            devices=case.meshes[0].size if case.meshes else 0, device=case.options.device.name,
            cost=one.cost, limit_bytes=case.options.limit_bytes, items=n,
            searched=one.record is not None, bound_s=one.bound_s,
            same_as=other if other != case.variant.name else "", why=one.why,
        ))  # fmt: skip
    return tuple(rows)


def other_rows(rows: Sequence[Row], best: int) -> tuple[VariantRow, ...]:
    """The rows that have a cost but for the best, by the time they take for its items."""
    items = rows[best].items
    return tuple(
        VariantRow(row.name, row.item_s * items, row.cost.peak_bytes, row.fits)
        for i, row in enumerate(rows)
        if i != best and row.cost is not None and row.item_s is not None and not row.same_as
    )  # fmt: skip


# What a step processes ----------------------------------------------------------------------


def count(cases: Sequence[Case], per: Per) -> tuple[str, list[float]]:
    """(what is counted, how many of it one step of each case processes)."""
    if callable(per):
        name = getattr(per, "__name__", "item")
        unit = name if name.isidentifier() else "item"  # not: <lambda>
        counted = [1.0 if case.why else float(per(*case.variant.args)) for case in cases]
    else:
        unit, counted = _counted(cases, per)
    for case, n in zip(cases, counted, strict=True):
        if not n > 0:
            raise ShardwrightError(
                f"{case.variant.name!r} has no {unit}s that can be counted",
                try_="per='step', or per=lambda *args: how many a step processes",
            )
    return unit, counted


def _counted(cases: Sequence[Case], per: str | None) -> tuple[str, list[float]]:
    """The same for tokens, examples or steps; by default the first that all cases have."""
    seen: dict[int, Items] = {}
    for case in cases:
        if case.analysis is not None and id(case.analysis) not in seen:
            seen[id(case.analysis)] = count_items(case.analysis)
    items = [seen[id(case.analysis)] if case.analysis else Items(1, 1) for case in cases]
    counts = {
        "token": [float(n.tokens) for n in items], "example": [float(n.examples) for n in items],
        "step": [1.0] * len(cases),
    }  # fmt: skip
    unit = next(u for u in counts if all(counts[u])) if per is None else per
    if unit not in counts:
        raise ShardwrightError(
            f"per={unit!r:.60} is nothing that a step processes",
            try_="'token', 'example', 'step', or a function of the arguments that gives a number",
        )
    return unit, counts[unit]
