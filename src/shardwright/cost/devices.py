"""Devices as data: what one device computes, stores and sends per second, each with its source.

The numbers live in devices.toml, with their sources beside them. A device of your own:

    sw.Device.like("h100", name="mine", memory_bytes=96_000_000_000)
    load_devices("cluster.toml")                   # tables as in devices.toml, `like` allowed
"""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.errors import ShardwrightError
from shardwright.spmd.moves import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, PERMUTE, REDUCE_SCATTER

# XLA's spelling of the dtypes that have a rate of their own.
_SPELLING = {
    "bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64",
    "int8": "s8", "uint8": "s8", "u8": "s8", "bool": "s8", "pred": "s8",
    "int4": "s4", "uint4": "s4", "u4": "s4", "int2": "s4", "uint2": "s4",
    "tf32": "f32", "complex64": "c64", "complex128": "c128",
}  # fmt: skip

# A dtype without a rate runs as the next one in its list that has one.
_RUNS_AS = {
    "s4": ("s8", "bf16", "f16", "f32"),
    "s8": ("bf16", "f16", "f32"),
    "f4": ("f8", "bf16", "f16", "f32"),
    "f8": ("bf16", "f16", "f32"),
    "bf16": ("f32", "f16"),
    "f16": ("bf16", "f32"),
    "f32_high": ("f32",),
    "f32_highest": ("f32",),
    "f32": ("bf16", "f16", "f64"),
    "f64": ("f32",),
}
# Names of dot algorithms: what is multiplied, what is added up, how many products there are.
_ALGORITHM = re.compile(r"(ANY_F8|BF16|F16|TF32|F32|F64)_.*?(?:_X(\d+))?")
_MULTIPLIES = {
    "ANY_F8": "f8", "BF16": "bf16", "F16": "f16", "TF32": "f32_high", "F32": "f32_highest",
    "F64": "f64",
}  # fmt: skip
_COLLECTIVES = (ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, PERMUTE, REDUCE_SCATTER)
_TOPOLOGIES = ("torus", "switch")
# What a compiler, not the hardware, decides about memory.
COMPILED_MEMORY = (
    "scratch_bytes", "buffer_bytes", "gathers_major", "breadth_first", "early_updates", "reorders",
    "transposes", "rounds_dots", "keeps_exponentials", "expands", "keeps_padded", "keeps_looped",
    "fused_reduction", "library_reduction",
)  # fmt: skip
_LEAST = 1e-9  # of a rate or share: what divides by less overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What one device can do; every rate is per device and per direction.

    A torus device reaches its neighbours; a switch device reaches every device of its node at
    `link_bytes_per_s`, and other nodes through the node's `node_bytes_per_s`.
    """

    name: str
    flops_per_s: Mapping[str, float]  # of the matrix unit, by dtype in XLA's spelling
    vector_flops_per_s: float  # elementwise and reductions
    clock_hz: float = 0.0  # of the cycles that a compiler estimates; 0: it estimates none
    memory_bytes: int
    memory_bytes_per_s: float
    host_bytes_per_s: float = 0.0  # to its host's memory, or from it; 0: not known
    reserved_bytes: int = 0  # kept by the runtime: a plan may use memory_bytes - reserved_bytes
    scratch_bytes: int = 0  # what a library takes for one dot, at most what the dot reads
    buffer_bytes: int = 1  # every buffer takes a multiple of this
    gathers_major: bool = False  # along any other dim by a copy: the whole is there twice
    breadth_first: bool = False  # ops run as soon as they can, not where the program has them
    early_updates: bool = False  # a weight is updated as soon as its gradient is there
    keeps_exponentials: bool = False  # of a softmax, which dots then divide themselves
    transposes: bool = False  # elementwise work has one order of dims: what is in another is turned
    reorders: bool = False  # to hide links: gathers start early, gradients of weights are left late
    rounds_dots: bool = False  # f32 operands of default precision to bf16, where they are made
    expands: bool = False  # what has no kernel is written out as plain ops, and held meanwhile
    sends_rows: bool = False  # grouped dots may send rows to their experts: ExpertParallel asks
    keeps_padded: bool = False  # what is padded for several readers is padded once, in memory
    keeps_looped: bool = False  # nothing writes over what a loop or branch returned
    fused_reduction: int = 0  # longer dims are reduced from memory, not on the fly; 0: none are
    library_reduction: int = 0  # numbers from which on a library reduces, from memory; 0: none do
    memory_efficiency: float = 1.0  # reached by large streams
    memory_tile_rows: int = 1  # of arrays in memory: fewer rows of the second last dim are padded
    matrix_tile: tuple[int, int, int] = (1, 1, 1)  # (m, n, k) to which a local dot is padded
    matrix_fill_rows: int = 0  # rows' worth of time to load one tile of weights
    matrix_units: int = 1  # tiles in flight that fill the device
    matrix_efficiency: float = 1.0  # reached by large, even dots
    matrix_sustained: float = 1.0  # of that, held through a training step: power limits clocks
    matrix_results_per_s: float = 0.0  # results a dot can hand over; 0: not a limit
    convolution_results_per_s: float = 0.0  # the same of a convolution, channels padded
    topology: str = "switch"  # or "torus"
    link_bytes_per_s: float  # torus: of one link; switch: of one device into its node's switch
    torus: tuple[int, ...] = ()  # largest slice; its length is the number of dims
    gather_links: int = 0  # torus: that a gather or scatter over several dims uses; 0: all
    cores_per_chip: int = 1  # devices of a torus that are the cores of one chip ...
    core_bytes_per_s: float = 0.0  # ... what one sends to the other; they share the chip's links
    wrap_multiple: int = 1  # a torus axis wraps around when it is a multiple of this ...
    wrap_chips: int = 1  # ... and the slice is a multiple of this
    devices_per_node: int = 1
    node_bytes_per_s: float = 0.0  # out of one node, all its devices together
    dcn_bytes_per_s: float = 0.0  # between slices, per device (a host's NICs over its devices)
    link_efficiency: float = 1.0  # switch: of link_bytes_per_s, that a large ring reaches
    link_ramp: float = 0.0  # switch: a ring of n in a node reaches n / (n + this) of that
    all_reduce_gain: float = 1.0  # switch: how much faster than its two halves, by adding there
    latency_s: float = 0.0  # of one call
    hop_latency_s: float = 0.0  # added by each hop on a torus, by each step of a ring in a node
    dcn_latency_s: float = 0.0  # added by each step of a ring across nodes or slices
    half_bandwidth_bytes: float = 0.0  # size at which a collective reaches half of the peak
    # By kind the share of a hideable collective's seconds that runs beside compute (docs/cost.md).
    hides: Mapping[str, float] = field(default_factory=dict)
    # Arrays of so many bytes, split or not, are moved beside the dot that reads or makes them, for
    # the platform splits it (collective matmul); 0: none are.
    splits_bytes: float = 0.0
    # By kind the bytes of results up to which a compiler makes one collective of several.
    combines: Mapping[str, float] = field(default_factory=dict)
    op_overhead_s: float = 0.0  # one kernel or op, however small
    aliases: tuple[str, ...] = ()
    source: str = "given by the user"

    def __post_init__(self) -> None:
        object.__setattr__(self, "flops_per_s", dict(self.flops_per_s))
        object.__setattr__(self, "hides", dict(self.hides))
        object.__setattr__(self, "combines", dict(self.combines))
        for name in ("matrix_tile", "torus", "aliases"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check(self)

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bytes, self.link_bytes_per_s))  # cheap: a cache key

    @property
    def usable_bytes(self) -> int:
        """Memory that a plan may use."""
        return self.memory_bytes - self.reserved_bytes

    def with_memory_of(self, other: Device) -> Device:
        """This device with the buffers that the compiler of another one makes."""
        return replace(self, **{name: getattr(other, name) for name in COMPILED_MEMORY})

    def matrix_flops_per_s(self, dtype: Any, *, precision: str = "default") -> float:
        """FLOP/s of the matrix unit for a dot of `dtype`.

        `precision` as in `jax.lax.dot`: "high" and "highest" tell f32 operands apart; a dot
        algorithm ("BF16_BF16_F32_X3") says itself what is multiplied, and how many times.
        """
        key, passes = dtype_key(dtype), 1
        if key in ("c64", "c128"):  # one complex multiply-add is four real ones
            real = {"c64": "f32", "c128": "f64"}[key]
            return self.matrix_flops_per_s(real, precision=precision) / 4
        algorithm = _ALGORITHM.fullmatch(precision.upper())
        if algorithm:
            key, passes = _MULTIPLIES[algorithm[1]], int(algorithm[2] or 1)
        elif key == "f32" and precision.lower() in ("high", "highest"):
            key = f"f32_{precision.lower()}"
        for name in (key, *_RUNS_AS.get(key, ("f32", "bf16"))):
            if name in self.flops_per_s:
                return self.flops_per_s[name] / passes
        return min(self.flops_per_s.values()) / passes

    @staticmethod
    def like(base: str | Device, **changes: Any) -> Device:
        """A copy of a known device with some fields changed.

        >>> Device.like("h100", name="mine", memory_bytes=96_000_000_000).devices_per_node
        8
        """
        known = device(base)
        _check_fields(changes, changes.get("name", known.name))
        start = {"aliases": (), "source": f"as {known.name}, changed by the user"}
        return replace(known, **{**start, **changes})


def dtype_key(dtype: Any) -> str:
    """XLA's spelling of a dtype: 'bf16' for jnp.bfloat16, 'f8' for every 8-bit float."""
    name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype))
    if name.startswith(("float8_", "f8")):
        return "f8"
    if name.startswith(("float4_", "float6_", "f4")):  # not float64
        return "f4"
    return _SPELLING.get(name, name)


