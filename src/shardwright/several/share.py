"""Parameters placed as in another plan: which arrays of two functions are the same, and where.

Two functions call the same array by other names: `state.params['w']` of a train step is
`params['w']` of an evaluation and `result['w']` of an init. Arrays are the same if their shapes are
equal and no other pair of names has a longer common end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from shardwright.analysis.analysis import Analysis
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.program.calls import function_name
from shardwright.program.types import LITERAL, format_type
from shardwright.record.types import PlanRecord, Spec
from shardwright.search.requests import Dims
from shardwright.search.roles import find_roles

Arrays = Mapping[str, str]  # {path: type}
_STEP = re.compile(r"\['?(.*?)'?\]|\.?([^.\[]+)")  # of a path: ['w'], [0], .w


class Call:
    """A call of a function that uses the same parameters, and how often it runs.

    >>> sw.Call(evaluate, params, batch, weight=0.1)  # once in ten train steps
    """

    def __init__(
        self, fn: Callable[..., Any], /, *args: Any, weight: float = 1.0,
        donate_argnums: int | Sequence[int] = (), static_argnums: int | Sequence[int] = (),
        **kwargs: Any,
    ) -> None:  # fmt: skip
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 < weight < float("inf"):
            raise ShardwrightError(
                f"weight must be a positive number, got {weight!r:.60}",
                try_="weight=0.1: it runs once while the function it is shared with runs ten times",
            )
        self.fn, self.args, self.kwargs, self.weight = fn, args, kwargs, float(weight)
        self.donate_argnums, self.static_argnums = donate_argnums, static_argnums

    def __str__(self) -> str:
        return f"{function_name(self.fn)} x {self.weight:g}"


class Placed(NamedTuple):
    """Arrays of one function and where they are."""

    name: str  # of the function
    mesh: Mesh
    types: Arrays
    specs: Mapping[str, Spec]

    def __str__(self) -> str:
        return self.name


class Shared(NamedTuple):
    """What a function has in common with others."""

    pinned: dict[int, Dims]  # {value: mesh axes of each dim}
    names: str  # of the functions it shares them with
    arrays: int  # how many


def placed(record: PlanRecord) -> Placed:
    """Where a plan has the arguments and results of its function."""
    types = {**record.arguments, **record.results, **record.arguments}
    return Placed(record.program, record.mesh, types, record.result_specs | record.specs)


def same_arrays(mine: Arrays, theirs: Arrays) -> dict[str, str]:
    """{path of mine: path of theirs} for arrays that are the same.

    >>> same_arrays({"p['w']": "bf16[4,8]"}, {"s.mu['w']": "f32[4,8]", "s.p['w']": "f32[4,8]"})
    {"p['w']": "s.p['w']"}
    """
    best_mine, best_theirs = _best(mine, theirs), _best(theirs, mine)
    return {path: other for path, other in best_mine.items() if best_theirs[other] == path}


def _best(arrays: Arrays, others: Arrays) -> dict[str, str]:
    """For each path the one of the others with the same shape and the longest common end.

    Of several the shortest: parameters, not the moments that an optimiser keeps of them.
    """
    by_end: dict[tuple[str, str], list[tuple[list[str], str]]] = {}
    for path, type_ in others.items():
        steps = _steps(path)
        by_end.setdefault((_shape(type_), steps[0]), []).append((steps, path))
    found = {}
    for path, type_ in arrays.items():
        steps = _steps(path)
        alike = by_end.get((_shape(type_), steps[0]), [])
        if alike:
            found[path] = max(alike, key=lambda row: (_common(steps, row[0]), -len(row[0])))[1]
    return found


def _steps(path: str) -> list[str]:
    """The steps of a path from its end, whatever their kind: .w, ['w'] and a bare w are one."""
    return [key or name for key, name in _STEP.findall(path)][::-1]


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def _shape(type_: str) -> str:
    return type_.partition("[")[2]  # nothing of a literal


def common_mesh(share: Sequence[Placed | Call], meshes: Sequence[Mesh]) -> Mesh:
    """The one of these meshes that all plans are for; raises if there is none."""
    others = [one for one in share if isinstance(one, Placed)]
    if not others:
        if len(meshes) > 1:
            raise ShardwrightError(
                "functions that share parameters are planned for one mesh",
                try_='mesh={"data": 4, "model": 2}',
            )
        return meshes[0]
    first = others[0]
    one = next((mesh for mesh in meshes if mesh.shape == first.mesh.shape), None)
    if one is None and len(meshes) > 1 and first.mesh.size == meshes[0].size:
        one = first.mesh  # only the number of devices was given
    for mesh in (one or meshes[0], *(other.mesh for other in others)):
        if mesh.shape != first.mesh.shape:
            raise ShardwrightError(
                f"share= has a plan of {first.name} for a mesh {first.mesh}, and one for {mesh}",
                try_="one mesh for all functions that share parameters: mesh=plan.mesh",
            )
    return replace(one or first.mesh, torus=first.mesh.torus)  # its arrays lie there


def place_as_in(analysis: Analysis, others: Sequence[Placed], mesh: Mesh) -> Shared:
    """Where arguments and results without a batch dim are, as the first of the others has them.

    Raises if there are none.
    """
    if not others:
        return Shared({}, "", 0)
    program, roles = analysis.program, find_roles(analysis)
    batch = set(roles.batch)
    results = zip(program.output_paths, program.outputs, strict=True)
    values = {path: v for path, v in results if v != LITERAL}
    values |= {program.values[v].path or "": v for v in program.inputs}
    mine = {
        path: format_type(program.values[v].type) for path, v in values.items()
        if program.values[v].shape and not batch & {g for g, _ in roles.groups_of[v]}
    }  # fmt: skip
    pinned: dict[int, Dims] = {}
    names: list[str] = []
    for other in others:
        same = same_arrays(mine, other.types)
        names += [other.name] if same else []
        for path, theirs in same.items():
            on = tuple(tuple(mesh.names.index(a) for a in dim) for dim in other.specs[theirs])
            pinned[values[path]] = on
            del mine[path]
    if not pinned:
        raise ShardwrightError(
            f"{program.name} has no array in common with {' or '.join(o.name for o in others)}",
            mine=", ".join(list(mine)[:8]) or "none",
            theirs=", ".join(list(others[0].types)[:8]),
            try_="arguments with the same names inside and the same shapes, or no share=",
        )
    count = len(pinned)
    for position, source in program.updates.items():  # what comes back is where it was
        if source in pinned:
            pinned[program.outputs[position]] = pinned[source]
    return Shared(pinned, " and ".join(dict.fromkeys(names)), count)
