"""What must agree between the fields of a record, each of the right type."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from shardwright.cost.breakdown import KINDS
from shardwright.mesh import Mesh
from shardwright.record.plain import MOST_NUMBER
from shardwright.record.types import PlanRecord, Spec

_TYPE = re.compile(r"[^\[\]\s]{1,40}\[((?:\d{1,19},)*\d{1,19})?\]")  # f32[8,16], key<fry>[]


def disagreements(record: PlanRecord) -> Iterator[str]:
    """Fields that contradict each other, each with its place."""
    mesh = record.mesh
    if tuple(record.decisions) != mesh.names:
        yield f"decisions are about {', '.join(map(repr, record.decisions))}, the mesh is {mesh}"
    for whose, name in (("arguments", "specs"), ("results", "result_specs")):
        types, specs = getattr(record, whose), getattr(record, name)
        if list(types) != list(specs):
            yield f"{name} are not those of the {whose}"
        for path, type_ in types.items():
            yield from _spec_faults(f"{name}[{path!r}]", type_, specs.get(path, ()), mesh)
    for i, row in enumerate(record.collectives):
        yield from _unknown(f"collectives[{i}]['axes']", row.axes, mesh)
    for i, override in enumerate(record.overrides):
        if len(override.placement) != len(mesh.names):
            yield f"overrides[{i}]['placement']: expected one number per axis of {mesh}"
    for value, dims in record.pinned.items():
        if any(axis >= len(mesh.names) for on in dims for axis in on):
            yield f"pinned['{value}']: expected numbers of axes of {mesh}"
    for i, array in enumerate(record.arrays):
        place = f"arrays[{i}]['spec']"
        yield from _spec_faults(place, array.type, array.spec, mesh, padded=True)
    for path in record.kinds:
        if path not in record.arguments:
            yield f"kinds: {path!r} is no argument"
    yield from _timeline_faults(record)
    for path in record.weakly_typed:
        if path not in record.arguments:
            yield f"weakly_typed: {path!r} is no argument"
    if record.search.timed_out and record.asked.timeout is None:
        yield "search['timed_out']: asked['timeout'] is null"
    if (call := record.call) is not None:
        for name, positions in (("static", call.static), ("donated", call.donated)):
            for n in positions:
                if not 0 <= n < len(call.arguments):
                    yield f"call[{name!r}]: there is no argument {n}"


def _timeline_faults(record: PlanRecord) -> Iterator[str]:
    """Spans stand in regions that there are, and name collectives that there are."""
    bodies = record.timeline.bodies
    for i, body in enumerate(bodies):
        if body.parent >= max(i, 1):
            yield f"timeline['bodies'][{i}]['parent']: expected a region before it"
    for i, span in enumerate(record.timeline.spans):
        place = f"timeline['spans'][{i}]"
        if span.region >= len(bodies):
            yield f"{place}['region']: there is no region {span.region}"
        if any(row >= len(record.collectives) for row in span.moves):
            yield f"{place}['moves']: expected rows of collectives"
        if len(span.bytes) != len(KINDS):
            yield f"{place}['bytes']: expected one number per kind of memory"


def _spec_faults(
    place: str, type_: str, spec: Spec, mesh: Mesh, *, padded: bool = False
) -> Iterator[str]:
    """Of one array: its type is one, known axes split its dims, each once.

    What is computed inside may be padded; arguments and results are split evenly.
    """
    if type_ == "literal":
        if spec:
            yield f"{place}: a literal is not split"
        return
    found = _TYPE.fullmatch(type_)
    shape = [int(dim) for dim in (found[1] or "").split(",") if dim] if found else []
    if found is None or math.prod(shape) > MOST_NUMBER:
        yield f"{place}: expected a type such as f32[8,16], got {type_!r:.60}"
        return
    if len(spec) != len(shape):
        yield f"{place}: expected a list of axes for each dim of {type_}, got {len(spec)}"
        return
    yield from _unknown(place, [axis for on in spec for axis in on], mesh)
    for d, (size, on) in enumerate(zip(shape, spec, strict=True)):
        shards = math.prod(mesh.shape.get(axis, 1) for axis in on)
        if size % shards and not padded:
            yield f"{place}[{d}]: {'+'.join(on)}={shards} does not divide {size}"


def _unknown(place: str, axes: Sequence[str], mesh: Mesh) -> Iterator[str]:
    for axis in axes:
        if axis not in mesh.names:
            yield f"{place}: expected axes of {mesh}, got {axis!r:.60}"
    if len(set(axes)) < len(axes):
        yield f"{place}: an axis is there twice"
