"""Values claim: what the lists of the mesh axes mean for the sharding of each layout.

`claim` is the definition, short enough to check by hand. `Claims.place` is its vectorised form, for
all layouts under many lists; a property test holds the two equal (tests/spmd/test_claims.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

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


_UNKNOWN = -1  # a node that was not reached yet


class _Nodes:
    """Layouts with what the axes before one have split of them, as arrays that grow."""

    def __init__(
        self, layout: np.ndarray, shards: np.ndarray, able: np.ndarray, local_bytes: np.ndarray
    ) -> None:
        self.layout = layout  # [N]
        self.shards = shards  # [N, J] of each atom
        self.able = able  # [N, J] whether the axis can split it
        self.local_bytes = local_bytes  # [N] if later axes split nothing
        self.next = np.full((len(layout), able.shape[1] + 1), _UNKNOWN)  # [N, atom + 1]
        self.claimed: dict[Entry, np.ndarray] = {}  # [nodes so far] the atom each entry claims

    def __len__(self) -> int:
        return len(self.layout)

    def extend(self, more: _Nodes) -> None:
        """Appends nodes."""
        for name in ("layout", "shards", "able", "local_bytes", "next"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(more, name)]))


class Claims:
    """The placements of all layouts under many lists at once.

    What an axis can split of a layout depends on what earlier axes took of it: a *node* is a layout
    with that. The nodes of one axis lead to those of the next, so that a placement is a path, and
    what an entry claims of a node is worked out once.
    """

    def __init__(self, table: Sequence[Layout], groups: int, axis_sizes: Sequence[int]) -> None:
        count = len(table)
        width = max((len(layout.atoms) for layout in table), default=0) or 1
        self._groups, self._axis_sizes = groups, tuple(axis_sizes)
        self._group = np.full((count, width), groups, np.int64)  # [S, J], `groups`: no atom
        self._size = np.ones((count, width), np.int64)  # [S, J]
        self._bit = np.full((count, width), NO_BIT, np.int64)  # [S, J]
        self._side = np.zeros((count, width), np.int64)  # [S, J]
        self._left = np.zeros((count, width, width), bool)  # [S, J, K] K is left of J in its dim
        self._able = np.zeros((len(axis_sizes) + 1, count, width), bool)  # [A, S, J] if undivided
        for s, layout in enumerate(table):
            for j, a in enumerate(layout.atoms):
                self._group[s, j], self._size[s, j] = a.group, a.size
                self._bit[s, j], self._side[s, j] = a.bit, a.side
                self._able[:-1, s, j] = [
                    layout.units > 0 and can_divide(a.size, 1, n, pads=layout.pads(j))
                    for n in axis_sizes
                ]
                self._able[list(layout.closed), s, j] = False
                for k in range(j):
                    self._left[s, j, k] = layout.atoms[k].dim == a.dim
        self._base = np.array([layout.itemsize * layout.units for layout in table], np.float64)
        self._update = np.array([layout.update for layout in table], bool)
        self._growing = Lock()  # threads may share a model
        start = np.arange(count), np.ones((count, width), np.int64)
        empty = np.arange(0), np.ones((0, width), np.int64)
        self._nodes = [self._made(0, *start)]  # [A + 1] of each axis; the last: all axes are placed
        self._nodes += [self._made(a + 1, *empty) for a in range(len(axis_sizes))]

    def place(self, states: Sequence[State]) -> tuple[np.ndarray, np.ndarray]:
        """(placements [B, S, A], local bytes [B, S]) of every layout in every state: `claim`."""
        number: dict[State, int] = {(): 0}  # of each start of a state
        node = np.arange(len(self._base))[None]  # [starts, S]
        chosen: list[np.ndarray] = []  # [axes so far][starts, S]
        with self._growing:
            for a in range(len(self._axis_sizes)):
                starts = list(dict.fromkeys([state[: a + 1] for state in states]))
                before = [number[start[:-1]] for start in starts]
                number = {start: i for i, start in enumerate(starts)}
                node = node[before]
                atoms = self._first_claimed(a, [start[-1] for start in starts], node)
                chosen = [*[earlier[before] for earlier in chosen], atoms]
                node = self._next(a, node, atoms)
            local_bytes = self._nodes[-1].local_bytes[node]
        rows = [number[state] for state in states]
        nothing = np.zeros((1, len(self._base), 0), np.int64)
        placements = np.stack(chosen, 2).astype(np.int64) if chosen else nothing
        return placements[rows], local_bytes[rows]

    def claims(self, state: State, axis: int, entries: Sequence[Entry]) -> np.ndarray:
        """[entries, S] the atom of each layout that each entry claims if it is the first to do so.

        The axes before this one split what the state says.
        """
        node = np.arange(len(self._base))
        with self._growing:
            for a, earlier in enumerate(state[:axis]):
                node = self._next(a, node, self._first_claimed(a, [earlier], node[None])[0])
            found = [self._claimed(axis, entry)[node] for entry in entries]
        return np.stack(found) if found else np.zeros((0, len(node)), np.int8)

    def of_nodes(
        self, axis: int, nodes: Sequence[tuple[int, Placement]], entries: Sequence[Entry]
    ) -> np.ndarray:
        """[entries, nodes] the same of layouts with what the axes before this one split of them."""
        node = np.array([layout for layout, _ in nodes], np.int64)
        earlier = np.array([p for _, p in nodes], np.int64).reshape(len(nodes), axis)
        with self._growing:
            for a in range(axis):
                node = self._next(a, node, earlier[:, a])
            found = [self._claimed(axis, entry)[node] for entry in entries]
        return np.stack(found) if found else np.zeros((0, len(node)), np.int8)

    def place_around(
        self, state: State, axis: int, atoms: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(placements [B, S, A], local bytes [B, S]) of a state in which one axis splits `atoms`.

        These are [B, S], as some list of the axis claims them; the lists of the others stay.
        """
        node = np.arange(len(self._base))  # [S], after the axis [B, S]
        chosen: list[np.ndarray] = []
        with self._growing:
            for a, entries in enumerate(state):
                mine = atoms if a == axis else self._of_list(a, entries)[node]
                chosen.append(np.broadcast_to(mine, atoms.shape))
                node = self._next(a, np.broadcast_to(node, mine.shape), mine)
            return np.stack(chosen, 2).astype(np.int64), self._nodes[-1].local_bytes[node]

    def _of_list(self, axis: int, entries: AxisList) -> np.ndarray:
        """[nodes of an axis] the atom that a list claims of each; first listed wins."""
        atoms = np.full(len(self._nodes[axis]), REPLICATED, np.int8)
        for entry in entries:
            np.copyto(atoms, self._claimed(axis, entry), where=atoms == REPLICATED)
        return atoms

    def _first_claimed(self, axis: int, lists: Sequence[AxisList], node: np.ndarray) -> np.ndarray:
        """[lists, S] the atom that each list claims of its nodes [lists, S]; first listed wins."""
        entries = list(dict.fromkeys([entry for one in lists for entry in one]))
        none = np.full(len(self._nodes[axis]), REPLICATED, np.int8)  # after the end of a list
        claimed = np.stack([*[self._claimed(axis, entry) for entry in entries], none])
        number = {entry: i for i, entry in enumerate(entries)}
        atoms = np.full(node.shape, REPLICATED, np.int8)
        for position in range(max(map(len, lists), default=0)):
            at = [number[one[position]] if position < len(one) else len(entries) for one in lists]
            mine = claimed.ravel().take(node + np.array(at)[:, None] * len(none))
            np.copyto(atoms, mine, where=atoms == REPLICATED)
        return atoms

    def _claimed(self, axis: int, entry: Entry) -> np.ndarray:
        """[nodes of an axis] the atom that an entry claims of each, or REPLICATED."""
        nodes = self._nodes[axis]
        known = nodes.claimed.get(entry)
        if known is None or len(known) < len(nodes):
            if not 0 <= entry.group < self._groups:
                raise ShardwrightError(
                    f"a decision names group {entry.group}; the program has {self._groups}",
                    try_=f"0 to {self._groups - 1}: analysis.all_groups lists them",
                )
            bit = self._bit[nodes.layout]
            behind = (bit != NO_BIT) & (((entry.bits >> bit) & 1) != self._side[nodes.layout])
            able = nodes.able & (self._group[nodes.layout] == entry.group)
            if entry.scope == UPDATES:
                able &= self._update[nodes.layout][:, None]
            rank = np.where(able, behind, 2)  # of the two sides of a conflict the picked one first
            known = np.where(able.any(1), rank.argmin(1), REPLICATED).astype(np.int8)
            nodes.claimed[entry] = known
        return known

    def _next(self, axis: int, node: np.ndarray, atoms: np.ndarray) -> np.ndarray:
        """The nodes of the next axis, after this one has split these atoms."""
        nodes, after = self._nodes[axis], self._nodes[axis + 1]
        at = node * nodes.next.shape[1] + (atoms - REPLICATED)
        found = nodes.next.ravel().take(at)
        new = np.unique(at[found == _UNKNOWN])
        if len(new):
            row, atom = new // nodes.next.shape[1], new % nodes.next.shape[1] + REPLICATED
            shards, split = nodes.shards[row], np.flatnonzero(atom != REPLICATED)
            shards[split, atom[split]] *= self._axis_sizes[axis]
            nodes.next[row, atom - REPLICATED] = len(after) + np.arange(len(new))
            after.extend(self._made(axis + 1, nodes.layout[row], shards))
            found = nodes.next.ravel().take(at)
        return found

    def _made(self, axis: int, layout: np.ndarray, shards: np.ndarray) -> _Nodes:
        """Nodes of an axis; after the last one nothing can be split."""
        able, size = self._able[axis, layout], self._size[layout]
        n = self._axis_sizes[axis] if axis < len(self._axis_sizes) else 1
        able &= (shards == 1) | (size % (shards * n) == 0)  # what is split already divides
        able &= ~((shards < size)[:, None, :] & self._left[layout]).any(2)  # a prefix of its dim
        local_bytes = (-(-size // shards)).prod(1) * self._base[layout]
        return _Nodes(layout, shards, able, local_bytes)
