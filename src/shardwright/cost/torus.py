"""Where mesh axes lie on a torus: which physical dims, with or without wraparound.

A mesh says nothing about the physical slice under it, so the most compact one is assumed, as the
cloud hands them out (16 chips of a 2-D torus are 4 x 4, 16 of a 3-D torus 2 x 2 x 4):
- fewer axes than dims: an axis takes several dims; between equals the last axis is served first,
  as `jax.experimental.mesh_utils.create_device_mesh` does;
- more axes than dims: neighbouring axes share a dim, the last of them its nearest neighbours.
An axis that would need half of one dim and half of another (2 x 8 on a 4 x 4 slice) is treated as
if the slice had its shape. `Mesh(wrap=..., links=...)` overrides what is wrong for a given slice.

More devices than any slice has are several slices, and the major axes cross between them, as in
`jax.experimental.mesh_utils.create_hybrid_device_mesh`: an axis is (slices x its devices in one).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shardwright.cost.devices import Device


class Ring(NamedTuple):
    """The devices of one physical dim that take part in a collective, a ring or a line."""

    size: int
    wrap: bool
    bytes_per_s: float  # one device sends this much along the ring: two links if it wraps around
    hops: int  # until the farthest member has been reached


class Dim(NamedTuple):
    """One physical dim and the mesh axes on it, major to minor, with their sizes on it."""

    axes: tuple[tuple[str, int], ...]
    wrap: bool

    @property
    def size(self) -> int:
        """Devices along it."""
        return math.prod(size for _, size in self.axes)


def place(axes: Sequence[tuple[str, int]], device: Device, wrap: Mapping[str, bool]) -> list[Dim]:
    """The dims under the axes of one slice; `wrap` overrides the rule for some axes."""
    axes = [(name, size) for name, size in axes if size > 1]
    chips = math.prod(size for _, size in axes)
    candidates = _split(axes, device) if len(axes) <= len(device.torus) else _share(axes, device)

    def dim(on_it: tuple[tuple[str, int], ...]) -> Dim:
        size = math.prod(part for _, part in on_it)
        rule = size > 2 and size % device.wrap_multiple == 0 and chips % device.wrap_chips == 0
        told = [wrap[name] for name, _ in on_it if name in wrap]
        return Dim(on_it, size > 2 and told[0] if told else rule)

    return [dim(on_it) for on_it in min(candidates, key=lambda found: _compactness(found, device))]


def rings(dims: Sequence[Dim], axes: Sequence[str], device: Device) -> list[Ring]:
    """The rings that a collective over `axes` uses, one per dim."""
    return [_ring(dim, axes, device) for dim in dims if any(name in axes for name, _ in dim.axes)]


def _ring(dim: Dim, axes: Sequence[str], device: Device) -> Ring:
    """The ring of one dim, which several axes may share.

    The groups of a major axis take every s-th device: s groups share each link, a hop is s links
    long. The groups of a minor axis are pieces of the ring: they cannot wrap. Axes that are not
    neighbours are gathered one after the other, the farthest first, while the data is small.
    """
    slope, hops, gathered, wrapped = 0.0, 0, 1, []  # slope in units of 1 / link_bytes_per_s
    for place_, size, stride in reversed(list(_runs(dim, axes))):
        wrap = dim.wrap and place_ == 0 and size > 2
        slope += (size - 1) / size / gathered * stride / (2 if wrap else 1)
        hops += min((size - 1) * stride, dim.size // 2) if wrap else (size - 1) * stride
        gathered *= size
        wrapped.append(wrap)
    rate = (gathered - 1) / gathered / slope * device.link_bytes_per_s
    return Ring(gathered, all(wrapped), rate, hops)


def _runs(dim: Dim, axes: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring axes of the dim that are in `axes`: first place, size, devices per step."""
    for used, run in itertools.groupby(enumerate(dim.axes), key=lambda item: item[1][0] in axes):
        members = list(run)
        if used:
            size = math.prod(part for _, (_, part) in members)
            yield members[0][0], size, math.prod(part for _, part in dim.axes[members[-1][0] + 1 :])