@functools.cache
def _builtin() -> dict[str, Device]:
    return _read(Path(__file__).with_name("devices.toml"), {})


def devices() -> dict[str, Device]:
    """Every device that comes with Shardwright, by name."""
    return dict(_builtin())


def device(name: str | Device) -> Device:
    """The device of that name or alias, or of a TOML file; a Device is returned as it is."""
    if isinstance(name, Device):
        return name
    if isinstance(name, str) and name.endswith(".toml"):
        found = load_devices(name)
        if len(found) != 1:
            raise ShardwrightError(
                f"{name} has {len(found)} devices",
                try_="load_devices(path)[name], or a file of one",
            )
        return next(iter(found.values()))
    by_name = {_fold(known.name): known for known in _builtin().values()}
    by_name |= {_fold(alias): known for known in _builtin().values() for alias in known.aliases}
    if isinstance(name, str) and _fold(name) in by_name:
        return by_name[_fold(name)]
    near = difflib.get_close_matches(_fold(str(name)), by_name, n=3, cutoff=0.5)
    near_names = dict.fromkeys(by_name[match].name for match in near)
    raise ShardwrightError(
        f"unknown device {name!r}",
        known=", ".join(_builtin()),
        try_=", ".join(near_names) or 'Device.like("h100", name="mine", ...) for your own hardware',
    )


