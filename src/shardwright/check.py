"""check(): a hand-written sharding judged with the same eyes as a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardwright.analysis.analysis import Analysis, analyze_program
from shardwright.cost.breakdown import Breakdown, peak_breakdown
from shardwright.cost.cost import Cost
from shardwright.cost.devices import Device
from shardwright.cost.devices import device as find_device
from shardwright.cost.model import CostModel, model_collectives
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.plan import Bound, Plan
from shardwright.program.arguments import asks_which
from shardwright.program.tracing import trace_call
from shardwright.program.types import Program
from shardwright.record import build_record
from shardwright.search import Found, search
from shardwright.search.exact import Certificate
from shardwright.spmd.decisions import Entry, State
from shardwright.spmd.ir import Collective

# A large argument kept whole is worth a warning from this part of all argument bytes on.
LARGE = 0.01


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
        """The part of the step that the better plan saves."""
        return 1.0 - self.better.cost.step_s / self.cost.step_s if self.better else 0.0

    @property
    def ok(self) -> bool:
        """Whether it fits and nothing is wrong with it; a better plan may still exist."""
        return not self.warnings

    def __str__(self) -> str:
        from shardwright.report.check import format_check

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
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    seconds: float | None = None,
    compare: bool = True,
    **kwargs: Any,
) -> Check:
    """The judgement of `in_shardings` (as jax.jit takes them; PartitionSpecs will do).

    Intermediates are assumed to follow the arguments in the cheapest way; a compiler left to
    itself may do worse. `.plan` holds that way, ready to run.
    """
    from shardwright.api import numbers

    axes, chip = Mesh.of(mesh), find_device(device)
    program = trace_call(fn, args, kwargs, static_argnums, donate_argnums, axes)
    analysis = analyze_program(program)
    given, warnings = resolve(program, args, in_shardings, axes)
    pinned = dict(given)
    for position, source in program.aliases.items():
        pinned[program.outputs[position]] = given[source]
    model = CostModel(analysis, axes, chip, pinned=pinned)
    state = cheapest_order(model, claimed_groups(analysis, given, axes))
    limit = chip.usable_bytes if memory is None else int(memory)
    cost, breakdown = model.cost(state), peak_breakdown(model, state)
    if cost.peak_bytes > limit:
        warnings.append(
            f"does not fit: {cost.peak_bytes / 1e9:.2f} GB per device of {limit / 1e9:.2f} GB"
        )
    warnings += large_replicated(program, given)
    options = {
        "static_argnums": numbers(static_argnums), "donate_argnums": numbers(donate_argnums),
        "labels": {}, "seed": 0, "tactics": [],
    }  # fmt: skip
    by_hand = {str(v): [list(d) for d in dims] for v, dims in pinned.items()}
    plan = _as_plan(
        fn, program, model, state, options | {"tactics": ["given by hand"], "pinned": by_hand}
    )
    better = None
    if compare:
        better = _better(fn, program, analysis, axes, chip, limit, cost, seconds, options)
    rows = model_collectives(model, state)
    return Check(cost, breakdown, rows, warnings, plan, better)


def resolve(
    program: Program, args: tuple[Any, ...], in_shardings: Any, mesh: Mesh
) -> tuple[dict[int, tuple[tuple[int, ...], ...]], list[str]]:
    """({input value: axes per dim}, warnings) of a tree (or prefix) of shardings."""
    signature = program.signature
    wanted = in_shardings if isinstance(in_shardings, tuple | list) else (in_shardings,) * len(args)
    dynamic = [a for i, a in enumerate(args) if i not in signature.static_argnums]
    if len(wanted) != len(dynamic):
        raise ShardwrightError(
            f"in_shardings has {len(wanted)} entries for {len(dynamic)} arguments",
            try_="one tree per argument, as jax.jit takes them",
        )
    flat: list[Any] = []
    for argument, spec in zip(dynamic, wanted, strict=True):
        flat += _broadcast(spec, argument)
    flat += [None] * (len(program.inputs) - len(flat))  # keyword arguments: whole
    given: dict[int, tuple[tuple[int, ...], ...]] = {}
    warnings: list[str] = []
    for value, spec in zip(program.inputs, flat, strict=True):
        v = program.values[value]
        dims: list[tuple[int, ...]] = []
        parts = tuple(_spec(spec, v.path or ""))
        if len(parts) > len(v.shape):
            raise ShardwrightError(
                f"{v.path} has {len(v.shape)} dims, its PartitionSpec {len(parts)}: {spec}"
            )
        flat_names = [n for part in parts for n in (part if isinstance(part, tuple) else (part,))]
        for name in mesh.names:
            if flat_names.count(name) > 1:
                raise ShardwrightError(
                    f"{v.path} is to be split over {name!r} twice: {spec}",
                    try_="an axis splits one dim of an array",
                )
        for d, size in enumerate(v.shape):
            names = parts[d] if d < len(parts) else None
            names = () if names is None else (names,) if isinstance(names, str) else tuple(names)
            for name in names:
                if name not in mesh.names:
                    raise ShardwrightError(
                        f"{v.path} is to be split over {name!r}, which the mesh does not have",
                        try_=", ".join(mesh.names),
                    )
            split = 1
            for name in names:
                split *= mesh.shape[name]
            if size % split:
                warnings.append(
                    f"{v.path} dim {d} of size {size} does not divide by {split}"
                    f" ({'+'.join(names)}): JAX will refuse it; counted as whole"
                )
                names = ()
            dims.append(tuple(mesh.names.index(name) for name in names))
        given[value] = tuple(dims)
    return given, warnings


def _broadcast(spec: Any, argument: Any) -> list[Any]:
    """One sharding per array leaf of an argument."""
    from shardwright.program.arguments import is_array

    is_leaf = _is_sharding
    try:
        leaves = jax.tree.broadcast(spec, argument, is_leaf=is_leaf)
    except ValueError:
        raise ShardwrightError(
            "in_shardings has another structure than the arguments",
            given=jax.tree.structure(spec, is_leaf=is_leaf),
            arguments=jax.tree.structure(argument),
            try_="a tree like the argument, or one sharding for all of it",
        ) from None
    shardings = jax.tree.leaves(leaves, is_leaf=is_leaf)
    kept = [is_array(x) for x in jax.tree.leaves(argument)]
    return [s for s, yes in zip(shardings, kept, strict=True) if yes]


def _is_sharding(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec | jax.sharding.Sharding)


def _spec(sharding: Any, path: str) -> Sequence[Any]:
    if sharding is None:
        return ()
    if isinstance(sharding, PartitionSpec):
        return tuple(sharding)
    if isinstance(sharding, NamedSharding):
        return tuple(sharding.spec)
    raise ShardwrightError(
        f"{path}: cannot judge a {type(sharding).__name__}",
        try_="a PartitionSpec or a NamedSharding",
    )


def claimed_groups(
    analysis: Analysis, given: Mapping[int, tuple[tuple[int, ...], ...]], mesh: Mesh
) -> list[list[int]]:
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
    best_s = float(model.evaluate([best]).step_s[0])
    while True:
        states = [
            (*best[:axis], order, *best[axis + 1 :])
            for axis, entries in enumerate(best)
            for order in _reorderings(entries)
        ]
        if not states:
            return best
        seconds = model.evaluate(states).step_s
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


def large_replicated(
    program: Program, given: Mapping[int, tuple[tuple[int, ...], ...]]
) -> list[str]:
    """Arguments that every device keeps whole and that matter."""
    total = sum(program.values[v].bytes for v in given) or 1
    return [
        f"{program.values[v].path} ({program.values[v].bytes / 1e6:.1f} MB)"
        " is on every device whole"
        for v, dims in given.items()
        if not any(dims) and program.values[v].bytes >= LARGE * total
    ]


def _as_plan(
    fn: Callable[..., Any], program: Program, model: CostModel, state: State,
    options: dict[str, Any],
) -> Plan:  # fmt: skip
    """The given sharding as a plan."""
    from shardwright.api import describe

    cost = model.cost(state)
    found = Found(state, dict(model.overrides), cost, Certificate.none(), {}, 0, ("given by hand",))
    record = build_record(
        program.name, model, state, found=describe(found, [], None), options=options
    )
    return Plan(record, Bound(fn, program, model, state))


def _better(
    fn: Callable[..., Any], program: Program, analysis: Analysis, mesh: Mesh, device: Device,
    limit: int, cost: Cost, seconds: float | None, options: dict[str, Any],
) -> Plan | None:  # fmt: skip
    """A plan that is faster, or that fits where the given one does not."""
    from shardwright.api import describe

    model = CostModel(analysis, mesh, device)
    found = search(model, memory=limit, seconds=seconds)
    if found.cost.step_s >= cost.step_s and cost.peak_bytes <= limit:
        return None
    model.overrides = dict(found.overrides)
    record = build_record(
        program.name, model, found.state, found=describe(found, [], limit), options=options
    )
    return Plan(record, Bound(fn, program, model, found.state))
