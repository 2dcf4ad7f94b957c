"""Values claim: how data is stored, given the lists. Values with equal dims fold into layouts.

A placement is, for each mesh axis, the atom of the value that the axis splits, or WHOLE. Atoms
are numbered over all dims of the value, major to minor. Several axes on one atom split it in
mesh order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from shardwright.analysis.analysis import Analysis
from shardwright.errors import ShardwrightError
from shardwright.program.types import CARRIES, LITERAL, NO_OP, Program, itemsize
from shardwright.rules.rule import MATRIX
from shardwright.spmd.decisions import UPDATES, Placement, State
from shardwright.spmd.division import can_divide, local_size

WHOLE = -1  # an axis that splits no atom of a value

_NEVER = 1 << 20  # the rank of a group that is not listed


class Atom(NamedTuple):
    """One splittable piece of a dim."""

    dim: int
    place: int
    size: int
    group: int
    bit: int  # the resolution bit that decides it, or -1
    side: int


class Layout(NamedTuple):
    """What matters about a value for how it is stored: equal layouts are stored alike."""

    atoms: tuple[Atom, ...]
    itemsize: int
    units: int  # elements that no atom covers (1 but for dims of size 0)
    border: bool  # an argument, constant or result: must divide evenly
    update: bool  # never feeds a contraction: may claim in scope UPDATES
    pinned: Placement | None = None  # stored like this whatever the lists say
    made_up: bool = False  # of numbers in the program alone: any device can make any part of it

    @property
    def geometry(self) -> Layout:
        """What matters for how parts move: the groups of the atoms do not."""
        atoms = tuple([a._replace(group=0, bit=-1, side=0) for a in self.atoms])
        return self._replace(atoms=atoms, update=False, pinned=None)

    def pads(self, atom: int) -> bool:
        """Whether an axis may split the atom unevenly: inside a program, a dim of its own."""
        dim = self.atoms[atom].dim
        return not self.border and sum(a.dim == dim for a in self.atoms) == 1

    def parts(self, placement: Placement, axis_sizes: Sequence[int]) -> list[int]:
        """[atoms] how many devices share each; axes behind the placement split nothing."""
        parts = [1] * len(self.atoms)
        for atom, n in zip(placement, axis_sizes, strict=False):
            if atom != WHOLE:
                parts[atom] *= n
        return parts

    def can_split(self, atom: int, parts: Sequence[int], n: int) -> bool:
        """Whether n devices can share what each of `parts` devices holds of an atom.

        Only a prefix of a compound dim can be split: all on its major side is split to the end.
        """
        a = self.atoms[atom]
        return (
            self.units > 0
            and can_divide(a.size, parts[atom], n, pads=self.pads(atom))
            and all(self.atoms[k].size == parts[k] for k in range(atom - a.place, atom))
        )

    def can_store(self, placement: Placement, axis_sizes: Sequence[int]) -> bool:
        """Whether each axis can split its atom, given what the axes before it split."""
        parts = [1] * len(self.atoms)
        for atom, n in zip(placement, axis_sizes, strict=True):
            if atom != WHOLE:
                if not self.can_split(atom, parts, n):
                    return False
                parts[atom] *= n
        return True

    def local_bytes(self, placement: Placement, axis_sizes: Sequence[int]) -> int:
        """Bytes of one device's part."""
        total = self.itemsize * self.units
        for a, parts in zip(self.atoms, self.parts(placement, axis_sizes), strict=True):
            total *= local_size(a.size, parts)
        return total


