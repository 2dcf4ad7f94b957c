"""What a plan file holds, as types, and what must agree in it. Checked once, when it is read.

A field is added here when `record.py` writes it. What older versions did not write is NotRequired.
"""
# No postponed annotations: TypedDict must see which fields are NotRequired.

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from shardwright.cost.cost import Cost
from shardwright.cost.devices import Device
from shardwright.mesh import MOST_DEVICES, Link, Mesh
from shardwright.schema import MOST_NUMBER, Within, faults

Axis = Annotated[str, "an axis name"]
Size = Annotated[int, Within(1, MOST_DEVICES)]
Index = Annotated[int, Within(0, 2**40)]  # of a value, op, group or color
Position = Annotated[int, Within(-1000, 1000)]  # of an argument; negative ones count from the end
Spec = list[list[Axis]]  # axes per dim


class Call(TypedDict):
    arguments: list[str]
    static: list[Position]
    donated: list[Position]


class MeshRecord(TypedDict):
    axes: list[tuple[Axis, Size]]
    dcn: NotRequired[list[Axis]]
    links: NotRequired[dict[Axis, Link]]
    wrap: NotRequired[dict[Axis, bool]]


class Options(TypedDict):
    static_argnums: list[Position]
    donate_argnums: list[Position]
    labels: NotRequired[dict[str, str]]
    seed: NotRequired[int]
    unshared: NotRequired[list[tuple[Index, Index]]]
    tactics: NotRequired[list[str]]
    pinned: NotRequired[dict[str, list[list[Index]]]]  # {value: axes per dim}


class EntryRecord(TypedDict):
    group: str
    bits: Annotated[int, Within(0, 2**62)]
    scope: Literal[0, 1]


class Override(TypedDict):
    value: Index
    placement: list[Annotated[int, Within(-1, 2**20)]]
    stored: str
    values: int
    what: list[str]


class CollectiveRecord(TypedDict):
    kind: str
    axes: list[Axis]
    bytes: int
    count: float
    seconds: float
    source: str
    cause: str
    op: Annotated[int, Within(-1, 2**40)]


class Buffer(TypedDict):
    kind: str
    where: str
    shape: str
    count: float
    bytes: float


class Memory(TypedDict):
    peak_bytes: float
    limit_bytes: int
    at: str
    by_kind: dict[str, float]
    buffers: list[Buffer]


class GroupRecord(TypedDict):
    label: str
    role: NotRequired[str]
    sizes: list[int]
    dims: list[str]
    colors: int
    argument_bytes: float
    activation_bytes: float
    bits: NotRequired[int]


class Proof(TypedDict):
    kind: Literal["optimal", "gap", "none"]
    lower_bound_s: float | None
    gap: float | None
    evaluated: int
    covered: NotRequired[float | None]


class SearchRecord(TypedDict):
    evaluations: int
    how: list[str]
    interrupted: bool
    memory: NotRequired[int | None]
    pins_in_code: NotRequired[int]


class MeshRow(TypedDict):
    mesh: dict[Axis, Size]
    searched: bool
    why: str
    step_s: float | None
    peak_bytes: float | None


class Replicated(TypedDict):
    path: str
    bytes: int


class PlanRecord(TypedDict):
    version: Annotated[int, Within(1, 1000)]
    shardwright: NotRequired[str]
    program: str
    fingerprint: str
    ops: int
    call: Call | None
    arguments: dict[str, str]
    numbers: NotRequired[list[str]]
    results: dict[str, str]
    mesh: MeshRecord
    device: Device
    options: Options
    decisions: dict[Axis, list[EntryRecord]]
    overrides: list[Override]
    specs: dict[str, Spec]
    result_specs: dict[str, Spec]
    cost: Cost
    collectives: list[CollectiveRecord]
    memory: Memory
    groups: list[GroupRecord]
    opaque: dict[str, int]
    replicated: list[Replicated]
    certificate: Proof
    baselines: dict[str, str | Cost]
    search: SearchRecord
    meshes: list[MeshRow]
    notes: list[str]


_TYPE = re.compile(r"[^\[\]\s]{1,40}\[((?:\d{1,19},)*\d{1,19})?\]")  # f32[8,16], key<fry>[]


def check_record(record: Any) -> str | None:
    """The first thing wrong with a plan's record, and its place; None when it is a plan."""
    found = next(faults(record, PlanRecord), None)
    return found or next(_disagreements(record), None)


def _disagreements(record: dict[str, Any]) -> Iterator[str]:
    """Fields of the right types that contradict each other."""
    mesh = Mesh.from_dict(record["mesh"])
    Device.from_dict(record["device"])
    if list(record["decisions"]) != list(mesh.names):
        yield f"decisions are about {', '.join(map(repr, record['decisions']))}, the mesh is {mesh}"
    for types, specs in (("arguments", "specs"), ("results", "result_specs")):
        if list(record[types]) != list(record[specs]):
            yield f"{specs} are not those of the {types}"
        for path, type_ in record[types].items():
            yield from _spec_faults(f"{specs}[{path!r}]", type_, record[specs].get(path, []), mesh)
    for i, row in enumerate(record["collectives"]):
        yield from _unknown(f"collectives[{i}]['axes']", row["axes"], mesh)
    for i, row in enumerate(record["overrides"]):
        if len(row["placement"]) != len(mesh.names):
            yield f"overrides[{i}]['placement']: expected one number per axis of {mesh}"
    for value, dims in record["options"].get("pinned", {}).items():
        place = f"options['pinned'][{value!r}]"
        if not value.isascii() or not value.isdigit():
            yield f"{place}: expected the number of a value as its name"
        if any(axis >= len(mesh.names) for on in dims for axis in on):
            yield f"{place}: expected numbers of axes of {mesh}"
    for path in record.get("numbers", ()):
        if path not in record["arguments"]:
            yield f"numbers: {path!r} is no argument"
    call = record["call"]
    for what in ("static", "donated") if call else ():
        for n in call[what]:
            if not 0 <= n < len(call["arguments"]):
                yield f"call[{what!r}]: there is no argument {n}"


def _spec_faults(place: str, type_: str, spec: list[list[str]], mesh: Mesh) -> Iterator[str]:
    """Of one array: its type is one, known axes split its dims evenly, each once."""
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
        parts = math.prod(mesh.shape.get(axis, 1) for axis in on)
        if size % parts:
            yield f"{place}[{d}]: {'+'.join(on)}={parts} does not divide {size}"


def _unknown(place: str, axes: list[str], mesh: Mesh) -> Iterator[str]:
    for axis in axes:
        if axis not in mesh.names:
            yield f"{place}: expected axes of {mesh}, got {axis!r:.60}"
    if len(set(axes)) < len(axes):
        yield f"{place}: an axis is there twice"