def markdown_table() -> str:
    """The devices as a Markdown table, the one in docs/devices.md."""
    rows = [
        "| device | bf16 FLOP/s | memory bytes (usable) | memory bytes/s | links | beyond |",
        "|---|---|---|---|---|---|",
    ]
    for hw in devices().values():
        if hw.topology == "torus":
            shape = "x".join(map(str, hw.torus))
            links = f"{hw.link_bytes_per_s:.2g} per link, {len(hw.torus)}-D torus up to {shape}"
            if hw.cores_per_chip > 1:
                links += f" chips of {hw.cores_per_chip}, {hw.core_bytes_per_s:.2g} in a chip"
            outside = f"{hw.dcn_bytes_per_s:.3g} per device"
        else:
            links = f"{hw.link_bytes_per_s:.3g}, {hw.devices_per_node} in a node"
            outside = f"{hw.node_bytes_per_s:.2g} per node"
        memory = f"{hw.memory_bytes:.3g} ({hw.usable_bytes:.4g})"
        rate = hw.matrix_flops_per_s("bf16")
        cells = (
            f"`{hw.name}`",
            f"{rate:.3g}",
            memory,
            f"{hw.memory_bytes_per_s:.3g}",
            links,
            outside,
        )
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def load_devices(path: str | Path) -> dict[str, Device]:
    """The devices of a TOML file with tables as in devices.toml; `like` names a known device."""
    try:
        return _read(Path(path), _builtin())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ShardwrightError(
            f"cannot read devices from {path}", cause=error, try_="a table as in devices.toml"
        ) from None


