"""A schedule of tactics -> where the search starts and what it may do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from shardwright.errors import ShardwrightError
from shardwright.search.tactics import (
    Context,
    Limit,
    NotApplicable,
    Pin,
    Replicate,
    Search,
    Strategy,
    Tactic,
)  # fmt: skip
from shardwright.spmd.decisions import Entry, State, append, empty
from shardwright.spmd.layout import WHOLE, Placement


@dataclass(frozen=True, slots=True)
class Wish:
    """One group that must be first on one axis, and who says so."""

    axis: int
    group: int
    said: str
    values: tuple[int, ...] = ()  # that must end up so
    dim: int = 0
    must: bool = True  # else it is followed where other wishes leave room


@dataclass(frozen=True, slots=True)
class Schedule:
    """The start of a search and its limits."""

    start: State
    axes: tuple[int, ...]  # that may grow
    allowed: Callable[[int, int], bool]
    overrides: dict[int, Placement]
    free: bool  # nothing was asked: every strategy is a candidate
    notes: tuple[str, ...] = field(default=())  # what was said and is not followed


def plan_schedule(context: Context, tactics: Sequence[Tactic] | None) -> Schedule:
    """What a list of tactics, and the pins in the user's code, mean for one program and mesh."""
    model = context.model
    tactics = tuple(tactics or ())
    strategies = [t for t in tactics if hasattr(t, "entries")]
    searches = [t for t in tactics if isinstance(t, Search)]
    unknown = [t for t in tactics if not isinstance(t, Tactic)]
    if unknown:
        raise ShardwrightError(
            f"not a tactic: {unknown[0]!r}", try_='DataParallel("data"), Search(axes=["model"])'
        )
    wishes = [w for t in tactics if isinstance(t, Pin) for w in _wishes(context, t)]
    written = _written(context)
    wishes += [w for w in written if w.must]
    wishes, ignored = _add_possible(context, wishes, [w for w in written if not w.must])
    state = _listed(context, wishes)
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
    _check(context, state, wishes, tactics, overrides, banned)
    axes = _axes(context, searches, bool(strategies))

    def allowed(axis: int, group: int) -> bool:
        return group not in banned and (axis not in limits or group in limits[axis])

    free = not wishes and not strategies and not banned and not limits and not overrides
    return Schedule(
        state, axes, allowed, overrides, free and len(axes) == len(model.mesh.sizes),
        tuple(f"not followed: {said}" for said in dict.fromkeys(w.said for w in ignored)),
    )  # fmt: skip


def _listed(context: Context, wishes: Sequence[Wish]) -> State:
    """Lists of the groups wished for: in an order that meets all wishes if one is found.

    On a residual stream the sequence may be wished for and on the hidden layer its features: a
    hidden value has both dims, so the features come first in the list.
    """
    state = empty(len(context.model.mesh.sizes))
    for wish in wishes:
        if wish.group not in {e.group for e in state[wish.axis]}:
            state = append(state, wish.axis, Entry(wish.group))
    first, seen = state, {state}
    while True:
        clash = next(((w, g) for w, g in _unmet(context, state, wishes) if g is not None), None)
        if clash is None:
            return state
        wish, taken = clash
        groups = [e.group for e in state[wish.axis] if e.group != wish.group]
        if taken not in groups:  # the same group on another dim
            return first
        groups.insert(groups.index(taken), wish.group)
        moved = tuple(Entry(g) for g in groups)
        state = (*state[: wish.axis], moved, *state[wish.axis + 1 :])
        if state in seen:
            return first
        seen.add(state)


def _unmet(
    context: Context, state: State, wishes: Sequence[Wish]
) -> Iterator[tuple[Wish, int | None]]:
    """The wishes that these lists do not meet, and the group that took the axis, if one did."""
    layouts = context.model.layouts
    placements, _ = layouts.place([state])
    for wish in wishes:
        for v in wish.values:
            index = int(layouts.of_value[v])
            got = int(placements[0, index, wish.axis])
            if got == WHOLE:
                yield wish, None
            elif layouts.table[index].atoms[got].dim != wish.dim:
                yield wish, layouts.table[index].atoms[got].group


def _add_possible(
    context: Context, wishes: list[Wish], more: Sequence[Wish]
) -> tuple[list[Wish], list[Wish]]:
    """(these wishes and as many more as can be met together, the rest)."""
    kept, ignored = list(wishes), []
    for wish in more:
        both = [*kept, wish]
        if any(True for _ in _unmet(context, _listed(context, both), both)):
            ignored.append(wish)
        else:
            kept = both
    return kept, ignored


def _axes(context: Context, searches: Sequence[Search], strategies: bool) -> tuple[int, ...]:
    """A schedule with strategies and no Search is taken as written."""
    if not searches:
        return () if strategies else tuple(range(len(context.model.mesh.sizes)))
    named: set[int] = set()
    for s in searches:
        names = context.model.mesh.names if s.axes is None else s.axes
        named |= {context.axis(name) for name in names}
    return tuple(sorted(named))


