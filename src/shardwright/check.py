"""check(): a hand-written sharding, priced by the same cost model as a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from shardwright.analysis.analysis import Analysis, analyze_program
from shardwright.cost.breakdown import Breakdown
from shardwright.cost.cost import Cost
from shardwright.cost.devices import Device
from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.in_shardings import Given, resolve
from shardwright.mesh import Mesh
from shardwright.options import Positions, read_options
from shardwright.plan import Plan, plan_of
from shardwright.program.calls import asks_which
from shardwright.program.tracing import trace_call
from shardwright.search import Found, search
from shardwright.search.exact import Certificate
from shardwright.search.requests import constrained_model
from shardwright.spmd.decisions import Entry, State, decide
from shardwright.spmd.ir import Collective
from shardwright.units import human_bytes

# A replicated argument is worth a warning from this fraction of all argument bytes on. Of the zoo's
# full-size programs no argument with one dim (gains, biases, edge lists: what nobody splits) has
# more than 0.0075 of them.
LARGE = 0.01
HOW = ("given by hand",)  # instead of tactics, and of what a search did


@dataclass(frozen=True, slots=True)
class Check:
    """What a hand-written sharding costs, and what a better plan would save."""

    cost: Cost
    memory: Breakdown
    collectives: list[Collective]
    warnings: list[str]
    plan: Plan  # the given sharding as a plan: it can be run, printed and verified
    better: Plan | None  # what partition() would do instead, when that is faster or fits

    @property
    def saves(self) -> float:
        """The fraction of the step that the better plan saves."""
        return 1.0 - self.better.cost.step_s / self.cost.step_s if self.better else 0.0

    @property
    def ok(self) -> bool:
        """Whether it fits and nothing is wrong with it; a better plan may still exist."""
        return not self.warnings

    def __str__(self) -> str:
        from shardwright.report.judgement import format_check

        return format_check(self)


@asks_which
def check(
    fn: Callable[..., Any],
    /,
    *args: Any,
    mesh: Any,
    in_shardings: Any,
    device: str | Device = "tpu-v5e",
    memory: int | float | None = None,
    donate_argnums: Positions = (),
    static_argnums: Positions = (),
    seconds: float | None = None,
    compare: bool = True,
    **kwargs: Any,
) -> Check:
    """The judgement of `in_shardings` (as jax.jit takes them; PartitionSpecs will do).

    Intermediates are assumed to follow the arguments as cheaply as they can; a compiler left to
    itself may do worse. `.plan` holds these decisions, ready to run. Keyword arguments are
    replicated.
    """
    axes, options = Mesh.of(mesh), read_options(
        mesh=mesh, device=device, memory=memory, seconds=seconds, donate_argnums=donate_argnums,
        static_argnums=static_argnums, tie=False,
    )  # fmt: skip
    program = trace_call(fn, args, kwargs, static_argnums, donate_argnums, axes)
    analysis = analyze_program(program)
    given, warnings = resolve(program, args, in_shardings, axes)
    pinned = dict(given)
    for position, source in program.updates.items():
        pinned[program.outputs[position]] = given[source]
    model = CostModel(analysis, axes, options.device, pinned=pinned)
    decisions = decide(cheapest_order(model, claimed_groups(analysis, given, axes)))
    asked, limit = options.asked(), options.limit_bytes
    by_hand = Found(decisions, model.cost(decisions), Certificate.none(), {}, 0, HOW)

    plan, better = plan_of(fn, model, by_hand, asked=replace(asked, tactics=HOW)), None
    if plan.cost.peak_bytes > limit:
        warnings.append(
            f"does not fit: {human_bytes(plan.cost.peak_bytes)} per device of {human_bytes(limit)}"
        )
    large = LARGE * sum(program.values[v].bytes for v in program.inputs)
    warnings += [
        f"{row.path} ({human_bytes(row.bytes)}) is replicated on every device"
        for row in plan.record.replicated
        if row.bytes >= large
    ]
    if compare:
        free = constrained_model(analysis, axes, options.device)
        found = _better(free, plan.cost, limit, options.seconds)
        better = plan_of(fn, free, found, asked=asked) if found is not None else None
    return Check(plan.cost, plan.memory, plan.collectives, warnings, plan, better)


def claimed_groups(analysis: Analysis, given: Given, mesh: Mesh) -> list[list[int]]:
    """For each axis the groups that the arguments give it, most bytes first."""
    table = analysis.color_table.values
    claims: list[dict[int, int]] = [{} for _ in mesh.names]
    for row in range(len(table.owner)):
        value = int(table.owner[row])
        if value in given and int(table.place[row]) == 0:
            group = int(analysis.color_group[table.color[row]])
            for axis in given[value][int(table.dim[row])]:
                size = analysis.program.values[value].bytes
                claims[axis][group] = claims[axis].get(group, 0) + size
    return [sorted(c, key=lambda g: (-c[g], g)) for c in claims]


def cheapest_order(model: CostModel, groups: list[list[int]]) -> State:
    """The order of claims under which intermediates follow the arguments most cheaply.

    One axis after the other, each group is tried in front and each pair swapped, until nothing
    improves.
    """
    best: State = tuple(tuple(Entry(g) for g in listed) for listed in groups)
    best_s = model.cost(decide(best)).step_s
    while True:
        states = [
            (*best[:axis], order, *best[axis + 1 :])
            for axis, entries in enumerate(best)
            for order in _reorderings(entries)
        ]
        if not states:
            return best
        seconds = model.evaluate([decide(s) for s in states]).step_s
        if seconds.min() >= best_s:
            return best
        best, best_s = states[int(seconds.argmin())], float(seconds.min())


def _reorderings(entries: tuple[Entry, ...]) -> list[tuple[Entry, ...]]:
    """The list with one entry moved to another place."""
    out: dict[tuple[Entry, ...], None] = {}
    for i, j in product(range(len(entries)), repeat=2):
        rest = [*entries[:i], *entries[i + 1 :]]
        out[(*rest[:j], entries[i], *rest[j:])] = None
    out.pop(entries, None)
    return list(out)


def _better(model: CostModel, cost: Cost, limit: int, seconds: float | None) -> Found | None:
    """Decisions that are faster, or that fit where the given ones do not."""
    try:
        found = search(model, memory=limit, seconds=seconds)
    except ShardwrightError:  # nothing fits: what was given is judged all the same
        return None
    if found.cost.step_s >= cost.step_s and cost.peak_bytes <= limit:
        return None
    return found
