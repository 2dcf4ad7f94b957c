"""Columns: every distinct way in which the list of one axis can place all values.

First listed wins, so an append only decides layouts that are still whole on its axis: lists that
lead to one column have the same future, and the lists of an axis form a small graph of columns.
What a later axis can still split depends on what earlier axes took of the same dim, so a layout
stands in the columns of an axis once for each such situation (a *variant*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.search.space import Space
from shardwright.spmd.claim import claimed_atom
from shardwright.spmd.decisions import UPDATES, AxisList, Entry
from shardwright.spmd.layout import WHOLE, Layout

Earlier = tuple[int, ...]  # the placement of one layout on the axes before this one
START = -1  # no column before this one
NO_ENTRY = Entry(-1)
Distinct = tuple[list[tuple[int, ...]], np.ndarray]  # rows, [columns] which one each column has


class TooLarge(Exception):
    """More columns than allowed."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one axis."""

    table: np.ndarray  # [columns, variants] int8: atom or WHOLE
    entry: list[Entry]  # [columns] the last entry of a list that leads there
    parent: np.ndarray  # [columns] the column of the entries before it; START: the prefix
    prefix: AxisList
    variant: list[dict[Earlier, int]]  # [layouts] situation -> variant
    _distinct: dict[tuple[int, ...], Distinct] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table)

    def list_of(self, column: int) -> AxisList:
        """A list that leads to a column."""
        entries: list[Entry] = []
        while self.parent[column] != START:
            entries.append(self.entry[column])
            column = int(self.parent[column])
        return (*self.prefix, *reversed(entries))

    def distinct(self, variants: tuple[int, ...]) -> Distinct:
        """The distinct rows of these variants, worked out once."""
        known = self._distinct.get(variants)
        if known is None:
            known = self._distinct[variants] = self._find_distinct(variants)
        return known

    def _find_distinct(self, variants: tuple[int, ...]) -> Distinct:
        count, number = 1, np.zeros(len(self), np.int64)
        for v in variants:  # number the pairs (number so far, atom), leaving no gaps
            atoms = self.table[:, v]
            width = int(atoms.max()) - WHOLE + 1
            number = number * width + (atoms - WHOLE)
            seen = np.zeros(count * width, bool)
            seen[number] = True
            number = (np.cumsum(seen) - 1)[number]
            count = int(number.max()) + 1
        first = np.empty(count, np.int64)
        first[number[::-1]] = np.arange(len(number))[::-1]
        rows = [tuple(row) for row in self.table[first][:, variants].tolist()]
        return rows, number.astype(np.int32)


def find_columns(space: Space, limit: int, layouts: Sequence[int] | None = None) -> list[Columns]:
    """The columns of every axis, in mesh order; raises TooLarge above `limit` for one axis.

    With `layouts`, the columns of those alone: a projection, and far fewer.
    """
    model = space.model
    wanted = set(range(len(model.layouts.table)) if layouts is None else layouts)
    situations: list[dict[Earlier, None]] = [
        {(): None} if i in wanted else {} for i in range(len(model.layouts.table))
    ]
    out: list[Columns] = []
    for axis in range(len(model.mesh.sizes)):
        variants, variant_of = _variants(space, situations, axis)
        columns = Columns(*_walk(space, axis, variants, limit), space.root[axis], variant_of)
        out.append(columns)
        following: list[dict[Earlier, None]] = []
        for known in variant_of:
            nexts: dict[Earlier, None] = {}
            for earlier, v in known.items():
                taken = np.bincount(columns.table[:, v] - WHOLE)
                for p in (np.flatnonzero(taken) + WHOLE).tolist():
                    nexts[(*earlier, p)] = None
            following.append(nexts)
        situations = following
    return out


def columns_alone(space: Space, axis: int, limit: int) -> Columns:
    """The columns of an axis when no other splits anything; variant i is that of layout i.

    Where there are more than `limit`, those of the shorter lists.
    """
    alone = [{(WHOLE,) * axis: None} for _ in space.model.layouts.table]
    variants, variant_of = _variants(space, alone, axis)  # type: ignore[arg-type]
    return Columns(*_walk(space, axis, variants, limit, cut=True), space.root[axis], variant_of)


@dataclass(frozen=True, slots=True)
class _Variant:
    layout: int
    able: tuple[bool, ...]  # [atoms]
    fixed: int | None  # an override decides


