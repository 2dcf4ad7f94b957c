"""Calibration: what the current devices really do, as a Device that the planner takes.

Everything is measured on all devices of a mesh at once, as in a step: dots, streams from memory,
vector work, each kind of collective over each axis at a few sizes, and how much of one hides behind
a dot. A known device gives the form (topology, tiles, memory); its rates and latencies are replaced
by what was measured.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shardwright.cost.devices import Device
from shardwright.cost.links import Network
from shardwright.cost.roofline import dot_s, stream_s
from shardwright.lowering.jit import jax_mesh
from shardwright.mesh import Mesh

SIZES = (1 << 16, 1 << 20, 1 << 23)  # bytes of the larger side on one device
DOT, STREAM_BYTES, CHAIN = 1024, 1 << 25, 64  # a dot's side, an array, multiply-adds on an element
NOISE = 0.1  # a smaller part that hides is none
REPEATS = 5  # the fastest counts: whatever disturbs a run makes it slower
DTYPES = ("float32", "bfloat16")
# The rate of a device that the slowest level of links under an axis measures.
RATES = {
    "torus": "link_bytes_per_s", "node": "link_bytes_per_s", "network": "node_bytes_per_s",
    "dcn": "dcn_bytes_per_s", "given": "",
}  # fmt: skip


class Timing(NamedTuple):
    """One collective that was measured."""

    kind: str
    axis: str
    bytes: int  # the larger side on one device
    seconds: float


def measured_device(mesh: Any, like: Device, *, name: str = "calibrated") -> Device:
    """`like` with the rates and latencies that were measured on the current devices.

    >>> measured_device({"data": 8}, device("cpu")).source
    'measured on 8 x cpu (data=8), else as cpu'
    """
    own = Mesh.of(mesh)
    here = jax_mesh(own, mesh if isinstance(mesh, jax.sharding.Mesh) else None)
    found = replace(
        like, name=name, aliases=(), **_local(here, like), hides=measure_hidden(here),
        source=f"measured on {own.size} x {here.devices.flat[0].device_kind} ({own}), "
        f"else as {like.name}",
    )  # fmt: skip
    return replace(found, **fit_links(own, found, measure_links(here)))


def measure_links(mesh: Any) -> list[Timing]:
    """The seconds of each kind of collective over each axis of a JAX mesh, at each size."""
    found = []
    for axis, n in mesh.shape.items():
        for kind in COLLECTIVES if n > 1 else ():
            for size in SIZES:
                send, x, moved = _transfer(mesh, kind, axis, size)
                found.append(Timing(kind, axis, moved, _seconds(send, x)))
    return found


def _transfer(mesh: Any, kind: str, axis: str, size: int) -> tuple[Callable[..., Any], Any, int]:
    """(a collective over an axis, what it moves, about `size` bytes on one device, how many)."""
    n, spec = mesh.shape[axis], PartitionSpec(mesh.axis_names)
    shards = n if kind == "all-gather" else 1
    local = size // shards // 4 // n * n  # floats, in n equal parts
    send = jax.shard_map(
        partial(COLLECTIVES[kind], axis=axis, n=n), mesh=mesh, in_specs=spec, out_specs=spec,
        check_vma=False,
    )  # fmt: skip
    return jax.jit(send), _spread(mesh, (local * mesh.size,), "float32"), 4 * local * shards


def measure_hidden(mesh: Any) -> dict[str, float]:
    """{kind of collective: the part of it, over the largest axis, that hides behind a dot}"""
    axis, n = max(mesh.shape.items(), key=lambda item: item[1])
    dot = _spread(mesh, (mesh.size, DOT, DOT), "float32")
    found = {}
    for kind in ("all-gather", "reduce-scatter", "all-reduce") if n > 1 else ():
        send, moved, _ = _transfer(mesh, kind, axis, SIZES[-1])
        both = jax.jit(lambda pair, send=send: (pair[0] @ pair[0], send(pair[1])))
        dot_seconds = _seconds(jax.jit(lambda x: x @ x), dot)
        link_seconds = _seconds(send, moved)
        hidden = dot_seconds + link_seconds - _seconds(both, (dot, moved))
        found[kind] = round(min(max(hidden / min(dot_seconds, link_seconds), 0.0), 1.0), 2)
    return {kind: part for kind, part in found.items() if part >= NOISE}


COLLECTIVES: dict[str, Callable[..., Any]] = {
    "all-gather": lambda x, axis, n: jax.lax.all_gather(x, axis, tiled=True),
    "reduce-scatter": lambda x, axis, n: jax.lax.psum_scatter(x, axis, tiled=True),
    "all-reduce": lambda x, axis, n: jax.lax.psum(x, axis),
    "all-to-all": lambda x, axis, n: jax.lax.all_to_all(x, axis, 0, 0, tiled=True),
    "collective-permute": lambda x, axis, n: jax.lax.ppermute(
        x, axis, [(i, (i + 1) % n) for i in range(n)]
    ),
}


def fit_links(mesh: Mesh, device: Device, timings: Sequence[Timing]) -> dict[str, Any]:
    """The rates and the latency with which the model of links gives the timings."""
    network = Network(mesh, device)
    scales: dict[str, list[float]] = {}
    latencies = []
    for kind, axis in dict.fromkeys((t.kind, t.axis) for t in timings):
        rows = [t for t in timings if (t.kind, t.axis) == (kind, axis)]
        intercept, slope = fit_line([t.bytes for t in rows], [t.seconds for t in rows])
        levels, curve = network.levels((axis,)), network.curve(kind, (axis,))
        rate = RATES[min(levels, key=lambda level: level.bytes_per_s).kind]
        if rate:
            scales.setdefault(rate, []).append(curve.s_per_byte / slope)
            latencies.append(max(intercept - curve.latency_s + device.latency_s, 0.0))
    rates = {
        name: getattr(device, name) * statistics.median(ratios) for name, ratios in scales.items()
    }
    if latencies:
        rates |= {"latency_s": statistics.median(latencies), "half_bandwidth_bytes": 0.0}
    return rates


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """(intercept, slope) of the line with the least relative errors; neither is negative."""
    weight = 1 / np.array(y)
    table = np.stack([weight, np.array(x) * weight], 1)
    (intercept, slope), *_ = np.linalg.lstsq(table, np.ones(len(y)), rcond=None)
    if intercept < 0 or slope <= 0:  # too noisy for a line: all of it is the largest one's rate
        return 0.0, y[-1] / x[-1]
    return float(intercept), float(slope)


def _local(mesh: Any, device: Device) -> dict[str, Any]:
    """Rates of dots, memory and vector work of one device while all of them work."""
    flops = dict(device.flops_per_s)
    for dtype in DTYPES:
        x = _spread(mesh, (mesh.size, DOT, DOT), dtype)
        seconds = _seconds(jax.jit(lambda x: x @ x), x)
        key = "f32" if dtype == "float32" else "bf16"
        flops[key] = device.matrix_flops_per_s(dtype) * (
            dot_s(device, dtype, m=DOT, n=DOT, k=DOT) / device.matrix_sustained / seconds
        )
    x = _spread(mesh, (mesh.size, STREAM_BYTES // 4), "float32")
    stream = _seconds(jax.jit(lambda x: x + 1.0), x)
    work = _seconds(jax.jit(_chain), x)
    return {
        "flops_per_s": flops,
        "memory_bytes_per_s": device.memory_bytes_per_s
        * stream_s(device, 2.0 * STREAM_BYTES) / stream,
        "vector_flops_per_s": 2.0 * CHAIN * (STREAM_BYTES // 4) / work,
    }  # fmt: skip


def _chain(x: Any) -> Any:
    for _ in range(CHAIN):
        x = x * x + x
    return x


def _spread(mesh: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Ones whose first dim is split over all devices."""
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.jit(lambda: jnp.ones(shape, dtype) / math.prod(shape[1:] or (1,)),
                   out_shardings=sharding)()  # fmt: skip


def _seconds(fn: Callable[..., Any], x: Any) -> float:
    """The fastest of a few runs, the first of which compiles and does not count."""
    jax.block_until_ready(fn(x))
    runs = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(fn(x))
        runs.append(time.perf_counter() - start)
    return min(runs)
