"""Compile and run for N host CPU devices in a child process.

The user's function is a closure and need not pickle: this process lowers it for an AbstractMesh,
which needs no devices, and the child gets StableHLO with shardings, donation and source lines.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.referee.child import Reply, Request

LIMIT_S = 3600.0  # of one compilation and its runs; the largest of the zoo take some minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReply:
    """What the child's compiler made of the program, and its results each time it ran."""

    hlo: str
    memory: dict[str, int]
    stderr: str
    outputs: tuple[Any, ...] = ()


def compile_in_child(
    build: Callable[[Any], Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    mesh: Mapping[str, int],
    device_count: int,
    *,
    runs: Sequence[tuple[Any, ...]] = (),
) -> ChildReply:
    """The child's reply for `build(AbstractMesh)`, with results of each of `runs`."""
    jitted = build(jax.sharding.AbstractMesh(tuple(mesh.values()), tuple(mesh)))
    lowered = _jax.lower_for(jitted.trace(*without_devices(args), **without_devices(kwargs)), "cpu")
    inputs, shapes = [], []
    if runs:
        if _jax.calls_back(lowered):
            raise ShardwrightError(
                "a program that calls back into Python cannot run in a child process",
                try_="start Python with XLA_FLAGS=--xla_force_host_platform_device_count="
                f"{device_count}, or remove debug prints and callbacks",
            )
        infos = jax.tree.leaves(lowered.args_info, is_leaf=lambda x: hasattr(x, "donated"))
        kept = _jax.kept_arguments(lowered)
        for run in runs:
            leaves = _dynamic_leaves(jitted, run, kwargs)
            dtypes = [None if _is_key(infos[i].dtype) else infos[i].dtype for i in kept]
            inputs.append([to_host(leaves[i], t) for i, t in zip(kept, dtypes, strict=True)])
        shapes = [_physical_shape(out) for out in jax.tree.leaves(lowered.out_info)]
    request = Request(
        _jax.stablehlo_bytes(lowered),
        prod(mesh.values()),
        _jax.propagation(lowered),
        inputs,
        shapes,
    )
    reply, stderr = ask(request, device_count)
    tree = jax.tree.structure(lowered.out_info)
    outputs = tuple(jax.tree.unflatten(tree, out) for out in reply.outputs)
    return ChildReply(hlo=reply.hlo, memory=reply.memory, stderr=stderr, outputs=outputs)


def ask(request: Request, device_count: int) -> tuple[Reply, str]:
    """(the child's reply, what it printed to standard error)."""
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
        asked, replied = Path(folder, "request"), Path(folder, "reply")
        asked.write_bytes(pickle.dumps(asdict(request)))
        try:
            child = subprocess.run(
                [sys.executable, "-m", "shardwright.referee.child", str(asked), str(replied)],
                env=_environment(device_count), stdin=subprocess.DEVNULL, capture_output=True,
                text=True, errors="replace", timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            said = late.stderr or b""  # bytes, whatever `text` says
            raise ShardwrightError(
                f"the child process for {device_count} host devices was not done after"
                f" {LIMIT_S:g} s and was ended",
                said=_last(said.decode(errors="replace") if isinstance(said, bytes) else said),
                try_="a smaller program: fewer layers, or fewer devices",
            ) from None
        if child.returncode or not replied.exists():
            raise ShardwrightError(
                f"the child process for {device_count} host devices failed "
                f"with code {child.returncode}",
                said=_last(child.stderr),
            )
        return Reply(**pickle.loads(replied.read_bytes())), child.stderr


def _last(text: str) -> str | None:
    """The last lines of what a child printed."""
    return "\n".join(text.strip().splitlines()[-6:]) or None


def to_host(leaf: Any, dtype: Any = None) -> np.ndarray:
    """A host array of an array or scalar; of the data of a random key."""
    if isinstance(leaf, jax.Array) and _is_key(leaf.dtype):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf, dtype)


def without_devices(args: Any) -> Any:
    """The arguments with arrays that live on devices of this process as shapes only."""

    def shape_of(leaf: Any) -> Any:
        is_array = isinstance(leaf, jax.Array)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array else leaf

    return jax.tree.map(shape_of, args)


def _environment(device_count: int) -> dict[str, str]:
    """The child's environment: N host devices, nothing else changed for the compiler."""
    flags = os.environ.get("XLA_FLAGS", "")
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", flags)
    package_root = str(Path(__file__).resolve().parents[2])
    search = [package_root, *sys.path]  # the same JAX as here, however it was found
    return {
        **os.environ,
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={device_count}".strip(),
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",  # inputs keep their width; the program's types are fixed already
        "JAX_ENABLE_COMPILATION_CACHE": "0",  # a cached program prints no warnings
        "PYTHONPATH": os.pathsep.join(filter(None, search)),
        "PYTHONSAFEPATH": "1",  # nothing from the working directory
        "NPROC": str(_pool_size(device_count)),
    }


def _pool_size(device_count: int) -> int:
    """Threads for XLA:CPU's pools, which it sizes by NPROC or else by the cores.

    Every device waits in a thread of a pool until the last one arrives at a collective. On few
    cores there is one thread per device: the last device's compute finds none free, the
    rendezvous starves and XLA aborts the process. Twice the devices leaves threads for compute.
    """
    given = os.environ.get("NPROC", "")
    cores = int(given) if given.isdigit() else os.cpu_count() or 1
    return max(cores, 2 * device_count)


def _dynamic_leaves(jitted: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The flat arguments without the static ones."""
    static_nums, static_names, _ = _jax.jit_options(jitted)
    static = {number % len(args) for number in static_nums} if args else set()
    dynamic = tuple(arg for i, arg in enumerate(args) if i not in static)
    named = {name: arg for name, arg in kwargs.items() if name not in static_names}
    return jax.tree.leaves((dynamic, named))


def _is_key(dtype: Any) -> bool:
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _physical_shape(out: Any) -> tuple[int, ...]:
    """The shape of the buffer behind a result: a random key is an array of words."""
    if _is_key(out.dtype):
        struct = jax.ShapeDtypeStruct(out.shape, out.dtype)
        return jax.eval_shape(jax.random.key_data, struct).shape
    return tuple(out.shape)
