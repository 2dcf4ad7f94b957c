"""Seconds of one collective on a mesh of devices.

Each mesh axis becomes a level of links. For n members, of which D_i meet at level i and
S_i = D_0 ... D_(i-1) share a unit below it, w_i = bytes/s one device sends at level i, x = bytes of
the larger side on one device:

    all-gather, reduce-scatter   x  max_i (D_i - 1) / (D_i S_i w_i)
    all-reduce                   twice that: a reduce-scatter, then an all-gather; on a torus, for
                                 a few bytes, in one shot: all gather all n parts and add them up
    all-to-all                   x  max_i of  what leaves a unit of level i, (n - S_i) / n / w_i
                                 (inside a node or chip only what stays in it: (D_0 - 1) / n / w_0;
                                 on a ring of q: x / n D_i S_i  floor(q^2 / 4) / q / w, its
                                 bisection)
    collective-permute           x  max_i 1 / (S_i w_i): one device of each unit crosses its border

An axis that crosses slices has a level inside a slice and one between them (the data-centre
network): a gradient is scattered inside, reduced across in parts, gathered inside.

The levels work at the same time on different pieces, hence max. This is the tree formula of the
JAX scaling book (chapter GPUs, "Cross-node collectives"); with one level it is V (n - 1) / n / W
(chapter Sharding). On a torus w_0 is the sum over the dims in use of one link, or two where the dim
wraps around (same chapter: bidirectional bandwidth times number of axes). The book's all-to-all,
a quarter of an all-gather, is the bisection of large rings; small ones are exact here. All dims
work at once in an all-reduce only: the TPU compiler gathers and scatters over several dims along
one ring through all of them, two links of a device (`gather_links`), or as an all-reduce, of which
we take the faster (libtpu 0.0.42 all-reduces up to 17 MB on 16 x 16, where a ring has 128 steps).

    seconds = latency + x b (1 + sqrt(h / x))

where b is the slope above and h the size that reaches half of the peak. Inside a node the rate
grows with the members (`link_ramp`): 2, 4 and 8 GPUs reach 2/3, 4/5 and 8/9 in NVIDIA's tables of
NCCL. There an all-reduce takes less than its two halves, for the switch adds up
(`all_reduce_gain`).

    latency   one call + one hop for each step of a ring: n - 1, of an all-reduce twice that; on a
              torus until the farthest member is reached: along one ring through several dims
              n / 2. Across nodes every step waits for the network. An all-reduce may run over a
              tree: 2 log2(nodes) steps across nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shardwright.cost.devices import Device
from shardwright.cost.devices import device as find_device
from shardwright.cost.torus import Dim, Ring, cores_on, devices_in_slice, is_inside, place, rings
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# Collectives without curves of their own, and whose they share.
PRICED_AS = {"ragged-all-to-all": "all-to-all", "collective-broadcast": "all-gather"}
CALIBRATED_MEMBERS = 8  # half_bandwidth_bytes is of a ring of 8, whose messages are 1/8 of it


class Curve(NamedTuple):
    """Seconds of one kind of collective over some axes: latency + slope x + root sqrt(x)."""

    latency_s: float
    s_per_byte: float
    s_per_root_byte: float

    def seconds(self, bytes: float) -> float:
        """Seconds of one collective of this size."""
        return self.latency_s + self.s_per_byte * bytes + self.s_per_root_byte * math.sqrt(bytes)

    def of_parts(self, count: int) -> Curve:
        """The curve of so many messages in one."""
        return Curve(
            self.latency_s, self.s_per_byte * count, self.s_per_root_byte * math.sqrt(count)
        )


FREE = Curve(0.0, 0.0, 0.0)  # a collective over one device


class Level(NamedTuple):
    """Links of one kind that a collective crosses."""

    kind: str  # "chip", "torus", "node", "network", "dcn" or "given"
    members: float  # D_i: units of the level below that meet here
    bytes_per_s: float  # w_i
    hop_s: float  # of one step
    steps: float  # of an all-gather or reduce-scatter over this level alone
    half_bytes: float
    rings: tuple[Ring, ...] = ()  # of a torus
    ring_per_s: float = 0.0  # of one ring through several dims of a torus; 0: they work at once
    reduces: float = 1.0  # how much faster an all-reduce is than its two halves


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One mesh axis and what carries it."""

    axis: str
    size: int
    link: str
    bytes_per_s: float  # of a large all-gather: gathered bytes per second
    latency_s: float
    wrap: bool


