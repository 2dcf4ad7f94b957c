"""Values that are alike fold into layouts: all values of a layout have one sharding."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from shardwright.analysis.analysis import Analysis
from shardwright.program.manual import ShardMaps
from shardwright.program.ties import CARRIES, Tie
from shardwright.program.types import LITERAL, NO_OP, Program, itemsize
from shardwright.rules.rule import MATRIX
from shardwright.spmd.claim import Claims
from shardwright.spmd.decisions import Placement, State
from shardwright.spmd.layout import NO_BIT, REPLICATED, Atom, Layout

MOST_BITS = 30  # of a resolution: fits an int32; any further conflict sets share the last bit


class Layouts:
    """All layouts of a program, and the layout of each value."""

    def __init__(
        self, analysis: Analysis, axis_sizes: Sequence[int],
        pinned: Mapping[int, Sequence[Sequence[int]]], shard_maps: ShardMaps,
        summed: Collection[int],
    ) -> None:  # fmt: skip
        """`pinned` maps a value to the axes that split each of its dims, whatever the lists say.

        `summed` are values that are added up over the trips of a loop (spmd.sums.find_summed).
        """
        self.table, self.of_value = _fold(analysis, axis_sizes, pinned, shard_maps, summed)
        number: dict[Layout, int] = {}
        self.geometry = [number.setdefault(lay.geometry, len(number)) for lay in self.table]
        self.claims = Claims(self.table, len(analysis.all_groups), axis_sizes)

    def place(self, states: Sequence[State]) -> tuple[np.ndarray, np.ndarray]:
        """(placements [B, S, A], local bytes [B, S]) of every layout in every state."""
        return self.claims.place(states)


def resolution_bits(analysis: Analysis) -> list[int]:
    """[conflict sets] the bit of its group's resolution that decides each."""
    position = {
        k: min(i, MOST_BITS)
        for group in analysis.all_groups for i, k in enumerate(group.conflict_sets)
    }  # fmt: skip
    return [position[k] for k in analysis.set_group]


def _fold(
    analysis: Analysis, axis_sizes: Sequence[int],
    pinned: Mapping[int, Sequence[Sequence[int]]], shard_maps: ShardMaps,
    summed: Collection[int],
) -> tuple[list[Layout], np.ndarray]:  # fmt: skip
    """The distinct layouts and the layout of each value."""
    program, names = analysis.program, analysis.color_table.values
    axes, (shards, results) = len(axis_sizes), shard_maps
    bits = resolution_bits(analysis)
    decided: dict[tuple[int, int, int], tuple[int, int]] = {}
    for conflict_set, bit in zip(analysis.conflict_sets, bits, strict=True):
        for conflict, flip in zip(conflict_set.conflicts, conflict_set.flips, strict=True):
            if not conflict.is_op:
                for i, (dim, place) in enumerate(conflict.places):
                    decided[conflict.owner, dim, place] = (bit, (i & 1) ^ flip)
    border = {*program.inputs, *program.consts, *program.outputs}
    update, constants = find_updates(program), program.constant_subgraphs()
    start = np.searchsorted(names.owner, np.arange(len(program.values) + 1))
    dims, places = names.dim.tolist(), names.place.tolist()
    sizes = analysis.color_table.atom_size[names.atom].tolist()
    groups = analysis.color_group[names.color].tolist()
    index: dict[Layout, int] = {}
    cache: dict[tuple[object, ...], int] = {}
    of_value = np.zeros(len(program.values), np.int64)
    for v in program.values:
        low, high = int(start[v.index]), int(start[v.index + 1])
        at_border, is_update = v.index in border, update[v.index]
        literal_array = v.op == NO_OP and v.path is None
        constant = constants[v.index]
        key: tuple[object, ...] = (
            id(v.type), at_border, is_update, literal_array, constant, pinned.get(v.index),
            shards.get(v.index), results.get(v.index), v.index in summed,
            *groups[low:high], *sizes[low:high],
            *[decided.get((v.index, dims[r], places[r])) for r in range(low, high)],
        )  # fmt: skip
        known = cache.get(key)
        if known is None:
            atoms = tuple(
                Atom(
                    dims[r], places[r], sizes[r], groups[r],
                    *decided.get((v.index, dims[r], places[r]), (NO_BIT, 0)),
                )
                for r in range(low, high)
            )  # fmt: skip
            units = 0 if 0 in v.type.shape else 1
            over = shards.get(v.index, ())
            layout = Layout(
                atoms, itemsize(v.type.dtype), units, at_border, is_update, rematerialised=constant,
                closed=over, summed=v.index in summed,
            )  # fmt: skip
            if v.index in pinned:
                layout = layout._replace(pinned=_pinned(layout, axes, pinned[v.index]))
            elif v.index in results:
                given = _pinned(layout, axes, results[v.index])
                if layout.can_store(given, axis_sizes):
                    layout = layout._replace(pinned=given)
            elif literal_array or len(over) == axes:  # an array in the program text is replicated
                layout = layout._replace(pinned=(REPLICATED,) * axes)
            known = cache[key] = index.setdefault(layout, len(index))
        of_value[v.index] = known
    return list(index), of_value


def _pinned(layout: Layout, axes: int, dims: Sequence[Sequence[int]]) -> Placement:
    """The placement with these axes on each dim; several axes fill a dim's atoms in order."""
    placement = [REPLICATED] * axes
    for d, on in enumerate(dims):
        atoms = [j for j, a in enumerate(layout.atoms) if a.dim == d]
        for i, axis in enumerate(on):
            if atoms:
                placement[axis] = atoms[min(i, len(atoms) - 1)]
    return tuple(placement)


def find_updates(program: Program) -> list[bool]:
    """[values] whether each never feeds a contraction: gradients, moments, new weights.

    A result that is an argument of the next step has that argument's sharding; a loop's carry has
    one sharding before, inside and after the loop, and in its condition.
    """
    feeds = [False] * (len(program.values) + 1)  # the last entry stands for literals
    before: list[bool] = []
    while feeds != before:  # a carry that feeds the next trip feeds its first op
        before = list(feeds)
        for op in reversed(program.ops):
            read = op.operands if op.tie in CARRIES else ()
            if op.rule.unit == MATRIX or any(feeds[v] for v in (*op.results, *read)):
                alike = op.results if op.tie in (Tie.WHILE_INIT, *CARRIES) else ()
                for v in (*op.operands, *alike):
                    feeds[v] = True
        feeds[LITERAL] = False
    for position, source in program.updates.items():
        feeds[program.outputs[position]] = feeds[source]
    return [not f for f in feeds[:-1]]