def matching(context: Context, pattern: str) -> list[int]:
    """Input values whose path matches; * stands for anything, a bare name for a path's end."""
    program = context.model.analysis.program
    escaped = pattern.replace("[", "[[]")
    return [
        v for v in program.inputs
        if fnmatchcase(path := program.values[v].path or "", escaped)
        or path.endswith((f"['{pattern}']", f".{pattern}")) or path == pattern
    ]  # fmt: skip


def _wishes(context: Context, pin: Pin) -> list[Wish]:
    axis = context.axis(pin.axis)
    for group in context.model.analysis.all_groups:
        if group.label == pin.what and pin.dim is None:
            return [Wish(axis, group.index, str(pin))]
    values = matching(context, pin.what)
    if not values:
        labels = ", ".join(g.label for g in context.model.analysis.groups)
        raise ShardwrightError(f"{pin} matches no argument and no group", try_=labels)
    if pin.dim is None:
        raise ShardwrightError(f"{pin} needs a dim", try_=f"Pin({pin.what!r}, 0, {pin.axis!r})")
    groups_of = context.roles.groups_of
    by_group: dict[int, list[int]] = {}
    for v in values:
        for g, dim in groups_of[v]:
            if dim == pin.dim:
                by_group.setdefault(g, []).append(v)
                break
    if not by_group:
        raise ShardwrightError(f"{pin}: no matching argument has something to split there")
    return [Wish(axis, g, str(pin), tuple(vs), pin.dim) for g, vs in by_group.items()]


def _written(context: Context) -> list[Wish]:
    """The shardings in the user's code, as far as their axes are in the mesh.

    A constraint must be met. Programs for explicit axes say where every result goes and may send
    it elsewhere in the next line, so theirs are followed as far as they go together.
    """
    model, program = context.model, context.model.analysis.program
    out: dict[tuple[int, int, int, int, str], Wish] = {}  # equal layers say equal things
    for pin in program.pins:
        for dim, axis in _split_dims(pin.sharding, model.mesh.names):
            group = next((g for g, d in context.roles.groups_of[pin.value] if d == dim), None)
            if group is None:
                continue
            spec, layout = pin.sharding.spec, int(model.layouts.of_value[pin.value])
            said = f"{pin.by}({spec}) at {program.where(pin.value)}"
            wish = Wish(
                axis, group, said, (pin.value,), dim, must=pin.by == "with_sharding_constraint"
            )
            out.setdefault((axis, group, layout, dim, pin.by), wish)
    return list(out.values())


def _split_dims(sharding: Any, names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """(dim, axis) of every split that a sharding asks for on a mesh with these axis names."""
    for dim, on in enumerate(getattr(sharding, "spec", ())):
        for name in on if isinstance(on, tuple) else (on,):
            if isinstance(name, str) and name in names:
                yield dim, names.index(name)


def _replicated(
    context: Context, tactics: Sequence[Tactic]
) -> tuple[dict[int, Placement], set[int]]:
    overrides: dict[int, Placement] = {}
    banned: set[int] = set()
    whole = (WHOLE,) * len(context.model.mesh.sizes)
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
    context: Context, state: State, wishes: Sequence[Wish], tactics: Sequence[Tactic],
    overrides: dict[int, Placement], banned: set[int],
) -> None:  # fmt: skip
    """Raises unless every wish is met; shows the two that contradict each other."""
    model = context.model
    if not wishes:
        return
    placements, _ = model.layouts.place([state])
    for wish in wishes:
        layouts = {int(model.layouts.of_value[v]) for v in wish.values}
        if wish.group in banned or layouts & set(overrides):
            clash = next(str(t) for t in tactics if isinstance(t, Replicate))
            raise ShardwrightError(
                "contradictory tactics", one=wish.said, other=clash, try_="only one of them"
            )
        for v in wish.values:
            layout = model.layouts.table[int(model.layouts.of_value[v])]
            got = int(placements[0, model.layouts.of_value[v], wish.axis])
            if got != WHOLE and layout.atoms[got].dim == wish.dim:
                continue
            where = model.analysis.program.where(v)
            name, n = model.mesh.axes[wish.axis]
            if got == WHOLE:
                raise ShardwrightError(
                    f"cannot split dim {wish.dim} of {where} over {name}={n}",
                    pin=wish.said,
                    shape=model.analysis.program.values[v].shape,
                    try_="an axis that divides the dim",
                )
            taken = layout.atoms[got].group
            other = next((w.said for w in wishes if w.group == taken and w.axis == wish.axis), None)
            raise ShardwrightError(
                f"contradictory pins on {where}: axis {name!r} splits one dim of a value",
                one=other or context.label(taken), other=wish.said, try_="only one of them",
            )  # fmt: skip


__all__ = ["Schedule", "Strategy", "Wish", "matching", "plan_schedule"]