def cores_on(axes: Sequence[tuple[str, int]], device: Device) -> dict[str, int]:
    """{axis: cores} under the last axis that the cores of a chip divide: they are nearest.

    `jax.experimental.mesh_utils` has cores as a physical axis of their own, and serves the last
    mesh axis first.
    """
    cores = device.cores_per_chip
    for name, size in reversed(axes) if cores > 1 else ():
        if size % cores == 0:
            return {name: cores}
    return {}


def devices_in_slice(axes: Sequence[tuple[str, int]], device: Device) -> list[tuple[str, int]]:
    """The axes inside one slice: minor axes as they are, the first that has no room cut, then 1.

    >>> devices_in_slice([("pod", 2), ("data", 128), ("model", 16)], find_device("tpu-v5e"))
    [('pod', 1), ('data', 16), ('model', 16)]
    """
    inside: list[tuple[str, int]] = []
    count, crossed = 1, False
    for name, size in reversed(axes):
        parts = [d for d in range(1, size + 1) if size % d == 0 and not crossed]
        part = max((d for d in parts if slice_exists(count * d, device.torus)), default=1)
        count, crossed = count * part, crossed or part < size
        inside.append((name, part))
    return inside[::-1]


@functools.cache
def slice_exists(count: int, torus: tuple[int, ...]) -> bool:
    """Whether some slice inside the largest one has so many devices."""
    if not torus:
        return count == 1
    first, *rest = torus
    return any(
        count % size == 0 and slice_exists(count // size, tuple(rest))
        for size in range(1, first + 1)
    )


def is_inside(dims: Sequence[Dim], device: Device) -> bool:
    """Whether the largest slice has these dims, in some order."""
    return not _is_outside([dim.size for dim in dims], device)


_Placement = tuple[tuple[tuple[str, int], ...], ...]


def _split(axes: Sequence[tuple[str, int]], device: Device) -> Iterator[_Placement]:
    """Placements that give each axis one or more dims of its own; the last axis gets most first."""
    spare = len(device.torus) - len(axes)
    for extra in itertools.product(*[range(spare, -1, -1) for _ in axes]):
        counts = extra[::-1]
        if sum(extra) > spare:
            continue
        choices = [
            [[((name, part),) for part in parts] for parts in _factors(size, 1 + count)]
            for (name, size), count in zip(axes, counts, strict=True)
        ]
        for chosen in itertools.product(*choices):
            yield tuple(dim for dims in chosen for dim in dims)


def _share(axes: Sequence[tuple[str, int]], device: Device) -> Iterator[_Placement]:
    """Placements that put neighbouring axes on one dim."""
    for cuts in itertools.combinations(range(1, len(axes)), len(device.torus) - 1):
        borders = (0, *cuts, len(axes))
        yield tuple(tuple(axes[a:b]) for a, b in itertools.pairwise(borders))


def _factors(size: int, length: int, least: int = 2) -> Iterator[tuple[int, ...]]:
    """Ascending tuples of `length` factors of `size`, each at least 2."""
    if length == 1:
        if size >= least:
            yield (size,)
        return
    for first in range(least, math.isqrt(size) + 1):
        if size % first == 0:
            for rest in _factors(size // first, length - 1, first):
                yield (first, *rest)


def _compactness(placement: _Placement, device: Device) -> tuple[object, ...]:
    """A key that is smallest for dims that fit the largest slice and are nearly equal."""
    sizes = sorted((math.prod(part for _, part in dim) for dim in placement), reverse=True)
    sizes += [1] * (len(device.torus) - len(sizes))
    return (_is_outside(sizes, device), sizes)


def _is_outside(sizes: Sequence[int], device: Device) -> bool:
    room = sorted(device.torus, reverse=True)
    return any(s > r for s, r in zip(sorted(sizes, reverse=True), room, strict=False))
