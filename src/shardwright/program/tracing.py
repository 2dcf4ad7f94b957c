"""Function -> jaxpr -> Program: traced by JAX under the right mesh, then built."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax

from shardwright import _jax
from shardwright._jax import refusals
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.program import frameworks
from shardwright.program.arguments import Signature, sign
from shardwright.program.build import build
from shardwright.program.calls import asks_which
from shardwright.program.side_effects import (
    check_held,
    foreign_value,
    held_outside,
    lost_change,
)
from shardwright.program.source import is_user_code, user_frame
from shardwright.program.types import Program


@asks_which
def trace(
    fn: Callable[..., Any],
    /,
    *args: Any,
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
    **kwargs: Any,
) -> Program:
    """The Program of `fn` called with these arguments; nothing is executed or allocated.

    >>> print(trace(jnp.dot, jax.ShapeDtypeStruct((8, 4), "float32"), np.ones((4, 2), "float32")))
    """
    return trace_call(fn, args, kwargs, static_argnums, donate_argnums)


def trace_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
    mesh: Mesh | None = None,
    tie: bool = False,
) -> Program:
    """The Program of one call, planned for `mesh`: its axes may be named in the function.

    With `tie`, results that are arguments of the next step are to be stored like them.
    """
    planned = None if mesh is None else _jax.abstract_mesh(mesh.sizes, mesh.names)
    signature = sign(fn, args, kwargs, static_argnums, donate_argnums, planned, tie)
    return build(trace_jaxpr(fn, signature, signature.leaves(args, kwargs)), signature)


def trace_jaxpr(fn: Callable[..., Any], signature: Signature, leaves: Sequence[Any]) -> Any:
    """The closed jaxpr of the flat function; errors in the user's code name the user's line.

    The ops must be the same when the plan is made and when it is run. So only the types of the
    leaves count, not where they are; and which are weakly typed, and the meshes that may be around
    the function, is as in the signature.
    """

    def flat(*arrays: Any) -> list[Any]:
        return signature.run(fn, arrays)

    flat.__name__ = signature.name
    held = held_outside(fn)
    types = [_jax.bare(a, weak) for a, weak in zip(leaves, signature.weak, strict=True)]
    failures: list[Exception] = []
    meshes = _meshes_around(signature)
    while meshes:
        mesh = meshes.pop(0)
        try:
            with (
                jax.sharding.use_abstract_mesh(mesh),
                frameworks.under_rules(signature.rules),
            ):
                traced = _jax.trace(jax.jit(flat), tuple(types), {})
                check_held(signature.name, held, held_outside(fn))
                if len(traced.jaxpr.jaxpr.invars) > len(types):
                    raise foreign_value(signature.name, None)
                _check_changed(fn, signature, types)
                return _jax.without_refs(traced.jaxpr)
        except ShardwrightError:
            raise
        except Exception as error:  # the user's function may raise anything
            axis = refusals.missing_axis(error)
            if axis and signature.mesh.empty and axis not in mesh.axis_names:
                sizes, names = (*mesh.axis_sizes, 1), (*mesh.axis_names, axis)
                meshes.insert(0, _jax.abstract_mesh(sizes, names, mesh.axis_types[0]))
                # The plan notes that its mesh has no such axis.
            else:
                failures.append(error)
    failed = next((e for e in failures if not refusals.wants_another_mesh(e)), failures[-1])
    raise _failure(signature, leaves, failed) from failed


def _failure(signature: Signature, leaves: Sequence[Any], failed: Exception) -> ShardwrightError:
    """The error for a function that failed while it was traced, and what to try."""
    line, own = _user_line(failed), signature.mesh
    planned = signature.planned if own.empty else own
    axis = refusals.unknown_axis(failed)
    if axis is not None and planned is not None and axis not in planned.axis_names:
        sizes = " x ".join(f"{name}={size}" for name, size in planned.shape.items())
        return ShardwrightError(
            f"a shard_map names the axis {axis!r}, the mesh is {sizes}",
            at=line,
            try_=f"partition(..., mesh={{..., {axis!r}: n}}), or axes of this mesh",
        )
    if isinstance(failed, jax.errors.UnexpectedTracerError):
        return foreign_value(signature.name, line)
    try_ = "call it under jax.make_jaxpr with the same arguments to see the full traceback"
    if refusals.wants_another_mesh(failed) and own.empty:
        try_ = "give the mesh whose axes it names: under jax.set_mesh(mesh)"
        if planned is None:
            try_ += ", or with mesh=... of partition(), check() or analyze()"
    wanted = refusals.wanted_values(failed, len(leaves))
    numbers = [i for i in wanted if isinstance(leaves[i], bool | int | float | complex)]
    if numbers:
        try_ = _keep_numbers(signature, [signature.paths[i] for i in sorted(numbers)])
    if refusals.refused_by_shard_map(failed):
        try_ = "specs of the shard_map that fit these shapes, or another mesh= of partition()"
    if type(failed).__name__ == "TraceContextError":  # of flax: a module that is no argument
        try_ = "pass the module it changes as an argument"
    if isinstance(failed, AssertionError) and not str(failed) and planned is not None:
        axes = ", ".join(map(repr, planned.axis_names))  # JAX refuses unknown axes so, in a psum
        try_ = f"if it is a collective in a shard_map: its axes must be of the mesh, {axes}"
    return ShardwrightError(
        f"{signature.name} failed while being traced: {type(failed).__name__}:"
        f" {refusals.in_words_of(failed, signature.paths)}",
        at=line,
        try_=try_,
    )


def _keep_numbers(signature: Signature, paths: Sequence[str]) -> str:
    """How these arguments stay the Python numbers that they are."""
    positions = tuple(signature.arguments.index(p) for p in paths if p in signature.arguments)
    others = dict.fromkeys(re.split(r"\W", p)[0] for p in paths if p not in signature.arguments)
    ways = []
    if positions:
        ways.append(f"static_argnums={positions if len(positions) > 1 else positions[0]}")
    if others:
        given = ", ".join(f"{name}=..." for name in others)
        ways.append(f"functools.partial({signature.name}, {given})")
    return f"{' and '.join(ways)}: {', '.join(paths)} must be known when it is traced"


def _check_changed(fn: Callable[..., Any], signature: Signature, types: Sequence[Any]) -> None:
    """Raises if an argument was changed to something that neither a result nor an op needs."""
    changed, signature.output.changed = sorted(signature.output.changed), {}
    if not changed:
        return

    def flat(*arrays: Any) -> tuple[list[Any], list[Any]]:
        results = signature.run(fn, arrays)
        left, signature.output.changed = signature.output.changed, {}  # traced values do not stay
        return results, [left[path] for path in changed]

    jaxpr = _jax.trace(jax.jit(flat), tuple(types), {}).jaxpr.jaxpr
    results, left = jaxpr.outvars[: -len(changed)], jaxpr.outvars[-len(changed) :]
    used = {id(v) for v in (*jaxpr.invars, *results)}
    used |= {id(v) for eqn in jaxpr.eqns for v in eqn.invars}
    lines = {
        id(v): user_frame(eqn.source_info)
        for eqn in jaxpr.eqns
        for v in eqn.outvars
        if id(v) not in used
    }
    lost = {p: lines[id(v)] for p, v in zip(changed, left, strict=True) if id(v) in lines}
    if lost:
        raise lost_change(signature.name, lost)


def _meshes_around(signature: Signature) -> list[Any]:
    """The meshes to trace under, until one will do.

    The user's own comes first, and alone if there is one: its axes are automatic unless the
    function cannot do without explicit ones. Without one, a function that names axes is traced
    under the mesh of the plan; where Flax knows of axes, at once: it drops them without a mesh.
    """
    around, planned = signature.mesh, signature.planned
    if not around.empty:
        automatic = _jax.abstract_mesh(around.axis_sizes, around.axis_names)
        return list(dict.fromkeys((automatic, around)))
    if planned is None:
        return [around]
    first = [planned, around] if signature.rules or signature.named else [around, planned]
    explicit = jax.sharding.AxisType.Explicit
    return [*first, _jax.abstract_mesh(planned.axis_sizes, planned.axis_names, explicit)]


def _user_line(error: BaseException | None) -> str | None:
    """The innermost line of the user's code in a traceback."""
    found = None
    for frame in traceback.extract_tb(error.__traceback__ if error else None):
        if is_user_code(frame.filename):
            line = f" `{frame.line}`" if frame.line else ""  # none where the source is no file
            found = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}{line}"
    return found
