"""A schedule of tactics -> where the search starts and what it may do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.search.constraints import over_axes
from shardwright.search.requests import (
    Request,
    add_possible,
    axes_not_in_mesh,
    listed,
    matching,
    pinned_requests,
    requests_in_code,
    why_replicated,
)  # fmt: skip
from shardwright.search.tactics import Context, Limit, NotApplicable, Replicate, Search, Tactic
from shardwright.spmd.decisions import State, append, decide
from shardwright.spmd.layout import REPLICATED, Placement


@dataclass(frozen=True, slots=True)
class ResolvedTactics:
    """The start of a search and its limits."""

    start: State
    axes: tuple[int, ...]  # that may grow
    allowed: Callable[[int, int], bool]
    overrides: dict[int, Placement]
    free: bool  # nothing was asked: single layouts may be stored in another way
    pins: State  # the lists of pins alone, the start of every baseline
    any_strategy: bool  # none was asked for: every baseline is a candidate
    pins_in_code: int = 0  # shardings in the user's code that are followed
    notes: tuple[str, ...] = field(default=())  # what was said and is not followed


def resolve_tactics(context: Context, tactics: Sequence[Tactic] | None) -> ResolvedTactics:
    """What a list of tactics, and the pins in the user's code, mean for one program and mesh."""
    model = context.model
    tactics = over_axes(tactics or ())
    strategies = [t for t in tactics if hasattr(t, "entries")]
    searches = [t for t in tactics if isinstance(t, Search)]
    unknown = [t for t in tactics if not isinstance(t, Tactic)]
    if unknown:
        raise ShardwrightError(
            f"not a tactic: {unknown[0]!r}", try_='DataParallel("data"), Search(axes=["model"])'
        )
    requests = pinned_requests(context, tactics)
    written = requests_in_code(context)
    requests += [w for w in written if w.must]
    requests, ignored = add_possible(context, requests, [w for w in written if not w.must])
    state = pins = listed(context, requests)
    for tactic in strategies:
        axis = context.axis(tactic.axis)  # type: ignore[attr-defined]
        found = tactic.entries(context, state[axis])  # type: ignore[attr-defined]
        if isinstance(found, NotApplicable):
            raise ShardwrightError(
                f"{tactic} does not apply", cause=found, try_="another axis, or Search()"
            )
        for entry in found:
            state = append(state, axis, entry)
    overrides, banned = _replicated(context, tactics)
    limits = _limits(context, tactics)
    _check(context, state, requests, tactics, overrides, banned)
    axes = _axes(context, searches, bool(strategies))

    def allowed(axis: int, group: int) -> bool:
        if group in banned or _crowds_out(context, requests, axis, group):
            return False
        return axis not in limits or group in limits[axis]

    any_strategy = not strategies and len(axes) == len(model.mesh.sizes)
    bound = banned or limits or overrides or any(request.binds for request in requests)
    free = any_strategy and not bound
    return ResolvedTactics(
        state, axes, allowed, overrides, free, pins, any_strategy, len(written) - len(ignored),
        (
            *(f"not followed: {said}" for said in dict.fromkeys(w.said for w in ignored)),
            *axes_not_in_mesh(context),
        ),
    )  # fmt: skip


def _crowds_out(context: Context, requests: Sequence[Request], axis: int, group: int) -> bool:
    """Whether a group on this axis takes a pinned dim from an axis that comes later in the mesh.

    Axes split a dim one after the other: 8 entries over data=4 leave nothing for model=4.
    """
    sizes, values = context.model.mesh.sizes, context.model.analysis.program.values
    return any(
        values[v].shape[w.dim] % (sizes[axis] * sizes[w.axis])
        for w in requests
        if w.group == group and axis < w.axis
        for v in w.values
    )


def _axes(context: Context, searches: Sequence[Search], strategies: bool) -> tuple[int, ...]:
    """A schedule with strategies and no Search is taken as written."""
    if not searches:
        return () if strategies else tuple(range(len(context.model.mesh.sizes)))
    named: set[int] = set()
    for s in searches:
        names = context.model.mesh.names if s.axes is None else s.axes
        named |= {context.axis(name) for name in names}
    return tuple(sorted(named))


