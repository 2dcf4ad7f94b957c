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
from shardwright.spmd.decisions import UPDATES, AxisList, Entry
from shardwright.spmd.layout import WHOLE, Layout

Earlier = tuple[int, ...]  # the placement of one layout on the axes before this one
Distinct = tuple[list[tuple[int, ...]], np.ndarray]  # rows, [columns] which one each column has


class TooLarge(Exception):
    """More columns than allowed."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one axis."""

    table: np.ndarray  # [columns, variants] int8: atom or WHOLE
    lists: list[AxisList]  # [columns] a list that leads there
    variant: list[dict[Earlier, int]]  # [layouts] situation -> variant
    _distinct: dict[tuple[int, ...], Distinct] = field(default_factory=dict)

    def distinct(self, variants: tuple[int, ...]) -> Distinct:
        """The distinct rows of these variants, worked out once."""
        known = self._distinct.get(variants)
        if known is None:
            known = self._distinct[variants] = self._find_distinct(variants)
        return known

    def _find_distinct(self, variants: tuple[int, ...]) -> Distinct:
        count, number = 1, np.zeros(len(self.lists), np.int64)
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
        variants, variant_of = _variants(model, situations, axis)
        columns = _walk(space, axis, variants, limit)
        out.append(Columns(columns[0], columns[1], variant_of))
        following: list[dict[Earlier, None]] = []
        for known in variant_of:
            nexts: dict[Earlier, None] = {}
            for earlier, v in known.items():
                for p in np.unique(columns[0][:, v]).tolist():
                    nexts[(*earlier, p)] = None
            following.append(nexts)
        situations = following
    return out


@dataclass(frozen=True, slots=True)
class _Variant:
    layout: int
    able: tuple[bool, ...]  # [atoms]
    fixed: int | None  # an override decides


def _variants(
    model: CostModel, situations: list[dict[Earlier, None]], axis: int
) -> tuple[list[_Variant], list[dict[Earlier, int]]]:
    variants: dict[_Variant, int] = {}
    variant_of: list[dict[Earlier, int]] = []
    for i, (layout, known) in enumerate(zip(model.layouts.table, situations, strict=True)):
        fixed = model.overrides[i][axis] if i in model.overrides else None
        mine: dict[Earlier, int] = {}
        for earlier in known:
            able = () if fixed is not None else _able(layout, earlier, model.mesh.sizes)
            mine[earlier] = variants.setdefault(_Variant(i, able, fixed), len(variants))
        variant_of.append(mine)
    return list(variants), variant_of


def _able(layout: Layout, earlier: Earlier, sizes: tuple[int, ...]) -> tuple[bool, ...]:
    """Which atoms the next axis can split: divisible, with nothing left on their major side."""
    left = [a.size for a in layout.atoms]
    for axis, atom in enumerate(earlier):
        if atom != WHOLE:
            left[atom] //= sizes[axis]
    n = sizes[len(earlier)]
    return tuple(
        left[j] % n == 0 and left[j] >= n
        and not any(left[k] > 1 and layout.atoms[k].dim == a.dim for k in range(j))
        for j, a in enumerate(layout.atoms)
    )  # fmt: skip


def _claims(model: CostModel, variants: list[_Variant], entry: Entry) -> np.ndarray:
    """[variants] the atom that each would give to an entry if it were still whole."""
    bit_value = {
        k: entry.bits >> min(i, 30) & 1
        for i, k in enumerate(model.analysis.all_groups[entry.group].conflict_sets)
    }
    out = np.full(len(variants), WHOLE, np.int8)
    for v, variant in enumerate(variants):
        layout = model.layouts.table[variant.layout]
        if variant.fixed is not None or (entry.scope == UPDATES and not layout.update):
            continue
        options = [
            ((bit_value.get(a.bit, 0) ^ a.side if a.bit >= 0 else 0), j)
            for j, a in enumerate(layout.atoms)
            if a.group == entry.group and variant.able[j]
        ]
        if options:
            out[v] = min(options)[1]
    return out


def _walk(
    space: Space, axis: int, variants: list[_Variant], limit: int
) -> tuple[np.ndarray, list[AxisList]]:
    """All columns that appends reach from the prefix of the axis, breadth first."""
    start = np.array([WHOLE if v.fixed is None else v.fixed for v in variants], np.int8)
    for entry in space.root[axis]:
        claim = _claims(space.model, variants, entry)
        start = np.where(start == WHOLE, claim, start)
    entries = [a.entry for a in space.actions if a.axis == axis]
    claims = [_claims(space.model, variants, e) for e in entries]
    groups = sorted({e.group for e in entries})
    width = len(start)
    seen = {start.tobytes()}
    tables, lists = [start[None]], [space.root[axis]]
    rows = start[None]  # [P, variants] the columns of one length of list
    listed = np.array([[g in {e.group for e in space.root[axis]} for g in groups]])  # [P, groups]
    late = np.zeros(1, bool)  # [P] ends with an entry for updates only: nothing may follow
    heads = lists[:]
    while len(rows):
        kept: list[np.ndarray] = []
        parents: list[int] = []
        added: list[Entry] = []
        for entry, claim in zip(entries, claims, strict=True):
            able = np.flatnonzero(~late & ~listed[:, groups.index(entry.group)])
            before = rows[able]
            after = np.where(before == WHOLE, claim, before)
            changed = np.flatnonzero((after != before).any(1))
            text = after[changed].tobytes()
            for n, at in enumerate(changed.tolist()):
                key = text[n * width : (n + 1) * width]
                if key not in seen:
                    seen.add(key)
                    kept.append(after[at])
                    parents.append(int(able[at]))
                    added.append(entry)
            if len(seen) > limit:
                raise TooLarge
        heads = [(*heads[p], e) for p, e in zip(parents, added, strict=True)]
        lists += heads
        rows = np.stack(kept) if kept else np.empty((0, width), np.int8)
        tables.append(rows)
        listed = listed[parents] if parents else listed[:0]
        listed[np.arange(len(added)), [groups.index(e.group) for e in added]] = True
        late = np.array([e.scope == UPDATES for e in added], bool)
    return np.asfortranarray(np.concatenate(tables)), lists