class Network:
    """The links under a mesh of one kind of device."""

    def __init__(self, mesh: Any, device: str | Device) -> None:
        self.mesh = Mesh.of(mesh)
        self.device = find_device(device)
        self._ways: dict[tuple[str, tuple[str, ...]], tuple[Curve, ...]] = {}
        given = self.mesh.links
        inner = [
            (name, size // self.mesh.slices.get(name, 1))
            for name, size in self.mesh.axes
            if name not in self.mesh.dcn and name not in given
        ]
        torus = self.device.topology == "torus"
        self._cores = cores_on(inner, self.device) if torus else {}  # axis -> cores of a chip on it
        chips = [(name, size // self._cores.get(name, 1)) for name, size in inner]
        # Axes and their chips in one slice; more than a slice has are several slices.
        self._inner = devices_in_slice(chips, self.device) if torus else inner
        self._dims = (
            place(self._inner, self.device, self.mesh.wrap, self.mesh.torus) if torus else []
        )
        inside = {name: size * self._cores.get(name, 1) for name, size in self._inner}
        self._slices = {  # axis -> slices that it crosses
            name: size // inside.get(name, 1) for name, size in self.mesh.axes if name not in given
        }

    def seconds(self, kind: str, axes: tuple[str, ...], bytes: float) -> float:
        """Seconds of one collective of XLA's `kind` over the product of `axes`.

        `bytes` is the larger side on one device: the operand of a reduction, the result of a
        gather, the local shard of an all-to-all or permute.
        """
        ways = self._ways.get((kind, axes))
        if ways is None:
            ways = self.ways(kind, axes)
        return min(way.seconds(bytes) for way in ways) if bytes > 0 else 0.0

    def curve(self, kind: str, axes: Iterable[str]) -> Curve:
        """The three numbers behind `seconds` of a large message: the first of `ways`."""
        return self.ways(kind, tuple(axes))[0]

    def ways(self, kind: str, axes: tuple[str, ...]) -> tuple[Curve, ...]:
        """The algorithms of which the fastest is taken, best for large messages first."""
        key = (kind, axes)
        if key not in self._ways:
            self._check(*key)
            levels, kind = self.levels(axes), PRICED_AS.get(kind, kind)
            call_s = self.device.latency_s if any(lv.kind != "given" for lv in levels) else 0.0
            found = [_curve(kind, used, call_s) for used in _algorithms(kind, levels)]
            if kind == "all-reduce" and self.device.topology == "torus":  # in one shot
                members = math.prod(self.mesh.shape[a] for a in axes)
                found.append(_curve("all-gather", levels, call_s).of_parts(members))
            self._ways[key] = tuple(sorted(found, key=lambda way: way.s_per_byte))
        return self._ways[key]

    def levels(self, axes: Sequence[str]) -> list[Level]:
        """The levels of links that a collective over `axes` crosses, fastest first."""
        shape, hw = self.mesh.shape, self.device
        inner = [name for name, size in self._inner if name in axes and size > 1]
        found = []
        cores = math.prod(self._cores.get(name, 1) for name in axes)
        if cores > 1:
            found.append(Level("chip", cores, hw.core_bytes_per_s, hw.hop_latency_s, 1, 0))
        if inner and hw.topology == "torus":
            used = tuple(rings(self._dims, inner, hw))
            rate, hops = sum(ring.bytes_per_s for ring in used), sum(ring.hops for ring in used)
            members = math.prod(ring.size for ring in used)
            half, ring = hw.half_bandwidth_bytes, hw.gather_links * hw.link_bytes_per_s
            ring = min(rate, ring) if len(used) > 1 else 0.0
            found.append(
                Level("torus", members, rate, hw.hop_latency_s, hops, half, used, ring_per_s=ring)
            )
        elif inner:
            found += self._switch_levels(inner)
        for name in axes:
            if name in self.mesh.links and shape[name] > 1:
                link = self.mesh.links[name]
                half = link.half_bandwidth_bytes
                found.append(Level("given", shape[name], link.bytes_per_s, link.latency_s, 1, half))
        slices = math.prod(self._slices.get(name, 1) for name in axes)
        found.sort(key=lambda level: -level.bytes_per_s)
        if slices > 1:
            rate = hw.dcn_bytes_per_s or hw.link_bytes_per_s
            half = hw.half_bandwidth_bytes
            found.append(Level("dcn", slices, rate, hw.dcn_latency_s, slices - 1, half))
        return found

    @property
    def on_torus(self) -> tuple[tuple[str, int], ...]:
        """The axes inside a slice of a torus, and their chips; () where there is no torus."""
        torus = self.device.topology == "torus"
        return tuple((name, size) for name, size in self._inner if torus and size > 1)

    def describe(self) -> list[LinkRow]:
        """One row per mesh axis for a report."""
        rows = []
        for name, size in self.mesh.axes:
            levels = self.levels((name,))
            curve = self.curve("all-gather", (name,))
            rate = 1 / curve.s_per_byte if curve.s_per_byte else math.inf
            used = [ring for level in levels for ring in level.rings]
            wrap = bool(used) and all(ring.wrap for ring in used)
            link = " + ".join(_describe(level) for level in levels) or "none"
            rows.append(LinkRow(name, size, link, rate, curve.latency_s, wrap))
        return rows

    def notes(self) -> list[str]:
        """What a reader should know about how the axes were mapped to links."""
        hw, found = self.device, []
        cut = [name for name, _ in self._inner if self._slices[name] > 1]
        if cut:
            slices = math.prod(self._slices.values())
            inside = math.prod(size for _, size in self._inner) * math.prod(self._cores.values())
            found.append(
                f"{slices * inside:,} devices are {slices:,} slices of {inside:,} ({hw.name}): "
                f"{_crossing(cut)} the data-centre network"
            )
        on_it = [name for dim in self._dims for name, _ in dim.axes]
        if self.mesh.torus and len(on_it) > min(len(self._dims), len(set(on_it))):
            found.append(_laid(self._dims))
        if hw.topology == "torus" and not is_inside(self._dims, hw):
            shape = "x".join(str(dim.size) for dim in self._dims)
            found.append(
                f"no slice of {hw.name} is {shape}, the largest is {'x'.join(map(str, hw.torus))}: "
                "priced as if one were"
            )
        return found

    def _switch_levels(self, inner: Sequence[str]) -> list[Level]:
        """In-node and cross-node levels, by the order of axes and the devices per node."""
        hw = self.device
        sizes = [size for _, size in self._inner]
        per_node = _devices_used_per_node(math.prod(sizes), hw.devices_per_node)
        numbers = np.arange(math.prod(sizes)).reshape(sizes)  # last axis: consecutive devices
        moved = [place for place, (name, _) in enumerate(self._inner) if name in inner]
        kept = [place for place in range(len(sizes)) if place not in moved]
        members = math.prod(sizes[place] for place in moved)
        groups = numbers.transpose(kept + moved).reshape(-1, members)  # [groups, members]
        nodes = np.sort(groups // per_node, axis=1)
        spanned = 1 + int((np.diff(nodes, axis=1) > 0).sum(axis=1).max())  # by the worst group
        half, inside = hw.half_bandwidth_bytes, members / spanned
        levels = []
        if inside > 1:
            rate = hw.link_bytes_per_s * hw.link_efficiency * inside / (inside + hw.link_ramp)
            gain = hw.all_reduce_gain
            levels.append(
                Level("node", inside, rate, hw.hop_latency_s, inside - 1, half, reduces=gain)
            )
        if spanned > 1:
            rate = (hw.node_bytes_per_s or hw.link_bytes_per_s) / hw.devices_per_node
            levels.append(Level("network", spanned, rate, hw.dcn_latency_s, members - 1, half))
        return levels

    def _check(self, kind: str, axes: tuple[str, ...]) -> None:
        """Raises a ShardwrightError unless the mesh can have such a collective."""
        if kind not in KINDS and kind not in PRICED_AS:
            raise ShardwrightError(f"unknown collective {kind!r}", try_=", ".join(KINDS))
        for name in axes:
            if name not in self.mesh.names:
                raise ShardwrightError(
                    f"{kind} over an unknown mesh axis {name!r}",
                    mesh=self.mesh,
                    try_=", ".join(self.mesh.names),
                )
        if len(set(axes)) < len(axes):
            raise ShardwrightError(f"{kind} names an axis twice: {', '.join(axes)}")


def _algorithms(kind: str, levels: Sequence[Level]) -> Iterator[Sequence[Level]]:
    """The levels as they are used: several dims of a torus gather by one ring, or by a sum."""
    if kind in ("all-gather", "reduce-scatter") and any(level.ring_per_s for level in levels):
        yield [_as_ring(level) if level.ring_per_s else level for level in levels]
        levels = [_as_sum(level) if level.ring_per_s else level for level in levels]
    yield levels


def _as_ring(level: Level) -> Level:
    """One ring through all members, which meets the farthest half of the way around."""
    steps = max(level.steps, level.members // 2)
    return level._replace(bytes_per_s=level.ring_per_s, steps=steps)


def _as_sum(level: Level) -> Level:
    """An all-reduce of the whole: both its halves, over all dims at once."""
    return level._replace(bytes_per_s=level.bytes_per_s / 2, steps=2 * level.steps)


def _curve(kind: str, levels: Sequence[Level], call_s: float) -> Curve:
    """The curve of one collective over the levels, fastest first."""
    if not levels:
        return FREE
    members = math.prod(level.members for level in levels)
    below = 1.0  # S_i
    slopes = []
    for place_, level in enumerate(levels):
        rate = level.bytes_per_s
        if kind == "all-to-all":
            if level.rings:
                share = level.members * below / members  # of the shard stays in the slice
                slope = share * max(_bisection(ring) for ring in level.rings)
            elif place_ == 0 and level.kind in ("node", "chip"):
                slope = (level.members - 1) / members / rate
            else:
                slope = (members - below) / members / rate
        elif kind == "collective-permute":
            slope = 1 / (below * (_one_link(level) if level.rings else rate))
        else:
            passes = 2 / level.reduces if kind == "all-reduce" else 1
            slope = (level.members - 1) / level.members / below * passes / rate
        slopes.append(slope)
        below *= level.members
    slope = max(slopes)
    half = max(level.half_bytes for level in levels)
    if kind == "collective-permute":
        half /= CALIBRATED_MEMBERS
    return Curve(call_s + _steps_s(kind, levels), slope, slope * math.sqrt(half))


def _steps_s(kind: str, levels: Sequence[Level]) -> float:
    """Seconds in which an empty collective takes its steps."""
    if kind == "collective-permute":
        return max(level.hop_s for level in levels)
    network = any(level.kind == "network" for level in levels)
    flat_s = sum(  # one ring through all nodes: every step waits for the network
        level.hop_s * level.steps for level in levels if not (network and level.kind == "node")
    )
    apart_s = sum(  # inside the nodes, then over a tree of nodes
        level.hop_s * (math.log2(level.members) if level.kind == "network" else level.steps)
        for level in levels
    )
    if kind == "all-to-all":  # sent at once, not from neighbour to neighbour
        return min(flat_s, apart_s)
    return 2 * min(flat_s, apart_s) if kind == "all-reduce" else flat_s


def _bisection(ring: Ring) -> float:
    """Seconds per byte of the local shard of an all-to-all on a ring or line of q devices.

    floor(q^2 / 4) / q shards pass each device's two links (ring) or the middle link (line).
    """
    return (ring.size**2 // 4) / ring.size / ring.bytes_per_s


def _one_link(level: Level) -> float:
    """Bytes/s of the slowest single link of a torus level: a shift uses one direction."""
    return min(ring.bytes_per_s / (2 if ring.wrap else 1) for ring in level.rings)


def _devices_used_per_node(count: int, per_node: int) -> int:
    """The largest even share of `count` devices per node: 64 of 72 for 128 devices."""
    if count <= per_node:
        return count
    return max(share for share in range(1, per_node + 1) if count % share == 0)


def _crossing(axes: Sequence[str]) -> str:
    """axis `data` crosses; axes `pod` and `data` cross"""
    names = " and ".join(f"`{name}`" for name in axes)
    return f"axis {names} crosses" if len(axes) == 1 else f"axes {names} cross"


def _laid(dims: Sequence[Dim]) -> str:
    """on a slice of 4x4 `data` lies along 2 of 4, `model` lies along 2 of 4 (nearest) and 4"""
    parts: dict[str, list[str]] = {}
    for dim in dims:
        for name, part in dim.axes:
            of = f" of {dim.size}" if part < dim.size else ""
            near = " (nearest)" if of and name == dim.axes[-1][0] else ""
            parts.setdefault(name, []).append(f"{part}{of}{near}")
    said = ", ".join(f"`{name}` lies along {' and '.join(along)}" for name, along in parts.items())
    return f"on a slice of {'x'.join(str(dim.size) for dim in dims)} {said}"


def _describe(level: Level) -> str:
    if not level.rings:
        names = {
            "chip": "in chip", "node": "in node", "network": "across nodes", "dcn": "DCN",
            "given": "given",
        }  # fmt: skip
        return f"{level.members:g} {names[level.kind]}"
    parts = [f"{'ring' if ring.wrap else 'line'} of {ring.size}" for ring in level.rings]
    return " x ".join(parts)