class Layouts:
    """All layouts of a program, and the layout of each value."""

    def __init__(
        self, analysis: Analysis, axis_sizes: Sequence[int],
        pinned: Mapping[int, Sequence[Sequence[int]]] | None = None,
    ) -> None:  # fmt: skip
        """`pinned` maps a value to the axes that split each of its dims, whatever the lists say."""
        self.axis_sizes = tuple(axis_sizes)
        self.bits = _Bits(analysis)
        self.table, self.of_value = _fold(analysis, len(self.axis_sizes), pinned or {})
        self._arrays()

    def _arrays(self) -> None:
        count = len(self.table)
        width = max((len(lay.atoms) for lay in self.table), default=0) or 1
        groups = self.bits.group_count
        self.width = width
        self._group = np.full((count, width), groups, np.int64)  # [S, J], `groups` = no atom
        self._size = np.ones((count, width), np.int64)
        self._bit = np.full((count, width), self.bits.count, np.int64)  # last column: no bit
        self._side = np.zeros((count, width), np.int32)
        self._left = np.zeros((count, width, width), bool)  # [S, J, K] K is left of J in its dim
        self._base = np.ones(count, np.float64)
        self._pads = np.zeros((count, width), bool)
        self._able = np.zeros((len(self.axis_sizes), count, width), bool)  # [A, S, J] if undivided
        for s, layout in enumerate(self.table):
            self._base[s] = layout.itemsize * layout.units
            for j, a in enumerate(layout.atoms):
                self._group[s, j], self._size[s, j] = a.group, a.size
                self._pads[s, j] = layout.pads(j)
                self._able[:, s, j] = [
                    layout.units > 0 and can_divide(a.size, 1, n, pads=layout.pads(j))
                    for n in self.axis_sizes
                ]
                if a.bit >= 0:
                    self._bit[s, j], self._side[s, j] = a.bit, a.side
                for k in range(j):
                    self._left[s, j, k] = layout.atoms[k].dim == a.dim
        number: dict[Layout, int] = {}
        self.geometry = [number.setdefault(lay.geometry, len(number)) for lay in self.table]
        self._update = np.array([lay.update for lay in self.table], bool).reshape(1, count, 1)
        self._compound = bool(self._left.any())
        self._conflicted = np.nonzero(self._bit < self.bits.count)  # atoms that a bit decides

    def place(self, states: Sequence[State]) -> tuple[np.ndarray, np.ndarray]:
        """(placements [B, S, A], local bytes [B, S]) of every layout in every state.

        First listed wins: each layout gives an axis to the first group of the axis' list that
        it holds, if that atom divides; of two atoms of one group the resolution picks.
        """
        batch, count, axes = len(states), len(self.table), len(self.axis_sizes)
        chosen = np.full((batch, count, axes), WHOLE, np.int64)
        parts = np.ones((batch, *self._size.shape), np.int64)  # [B, S, J] devices that share it
        for a, n in enumerate(self.axis_sizes):
            lists = [s[a] for s in states]
            if not any(lists):
                continue
            every, update, bits = self.bits.ranks(lists)
            rank = every[:, self._group]  # [B, S, J]
            if update is not every:
                rank = np.where(self._update, update[:, self._group], rank)
            rows, cols = self._conflicted
            rank[:, rows, cols] += bits[:, self._bit[rows, cols]] ^ self._side[rows, cols]
            rank[:, ~self._able[a]] = _NEVER
            for earlier in range(a):  # an atom split before may not divide any further
                taken = chosen[:, :, earlier]
                b, s = np.nonzero(taken != WHOLE)
                j = taken[b, s]
                shared = parts[b, s, j]  # 1 behind an axis of one device
                stuck = (shared > 1) & (self._size[s, j] % (shared * n) != 0)
                rank[b[stuck], s[stuck], j[stuck]] = _NEVER
            if self._compound:  # only a prefix of a compound dim can be split
                rank[((parts < self._size)[:, :, None, :] & self._left).any(-1)] = _NEVER
            best = rank.argmin(2)  # [B, S]
            b, s = np.nonzero(np.take_along_axis(rank, best[:, :, None], 2)[:, :, 0] < _NEVER)
            j = best[b, s]
            chosen[b, s, a] = j
            parts[b, s, j] *= n
        return chosen, (-(-self._size // parts)).prod(2) * self._base


class _Bits:
    """Groups, resolution bits, and the ranks that a list gives them."""

    def __init__(self, analysis: Analysis) -> None:
        self.group_count = len(analysis.all_groups)
        self.count = analysis.set_group_count
        self.of_group = [g.conflict_sets for g in analysis.all_groups]

    def ranks(self, lists: Sequence[Sequence[tuple[int, int, int]]]) -> tuple[np.ndarray, ...]:
        """For each list: rank of each group for all values, for updates only, and the bits.

        Ranks are even, so that a resolution can put one side of a conflict behind the other.
        """
        width = self.group_count + 1
        every = [_NEVER] * (len(lists) * width)
        scoped: list[tuple[int, int]] = []  # (place, rank) of entries for updates only
        bits = np.zeros((len(lists), self.count + 1), np.int32)
        for b, entries in enumerate(lists):
            for position, (group, value, scope) in enumerate(entries):
                if not 0 <= group < self.group_count:
                    raise ShardwrightError(
                        f"a decision names group {group}; the program has {self.group_count}",
                        try_=f"0 to {self.group_count - 1}: analysis.all_groups lists them",
                    )
                at = b * width + group
                if scope == UPDATES:
                    scoped.append((at, 2 * position))
                elif every[at] == _NEVER:
                    every[at] = 2 * position
                for i, k in enumerate(self.of_group[group]):
                    bits[b, k] = value >> min(i, 30) & 1
        table = np.array(every, np.int32).reshape(len(lists), width)
        if not scoped:
            return table, table, bits
        update = list(every)
        for at, rank in scoped:
            update[at] = min(update[at], rank)
        return table, np.array(update, np.int32).reshape(len(lists), width), bits


def _fold(
    analysis: Analysis, axes: int, pinned: Mapping[int, Sequence[Sequence[int]]]
) -> tuple[list[Layout], np.ndarray]:
    """The distinct layouts and the layout of each value."""
    program, names = analysis.program, analysis.color_table.values
    decided: dict[tuple[int, int, int], tuple[int, int]] = {}
    for conflict_set, k in zip(analysis.conflict_sets, analysis.set_group, strict=True):
        for conflict, flip in zip(conflict_set.conflicts, conflict_set.flips, strict=True):
            if not conflict.is_op:
                for i, (dim, place) in enumerate(conflict.places):
                    decided[conflict.owner, dim, place] = (k, (i & 1) ^ flip)
    border = {*program.inputs, *program.consts, *program.outputs}
    update, numbers = find_updates(program), program.numbers()
    start = np.searchsorted(names.owner, np.arange(len(program.values) + 1))
    dims, places = names.dim.tolist(), names.place.tolist()
    sizes = analysis.color_table.atom_size[names.atom].tolist()
    groups = analysis.color_group[names.color].tolist()
    index: dict[Layout, int] = {}
    cache: dict[tuple[object, ...], int] = {}
    of_value = np.zeros(len(program.values), np.int64)
    for v in program.values:
        low, high = int(start[v.index]), int(start[v.index + 1])
        edge, late = v.index in border, update[v.index]
        baked_in = v.op == NO_OP and v.path is None
        from_numbers = numbers[v.index]
        key: tuple[object, ...] = (
            id(v.type), edge, late, baked_in, from_numbers, pinned.get(v.index),
            *groups[low:high], *sizes[low:high],
            *[decided.get((v.index, dims[r], places[r])) for r in range(low, high)],
        )  # fmt: skip
        known = cache.get(key)
        if known is None:
            atoms = tuple(
                Atom(
                    dims[r], places[r], sizes[r], groups[r],
                    *decided.get((v.index, dims[r], places[r]), (-1, 0)),
                )
                for r in range(low, high)
            )  # fmt: skip
            units = 0 if 0 in v.type.shape else 1
            layout = Layout(atoms, itemsize(v.type.dtype), units, edge, late, made_up=from_numbers)
            if v.index in pinned:
                layout = layout._replace(pinned=_pinned(layout, axes, pinned[v.index]))
            elif baked_in:  # an array in the program text is on every device whole
                layout = layout._replace(pinned=(WHOLE,) * axes)
            known = cache[key] = index.setdefault(layout, len(index))
        of_value[v.index] = known
    return list(index), of_value


def _pinned(layout: Layout, axes: int, dims: Sequence[Sequence[int]]) -> Placement:
    """The placement with these axes on each dim; several axes fill a dim's atoms in order."""
    placement = [WHOLE] * axes
    for d, on in enumerate(dims):
        atoms = [j for j, a in enumerate(layout.atoms) if a.dim == d]
        for i, axis in enumerate(on):
            if atoms:
                placement[axis] = atoms[min(i, len(atoms) - 1)]
    return tuple(placement)


def find_updates(program: Program) -> list[bool]:
    """For each value, whether it never feeds a contraction: gradients, moments, new weights.

    A result that takes the place of a donated input is stored as that input is; a loop stores
    what it hands on as what it got, in its condition and after its last round too.
    """
    feeds = [False] * (len(program.values) + 1)  # the last entry stands for literals
    before: list[bool] = []
    while feeds != before:  # what a loop hands to its next round comes back to its first op
        before = list(feeds)
        for op in reversed(program.ops):
            read = op.operands if op.name in CARRIES else ()
            if op.rule.unit == MATRIX or any(feeds[v] for v in (*op.results, *read)):
                alike = op.results if op.name in ("while.init", *CARRIES) else ()
                for v in (*op.operands, *alike):
                    feeds[v] = True
        feeds[LITERAL] = False
    for position, source in program.aliases.items():
        feeds[program.outputs[position]] = feeds[source]
    return [not f for f in feeds[:-1]]
