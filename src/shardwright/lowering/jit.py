"""plan.jit: an ordinary jitted function with every placement of the plan inside."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.lowering.apply import apply_steps
from shardwright.lowering.device_order import device_order
from shardwright.lowering.specs import Spec, partition_spec
from shardwright.lowering.steps import Steps
from shardwright.lowering.unchanged import check_unchanged
from shardwright.mesh import Mesh
from shardwright.program.arguments import Signature
from shardwright.program.build import build
from shardwright.program.frameworks import updating
from shardwright.program.tracing import trace_jaxpr


def jax_mesh(mesh: Mesh, given: Any = None) -> Any:
    """The JAX mesh a plan runs on: the one given, or one made of the current devices.

    The plan pins every placement itself, so the mesh is used with automatic axes.
    """
    if given is None:
        devices = jax.devices()
        if len(devices) < mesh.size:
            raise ShardwrightError(
                f"the plan needs {mesh.size} devices ({mesh}), this process has {len(devices)}",
                try_="XLA_FLAGS=--xla_force_host_platform_device_count="
                f"{mesh.size} to try it on host devices, or verify(target='cpu:{mesh.size}')",
            )
        given = jax.sharding.Mesh(device_order(mesh, devices[: mesh.size]), mesh.names)
    if not isinstance(given, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        raise ShardwrightError(
            f"not a JAX mesh: {given!r:.60}", try_="jax.make_mesh(...), or None for one made here"
        )
    if dict(given.shape) != mesh.shape:
        raise ShardwrightError(
            f"the plan is for a mesh {mesh.shape}, got one of {dict(given.shape)}",
            try_="pass a mesh of the same axis names and sizes, or plan again for this one",
        )
    if isinstance(given, jax.sharding.AbstractMesh):
        return _jax.abstract_mesh(mesh.sizes, mesh.names)
    order = [given.axis_names.index(name) for name in mesh.names]
    return jax.sharding.Mesh(
        np.transpose(given.devices, order), mesh.names,
        axis_types=(AxisType.Auto,) * len(mesh.names),
    )  # fmt: skip


def sharding(mesh: Any, spec: Spec) -> NamedSharding:
    """A NamedSharding on a JAX mesh."""
    return NamedSharding(mesh, partition_spec(spec))


def _automatic(mesh: Any) -> AbstractContextManager[Any]:
    """A context with the plan's automatic axes, whatever mesh the user has set around it."""
    abstract = mesh if isinstance(mesh, jax.sharding.AbstractMesh) else mesh.abstract_mesh
    return jax.sharding.use_abstract_mesh(abstract)


def as_set(mesh: Any) -> Any:
    """The mesh with the axis types of the one that the user has set, if those are explicit.

    Arrays then say in their type how they are split, and meet only others that do.
    """
    around = jax.sharding.get_abstract_mesh()
    if isinstance(mesh, jax.sharding.AbstractMesh) or not _jax.is_explicit(around, mesh):
        return mesh
    return jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=around.axis_types)


def _to(leaf: Any, place: NamedSharding) -> Any:
    """An array at its place; a number, or an array that is being traced, stays as it is."""
    if isinstance(leaf, jax.core.Tracer) or not hasattr(leaf, "dtype"):
        return leaf
    return jax.device_put(leaf, place)