def _replicated(
    context: Context, tactics: Sequence[Tactic]
) -> tuple[dict[int, Placement], set[int]]:
    """(layouts that stay replicated, groups that nothing splits) as Replicate says."""
    overrides: dict[int, Placement] = {}
    banned: set[int] = set()
    whole = (REPLICATED,) * len(context.model.mesh.sizes)
    for t in tactics:
        if not isinstance(t, Replicate):
            continue
        labelled = [g.index for g in context.model.analysis.all_groups if g.label == t.what]
        values = matching(context, t.what)
        if not labelled and not values:
            labels = ", ".join(g.label for g in context.model.analysis.groups)
            raise ShardwrightError(f"{t} matches no argument and no group", try_=labels)
        banned.update(labelled)
        for v in values:
            overrides[int(context.model.layouts.of_value[v])] = whole
    return overrides, banned


def _limits(context: Context, tactics: Sequence[Tactic]) -> dict[int, set[int]]:
    """{axis: groups that it may split} as Limit says."""
    known = {g.label: g.index for g in context.model.analysis.all_groups}
    limits: dict[int, set[int]] = {}
    for t in tactics:
        if isinstance(t, Limit):
            for label in t.labels:
                if label not in known:
                    raise ShardwrightError(
                        f"{t} names an unknown group {label!r}", try_=", ".join(known)
                    )
            mine = {known[label] for label in t.labels}
            axis = context.axis(t.axis)
            limits[axis] = limits.get(axis, mine) & mine
    return limits


def _check(
    context: Context, state: State, requests: Sequence[Request], tactics: Sequence[Tactic],
    overrides: dict[int, Placement], banned: set[int],
) -> None:  # fmt: skip
    """Raises unless every request is met; shows the two that contradict each other."""
    model = context.model
    if not requests:
        return
    placements, _ = model.place([decide(state)])
    for request in requests:
        layouts = {int(model.layouts.of_value[v]) for v in request.values}
        if request.group in banned or layouts & set(overrides):
            clash = next(str(t) for t in tactics if isinstance(t, Replicate))
            raise ShardwrightError(
                "contradictory tactics", one=request.said, other=clash, try_="only one of them"
            )
        for v in request.values:
            layout = model.layouts.table[int(model.layouts.of_value[v])]
            got = int(placements[0, model.layouts.of_value[v], request.axis])
            if got != REPLICATED and layout.atoms[got].dim == request.dim:
                continue
            where = model.analysis.program.where(v)
            name, n = model.mesh.axes[request.axis]
            if v in model.pinned:
                raise ShardwrightError(
                    f"contradictory pins on {where}: it is shared with another plan",
                    one=_where_pinned(model, v), other=request.said,
                    try_="the same Pin for the plan that is shared, or no Pin here",
                )  # fmt: skip
            if got == REPLICATED:
                shape = model.analysis.program.values[v].shape
                raise ShardwrightError(
                    f"cannot split dim {request.dim} of {where} over {name}={n}",
                    pin=request.said,
                    shape=shape,
                    **why_replicated(
                        context, shape, layout, placements[0, model.layouts.of_value[v]], request
                    ),
                )
            taken = layout.atoms[got].group
            other = next(
                (w.said for w in requests if w.group == taken and w.axis == request.axis), None
            )
            raise ShardwrightError(
                f"contradictory pins on {where}: axis {name!r} splits one dim of a value",
                one=other or context.label(taken), other=request.said, try_="only one of them",
            )  # fmt: skip


def _where_pinned(model: CostModel, value: int) -> str:
    """dim 0 over data, dim 1 over model"""
    names = model.mesh.names
    rows = [(d, [names[a] for a in on]) for d, on in enumerate(model.pinned[value]) if on]
    return ", ".join(f"dim {d} over {' and '.join(on)}" for d, on in rows) or "replicated"
