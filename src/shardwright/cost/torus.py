"""Where mesh axes lie on a torus: which physical dims, with or without wraparound.

A mesh says nothing about the physical slice under it, so the most compact one is assumed, as the
cloud hands them out (16 chips of a 2-D torus are 4 x 4, 16 of a 3-D torus 2 x 2 x 4). Of the ways
to lay the axes on it those with the fewest parts are considered: an axis takes whole dims where it
can, else axes share a dim, else an axis takes a part of one (2 x 8 on a 4 x 4 slice: the 8 are a
dim of 4 and half of the other). The first way is that of `jax.experimental.mesh_utils` where it has
one: the last axis takes most dims, and of axes that share a dim it has the nearest neighbours.
`Mesh(torus=..., wrap=..., links=...)` overrides what is wrong for a given slice.

More devices than any slice has are several slices, and the major axes cross between them, as in
`jax.experimental.mesh_utils.create_hybrid_device_mesh`: an axis is (slices x its devices in one).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shardwright.coordinates import Torus
from shardwright.cost.devices import Device

MOST_WAYS = 200  # to lay axes on a slice; axes of many factors have more that are alike
Parts = tuple[int, ...]  # [dims]


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


def place(
    axes: Sequence[tuple[str, int]], device: Device, wrap: Mapping[str, bool], told: Torus = ()
) -> list[Dim]:
    """The dims under the axes of one slice, as `told` or else the first of `placements`.

    `wrap` overrides the rule for some axes.
    """
    axes = [(name, size) for name, size in axes if size > 1]
    chips = math.prod(size for _, size in axes)

    def dim(on_it: tuple[tuple[str, int], ...]) -> Dim:
        size = math.prod(part for _, part in on_it)
        rule = size > 2 and size % device.wrap_multiple == 0 and chips % device.wrap_chips == 0
        told = [wrap[name] for name, _ in on_it if name in wrap]
        return Dim(on_it, size > 2 and told[0] if told else rule)

    return [dim(on_it) for on_it in told or placements(tuple(axes), device)[0]]


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


@functools.cache
def placements(axes: tuple[tuple[str, int], ...], device: Device) -> tuple[Torus, ...]:
    """The ways to lay axes on the most compact slice with the fewest parts, JAX's first."""
    axes = tuple((name, size) for name, size in axes if size > 1)
    names, sizes = [name for name, _ in axes], [size for _, size in axes]
    slice_ = slice_shape(math.prod(sizes), device)

    def as_jax(torus: Torus) -> tuple[object, ...]:
        """Most dims for the last axis, squares before oblongs, neighbours on one dim."""
        parts = [[part for dim in torus for on_it, part in dim if on_it == name] for name in names]
        return (
            [(-len(of), max(of)) for of in reversed(parts)],
            sorted(map(len, torus), reverse=True),
            [[(names.index(name), part) for name, part in dim] for dim in torus],
        )

    ways = {_laid(axes, parts, slice_) for parts in _fewest_parts(sizes, slice_)}
    in_order = sorted(ways, key=as_jax)
    others = [  # axes that share a dim, not in the order of the mesh
        order for torus in in_order
        for order in itertools.islice(
            itertools.product(*[itertools.permutations(dim) for dim in torus]), 1, MOST_WAYS
        )
    ]  # fmt: skip
    return (*in_order, *others)


@functools.cache
def slice_shape(count: int, device: Device) -> tuple[int, ...]:
    """The dims, ascending, of the most compact slice of so many chips; 1s are left out.

    >>> slice_shape(32, find_device("tpu-v5e"))
    (4, 8)
    """

    def compactness(sizes: tuple[int, ...]) -> tuple[object, ...]:
        return (_is_outside(sizes, device), sizes[::-1])

    if count == 1:
        return ()
    lengths = range(1, len(device.torus) + 1)
    return min((s for n in lengths for s in _factors(count, n)), key=compactness)


def _fewest_parts(sizes: Sequence[int], slice_: tuple[int, ...]) -> list[tuple[Parts, ...]]:
    """[ways][axes][dims] the part of each dim that an axis takes, with the fewest above 1."""
    ways = [  # [axes] every way to take parts of the dims, those of fewer parts first
        sorted(_divisions(size, slice_), key=lambda parts: sum(part > 1 for part in parts))
        for size in sizes
    ]

    def fill(axis: int, free: Parts, left: int) -> Iterator[tuple[Parts, ...]]:
        if axis == len(sizes):
            yield ()
            return
        for parts in ways[axis]:
            more = left - sum(part > 1 for part in parts)
            if more >= len(sizes) - axis - 1 and all(
                room % part == 0 for room, part in zip(free, parts, strict=True)
            ):
                rest = tuple(room // part for room, part in zip(free, parts, strict=True))
                yield from ((parts, *others) for others in fill(axis + 1, rest, more))

    return next(
        found for count in itertools.count(len(sizes))
        if (found := list(itertools.islice(fill(0, slice_, count), MOST_WAYS)))
    )  # fmt: skip


def _divisions(size: int, slice_: tuple[int, ...]) -> Iterator[Parts]:
    """Tuples of a divisor of each dim, with the product `size`."""
    if not slice_:
        if size == 1:
            yield ()
        return
    for part in range(1, slice_[0] + 1):
        if slice_[0] % part == 0 and size % part == 0:
            yield from ((part, *rest) for rest in _divisions(size // part, slice_[1:]))


def _laid(
    axes: Sequence[tuple[str, int]], parts: Sequence[Parts], slice_: tuple[int, ...]
) -> Torus:
    """The axes on each dim, in their order; dims stand by the first axis on them."""
    dims = [
        tuple((name, part[d]) for (name, _), part in zip(axes, parts, strict=True) if part[d] > 1)
        for d in range(len(slice_))
    ]
    names = [name for name, _ in axes]
    return tuple(sorted(dims, key=lambda dim: [(names.index(name), part) for name, part in dim]))


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


def _is_outside(sizes: Sequence[int], device: Device) -> bool:
    room = sorted(device.torus, reverse=True)
    return any(s > r for s, r in zip(sorted(sizes, reverse=True), room, strict=False))
