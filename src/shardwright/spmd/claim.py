"""Values claim: what the lists of the mesh axes mean for the sharding of each layout.

`claim` is the definition, short enough to check by hand. `Claims.place` is its vectorised form, for
all layouts under many lists; a property test holds the two equal (tests/spmd/test_claims.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.errors import ShardwrightError
from shardwright.spmd.decisions import UPDATES, AxisList, Entry, Placement, State
from shardwright.spmd.division import can_divide
from shardwright.spmd.layout import NO_BIT, REPLICATED, Layout


def claim(layout: Layout, lists: State, axis_sizes: Sequence[int]) -> Placement:
    """The placement of a layout. First listed wins: each axis goes to its first entry that can."""
    placement: Placement = ()
    for axis, entries in enumerate(lists):
        able = able_to_split(layout, placement, axis, axis_sizes)
        claimed = (claimed_atom(layout, entry, able) for entry in entries)
        placement += (next((j for j in claimed if j != REPLICATED), REPLICATED),)
    return placement


def able_to_split(
    layout: Layout, earlier: Placement, axis: int, axis_sizes: Sequence[int]
) -> list[bool]:
    """[atoms] whether an axis can split each, given what the axes before it split."""
    if axis in layout.closed:
        return [False] * len(layout.atoms)
    shards = layout.shards(earlier, axis_sizes)
    return [layout.can_split(j, shards, axis_sizes[axis]) for j in range(len(layout.atoms))]


def claimed_atom(layout: Layout, entry: Entry, able: Sequence[bool]) -> int:
    """The atom that one entry claims, of those that an axis is able to split, or REPLICATED.

    Of two atoms of one group the resolution picks one; where no conflict names them, the first.
    """
    if entry.scope == UPDATES and not layout.update:
        return REPLICATED
    atoms = [(j, a) for j, a in enumerate(layout.atoms) if a.group == entry.group and able[j]]
    ranked = [(a.bit != NO_BIT and (entry.bits >> a.bit & 1) ^ a.side, j) for j, a in atoms]
    return min(ranked, default=(0, REPLICATED))[1]


_NEVER = 1 << 20  # the rank of a group that is not listed: above that of any list's end


class Claims:
    """The layouts of a program as arrays, to place all of them at once."""

    def __init__(self, table: Sequence[Layout], groups: int, axis_sizes: Sequence[int]) -> None:
        count = len(table)
        width = max((len(layout.atoms) for layout in table), default=0) or 1
        self._groups, self._axis_sizes = groups, tuple(axis_sizes)
        self._group = np.full((count, width), groups, np.int64)  # [S, J], `groups`: no atom
        self._size = np.ones((count, width), np.int64)  # [S, J]
        self._bit = np.full((count, width), NO_BIT, np.int64)  # [S, J]
        self._side = np.zeros((count, width), np.int32)  # [S, J]
        self._left = np.zeros((count, width, width), bool)  # [S, J, K] K is left of J in its dim
        self._able = np.zeros((len(axis_sizes), count, width), bool)  # [A, S, J] if undivided
        for s, layout in enumerate(table):
            for j, a in enumerate(layout.atoms):
                self._group[s, j], self._size[s, j] = a.group, a.size
                self._bit[s, j], self._side[s, j] = a.bit, a.side
                self._able[:, s, j] = [
                    layout.units > 0 and can_divide(a.size, 1, n, pads=layout.pads(j))
                    for n in axis_sizes
                ]
                self._able[list(layout.closed), s, j] = False
                for k in range(j):
                    self._left[s, j, k] = layout.atoms[k].dim == a.dim
        self._base = np.array([layout.itemsize * layout.units for layout in table], np.float64)
        self._update = np.array([layout.update for layout in table], bool).reshape(1, count, 1)
        self._compound = bool(self._left.any())
        self._conflicted = np.nonzero(self._bit != NO_BIT)

    def place(self, states: Sequence[State]) -> tuple[np.ndarray, np.ndarray]:
        """(placements [B, S, A], local bytes [B, S]) of every layout in every state: `claim`."""
        batch, (count, _), axes = len(states), self._size.shape, len(self._axis_sizes)
        chosen = np.full((batch, count, axes), REPLICATED, np.int64)
        shards = np.ones((batch, *self._size.shape), np.int64)  # [B, S, J] shards of each atom
        for a, n in enumerate(self._axis_sizes):
            lists = [s[a] for s in states]
            if not any(lists):
                continue
            rank = self._ranks(lists)  # [B, S, J]
            rank[:, ~self._able[a]] = _NEVER
            for earlier in range(a):  # an atom split before may not divide any further
                taken = chosen[:, :, earlier]
                b, s = np.nonzero(taken != REPLICATED)
                j = taken[b, s]
                held = shards[b, s, j]  # 1 after an axis of one device
                uneven = (held > 1) & (self._size[s, j] % (held * n) != 0)
                rank[b[uneven], s[uneven], j[uneven]] = _NEVER
            if self._compound:  # only a prefix of a compound dim can be split
                rank[((shards < self._size)[:, :, None, :] & self._left).any(-1)] = _NEVER
            best = rank.argmin(2)  # [B, S]
            b, s = np.nonzero(np.take_along_axis(rank, best[:, :, None], 2)[:, :, 0] < _NEVER)
            j = best[b, s]
            chosen[b, s, a] = j
            shards[b, s, j] *= n
        return chosen, (-(-self._size // shards)).prod(2) * self._base

    def _ranks(self, lists: Sequence[AxisList]) -> np.ndarray:
        """[B, S, J] twice the position of each atom's group in each list of one axis; least claims.

        Ranks are even, so that adding 1 puts one side of a conflict behind the other.
        """
        width, longest = self._groups + 1, max(map(len, lists))
        every = [_NEVER] * (len(lists) * width)
        scoped: list[tuple[int, int]] = []  # (place, rank) of entries for updates only
        bits = np.zeros((len(lists), longest + 1), np.int64)
        for b, entries in enumerate(lists):
            for position, (group, value, scope) in enumerate(entries):
                if not 0 <= group < self._groups:
                    raise ShardwrightError(
                        f"a decision names group {group}; the program has {self._groups}",
                        try_=f"0 to {self._groups - 1}: analysis.all_groups lists them",
                    )
                at = b * width + group
                if scope == UPDATES:
                    scoped.append((at, 2 * position))
                elif every[at] == _NEVER:
                    every[at] = 2 * position
                bits[b, position] = value
        table = np.array(every, np.int32).reshape(len(lists), width)
        rank: np.ndarray = table[:, self._group]
        if scoped:
            for at, place in scoped:
                every[at] = min(every[at], place)
            update = np.array(every, np.int32).reshape(len(lists), width)
            rank = np.where(self._update, update[:, self._group], rank)
        s, j = self._conflicted
        if len(s):
            entry = np.minimum(rank[:, s, j] // 2, longest)  # the last column: not listed
            chosen = np.take_along_axis(bits, entry, 1) >> self._bit[s, j] & 1
            rank[:, s, j] += (chosen ^ self._side[s, j]).astype(np.int32)
        return rank
