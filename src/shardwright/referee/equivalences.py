"""Predicted against compiled bytes by kind and axes; what a compiler may run instead, by name.

Bytes that agree under one kind and the same axes are struck out. What was predicted and not found
is then matched with what was found and not predicted, by the equivalences of the platform, one
after the other. The rest is missing or extra: errors that offset each other in a total do not here.

An all-reduce for a predicted reduce-scatter is equivalent only where there is no reduce-scatter: on
an accelerator it is twice the traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, permutations
from math import prod
from typing import NamedTuple

from shardwright.referee.compiled import Key

Totals = Mapping[Key, tuple[float, float]]  # (count, bytes) per step
Sizes = Mapping[str, int]  # of the mesh axes
Substitute = dict[Key, float]  # bytes of each kind and axes that stand for one byte

CPU, TPU, GPU = "cpu", "tpu", "cuda"
EVERYWHERE = (CPU, TPU, GPU)


class Equivalence(NamedTuple):
    """What may be compiled in place of something else."""

    name: str
    platforms: tuple[str, ...]
    substitutes: Callable[[Key, Sizes], Iterator[Substitute]]  # of one key; each is as good
    both_ways: bool = False  # the substitute may have been predicted, and the key compiled


@dataclass(frozen=True, slots=True)
class Fold:
    """Bytes that were predicted under one kind and axes and compiled under another."""

    name: str
    predicted: tuple[Key, ...]
    compiled: tuple[Key, ...]
    bytes: float  # of the side with one key


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of collective over the same axes."""

    kind: str
    axes: tuple[str, ...] | None
    predicted: tuple[float, float]  # (count, bytes) per step
    compiled: tuple[float, float]
    missing_bytes: float  # predicted, and not compiled under any name
    extra_bytes: float  # compiled, and not predicted under any name


@dataclass(frozen=True, slots=True)
class Traffic:
    """Predicted against compiled, row by row."""

    rows: tuple[Row, ...]
    folds: tuple[Fold, ...]

    @property
    def error(self) -> float:
        """The bytes apart in all rows, relative to the larger total."""
        apart = sum(row.missing_bytes + row.extra_bytes for row in self.rows)
        here, there = (
            sum(getattr(row, side)[1] for row in self.rows) for side in ("predicted", "compiled")
        )
        return apart / max(here, there) if apart else 0.0


def compare_traffic(predicted: Totals, compiled: Totals, sizes: Sizes, platform: str) -> Traffic:
    """The comparison of two tables of one program on one platform: cpu, tpu or cuda."""
    predicted, compiled = _between_devices(predicted, sizes), _between_devices(compiled, sizes)
    missing = {key: size for key, (_, size) in predicted.items()}
    extra = {key: size for key, (_, size) in compiled.items()}
    for key in missing.keys() & extra.keys():
        same = min(missing[key], extra[key])
        missing[key] -= same
        extra[key] -= same
    folds: list[Fold] = []
    for known in EQUIVALENCES:
        if platform not in known.platforms:
            continue
        for key, instead, size in _strike_out(known, missing, extra, sizes):
            folds.append(Fold(known.name, (key,), tuple(instead), size))
        if known.both_ways:
            for key, instead, size in _strike_out(known, extra, missing, sizes):
                folds.append(Fold(known.name, tuple(instead), (key,), size))
    none = (0.0, 0.0)
    rows = [
        Row(
            *key, predicted.get(key, none), compiled.get(key, none),
            missing.get(key, 0.0), extra.get(key, 0.0),
        )
        for key in sorted({*predicted, *compiled}, key=lambda key: (key[0], key[1] or ()))
    ]  # fmt: skip
    return Traffic(tuple(rows), tuple(folds))


def _between_devices(totals: Totals, sizes: Sizes) -> Totals:
    """The table without axes of size 1, over which nothing moves."""
    out: dict[Key, tuple[float, float]] = {}
    for (kind, axes), (count, size) in totals.items():
        if axes is not None:
            axes = tuple(a for a in axes if sizes[a] > 1)
            if not axes:
                continue
        n, b = out.get((kind, axes), (0.0, 0.0))
        out[kind, axes] = (n + count, b + size)
    return out


