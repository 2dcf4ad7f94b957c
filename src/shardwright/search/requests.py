"""What pins and the shardings in the user's code ask for, and lists that meet the requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwright.analysis.analysis import Analysis
from shardwright.analysis.labels import fits
from shardwright.cost.devices import Device
from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.program.types import Program, UserPin
from shardwright.search.constraints import over_axes
from shardwright.search.roles import find_roles
from shardwright.search.tactics import Context, ExpertParallel, Pin, Tactic
from shardwright.spmd.decisions import Entry, State, append, empty
from shardwright.spmd.layout import NO_BIT, REPLICATED, Atom, Layout

Dims = tuple[tuple[int, ...], ...]  # axes per dim
MOST_ADVISED = 64  # a larger axis is not advised


@dataclass(frozen=True, slots=True)
class Request:
    """One group that must be first on one axis, and who says so."""

    axis: int
    group: int
    said: str
    values: tuple[int, ...] = ()  # that must end up so
    dim: int = 0
    must: bool = True  # else it is followed where other requests leave room
    binds: bool = True  # else refinement may store single layouts in another way


def matching(context: Context, pattern: str) -> list[int]:
    """Input values whose path matches, as JAX or as reports write it.

    * stands for anything, a bare name for a path's end.
    """
    program = context.model.analysis.program
    if not isinstance(pattern, str):
        raise ShardwrightError(
            f"a tactic names {pattern!r:.60}, which is no argument path and no label",
            try_="\"params['w1']\", or \"*['w1']\"",
        )
    paths = {v: program.values[v].path or "" for v in program.inputs}
    return [v for v, path in paths.items() if fits(path, pattern) or fits(path, f"*.{pattern}")]


def pinned_requests(context: Context, tactics: Iterable[Tactic]) -> list[Request]:
    """What the Pins among these tactics ask for."""
    pins = [t for t in over_axes(tactics) if isinstance(t, Pin)]
    return [request for pin in pins for request in _requests(context, pin, pins)]


def _requests(context: Context, pin: Pin, pins: Sequence[Pin]) -> list[Request]:
    """What one pin asks for: a request for each group that can take it."""
    axis = context.axis(pin.axis)
    for group in context.model.analysis.all_groups:
        if group.label == pin.what and pin.dim is None:
            return [Request(axis, group.index, str(pin))]
    values = matching(context, pin.what)
    if not values:
        labels = ", ".join(g.label for g in context.model.analysis.groups)
        raise ShardwrightError(f"{pin} matches no argument and no group", try_=labels)
    if pin.dim is None:
        raise ShardwrightError(f"{pin} needs a dim", try_=f"Pin({pin.what!r}, 0, {pin.axis!r})")
    first = [p for p in pins if p.dim == pin.dim and context.axis(p.axis) < axis]
    beside = [(context.axis(p.axis), set(matching(context, p.what))) for p in first]
    by_group: dict[int, list[int]] = {}
    for v in values:
        taker = _taker(context, v, pin.dim, [a for a, pinned in beside if v in pinned])
        if taker is not None:
            by_group.setdefault(taker, []).append(v)
    if not by_group:
        program = context.model.analysis.program
        dims = sorted({dim for v in values for _, dim in context.roles.groups_of[v]})
        raise ShardwrightError(
            f"{pin}: no matching argument has something to split there",
            shape=program.values[values[0]].shape,
            try_=f"dim {' or '.join(map(str, dims))}" if dims else "an argument with larger dims",
        )
    return [Request(axis, g, str(pin), tuple(vs), pin.dim) for g, vs in by_group.items()]


def _taker(context: Context, value: int, dim: int, before: Sequence[int]) -> int | None:
    """The group that takes one more axis of a dim: of its first part that is not split up yet.

    A dim that a reshape makes 2 x 4 is split by an axis of 2, and then by one of 4.
    """
    model = context.model
    layout = model.layouts.table[int(model.layouts.of_value[value])]
    atoms = [a for a in layout.atoms if a.dim == dim]
    left = [a.size for a in atoms]

    def first() -> int:
        return next((i for i, size in enumerate(left) if size > 1), 0)

    for axis in sorted(before) if atoms else ():
        left[first()] //= model.mesh.sizes[axis]
    return atoms[first()].group if atoms else None


def requests_in_code(context: Context) -> list[Request]:
    """What the shardings in the user's code ask for."""
    return list(_apart(context, _said(context)))


