"""What compare() is given, as cases: each one program on one mesh of one device."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardwright import cache
from shardwright.analysis.analysis import Analysis, analyze_program
from shardwright.api import trace_as_asked
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.options import Options, read_options
from shardwright.program.fingerprint import content
from shardwright.program.types import Program
from shardwright.search.meshes import candidate_meshes

TRY = '{"full remat": step_a, "dots": step_b}, or a factory and grid={"batch": [8, 16]}'


class Variant(NamedTuple):
    """A function and how it is called, or why there is none."""

    name: str
    fn: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    why: str = ""


@dataclass(frozen=True)
class Case:
    """One variant on one mesh of one device."""

    variant: Variant
    options: Options
    asked: str  # the mesh, as it was given
    meshes: tuple[Mesh, ...] = ()
    analysis: Analysis | None = None
    key: str = ""  # of its plan in the cache
    same: str = ""  # equal for cases whose plans decide the same
    why: str = ""  # there is nothing to plan


def read_variants(
    given: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]] | None,
) -> list[Variant]:
    """The variants of a dict of functions, of a factory's grid, or of one function."""
    if isinstance(given, Mapping):
        if grid is not None:
            raise ShardwrightError("a grid is of a factory's arguments", try_=TRY)
        if not given:
            raise ShardwrightError("there are no variants", try_=TRY)
        return [_variant(str(name), made, args, kwargs) for name, made in given.items()]
    if not callable(given):
        raise ShardwrightError(
            f"expected variants, got {type(given).__name__}: {given!r:.60}", try_=TRY
        )
    if grid is None:
        return [Variant(getattr(given, "__name__", "fn"), given, args, kwargs)]
    found = []
    for point in itertools.product(*grid.values()):
        named = dict(zip(grid, point, strict=True))
        name = ", ".join(f"{key}={getattr(v, '__name__', v)}" for key, v in named.items())
        try:
            found.append(_variant(name, given(**named), args, kwargs))
        except Exception as error:  # the user's factory may raise anything
            found.append(Variant(name, None, why=f"{type(error).__name__}: {error}"))
    return found


def _variant(
    name: str, made: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Variant:  # fmt: skip
    """A function, or a pair of a function and its own arguments."""
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], tuple | list):
        return Variant(name, made[0], tuple(made[1]), kwargs)
    return Variant(name, made, args, kwargs)


def read_cases(
    variants: Sequence[Variant], mesh: Any, device: Any, options: Mapping[str, Any]
) -> list[Case]:
    """One case per variant, mesh and device; a program is traced and analyzed once."""
    asked = [
        (_shown(one), read_options(mesh=one, device=chip, **options))
        for one in _meshes(mesh)
        for chip in (device if isinstance(device, list | tuple) else [device])
    ]
    analyses: dict[str, Analysis] = {}
    cases = []
    for variant in variants:
        shared = None if variant.why else _trace_for_any_mesh(variant, asked[0][1])
        cases += [make_case(variant, shown, chosen, shared, analyses) for shown, chosen in asked]
    return cases


def make_case(
    variant: Variant, shown: str, options: Options, shared: Program | None,
    analyses: dict[str, Analysis],
) -> Case:  # fmt: skip
    """The case of a variant with these options; `shared` is its program where it is known."""
    try:
        meshes = candidate_meshes(options.mesh, options.device, options.devices)
        if variant.why:
            return Case(variant, options, shown, tuple(meshes), why=variant.why)
        widest = max(meshes, key=lambda mesh: len(mesh.axes))
        program = shared or trace_as_asked(
            variant.fn, variant.args, dict(variant.kwargs), options, widest
        )
    except ShardwrightError as error:  # there is no such mesh, or it does not trace
        return Case(variant, options, shown, why=reason(error))
    same = content(program, lines=False)
    if same not in analyses:
        analyses[same] = analyze_program(program, options.labels)
    decides = cache.deciding(program, meshes, options)
    return Case(
        variant, options, shown, tuple(meshes), analyses[same], cache.key_of(decides),
        cache.key_of(decides | {"program": same}),
    )  # fmt: skip


def _trace_for_any_mesh(variant: Variant, options: Options) -> Program | None:
    """The program of a function that names no mesh axis, traced once; None for others."""
    try:
        return trace_as_asked(variant.fn, variant.args, dict(variant.kwargs), options, None)
    except ShardwrightError:
        return None


def _meshes(given: Any) -> list[Any]:
    """One or more meshes; pairs of a name and a size are one."""
    if not isinstance(given, list | tuple):
        return [given]
    pairs = [isinstance(axis, list | tuple) and isinstance(axis[0], str) for axis in given]
    return [given] if pairs and all(pairs) else list(given)


def _shown(mesh: Any) -> str:
    if isinstance(mesh, int):
        return f"{mesh} devices"
    if isinstance(mesh, Mapping):
        return " x ".join(f"{name}={'?' if size is None else size}" for name, size in mesh.items())
    return str(Mesh.of(mesh))


def reason(error: ShardwrightError) -> str:
    """An error as one line: what is wrong, and what came closest."""
    best = error.facts.get("best")
    return error.what.splitlines()[0] + (f": at least {best}" if best else "")