def _strike_out(
    known: Equivalence, named: dict[Key, float], others: dict[Key, float], sizes: Sizes
) -> Iterator[tuple[Key, Substitute, float]]:
    """(key, substitute, bytes) of what one table has by its name and the other as a substitute.

    Both tables are reduced by what is found.
    """

    def explained(key: Key, by: Substitute) -> float:
        return min([named[key], *(others.get(one, 0.0) / share for one, share in by.items())])

    for key in sorted(named, key=str):
        left = list(known.substitutes(key, sizes))
        while left:
            best = max(left, key=lambda one: explained(key, one))
            left.remove(best)
            size = explained(key, best)
            if size > 0:
                named[key] -= size
                for one, share in best.items():
                    others[one] -= size * share
                yield key, best, size


def _all_reduce(key: Key, sizes: Sizes) -> Iterator[Substitute]:
    kind, axes = key
    if kind == "reduce-scatter":
        yield {("all-reduce", axes): 1.0}


def _to_all(key: Key, sizes: Sizes) -> Iterator[Substitute]:
    """Rows for one device go to all of them: there as a gather, back as the scatter of a sum."""
    kind, axes = key
    if kind == "ragged-all-to-all" and axes:
        n = prod(sizes[a] for a in axes)
        yield {("all-gather", axes): n}
        yield {("reduce-scatter", axes): n}


def _sum_of_a_shard(key: Key, sizes: Sizes) -> Iterator[Substitute]:
    """Scattered over some axes; the shards are reduced over the others."""
    kind, axes = key
    if kind == "all-reduce" and axes:
        for count in range(1, len(axes)):
            for inner in combinations(axes, count):
                others = tuple(a for a in axes if a not in inner)
                share = 1.0 / prod(sizes[a] for a in inner)
                yield {("reduce-scatter", inner): 1.0, ("all-reduce", others): share}


def _permutes(key: Key, sizes: Sizes) -> Iterator[Substitute]:
    """Permutes: each device passes all shards but one on to its neighbour."""
    kind, axes = key
    if kind in ("all-gather", "reduce-scatter", "all-to-all") and axes:
        n = prod(sizes[a] for a in axes)
        yield {("collective-permute", axes): (n - 1) / n}


def _axis_by_axis(key: Key, sizes: Sizes) -> Iterator[Substitute]:
    """One collective per axis; each is smaller by the axes that are still to come."""
    kind, axes = key
    if axes is None or len(axes) < 2:
        return
    if kind in ("all-gather", "reduce-scatter"):
        for order in permutations(axes):
            yield {
                (kind, (a,)): 1.0 / prod(sizes[b] for b in order[i + 1 :])
                for i, a in enumerate(order)
            }
    elif kind == "all-to-all":
        yield {(kind, (a,)): 1.0 for a in axes}


def _no_axes(key: Key, sizes: Sizes) -> Iterator[Substitute]:
    kind, axes = key
    if axes is not None:
        yield {(kind, None): 1.0}


EQUIVALENCES = (
    # XLA:CPU writes a reduce-scatter so unless the program asks for one (psum_scatter).
    Equivalence("reduced whole, then sliced", (CPU,), _all_reduce),
    # As lowering/travel.py writes it there: XLA:CPU has no ragged all-to-all.
    Equivalence("rows sent to all devices", (CPU,), _to_all),
    # AllReduceSplitter of XLA:GPU, where all that reads a sum reads a shard of it.
    Equivalence("scattered, and its shards reduced", (GPU,), _sum_of_a_shard),
    # The TPU compiler does so where shards are used one by one (windowed einsums).
    Equivalence("passed from neighbour to neighbour", (TPU,), _permutes),
    # The bytes that cross the links are the same for gathers and scatters.
    Equivalence("one axis after the other", EVERYWHERE, _axis_by_axis, both_ways=True),
    # A sub-axis, say, or devices in an order of the compiler's own.
    Equivalence("over groups that are no mesh axes", EVERYWHERE, _no_axes),
)
