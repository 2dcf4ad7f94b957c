"""A mesh: named axes of devices, and what the user knows about the links under them.

Invariants
- axes are ordered major to minor: along the last axis neighbours have consecutive device numbers;
- names are unique, printable and not empty, sizes are positive integers;
- there are at most MOST_DEVICES devices;
- `dcn`, `slices`, `links` and `wrap` name axes of the mesh; an axis called dcn_... is in `dcn`;
- what `slices` says of an axis divides its size;
- so does the product of its parts on the dims of `torus`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwright.coordinates import Torus, crossed_slices, torus_under
from shardwright.errors import ShardwrightError

DCN = "dcn_"  # how the name of an axis between slices begins, as in MaxText
AXIS_NAMES = ("data", "model", "context")  # names for meshes that we make up
MOST_DEVICES = 2**20  # ten times the largest clusters of 2026; more is a slip of the hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one device can do along one axis, where the user knows better than the device's data."""

    bytes_per_s: float  # sent by one device along this axis, all its links together
    latency_s: float = 0.0  # of one collective
    half_bandwidth_bytes: float = 0.0  # see cost/links.py

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0:
            raise ShardwrightError(
                f"link with {self.bytes_per_s} bytes/s", try_="Link(bytes_per_s=4.5e10)"
            )
        if self.latency_s < 0 or self.half_bandwidth_bytes < 0:
            raise ShardwrightError(
                "link with a negative latency or message size", try_="0, or leave it out"
            )


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes in order, major to minor.

    >>> mesh = Mesh({"data": 8, "model": 4}, dcn=("data",))
    >>> print(mesh, mesh.size, mesh.shape["model"])
    data=8 x model=4 32 4
    """

    axes: tuple[tuple[str, int], ...]
    dcn: tuple[str, ...] = field(default=(), kw_only=True)  # axes whose every step crosses slices
    # Of axes that cross slices and go on inside them: the slices, which are the major part.
    slices: Mapping[str, int] = field(default_factory=dict, kw_only=True, hash=False)
    links: Mapping[str, Link] = field(default_factory=dict, kw_only=True, hash=False)
    wrap: Mapping[str, bool] = field(default_factory=dict, kw_only=True, hash=False)
    # Where the axes lie on a slice of a torus, its chips; () leaves it open.
    torus: Torus = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        given: Any = self.axes  # a mapping or pairs: normalised here, so that both may be written
        pairs = _pairs(given)
        _check_axes(pairs)
        object.__setattr__(self, "axes", tuple((name, operator.index(n)) for name, n in pairs))
        told = (self.dcn,) if isinstance(self.dcn, str) else (*self.dcn,)
        named = [name for name in self.names if name.startswith(DCN) and name not in told]
        object.__setattr__(self, "dcn", (*told, *named))
        for what in ("dcn", "slices", "links", "wrap"):
            for name in getattr(self, what):
                if name not in self.names:
                    raise ShardwrightError(
                        f"{what} names an unknown mesh axis {name!r}",
                        mesh=self,
                        try_=" or ".join(map(repr, self.names)),
                    )
        _check_torus(self)
        for name, slices in self.slices.items():
            if slices < 1 or self.shape[name] % slices:
                raise ShardwrightError(
                    f"mesh axis {name!r} crosses {slices} slices",
                    mesh=self,
                    try_=f"a divisor of {self.shape[name]}",
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes, major to minor."""
        return tuple(name for name, _ in self.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the axes, major to minor."""
        return tuple(size for _, size in self.axes)

    @property
    def shape(self) -> dict[str, int]:
        """{axis name: size}"""
        return dict(self.axes)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.sizes)

    def shards(self, spec: Sequence[Sequence[str]]) -> int:
        """Into how many shards axes per dim cut an array."""
        return math.prod(self.shape[axis] for on in spec for axis in on)

    def __str__(self) -> str:
        return " x ".join(f"{name}={size}" for name, size in self.axes)

    @staticmethod
    def of(mesh: Any) -> Mesh:
        """A Mesh from a Mesh, a dict, pairs, or a `jax.sharding.Mesh` or `AbstractMesh`.

        Which axes of a JAX mesh cross slices, and where they lie on a torus, is read off its
        devices.
        """
        if isinstance(mesh, Mesh):
            return mesh
        pairs, crossed = _pairs(mesh), crossed_slices(mesh)
        sizes = dict(pairs) if crossed else {}
        return Mesh(
            pairs,
            dcn=tuple(name for name, n in crossed.items() if n == sizes[name]),
            slices={name: n for name, n in crossed.items() if n < sizes[name]},
            torus=torus_under(mesh, crossed),
        )


def factorisations(count: int, *, max_axes: int = 2, ordered: bool = False) -> list[Mesh]:
    """Every mesh of `count` devices with up to `max_axes` axes larger than 1.

    Names are labels that a search may give any meaning, so shapes that differ only in the order of
    sizes are listed once, largest first. The order matters where it decides which axis stays
    inside a node: `ordered=True` lists every order.

    >>> [str(mesh) for mesh in factorisations(16)]
    ['data=16', 'data=8 x model=2', 'data=4 x model=4']
    """
    _check_size("devices", count)
    shapes = {
        sizes if ordered else tuple(sorted(sizes, reverse=True))
        for length in range(1, min(max_axes, len(AXIS_NAMES)) + 1)
        for sizes in _products(count, length)
    }
    shapes = shapes or {(1,)}
    in_order = sorted(shapes, key=lambda sizes: (len(sizes), tuple(-size for size in sizes)))
    return [Mesh(tuple(zip(AXIS_NAMES, sizes, strict=False))) for sizes in in_order]


def completions(sizes: Mapping[str, int | None], count: int) -> list[Mesh]:
    """Every mesh of `count` devices with the given sizes, where None is free.

    >>> [str(mesh) for mesh in completions({"data": None, "model": 4}, 64)]
    ['data=16 x model=4']
    """
    _check_size("devices", count)
    for name, size in sizes.items():
        if size is not None:
            _check_size(f"mesh axis {name!r}", size)
    fixed = math.prod(size for size in sizes.values() if size is not None)
    free = [name for name, size in sizes.items() if size is None]
    if count % fixed or (not free and count != fixed):
        raise ShardwrightError(
            f"no mesh of {count} devices has these sizes",
            mesh=" x ".join(f"{name}={size or '?'}" for name, size in sizes.items()),
            try_=f"a device count that is a multiple of {fixed}",
        )
    found = _products(count // fixed, len(free), least=1)
    return [Mesh({**sizes, **dict(zip(free, fill, strict=True))}) for fill in found]  # type: ignore[arg-type]


def _products(count: int, length: int, least: int = 2) -> Iterator[tuple[int, ...]]:
    """Ordered tuples of `length` integers, each at least `least`, with product `count`."""
    if length <= 1:
        if length == 1 and count >= least:
            yield (count,)
        elif length == 0 and count == 1:
            yield ()
        return
    for first in range(least, count + 1):
        if count % first == 0:
            for rest in _products(count // first, length - 1, least):
                yield (first, *rest)


def _pairs(mesh: Any) -> tuple[tuple[Any, Any], ...]:
    """The (name, size) pairs of anything that looks like a mesh."""
    if hasattr(mesh, "axis_names") and hasattr(mesh, "shape"):  # jax Mesh and AbstractMesh
        return tuple((name, mesh.shape[name]) for name in mesh.axis_names)
    if isinstance(mesh, Mapping):
        return tuple(mesh.items())
    try:
        return tuple((name, size) for name, size in mesh)
    except (TypeError, ValueError):
        raise ShardwrightError(
            f"not a mesh: {mesh!r}", try_='{"data": 4, "model": 4}, or a jax.sharding.Mesh'
        ) from None


def _check_axes(pairs: tuple[tuple[Any, Any], ...]) -> None:
    """Raises a ShardwrightError unless the pairs are unique names with positive sizes."""
    written = " x ".join(f"{name}={_shown(size)}" for name, size in pairs)
    if not pairs:
        raise ShardwrightError("a mesh needs at least one axis", try_='{"data": 1}')
    for name, size in pairs:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ShardwrightError(
                f"a mesh axis is called {name!r}", mesh=written, try_='a name such as "data"'
            )
        _check_size(f"mesh axis {name!r}", size, mesh=written)
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ShardwrightError(
                f"mesh axis {name!r} appears {names.count(name)} times",
                mesh=written,
                try_="a different name for each axis",
            )
    _check_size("a mesh", math.prod(operator.index(size) for _, size in pairs))


def _check_size(what: str, size: Any, **facts: object) -> None:
    try:
        number = 0 if isinstance(size, bool) else operator.index(size)
    except TypeError:
        number = 0
    if not 1 <= number <= MOST_DEVICES:
        raise ShardwrightError(
            f"{what} has size {_shown(size)}", **facts,
            try_="a positive integer" if number < 1 else f"at most {MOST_DEVICES:,} devices",
        )  # fmt: skip


def _check_torus(mesh: Mesh) -> None:
    """Raises a ShardwrightError unless the dims of `torus` carry axes of the mesh."""
    try:
        torus = tuple(
            tuple((name, operator.index(size)) for name, size in dim) for dim in mesh.torus
        )
    except (TypeError, ValueError):
        raise ShardwrightError(
            f"torus={mesh.torus!r:.60} is no list of dims",
            try_='torus=[[("data", 4)], [("model", 2)]]: for each dim its axes, major to minor',
        ) from None
    object.__setattr__(mesh, "torus", torus)
    for name in {name for dim in torus for name, _ in dim}:
        part = math.prod(size for dim in torus for on_it, size in dim if on_it == name)
        if name not in mesh.names or part < 1 or mesh.shape[name] % part:
            raise ShardwrightError(
                f"torus has {part} of {name!r}", mesh=mesh,
                try_=f"parts of {' or '.join(map(repr, mesh.names))} that divide it",
            )  # fmt: skip


def _shown(size: Any) -> str:
    """A size that need not be one; Python does not print integers of thousands of digits."""
    return "a huge integer" if isinstance(size, int) and abs(size) > 10**30 else f"{size!r:.60}"
