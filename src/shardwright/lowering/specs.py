"""Shardings as plain data: which mesh axes split each dim of a value."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from jax.sharding import PartitionSpec

from shardwright.cost.model import CostModel
from shardwright.program.types import LITERAL
from shardwright.spmd.decisions import Decisions
from shardwright.spmd.layout import Layout, Placement
from shardwright.spmd.moves import REDUCE_SCATTER, Move

Spec = tuple[tuple[str, ...], ...]  # axes per dim, major to minor
Way = tuple[Spec, ...]  # the shardings that a value takes, one after the other


def partition_spec(spec: Spec) -> PartitionSpec:
    """As JAX writes it: P('data', None, ('data', 'model'))."""
    entries = [dim[0] if len(dim) == 1 else (dim or None) for dim in spec]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def format_way(way: Way) -> str:
    """data,-,data+model -> data,-,-"""
    return " -> ".join(",".join("+".join(dim) or "-" for dim in spec) or "scalar" for spec in way)


def spec_of(layout: Layout, placement: Placement, rank: int, names: Sequence[str]) -> Spec:
    """The sharding of a value of this rank."""
    dims: list[list[tuple[int, int]]] = [[] for _ in range(rank)]
    for axis, j in enumerate(placement):
        if j >= 0:
            dims[layout.atoms[j].dim].append((layout.atoms[j].place, axis))
    return tuple(tuple(names[a] for _, a in sorted(d)) for d in dims)


class Shardings:
    """The shardings of a program's values as decided."""

    def __init__(self, model: CostModel, decisions: Decisions) -> None:
        self._values = model.analysis.program.values
        self._names = model.mesh.names
        self._layouts = model.layouts.table
        self._layout_of = model.layouts.of_value.tolist()
        self._stored = model.stored(decisions)
        self._known: dict[tuple[int, int, Placement], Spec] = {}

    def layout(self, value: int) -> Layout:
        """The layout of a value."""
        return self._layouts[self._layout_of[value]]

    def of(self, value: int, placement: Placement) -> Spec:
        """The sharding of a value in this placement."""
        rank = len(self._values[value].shape)
        key = (self._layout_of[value], rank, placement)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = spec_of(self.layout(value), placement, rank, self._names)
        return known

    def stored(self, value: int) -> Spec:
        """The sharding in which a value is stored; a literal is replicated."""
        if value == LITERAL:
            return ()
        return self.of(value, self._stored[self._layout_of[value]])

    def way(self, value: int, moves: Sequence[Move]) -> Way:
        """The shardings after each move; reduce-scatters in a row are one."""
        reached = [
            m.after for m, after in zip_longest(moves, moves[1:])
            if after is None or not m.kind == after.kind == REDUCE_SCATTER
        ]  # fmt: skip
        return tuple(dict.fromkeys([self.of(value, placement) for placement in reached]))


def border_specs(model: CostModel, decisions: Decisions) -> tuple[list[Spec], list[Spec]]:
    """The shardings of the arguments and of the results."""
    program, shardings = model.analysis.program, Shardings(model, decisions)
    return (
        [shardings.stored(v) for v in program.inputs],
        [shardings.stored(v) for v in program.outputs],
    )
