"""Compile and run for N host CPU devices in a child process.

The user's function is a closure and need not pickle: this process lowers it for an AbstractMesh,
which needs no devices, and the child gets StableHLO with shardings, donation and source lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import jax

from shardwright import _jax
from shardwright._jax import compiling
from shardwright.errors import ShardwrightError
from shardwright.referee.host_arrays import to_host
from shardwright.referee.messages import Reply, Request
from shardwright.referee.process import ask


class OnlyHere(ShardwrightError):
    """A program that calls what only this process has."""


def compile_in_child(
    build: Callable[[Any], Any],
    args: tuple[Any, ...],
    mesh: Mapping[str, int],
    device_count: int,
    *,
    runs: Sequence[tuple[Any, ...]] = (),
    timeout: float | None = None,
) -> tuple[Reply, str]:
    """(the child's reply for `build(AbstractMesh)`, what it printed); results of each of `runs`."""
    jitted = build(jax.sharding.AbstractMesh(tuple(mesh.values()), tuple(mesh)))
    lowered = compiling.lowered_for_hosts(jitted.trace(*without_devices(args)))
    inputs, shapes = [], []
    enough = f"start Python with XLA_FLAGS=--xla_force_host_platform_device_count={device_count}"
    needs_devices = ["a callback or a custom_partitioning"]
    own = needs_devices if lowered is None else compiling.own_calls(lowered)
    if own:
        raise OnlyHere(
            f"a program that calls {', '.join(own)} cannot be compiled in a child process",
            try_=f"{enough}, or leave the call out",
        )
    if runs:
        if compiling.calls_back(lowered):
            raise OnlyHere(
                "a program that calls back into Python cannot run in a child process",
                try_=f"{enough}, or remove debug prints and callbacks",
            )
        infos = jax.tree.leaves(lowered.args_info, is_leaf=lambda x: hasattr(x, "donated"))
        kept = compiling.kept_arguments(lowered)
        types = [infos[i].dtype for i in kept]
        dtypes = [None if _jax.is_extended(t) else t for t in types]
        for run in runs:
            leaves = _dynamic_leaves(jitted, run)
            inputs.append([to_host(leaves[i], t) for i, t in zip(kept, dtypes, strict=True)])
        shapes = [_physical_shape(out) for out in jax.tree.leaves(lowered.out_info)]
    request = Request(
        compiling.portable(lowered), f"cpu:{device_count}", list(range(prod(mesh.values()))),
        inputs, shapes,
    )  # fmt: skip
    reply, printed = ask(request, timeout)
    tree = jax.tree.structure(lowered.out_info)
    outputs = [jax.tree.unflatten(tree, out) for out in reply.outputs]
    return replace(reply, outputs=outputs), printed


def without_devices(args: Any) -> Any:
    """The arguments with arrays that live on devices of this process as shapes only."""

    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, jax.Array) else x, args
    )


def _dynamic_leaves(jitted: Any, args: tuple[Any, ...]) -> list[Any]:
    """The flat arguments without the static ones."""
    static = {number % len(args) for number in _jax.jit_options(jitted).static_argnums}
    return jax.tree.leaves([arg for i, arg in enumerate(args) if i not in static])


def _physical_shape(out: Any) -> tuple[int, ...]:
    """The shape of the buffer behind a result: a random key is an array of words."""
    if _jax.is_extended(out.dtype):
        struct = jax.ShapeDtypeStruct(out.shape, out.dtype)
        return jax.eval_shape(jax.random.key_data, struct).shape
    return tuple(out.shape)