def _variants(
    space: Space, situations: list[dict[Earlier, None]], axis: int
) -> tuple[list[_Variant], list[dict[Earlier, int]]]:
    model, held = space.model, {**space.overrides, **space.model.pins}
    variants: dict[_Variant, int] = {}
    variant_of: list[dict[Earlier, int]] = []
    for i, (layout, known) in enumerate(zip(model.layouts.table, situations, strict=True)):
        fixed = held[i][axis] if i in held else None
        mine: dict[Earlier, int] = {}
        for earlier in known:
            able = () if fixed is not None else _able(layout, earlier, model.mesh.sizes)
            mine[earlier] = variants.setdefault(_Variant(i, able, fixed), len(variants))
        variant_of.append(mine)
    return list(variants), variant_of


def _able(layout: Layout, earlier: Earlier, sizes: tuple[int, ...]) -> tuple[bool, ...]:
    """Which atoms the next axis can split."""
    parts, n = layout.parts(earlier, sizes), sizes[len(earlier)]
    return tuple(layout.can_split(j, parts, n) for j in range(len(layout.atoms)))


def _claims(model: CostModel, variants: list[_Variant], entry: Entry) -> np.ndarray:
    """[variants] the atom that each would give to an entry if it were still whole."""
    table = model.layouts.table
    return np.array(
        [claimed_atom(table[v.layout], entry, v.able) if v.fixed is None else WHOLE
         for v in variants],
        np.int8,
    )  # fmt: skip


def _walk(
    space: Space, axis: int, variants: list[_Variant], limit: int, *, cut: bool = False
) -> tuple[np.ndarray, list[Entry], np.ndarray]:
    """(table, last entry, parent): all columns that appends reach, breadth first."""
    start = np.array([WHOLE if v.fixed is None else v.fixed for v in variants], np.int8)
    for entry in space.root[axis]:
        claim = _claims(space.model, variants, entry)
        start = np.where(start == WHOLE, claim, start)
    entries = [a.entry for a in space.actions if a.axis == axis]
    claims = np.array([_claims(space.model, variants, e) for e in entries], np.int8)
    claims = claims.reshape(len(entries), len(start))  # [E, variants]
    hashes = _Hashes(claims)
    groups = sorted({e.group for e in entries})
    group_of = np.array([groups.index(e.group) for e in entries], np.int64)  # [E]
    last = np.array([e.scope == UPDATES for e in entries], bool)  # [E] nothing may follow
    rows = start[None]  # [P, variants] the columns of one length of list
    keys = np.zeros(1, np.uint64)  # [P]
    listed = np.array([[g in {e.group for e in space.root[axis]} for g in groups]], bool)
    late = np.zeros(1, bool)  # [P] ends with an entry for updates only
    seen, tables, added, parents = keys, [rows], [np.zeros(1, int)], [np.array([START])]
    first_row = 0  # the number of the first column of this length
    while len(rows) and entries:
        change = hashes.added(rows)  # [P, E] 0: changes nothing
        able = (change != 0) & ~late[:, None] & ~listed[:, group_of]
        e, p = np.nonzero(able.T)
        after = keys[p] + change[p, e]
        found, at = np.unique(after, return_index=True)
        near = np.minimum(np.searchsorted(seen, found), len(seen) - 1)
        new = np.sort(at[seen[near] != found])
        e, p, keys = e[new], p[new], after[new]
        if len(seen) + len(keys) > limit:
            if cut:
                break
            raise TooLarge
        parents.append(p + first_row)
        added.append(e)
        first_row = len(seen)
        seen = np.sort(np.concatenate([seen, keys]))
        rows = np.where(rows[p] == WHOLE, claims[e], rows[p])
        listed = listed[p]
        listed[np.arange(len(e)), group_of[e]] = True
        late = last[e]
        tables.append(rows)
    last_entry = [entries[i] for i in np.concatenate(added).tolist()] if entries else [NO_ENTRY]
    return np.asfortranarray(np.concatenate(tables)), last_entry, np.concatenate(parents)


class _Hashes:
    """What an append adds to the key of a column: columns with equal keys are equal.

    A key is the sum over variants of (factor * (atom + 1)), in floats that hold it exactly.
    """

    CHUNK = 8192

    def __init__(self, claims: np.ndarray) -> None:
        rng = np.random.default_rng(20260401)
        factors = rng.integers(1, 1 << 22, (2, claims.shape[1])).astype(float)
        self._weights = [((claims - WHOLE) * f).T for f in factors]  # [variants, E]

    def added(self, rows: np.ndarray) -> np.ndarray:
        """[P, E] what each entry adds to the key of each column; 0 if it changes nothing."""
        out = []
        for at in range(0, len(rows), self.CHUNK):
            whole = (rows[at : at + self.CHUNK] == WHOLE).astype(float)
            low, high = ((whole @ w).astype(np.uint64) for w in self._weights)
            out.append(low * np.uint64(0x9E3779B97F4A7C15) + high)
        return np.concatenate(out)
