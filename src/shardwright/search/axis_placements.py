"""Axis placements: every distinct way in which the list of one axis can split all layouts.

First listed wins, so an append only decides layouts that are still replicated over its axis: lists
that lead to one axis placement have the same future, and the lists of an axis form a small graph.
What a later axis can still split depends on what earlier axes took of the same dim, so that a
layout may claim differently in different *situations*; all that claim alike share a column.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from shardwright.search.space import Space
from shardwright.spmd.claim import able_to_split, claimed_atom
from shardwright.spmd.decisions import UPDATES, AxisList, Entry
from shardwright.spmd.layout import REPLICATED

Earlier = tuple[int, ...]  # the placement of one layout on the axes before this one
START = -1  # no axis placement before this one
NO_ENTRY = Entry(-1)


class TooLarge(Exception):
    """More axis placements than allowed."""


class _Collision(Exception):
    """Two axis placements have one hash."""


@dataclass(frozen=True, slots=True)
class AxisPlacements:
    """The placements of one axis, each with the shortest list that leads there."""

    table: np.ndarray  # [P, columns] int8: atom or REPLICATED
    entry: list[Entry]  # [P] the last entry of a list that leads there
    parent: np.ndarray  # [P] the placement of the entries before it; START: the prefix
    prefix: AxisList
    column: list[dict[Earlier, int]]  # [layouts] situation -> column
    complete: bool  # whether all lists are covered, or the shorter ones

    def __len__(self) -> int:
        return len(self.table)

    def list_of(self, number: int) -> AxisList:
        """A list that leads to a placement."""
        entries: list[Entry] = []
        while self.parent[number] != START:
            entries.append(self.entry[number])
            number = int(self.parent[number])
        return (*self.prefix, *reversed(entries))

    def kinds(self, layouts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """([P] which kind each placement is as these layouts see it, [kinds] the first of each)."""
        columns = sorted({c for i in layouts for c in self.column[i].values()})
        width, kind = 1, np.zeros(len(self), np.int64)
        for c in columns:  # number the pairs (kind so far, atom), leaving no gaps
            atoms = self.table[:, c]
            step = int(atoms.max()) - REPLICATED + 1
            kind = kind * step + (atoms - REPLICATED)
            seen = np.zeros(width * step, bool)
            seen[kind] = True
            kind = (np.cumsum(seen) - 1)[kind]
            width = int(kind.max()) + 1
        first = np.empty(width, np.int64)
        first[kind[::-1]] = np.arange(len(kind))[::-1]
        return kind, first


def find_axis_placements(
    space: Space, limit: int, layouts: Sequence[int] | None = None, *, cut: bool = False
) -> list[AxisPlacements]:
    """The placements of every axis, in mesh order.

    Where an axis has more than `limit`, raises TooLarge, or with `cut` gives those of the shorter
    lists. With `layouts`, the placements of those alone: a projection, and far fewer.
    """
    model = space.model
    wanted = range(len(model.layouts.table)) if layouts is None else layouts
    situations: dict[int, list[Earlier]] = {i: [()] for i in wanted}
    groups = {atom.group for i in wanted for atom in model.layouts.table[i].atoms}
    out: list[AxisPlacements] = []
    for axis in range(len(model.mesh.sizes)):
        found = _of_axis(space, axis, situations, groups, limit, cut)
        out.append(found)
        atoms = [
            (np.flatnonzero(np.bincount(column - REPLICATED)) + REPLICATED).tolist()
            for column in found.table.T
        ]
        situations = {
            i: [(*earlier, atom) for earlier, c in found.column[i].items() for atom in atoms[c]]
            for i in wanted
        }
    return out


def _of_axis(
    space: Space, axis: int, situations: dict[int, list[Earlier]], groups: Collection[int],
    limit: int, cut: bool,
) -> AxisPlacements:  # fmt: skip
    """The placements of one axis by entries of these groups; equal columns are one."""
    held = {**space.overrides, **space.model.pins}
    entries = [entry for entry in space.entries[axis] if entry.group in groups]
    column_of: dict[tuple[int, ...], int] = {}  # what a column starts with, and what it claims
    column: list[dict[Earlier, int]] = [{}] * len(space.model.layouts.table)
    fixed = space.root[axis]
    for i, known in situations.items():
        mine: dict[Earlier, int] = {}
        for earlier in known:
            if i in held:
                start, rest = held[i][axis], [REPLICATED] * len(entries)
            else:
                first = _claims(space, axis, i, earlier, fixed)
                start = next((j for j in first if j != REPLICATED), REPLICATED)
                rest = _claims(space, axis, i, earlier, entries)
            mine[earlier] = column_of.setdefault((start, *rest), len(column_of))
        column[i] = mine
    columns = np.array(list(column_of), np.int8).reshape(len(column_of), 1 + len(entries)).T
    for seed in count():
        try:
            found = _walk(space, axis, columns[0], entries, columns[1:], limit, cut, seed)
            return AxisPlacements(*found[:3], fixed, column, found[3])
        except _Collision:
            continue  # with other multipliers
    raise AssertionError


def _claims(
    space: Space, axis: int, layout: int, earlier: Earlier, entries: Sequence[Entry]
) -> list[int]:
    """[entries] the atom that each claims of a layout if it is the first to do so."""
    known = space.claimed.setdefault((axis, layout, earlier), {})
    new = [entry for entry in entries if entry not in known]
    if new:
        table, sizes = space.model.layouts.table[layout], space.model.mesh.sizes
        able = able_to_split(table, earlier, axis, sizes)
        known.update((entry, claimed_atom(table, entry, able)) for entry in new)
    return [known[entry] for entry in entries]


def _walk(
    space: Space, axis: int, start: np.ndarray, entries: list[Entry], claims: np.ndarray,
    limit: int, cut: bool, seed: int,
) -> tuple[np.ndarray, list[Entry], np.ndarray, bool]:  # fmt: skip
    """(table, last entry, parent, complete): all placements that appends reach, breadth first."""
    hashes = _Hashes(claims, seed)
    groups = sorted({e.group for e in entries})
    group_of = np.array([groups.index(e.group) for e in entries], np.int64)  # [E]
    last = np.array([e.scope == UPDATES for e in entries], bool)  # [E] nothing may follow
    rows = start[None]  # [R, columns] the placements of one length of list
    keys = np.zeros(1, np.uint64)  # [R]
    listed = np.array([[g in {e.group for e in space.root[axis]} for g in groups]], bool)
    late = np.zeros(1, bool)  # [R] ends with an entry for updates only
    table, added, parents = rows, [np.zeros(1, int)], [np.array([START])]
    seen_keys, seen_at = keys, np.zeros(1, int)  # sorted by key
    first_row, complete = 0, True  # the number of the first placement of this length
    while len(rows) and entries:
        change = hashes.added(rows)  # [R, E] 0: changes nothing
        able = (change != 0) & ~late[:, None] & ~listed[:, group_of]
        e, r = np.nonzero(able.T)
        after = keys[r] + change[r, e]
        found, at = np.unique(after, return_index=True)
        near = np.minimum(np.searchsorted(seen_keys, found), len(seen_keys) - 1)
        is_new = seen_keys[near] != found
        new = np.sort(at[is_new])
        if len(table) + len(new) > limit:
            if not cut:
                raise TooLarge
            complete = False
            break
        known = np.where(is_new, len(table) + np.searchsorted(new, at), seen_at[near])  # [found]
        parents.append(r[new] + first_row)
        added.append(e[new])
        first_row = len(table)
        table = np.concatenate(
            [table, np.where(rows[r[new]] == REPLICATED, claims[e[new]], rows[r[new]])]
        )
        _compare(table, rows, claims, r, e, known[np.searchsorted(found, after)])
        order = np.argsort(np.concatenate([seen_keys, after[new]]), kind="stable")
        seen_keys = np.concatenate([seen_keys, after[new]])[order]
        seen_at = np.concatenate([seen_at, np.arange(first_row, len(table))])[order]
        rows, keys, listed, late = table[first_row:], after[new], listed[r[new]], last[e[new]]
        listed[np.arange(len(new)), group_of[e[new]]] = True
    last_entry = [entries[i] for i in np.concatenate(added).tolist()] if entries else [NO_ENTRY]
    return np.asfortranarray(table), last_entry, np.concatenate(parents), complete


def _compare(
    table: np.ndarray, rows: np.ndarray, claims: np.ndarray, r: np.ndarray, e: np.ndarray,
    same: np.ndarray,
) -> None:  # fmt: skip
    """Raises _Collision unless each append leads to just the placement that has its hash."""
    for at in range(0, len(r), _Hashes.CHUNK):
        part = slice(at, at + _Hashes.CHUNK)
        before = rows[r[part]]
        if (np.where(before == REPLICATED, claims[e[part]], before) != table[same[part]]).any():
            raise _Collision


class _Hashes:
    """What an append adds to the hash of a placement.

    A hash is the sum over columns of factor * (atom + 1), in floats that hold it exactly.
    """

    CHUNK = 8192

    def __init__(self, claims: np.ndarray, seed: int) -> None:
        rng = np.random.default_rng(seed)
        factors = rng.integers(1, 1 << 22, (2, claims.shape[1])).astype(float)
        self._weights = [((claims - REPLICATED) * f).T for f in factors]  # [columns, E]

    def added(self, rows: np.ndarray) -> np.ndarray:
        """[R, E] what each entry adds to the hash of each placement; 0 if it changes nothing."""
        out = []
        for at in range(0, len(rows), self.CHUNK):
            whole = (rows[at : at + self.CHUNK] == REPLICATED).astype(float)
            low, high = ((whole @ w).astype(np.uint64) for w in self._weights)
            out.append(low * np.uint64(0x9E3779B97F4A7C15) + high)
        return np.concatenate(out)
