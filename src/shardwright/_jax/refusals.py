"""What JAX says when it refuses to trace a function: what it misses, read from its messages."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax

# What JAX says of a sharding that the mesh around it does not allow.
_OTHER_MESH = (
    "requires a non-empty mesh", "not under a mesh context", "context mesh cannot be empty",
    "axis names that are of type Auto", "Please set a mesh via `jax.set_mesh`",
)  # fmt: skip


def wants_another_mesh(error: BaseException) -> bool:
    """Whether JAX refused a sharding because no mesh is set, or one with other axis types."""
    return any(text in str(error) for text in _OTHER_MESH)


def missing_axis(error: BaseException) -> str | None:
    """The axis that a sharding names and the mesh around it does not have, if JAX refused it."""
    found = re.search(r"Resource axis: (\S+) of .* is not found in mesh", str(error))
    return found[1] if found else None


# How JAX says that a shard_map names an axis that the mesh around it does not have.
_UNKNOWN_AXIS = (
    r"shard_map (?:in|out)_specs .* refers to '(\w+)'",
    r"shard_map requires axis_names=frozenset\({'(\w+)'.*to be a subset of mesh.axis_names",
    r"unbound axis name: (\w+)",
)


def unknown_axis(error: BaseException) -> str | None:
    """The axis that a shard_map or a collective in it names, and the mesh does not have."""
    found = [re.search(text, str(error), re.DOTALL) for text in _UNKNOWN_AXIS]
    return next((match[1] for match in found if match), None)


# How JAX says that Python needs a value that it only traces.
_NEEDS_VALUE = ("concrete value", "Non-hashable static arguments")
_CONVERSIONS = (
    jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError,
    jax.errors.TracerArrayConversionError,
)  # fmt: skip


def wanted_values(error: BaseException, count: int) -> set[int]:
    """Which of `count` traced arrays Python needed the value of; all where JAX names none."""
    if not isinstance(error, _CONVERSIONS) and not any(t in str(error) for t in _NEEDS_VALUE):
        return set()
    return {int(n) for n in re.findall(r"\barrays\[(\d+)\]", str(error))} or set(range(count))


def in_words_of(error: BaseException, paths: Sequence[str]) -> str:
    """What JAX says of a function of `*arrays`, in the words of who wrote the one inside."""
    text = re.sub(r" at \S+:\d+ for jit\b", "", str(error))  # a line of ours
    return re.sub(r"\barrays\[(\d+)\]", lambda found: paths[int(found[1])], text)


def refused_by_shard_map(error: BaseException) -> bool:
    """Whether JAX refused the specs of a shard_map: for these shapes, on this mesh."""
    return str(error).startswith("shard_map applied to the function")