def _read(path: Path, known: Mapping[str, Device]) -> dict[str, Device]:
    """The devices of a file of tables; `known` are those that a table may be like."""
    found: dict[str, Device] = {}
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
        if not isinstance(table, dict):
            raise ShardwrightError(f"{name!r} is not a table", file=path, try_=f"[{name}]")
        values = dict(table)
        base = values.pop("like", None)
        _check_fields(values, name)
        values["name"] = name
        if base is None:
            required = [f.name for f in fields(Device) if f.name in _REQUIRED]
            missing = [field_name for field_name in required if field_name not in values]
            if missing:
                raise ShardwrightError(
                    f"device {name!r} lacks {', '.join(missing)}", file=path, try_='like = "h100"'
                )
            found[name] = Device(**values)
        else:
            start = found.get(base) or known.get(base) or device(base)
            found[name] = replace(start, **{"aliases": (), **values})
    return found


_REQUIRED = (
    "flops_per_s", "vector_flops_per_s", "memory_bytes", "memory_bytes_per_s", "link_bytes_per_s",
)  # fmt: skip


def _check_fields(given: Mapping[str, Any], name: str) -> None:
    known = [f.name for f in fields(Device)]
    for field_name in given:
        if field_name not in known:
            near = difflib.get_close_matches(field_name, known, n=2, cutoff=0.5)
            raise ShardwrightError(
                f"device {name!r} has no field {field_name!r}", try_=", ".join(near or known)
            )


def _check(device: Device) -> None:
    """Raises a ShardwrightError unless the numbers make sense."""
    positive = [f for f in _REQUIRED if f != "flops_per_s"]
    positive += ["devices_per_node", "matrix_efficiency", "memory_efficiency", "matrix_units"]
    positive += ["link_efficiency", "all_reduce_gain", "matrix_sustained"]
    if not device.flops_per_s or not min(device.flops_per_s.values()) >= _LEAST:
        raise ShardwrightError(
            f"device {device.name!r} has no FLOP rate", try_='flops_per_s={"bf16": 1e14}'
        )
    rates = [
        f.name for f in fields(device) if f.name.endswith("_per_s") and f.name not in _REQUIRED
    ]
    sizes = ["matrix_tile", "torus", "wrap_multiple", "wrap_chips", "buffer_bytes"]
    sizes += ["memory_tile_rows"]
    for names, fits, try_ in (
        (positive, lambda n: n >= _LEAST, "a positive number"),
        (rates, lambda n: n == 0 or n >= _LEAST, "a positive number, or 0 where there is none"),
        (sizes, lambda n: np.all(np.asarray(n) >= 1), "positive integers"),
    ):
        for name in names:
            if not fits(getattr(device, name)):
                raise ShardwrightError(
                    f"device {device.name!r} has {name} = {getattr(device, name)}", try_=try_
                )
    if not all(kind in _COLLECTIVES and 0 <= share <= 1 for kind, share in device.hides.items()):
        raise ShardwrightError(
            f"device {device.name!r} has hides = {device.hides}",
            try_='parts of 1 by kind: hides={"all-gather": 0.9}',
        )
    if not all(kind in _COLLECTIVES and size >= 0 for kind, size in device.combines.items()):
        raise ShardwrightError(
            f"device {device.name!r} has combines = {device.combines}",
            try_='bytes by kind: combines={"all-gather": 31457287}',
        )
    if device.topology not in _TOPOLOGIES:
        raise ShardwrightError(
            f"device {device.name!r} has topology {device.topology!r}",
            try_=" or ".join(_TOPOLOGIES),
        )
    if device.topology == "torus" and not device.torus:
        raise ShardwrightError(
            f"device {device.name!r} is a torus of no dims", try_="torus=(16, 16)"
        )
    if device.cores_per_chip > 1 and not device.core_bytes_per_s:
        raise ShardwrightError(
            f"device {device.name!r} has {device.cores_per_chip} cores in a chip, and no rate "
            "between them",
            try_="core_bytes_per_s=6e11",
        )
    if not 0 <= device.reserved_bytes < device.memory_bytes:
        raise ShardwrightError(
            f"device {device.name!r} reserves {device.reserved_bytes} bytes",
            memory=f"{device.memory_bytes} bytes",
            try_="reserved_bytes below memory_bytes",
        )


def _fold(name: str) -> str:
    return name.lower().replace("_", "-").replace(" ", "-")