def _placed(leaf: Any, place: NamedSharding) -> Any:
    """The leaf, moved if it is an array that was put somewhere else than planned."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer) or not leaf.committed:
        return leaf
    there = leaf.sharding.is_equivalent_to(place, leaf.ndim)
    return leaf if there else jax.device_put(leaf, place)


# (args, kwargs, whether it is about to run) -> what a call of that form is, and what it does
Prepare = Callable[[tuple[Any, ...], dict[str, Any], bool], tuple[Signature, Steps]]


class _Ready(NamedTuple):
    """What runs calls of one form."""

    signature: Signature
    jitted: Any  # on flat lists of arrays
    explicit: Any  # the same where results must have types of a mesh with explicit axes
    places: list[NamedSharding]  # of the arguments


class PlannedFunction:
    """A function that runs as its plan says. It is called, lowered and traced like a jitted one.

    What `prepare` gives for a call is kept per structure of the arguments.
    """

    def __init__(self, fn: Callable[..., Any], mesh: Any, prepare: Prepare) -> None:
        self.fn, self.mesh, self._prepare = fn, mesh, prepare
        self._ready: list[_Ready] = []
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.__doc__ = getattr(fn, "__doc__", None)
        self.__wrapped__ = fn

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method of the class it is defined in, as functions are."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<{self.__name__}, planned for {dict(self.mesh.shape)}>"

    def _for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Ready, list[Any]]:
        """(what runs calls of this form, the array leaves of this one)."""
        for ready in self._ready:
            leaves = ready.signature.match(args, kwargs)
            if leaves is not None:
                return ready, leaves
        signature, steps = self._prepare(args, kwargs, True)
        jitted = flat_jit(self.fn, signature, steps, self.mesh)
        places = [sharding(self.mesh, s) for s in steps.inputs]
        explicit = _with_explicit_types(jitted, signature, steps, self.mesh)
        self._ready.append(_Ready(signature, jitted, explicit, places))
        return self._ready[-1], signature.leaves(args, kwargs)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with updating():
            ready, leaves = self._for(args, kwargs)
            return ready.signature.output.build(self._run(ready, leaves), leaves, into=True)

    def _run(self, ready: _Ready, leaves: list[Any]) -> Any:
        """The flat results of a call."""
        mesh = as_set(self.mesh)
        if mesh is not self.mesh:
            places = [NamedSharding(mesh, place.spec) for place in ready.places]
            return ready.explicit(*map(_to, leaves, places))
        with _automatic(self.mesh):
            try:
                return ready.jitted(*leaves)
            except ValueError:  # JAX moves no array that was put somewhere on purpose
                moved = list(map(_placed, leaves, ready.places))
                if all(map(operator.is_, moved, leaves)):
                    raise
                return ready.jitted(*moved)

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """As jax.jit(fn).trace; only the types of the arguments matter, not where they are.

        Where arguments or results hold things that are no arrays, which JAX cannot compile for,
        the compiled function takes and returns the arrays alone, in order.
        """
        signature, steps = self._prepare(args, kwargs, False)
        rows = zip(signature.leaves(args, kwargs), signature.weak, strict=True)
        leaves = [_jax.bare(x, weak) for x, weak in rows]
        with _automatic(self.mesh):
            if signature.is_flat or signature.output.static:
                return flat_jit(self.fn, signature, steps, self.mesh).trace(*leaves)
            args, kwargs = signature.call(leaves)
            return tree_jit(self.fn, signature, steps, self.mesh).trace(*args, **kwargs)

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """As jax.jit(fn).lower."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """As jax.jit(fn).eval_shape."""
        signature, steps = self._prepare(args, kwargs, False)
        leaves = signature.leaves(args, kwargs)
        closed = _traced(self.fn, signature, steps, leaves)
        return signature.output.build([_jax.struct(aval) for aval in closed.out_avals], leaves)


def _traced(fn: Callable[..., Any], signature: Signature, steps: Steps, leaves: Any) -> Any:
    """The closed jaxpr of a call; raises unless it still is the program that was planned.

    A function may read a flag or a module that has changed since: sums that the plan defers would
    then be multiplied, say.
    """
    closed = trace_jaxpr(fn, signature, leaves)
    check_unchanged(steps, build(closed, signature))
    return closed


def flat_jit(fn: Callable[..., Any], signature: Signature, steps: Steps, mesh: Any) -> Any:
    """The planned function on flat lists of arrays."""

    def flat(*arrays: Any) -> list[Any]:
        return apply_steps(_traced(fn, signature, steps, arrays), steps, mesh, arrays)

    flat.__name__ = signature.name
    return jax.jit(
        flat,
        in_shardings=[sharding(mesh, s) for s in steps.inputs],
        out_shardings=[sharding(mesh, s) for s in steps.outputs],
        donate_argnums=signature.donated_leaves,
    )


def _with_explicit_types(jitted: Any, signature: Signature, steps: Steps, mesh: Any) -> Any:
    """The planned function for callers whose arrays say in their type how they are split."""

    def flat(*arrays: Any) -> tuple[Any, ...]:
        with _automatic(mesh):
            return tuple(jitted(*arrays))

    def typed(spec: Spec) -> PartitionSpec:
        """What a type says of a sharding: its explicit axes."""
        automatic = _jax.axes_of_type(jax.sharding.get_abstract_mesh(), AxisType.Auto)
        return partition_spec(tuple(tuple(a for a in dim if a not in automatic) for dim in spec))

    def explicit(*arrays: Any) -> tuple[Any, ...]:
        placed = [
            jax.sharding.reshard(a, typed(spec)) if np.ndim(a) else a
            for a, spec in zip(arrays, steps.inputs, strict=True)
        ]
        out = tuple(typed(spec) for spec in steps.outputs)
        return jax.sharding.auto_axes(flat, out_sharding=out)(*placed)

    explicit.__name__ = signature.name
    return jax.jit(explicit, donate_argnums=signature.donated_leaves)


def tree_jit(fn: Callable[..., Any], signature: Signature, steps: Steps, mesh: Any) -> Any:
    """The planned function on the user's own arguments; shardings are pinned inside it."""

    def planned(*args: Any, **kwargs: Any) -> Any:
        leaves = signature.leaves(args, kwargs)
        arrays = apply_steps(_traced(fn, signature, steps, leaves), steps, mesh, leaves)
        return signature.output.build(arrays, leaves)

    planned.__name__ = signature.name
    inputs = [sharding(mesh, s) for s in steps.inputs]
    args, kwargs = signature.call(inputs)
    dynamic = tuple(a for i, a in enumerate(args) if i not in signature.static_argnums)
    options: dict[str, Any] = {} if kwargs else {"in_shardings": dynamic}
    return jax.jit(
        planned, static_argnums=signature.static_argnums or None,
        static_argnames=signature.static_argnames or None,
        donate_argnums=signature.donated_argnums,
        out_shardings=signature.output.build([sharding(mesh, s) for s in steps.outputs], inputs),
        **options,
    )  # fmt: skip