def _said(context: Context) -> Iterator[tuple[UserPin, Request]]:
    """The shardings in the user's code, as far as their axes are in the mesh.

    A constraint must be met. Programs for explicit axes say where every result goes and may send
    it elsewhere in the next line, so theirs are followed as far as they go together.
    """
    model, program = context.model, context.model.analysis.program
    for pin in program.pins:
        if pin.value in model.pinned:
            continue  # it is there already
        split = list(_split_dims(pin.sharding, model.mesh.names))
        for dim, axis in split:
            before = [a for d, a in split if d == dim and a < axis]
            group = _taker(context, pin.value, dim, before)
            if group is not None:
                said = f"{pin.by}({pin.sharding.spec}) at {program.where(pin.value)}"
                must = pin.by == "with_sharding_constraint"
                binds = pin.by != "shard_map"
                yield pin, Request(axis, group, said, (pin.value,), dim, must=must, binds=binds)


def axes_not_in_mesh(context: Context) -> list[str]:
    """What shardings in the user's code say of axes that the mesh does not have, once per axis."""
    program, known = context.model.analysis.program, context.model.mesh.names
    said: dict[str, list[UserPin]] = {}
    for pin in program.pins:
        for axis in dict.fromkeys(axis for _, axis in _named_axes(pin.sharding)):
            if axis not in known:
                said.setdefault(axis, []).append(pin)
    return [
        f"not followed: the mesh has no axis {axis!r} of"
        f" {pins[0].by}({pins[0].sharding.spec}) at {program.where(pins[0].value)}"
        + (f" and {len(pins) - 1} more" if len(pins) > 1 else "")
        for axis, pins in said.items()
    ]


def _apart(context: Context, said: Iterable[tuple[UserPin, Request]]) -> Iterator[Request]:
    """The requests, those of equal layers once."""
    seen: set[tuple[Any, ...]] = set()
    for pin, request in said:
        key = (
            request.axis,
            request.group,
            context.model.layouts.of_value[pin.value],
            request.dim,
            pin.by,
        )
        if key not in seen:
            seen.add(key)
            yield request


def _named_axes(sharding: Any) -> Iterator[tuple[int, str]]:
    """(dim, axis name) of every split that a sharding asks for."""
    for dim, on in enumerate(getattr(sharding, "spec", ())):
        for name in on if isinstance(on, tuple) else (on,):
            if isinstance(name, str):
                yield dim, name


