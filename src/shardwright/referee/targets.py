"""Compile a sharded function for a target, in a child process with a time limit or in this one.

A compiler may crash or hang, and takes only a child with it. Accelerators of this process are its
own: what is compiled for them is compiled here, as `plan.jit` would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax

from shardwright._jax import compiling
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.referee.child import compiled
from shardwright.referee.compiled import (
    CompiledCollective,
    CompiledMemory,
    captured_stderr,
    read_collectives,
)
from shardwright.referee.host_arrays import to_host
from shardwright.referee.host_child import OnlyHere, compile_in_child, without_devices
from shardwright.referee.messages import Reply, Request
from shardwright.referee.process import ask
from shardwright.referee.topologies import Target, check_room, devices_of, parse_target

__all__ = [
    "Build", "Compiled", "OutOfMemory", "Target", "compile_for", "devices_of", "parse_target",
    "run_each",
]  # fmt: skip

# A function from a mesh (jax Mesh or AbstractMesh) to a jitted function with its shardings set.
Build = Callable[[Any], Any]

# Autotuning times kernels on a real GPU; it changes neither collectives nor memory much.
_NOT_TUNED = {"xla_gpu_autotune_level": 0}
# Untuned, XLA (jaxlib 0.10.2) finds no tiles for some kernels of its own, such as the dots of
# attention heads of 72 or 80 elements; cuBLAS takes them all.
_NO_TILES = "Couldn't find output tile sizes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What the compiler of a target made of a program."""

    target: Target
    mesh: Mapping[str, int]
    hlo: str
    memory: CompiledMemory
    stderr: str = field(repr=False)

    @property
    def collectives(self) -> list[CompiledCollective]:
        """The collectives in the program, by mesh axis."""
        return read_collectives(self.hlo, self.mesh)


class OutOfMemory(ShardwrightError):
    """The target's compiler found that the program does not fit."""


def compile_for(
    target: Target, build: Build, args: tuple[Any, ...], *, mesh: Mapping[str, int] | Mesh,
    timeout: float | None = None,
) -> Compiled:  # fmt: skip
    """What the target's compiler makes of `build(mesh)` for these argument shapes.

    A Mesh may say where its axes lie on a torus. `timeout`: seconds until a compiler in a child
    process is ended, an hour by default.
    """
    mesh = Mesh.of(mesh)
    if count := _host_devices(target, mesh, timeout):
        with _unless_only_here(mesh):
            made = compile_in_child(build, args, mesh.shape, count, timeout=timeout)
            return _compiled(target, mesh, *made)
    jitted = build(_jax_mesh(target, mesh))
    with captured_stderr() as err:
        lowered = jitted.lower(*without_devices(args))
    if target.can_run:
        return _compiled(target, mesh, *_compile_here(lowered))
    reply, printed = _compile_without_devices(target, lowered, timeout)
    return _compiled(target, mesh, reply, err.text + printed)


def run_each(
    target: Target,
    build: Build,
    runs: Sequence[tuple[Any, ...]],
    *,
    mesh: Mapping[str, int] | Mesh,
    timeout: float | None = None,
) -> tuple[list[Any], Compiled]:
    """(results of each run, Compiled): compiled once, run on these host arrays of equal types."""
    mesh = Mesh.of(mesh)
    if not target.can_run:
        raise ShardwrightError(
            f"{target} can compile but not run without the hardware", try_="run=False"
        )
    if count := _host_devices(target, mesh, timeout):
        with _unless_only_here(mesh):
            reply, printed = compile_in_child(
                build, runs[0], mesh.shape, count, runs=runs, timeout=timeout
            )
            return reply.outputs, _compiled(target, mesh, reply, printed)
    jitted = build(_jax_mesh(target, mesh))
    made = _compiled(target, mesh, *_compile_here(jitted.lower(*runs[0])))
    # The jitted function places host arrays itself; the executable would refuse them.
    return [jax.tree.map(to_host, jitted(*args)) for args in runs], made


@contextmanager
def _unless_only_here(mesh: Mesh) -> Iterator[None]:
    """Goes on in this process with a program that calls what only it has, if there are devices."""
    try:
        yield
    except OnlyHere:
        if mesh.size > len(jax.devices("cpu")):
            raise


def _compile_here(lowered: Any) -> tuple[Reply, str]:
    """(what the compiler of this process's devices made of a program, what it printed)."""
    with captured_stderr() as err:
        _, reply = compiled(lambda: compiling.compile_afresh(lowered))
    return reply, err.text


def _compile_without_devices(
    target: Target, lowered: Any, timeout: float | None
) -> tuple[Reply, str]:
    """(what the compiler of a topology makes of a program, what it printed), in a child."""
    program = compiling.portable(lowered)
    devices = [device.id for device in compiling.devices_lowered_for(lowered)]

    def compiled_with(options: dict[str, Any]) -> tuple[Reply, str]:
        asked = program._replace(options=program.options | options)
        return ask(Request(asked, str(target), devices), timeout)

    if target.platform != "cuda":
        return compiled_with({})
    reply, printed = compiled_with(_NOT_TUNED)
    if _NO_TILES in reply.said:
        return compiled_with(_NOT_TUNED | {"xla_gpu_enable_triton_gemm": False})
    return reply, printed


def _compiled(target: Target, mesh: Mesh, reply: Reply, printed: str) -> Compiled:
    """What was compiled; a compiler's failure as a ShardwrightError."""
    if reply.memory is None:
        raise _failure(target, reply)
    return Compiled(
        target=target,
        mesh=mesh.shape,
        hlo=reply.hlo,
        memory=reply.memory,
        stderr=printed,
    )


def _failure(target: Target, reply: Reply) -> ShardwrightError:
    """The error for a program of which a compiler made nothing."""
    lines = reply.said.splitlines() or [""]
    if reply.failed == "read":  # a plugin newer than jaxlib
        return ShardwrightError(
            f"the compiler for {target} wrote a program that jaxlib cannot read",
            said=lines[0],
            try_="pip install 'jax[tpu]', which has the libtpu made for this JAX"
            if target.platform == "tpu"
            else None,
        )
    if "RESOURCE_EXHAUSTED" in reply.said:
        return OutOfMemory(f"the program does not fit on {target}", said=lines[0])
    return ShardwrightError(f"the compiler for {target} failed", said="\n".join(lines[:4]))


def _jax_mesh(target: Target, mesh: Mesh) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(devices_of(target, mesh), mesh.names)


def _host_devices(target: Target, mesh: Mesh, timeout: float | None) -> int:
    """The host devices of a child process that compiles for a target; 0 where it is done here."""
    if target.platform == "cpu":
        (count,) = target.shape
        check_room(mesh, count, str(target), try_=f"target cpu:{mesh.size}")
        return count
    if target.platform != "current":
        return 0
    if jax.default_backend() == "cpu" and jax.process_count() == 1:
        here = len(jax.devices())
        return here if mesh.size <= here else 0  # too few is an error
    if timeout is not None:
        raise ShardwrightError(
            "what is compiled for the accelerators of this process is compiled in it, and it cannot"
            " be ended",
            try_=f"target cpu:{mesh.size}, whose compiler runs in a child process",
        )
    return 0
