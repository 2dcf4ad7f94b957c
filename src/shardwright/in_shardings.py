"""in_shardings as users write them for jax.jit, read into the mesh axes of each argument's dims."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.program.leaves import is_array
from shardwright.program.types import Program, Value

Given = Mapping[int, tuple[tuple[int, ...], ...]]  # input value -> mesh axes of each dim


def resolve(
    program: Program, args: tuple[Any, ...], in_shardings: Any, mesh: Mesh
) -> tuple[Given, list[str]]:
    """({input value: axes per dim}, warnings) of a tree (or prefix) of shardings."""
    signature = program.signature
    wanted = in_shardings if isinstance(in_shardings, tuple | list) else (in_shardings,) * len(args)
    dynamic = [i for i in range(len(args)) if i not in signature.static_argnums]
    if len(wanted) != len(dynamic):
        raise ShardwrightError(
            f"in_shardings has {len(wanted)} entries for {len(dynamic)} arguments",
            try_="one tree per argument, as jax.jit takes them",
        )
    flat: list[Any] = []
    for i, spec in zip(dynamic, wanted, strict=True):
        flat += _broadcast(spec, args[i], signature.arguments[i])
    flat += [None] * (len(program.inputs) - len(flat))  # keyword arguments: replicated
    given: dict[int, tuple[tuple[int, ...], ...]] = {}
    warnings: list[str] = []
    for value, spec in zip(program.inputs, flat, strict=True):
        given[value], uneven = _axes(program.values[value], spec, mesh)
        warnings += uneven
    return given, warnings


def _axes(value: Value, sharding: Any, mesh: Mesh) -> tuple[tuple[tuple[int, ...], ...], list[str]]:
    """(mesh axes of each dim, warnings) of one argument."""
    dims: list[tuple[int, ...]] = []
    warnings: list[str] = []
    spec = _names(sharding, value.path)
    if len(spec) > len(value.shape):
        raise ShardwrightError(
            f"{value.path} has {len(value.shape)} dims, its PartitionSpec {len(spec)}: {sharding}",
            try_="at most one entry per dim",
        )
    every = [name for names in spec for name in names]
    for name in every:
        if name not in mesh.names:
            raise ShardwrightError(
                f"{value.path} is to be split over {name!r}, which the mesh does not have",
                try_=", ".join(mesh.names),
            )
        if every.count(name) > 1:
            raise ShardwrightError(
                f"{value.path} is to be split over {name!r} twice: {sharding}",
                try_="each mesh axis on one dim of an array",
            )
    for d, size in enumerate(value.shape):
        names = spec[d] if d < len(spec) else ()
        split = math.prod(mesh.shape[name] for name in names)
        if size % split:
            warnings.append(
                f"{value.path} dim {d} of size {size} does not divide by {split}"
                f" ({'+'.join(names)}): JAX will refuse it; counted as replicated"
            )
            names = ()
        dims.append(tuple(mesh.names.index(name) for name in names))
    return tuple(dims), warnings


def _broadcast(spec: Any, argument: Any, name: str) -> list[Any]:
    """One sharding per array leaf of an argument."""
    try:
        leaves = jax.tree.broadcast(spec, argument, is_leaf=_is_sharding)
    except ValueError as error:
        raise ShardwrightError(
            f"the in_shardings of {name!r} have another structure than the argument",
            try_="a tree like the argument, or one sharding for all of it",
        ) from error
    shardings = jax.tree.leaves(leaves, is_leaf=_is_sharding)
    kept = [is_array(x) for x in jax.tree.leaves(argument)]
    return [s for s, yes in zip(shardings, kept, strict=True) if yes]


def _is_sharding(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec | jax.sharding.Sharding)


def _names(sharding: Any, path: str | None) -> list[tuple[str, ...]]:
    """The axis names that a sharding gives to each dim."""
    spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
    if spec is not None and not isinstance(spec, PartitionSpec):
        raise ShardwrightError(
            f"{path}: cannot judge a {type(sharding).__name__}",
            try_="a PartitionSpec or a NamedSharding",
        )
    if PartitionSpec.UNCONSTRAINED in (spec or ()):
        raise ShardwrightError(
            f"{path}: cannot judge what is left to the compiler: {spec}",
            try_="None for a dim that is not split",
        )
    return [(d,) if isinstance(d, str) else tuple(d or ()) for d in spec or ()]