def _split_dims(sharding: Any, names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """(dim, axis) of every split that a sharding asks for on a mesh with these axis names."""
    for dim, name in _named_axes(sharding):
        if name in names:
            yield dim, names.index(name)


def listed(context: Context, requests: Sequence[Request]) -> State:
    """Lists of the groups asked for: in an order that meets all requests if one is found.

    On a residual stream the sequence may be asked for and on the hidden layer its features: a
    hidden value has both dims, so the features come first in the list. Of two dims of one group
    ([S, S] scores) the resolution gives the one that is asked for.
    """
    state = empty(len(context.model.mesh.sizes))
    for request in requests:
        if request.group not in {e.group for e in state[request.axis]}:
            state = append(state, request.axis, Entry(request.group))
    first, seen = state, {state}
    while True:
        clash = next(((w, g) for w, g in unmet(context, state, requests) if g is not None), None)
        if clash is None:
            return state
        request, taken = clash
        if taken == request.group:  # on another dim
            axis = _holder(context, state, request)
            entries = tuple([
                _resolved(context, e, request, axis) if e.group == taken else e for e in state[axis]
            ])  # fmt: skip
        else:
            axis = request.axis
            mine = next(e for e in state[axis] if e.group == request.group)
            others = [e for e in state[axis] if e.group != request.group]
            at = next(i for i, e in enumerate(others) if e.group == taken)
            entries = (*others[:at], mine, *others[at:])
        state = (*state[:axis], entries, *state[axis + 1 :])
        if state in seen:
            return first
        seen.add(state)


def _asked(context: Context, request: Request) -> Iterator[tuple[int, int, Atom]]:
    """(layout, number, atom) of what a request asks for, where a resolution decides about it."""
    layouts = context.model.layouts
    for v in request.values:
        index = int(layouts.of_value[v])
        for j, atom in enumerate(layouts.table[index].atoms):
            if (atom.group, atom.dim) == (request.group, request.dim) and atom.bit != NO_BIT:
                yield index, j, atom
                break


def _holder(context: Context, state: State, request: Request) -> int:
    """The axis whose entry of the group must change: one that has what is asked for, or its own."""
    placements, _ = context.model.layouts.place([state])
    for index, atom, _ in _asked(context, request):
        for axis, got in enumerate(placements[0, index].tolist()):
            if got == atom and any(e.group == request.group for e in state[axis]):
                return axis
    return request.axis


def _resolved(context: Context, entry: Entry, request: Request, axis: int) -> Entry:
    """The entry with its group's resolution for the dim asked for; of another axis, against it."""
    for _, _, atom in _asked(context, request):
        side = atom.side if axis == request.axis else 1 - atom.side
        return entry._replace(bits=entry.bits & ~(1 << atom.bit) | side << atom.bit)
    return entry


def unmet(
    context: Context, state: State, requests: Sequence[Request]
) -> Iterator[tuple[Request, int | None]]:
    """The requests that these lists do not meet, and the group that took the axis, if one did."""
    layouts = context.model.layouts
    placements, _ = layouts.place([state])
    for request in requests:
        for v in request.values:
            index = int(layouts.of_value[v])
            got = int(placements[0, index, request.axis])
            if got == REPLICATED:
                yield request, None
            elif layouts.table[index].atoms[got].dim != request.dim:
                yield request, layouts.table[index].atoms[got].group


def add_possible(
    context: Context, requests: list[Request], more: Sequence[Request]
) -> tuple[list[Request], list[Request]]:
    """(these requests and as many more as can be met together, the rest)."""
    kept, ignored = list(requests), []
    for request in more:
        both = [*kept, request]
        if any(True for _ in unmet(context, listed(context, both), both)):
            ignored.append(request)
        else:
            kept = both
    return kept, ignored


def reshards(context: Context, tactics: Sequence[Tactic] | None) -> dict[int, Dims]:
    """{value: axes per dim} of the constraints that no lists meet together with those before them.

    Two constraints on one stream of values that differ are a reshard: the first is what the lists
    say, and the second, of a value of its own, is where that value is kept.
    """
    pins = pinned_requests(context, tactics or ())
    said = [(pin, request) for pin, request in _said(context) if request.must]
    kept, rest = add_possible(context, pins, list(_apart(context, said)))
    if not rest:
        return {}
    state = listed(context, kept)
    for request in rest:  # behind: met where they clash with nothing
        if request.group not in {e.group for e in state[request.axis]}:
            state = append(state, request.axis, Entry(request.group))
    pin_of = {id(request): pin for pin, request in said}
    clashing = [w for w, taken in unmet(context, state, [w for _, w in said]) if taken is not None]
    asked = {pin.value: pin for pin in (pin_of[id(request)] for request in clashing)}
    return {v: dims for v, pin in asked.items() if (dims := _axes_per_dim(context, pin))}


def constrained_model(
    analysis: Analysis,
    mesh: Mesh,
    device: Device,
    tactics: Sequence[Tactic] | None = None,
    *,
    overlap: float | None = None,
    pinned: Mapping[int, Dims] | None = None,
) -> CostModel:
    """The model of a program, with the values that the user's code reshards where it says.

    `pinned` are values whose place is given: those shared with another plan. Grouped dots send rows
    to their experts only where a tactic asks for it: each dot would choose by its own moves alone,
    and a gather of weights hides where rows that are sent do not.
    """
    if any(isinstance(tactic, ExpertParallel) for tactic in tactics or ()) and not device.expands:
        device = replace(device, sends_rows=True)
    given = dict(pinned or {})
    model = CostModel(analysis, mesh, device, overlap=overlap, pinned=given)
    if not any(pin.by == "with_sharding_constraint" for pin in analysis.program.pins):
        return model
    more = reshards(Context(model, find_roles(analysis)), tactics)
    if not more:
        return model
    return CostModel(analysis, mesh, device, overlap=overlap, pinned={**more, **given})


def _axes_per_dim(context: Context, pin: UserPin) -> Dims:
    """The axes of a sharding; nothing when one of them does not divide its dim."""
    mesh, shape = context.model.mesh, context.model.analysis.program.values[pin.value].shape
    dims: list[list[int]] = [[] for _ in shape]
    for dim, axis in _split_dims(pin.sharding, mesh.names):
        dims[dim].append(axis)
    even = all(
        size % math.prod(mesh.sizes[a] for a in on) == 0
        for size, on in zip(shape, dims, strict=True)
    )
    return tuple(map(tuple, dims)) if even else ()


def _cut_by(program: Program, request: Request) -> str:
    """What makes a dim several factors: the blocks of a kernel that reads it, else a reshape."""
    for v in request.values:
        for op in (program.ops[u] for u in program.uses()[v]):
            dims = [slot for o, slot in zip(op.operands, op.rule.operands, strict=True) if o == v]
            if op.rule.kernel and any(len(slot[request.dim]) > 1 for slot in dims):
                return f"the blocks of the kernel at {op.source} make"
    return "a reshape makes"


def why_replicated(
    context: Context, shape: Sequence[int], layout: Layout, placement: Sequence[int],
    request: Request,
) -> dict[str, str]:  # fmt: skip
    """Why an axis cannot take a dim, and which could: facts of an error."""
    if 0 in shape:
        return {"cause": "the array has no entries", "try_": "no pin of it"}
    mesh = context.model.mesh
    parts = {j: a.size for j, a in enumerate(layout.atoms) if a.dim == request.dim}
    left, on = dict(parts), []
    for axis, atom in enumerate(placement):
        if atom in left:
            left[atom] //= mesh.sizes[axis]
            on.append(f"{mesh.names[axis]}={mesh.sizes[axis]}")
    free = next((size for size in left.values() if size > 1), 1)
    causes = []
    if len(parts) > 1:
        reshaped = " x ".join(map(str, parts.values()))
        causes.append(
            f"{_cut_by(context.model.analysis.program, request)} the dim {reshaped}, and the first"
            " of these is split first"
        )
    if on:
        causes.append(f"{' and '.join(on)} leave{'s' * (len(on) == 1)} {free} of it")
    unused = [
        axis for axis, atom in enumerate(placement) if atom == REPLICATED and axis != request.axis
    ]
    fits = [mesh.names[a] for a in unused if mesh.sizes[a] > 1 and free % mesh.sizes[a] == 0]
    sizes = [str(n) for n in range(2, min(free, MOST_ADVISED) + 1) if free % n == 0]
    advice = [f"axis {name!r}" for name in fits]
    advice += [f"an axis of size {', '.join(sizes)}"] if sizes else []
    facts = {"cause": "; ".join(causes)} if causes else {}
    return {**facts, "try_": " or ".join(advice) or "another dim"}
