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
from typing import NamedTuple

import numpy as np

from shardwright.search.space import Space
from shardwright.spmd.decisions import UPDATES, AxisList, Entry
from shardwright.spmd.layout import REPLICATED

Walked = tuple[np.ndarray, np.ndarray, np.ndarray, bool]  # table, last entry, parent, complete
Earlier = tuple[int, ...]  # the placement of one layout on the axes before this one
# For each axis placement that is allowed: where there are more of them, more than one in so many
# leads to another placement, in all programs seen, and looking would take seconds.
MOST_APPENDS = 32
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
    fixed = space.root[axis]
    nodes = [(i, earlier) for i, known in situations.items() for earlier in known]
    claims = space.model.layouts.claims
    starts, atoms = (claims.of_nodes(axis, nodes, listed) for listed in (fixed, entries))
    each = np.concatenate([np.full((1, len(nodes)), REPLICATED, np.int8), atoms])
    for mine in reversed(starts):  # what a column starts with, then what each entry claims of it
        np.copyto(each[0], mine, where=mine != REPLICATED)
    for n, (i, _) in enumerate(nodes):
        if i in held:
            each[0, n], each[1:, n] = held[i][axis], REPLICATED
    column_of: dict[bytes, int] = {}
    first: list[int] = []  # [columns] a node
    column: list[dict[Earlier, int]] = [{} for _ in space.model.layouts.table]
    for n, (i, earlier) in enumerate(nodes):
        column[i][earlier] = at = column_of.setdefault(each[:, n].tobytes(), len(first))
        if at == len(first):
            first.append(n)
    columns = each[:, first]
    number = {g: n for n, g in enumerate(dict.fromkeys([e.group for e in entries]))}
    taken = {e.group for e in fixed}
    given = _Appends(
        tuple([number[e.group] for e in entries]), tuple([e.scope == UPDATES for e in entries]),
        tuple([g in taken for g in number]), limit, cut,
    )  # fmt: skip
    key = (columns.shape, columns.tobytes(), given)  # the same for scopes that are alike
    if key not in space.walked:
        space.walked[key] = _walk(columns[0], columns[1:], given)
    table, added, parent, complete = space.walked[key]
    last = [entries[i] for i in added.tolist()] if entries else [NO_ENTRY]
    return AxisPlacements(table, last, parent, fixed, column, complete)


class _Appends(NamedTuple):
    """What may be appended to a list, besides what that splits."""

    group: tuple[int, ...]  # [E] a number for the group of each entry
    late: tuple[bool, ...]  # [E] nothing may follow it
    listed: tuple[bool, ...]  # [groups] whether the list starts with one of the group
    limit: int  # of axis placements
    cut: bool  # whether those of the shorter lists are enough


def _walk(start: np.ndarray, claims: np.ndarray, given: _Appends) -> Walked:
    """All placements that appends reach, breadth first."""
    for seed in count():
        try:
            return _walk_hashed(start, claims, given, seed)
        except _Collision:
            continue  # with other multipliers
    raise AssertionError


def _walk_hashed(start: np.ndarray, claims: np.ndarray, given: _Appends, seed: int) -> Walked:
    """The same with one choice of hashes; raises _Collision where two are equal."""
    hashes = _Hashes(claims, seed)
    limit, cut = given.limit, given.cut
    group_of, last = np.array(given.group, np.int64), np.array(given.late, bool)  # [E]
    rows = start[None]  # [R, columns] the placements of one length of list
    keys = np.zeros(1, np.uint64)  # [R]
    listed = np.array([given.listed], bool)
    late = np.zeros(1, bool)  # [R] ends with an entry for updates only
    table, added, parents = rows, [np.zeros(1, int)], [np.array([START])]
    seen_keys, seen_at = keys, np.zeros(1, int)  # sorted by key
    first_row, complete = 0, True  # the number of the first placement of this length
    while len(rows) and len(claims):
        if len(rows) * len(claims) > limit * MOST_APPENDS:
            complete = False
            break
        change = hashes.added(rows)  # [R, E] 0: changes nothing
        able = (change != 0) & ~late[:, None] & ~listed[:, group_of]
        e, r = np.nonzero(able.T)
        after = keys[r] + change[r, e]
        found, at = np.unique(after, return_index=True)
        near = np.minimum(np.searchsorted(seen_keys, found), len(seen_keys) - 1)
        is_new = seen_keys[near] != found
        new = np.sort(at[is_new])
        if len(table) + len(new) > limit:
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
    if not (complete or cut):
        raise TooLarge
    return np.asfortranarray(table), np.concatenate(added), np.concatenate(parents), complete


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
