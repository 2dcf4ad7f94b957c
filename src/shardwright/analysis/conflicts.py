"""Conflicts: a value or op that holds one color twice, and how they pair up into sets.

An axis splits a value once, so of two dims with one color one must be chosen. Conflicts that
meet in an op are resolved together: union-find with parity, where a transposed link flips the
side. A contradiction (an odd cycle) is kept and counted; it is priced as a reshard.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.analysis.colors import Colors, NameTable
from shardwright.program.types import LITERAL, Program
from shardwright.rules.rule import Rule

Place = tuple[int, int]  # (dim or factor, atom place)


@dataclass(frozen=True, slots=True)
class Conflict:
    """One owner (value or op) with several names of one color."""

    is_op: bool
    owner: int
    color: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class ConflictSet:
    """Conflicts that one resolution bit decides."""

    color: int
    conflicts: tuple[Conflict, ...]
    flips: tuple[int, ...]  # per conflict: 1 when its first place is on side 1
    contradictions: int


def find_conflicts(colors: Colors) -> list[Conflict]:
    """All conflicts, values first, in program order."""
    return [*_doubled(colors.values, False), *_doubled(colors.ops, True)]


def _doubled(table: NameTable, is_op: bool) -> list[Conflict]:
    """The owners in a table that have a color more than once."""
    key = table.owner * (int(table.color.max(initial=0)) + 1) + table.color
    _, which, count = np.unique(key, return_inverse=True, return_counts=True)
    found: dict[tuple[int, int], list[Place]] = {}
    for row in np.flatnonzero(count[which] > 1).tolist():
        found.setdefault((int(table.owner[row]), int(table.color[row])), []).append(
            (int(table.dim[row]), int(table.place[row]))
        )
    return [
        Conflict(is_op, owner, color, tuple(places))
        for (owner, color), places in sorted(found.items())
    ]


def slot_places(rule: Rule, slot: int, atoms: list[int]) -> dict[Place, Place]:
    """For one operand or result: (factor, place) -> (dim, place); atoms counts each factor's."""
    places: dict[Place, Place] = {}
    for d, dim in enumerate(rule.slots[slot]):
        at = 0
        for f in dim:
            for place in range(atoms[f]):
                places[f, place] = (d, at)
                at += 1
    return places


class _Parity:
    """Union-find where each element knows its side relative to its root."""

    def __init__(self, count: int) -> None:
        self.parent = list(range(count))
        self.flip = [0] * count

    def find(self, x: int) -> tuple[int, int]:
        """(root, side relative to it) of an element."""
        flip = 0
        path = []
        while self.parent[x] != x:
            path.append(x)
            x = self.parent[x]
        for y in reversed(path):
            flip ^= self.flip[y]
            self.parent[y], self.flip[y] = x, flip
        return x, flip

    def union(self, a: int, b: int, flip: int) -> bool:
        """Joins a and b with this relative side; False when it contradicts what is known."""
        (ra, fa), (rb, fb) = self.find(a), self.find(b)
        if ra == rb:
            return fa ^ fb == flip
        low, high = min(ra, rb), max(ra, rb)
        self.parent[high], self.flip[high] = low, fa ^ fb ^ flip
        return True


def pair_conflicts(
    program: Program, colors: Colors, conflicts: list[Conflict]
) -> list[ConflictSet]:
    """Conflicts joined into sets through the ops that link them."""
    index = {(c.is_op, c.owner, c.color): i for i, c in enumerate(conflicts)}
    sides = _Parity(len(conflicts))
    contradicted: list[int] = []
    factor_atoms = _factor_atom_counts(colors)
    cache: dict[tuple[int, int, tuple[int, ...]], dict[Place, Place]] = {}
    for i, conflict in enumerate(conflicts):
        if not conflict.is_op:
            continue
        op = program.ops[conflict.owner]
        atoms = [factor_atoms.get((op.index, f), 1) for f in range(len(op.rule.sizes))]
        for slot, value in enumerate((*op.operands, *op.results)):
            other = index.get((False, value, conflict.color)) if value != LITERAL else None
            if other is None:
                continue
            key = (id(op.rule), slot, tuple(atoms))
            if key not in cache:
                cache[key] = slot_places(op.rule, slot, atoms)
            flip = _relative_side(conflict.places, conflicts[other].places, cache[key])
            if flip is not None and not sides.union(i, other, flip):
                contradicted.append(i)
    members: dict[int, list[int]] = {}
    for i in range(len(conflicts)):
        members.setdefault(sides.find(i)[0], []).append(i)
    wrong = dict.fromkeys(members, 0)
    for i in contradicted:
        wrong[sides.find(i)[0]] += 1
    sets = []
    for root, own in sorted(members.items()):
        base = sides.find(own[0])[1]
        flips = tuple(sides.find(i)[1] ^ base for i in own)
        sets.append(
            ConflictSet(conflicts[root].color, tuple(conflicts[i] for i in own), flips, wrong[root])
        )
    return sets


def _factor_atom_counts(colors: Colors) -> dict[tuple[int, int], int]:
    """Atoms of the factors that have more than one."""
    table, many = colors.ops, colors.ops.place > 0
    rows = zip(table.owner[many].tolist(), table.dim[many].tolist(), strict=True)
    return dict(zip(rows, (table.place[many] + 1).tolist(), strict=True))  # the last place counts


def _relative_side(
    op_places: tuple[Place, ...], value_places: tuple[Place, ...], places: dict[Place, Place]
) -> int | None:
    """0 when the op's first place is the value's first place, 1 when it is its second."""
    for n, op_place in enumerate(op_places[:2]):
        at = places.get(op_place)
        for m, value_place in enumerate(value_places[:2]):
            if at == value_place:
                return n ^ m
    return None
