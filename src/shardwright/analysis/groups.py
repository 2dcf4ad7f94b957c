"""Groups: colors (and conflict sets) with the same structure share one decision.

A color's structure is the multiset of its names: on which kind of value or op, at which dim, next
to which other colors. It is hashed by two iterations of Weisfeiler-Lehman refinement: the second
sees the first hashes of the neighbours, so colors whose neighbourhoods differ get other hashes.

The first and the last of a stack of layers often lack some names of the middle ones (no gradient
of the input, say). Such a near copy joins the group of the middle ones when both split the same
inputs, most of their names are the same, and one of the two has next to no name that the other
lacks: a layer that lacks names is the same kind of layer, one with other names is not.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from shardwright.analysis.colors import Colors, NameTable
from shardwright.analysis.conflicts import ConflictSet
from shardwright.analysis.names import OpBatch
from shardwright.program.types import Program
from shardwright.rules.rule import format_rule

# Of two near copies at least this fraction of all names is shared, and of the smaller one at most
# this fraction is foreign to the other. Over the zoo (tiny and full) and the programs of
# tests/analysis and tests/search, copies share 0.925 and more, with at most 0.039 foreign; of the
# other pairs with the same inputs, those that share over 0.5 have at least 0.135 foreign.
LEAST_SHARED = 0.7
MOST_FOREIGN = 0.05

_M1, _M2, _STEP = (
    np.uint64(x) for x in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15)
)


def mix(x: np.ndarray) -> np.ndarray:
    """Each number through a 64-bit finaliser (splitmix64): every input bit reaches every bit."""
    with np.errstate(over="ignore"):
        x = (x + _STEP).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * _M1
        x = (x ^ (x >> np.uint64(27))) * _M2
        return x ^ (x >> np.uint64(31))


def stable_hash(text: str) -> int:
    """A 64-bit hash of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _sum_by(keys: np.ndarray, hashes: np.ndarray, count: int) -> np.ndarray:
    total = np.zeros(count, np.uint64)
    with np.errstate(over="ignore"):
        np.add.at(total, keys, hashes)
    return total


def value_hashes(program: Program) -> np.ndarray:
    """[values] a hash of what kind of value each is: type and role."""
    inputs, consts, outputs = set(program.inputs), set(program.consts), set(program.outputs)
    cache: dict[tuple[int, int], int] = {}
    out = np.empty(len(program.values), np.uint64)
    for v in program.values:
        role = (v.index in inputs) + 2 * (v.index in consts) + 4 * (v.index in outputs)
        key = (id(v.type), role)
        if key not in cache:
            cache[key] = stable_hash(f"{v.type.shape} {v.type.dtype} {role}")
        out[v.index] = cache[key]
    return out


def op_hashes(program: Program, batches: Sequence[OpBatch]) -> np.ndarray:
    """[ops] a hash of what kind of op each is: primitive, rule, pass and region."""
    out = np.empty(len(program.ops), np.uint64)
    cache: dict[tuple[int, str, bool, str], int] = {}
    for batch in batches:
        text = format_rule(batch.rule)  # layers may differ in precision and be split alike
        for i in batch.ops.tolist():
            op = program.ops[i]
            key = (id(batch.rule), op.name, op.transposed, program.regions[op.region].kind)
            if key not in cache:
                cache[key] = stable_hash(f"{text} {key[1:]}")
            out[i] = cache[key]
    return out


def _name_hashes(table: NameTable, owner_hash: np.ndarray, colors: np.ndarray | None) -> np.ndarray:
    """[names] a hash of each; with `colors` (a hash per color) it sees the owner's other names."""
    place = mix((table.dim * 64 + table.place).astype(np.uint64))
    if colors is not None:
        seen = mix(colors[table.color] ^ place)
        with np.errstate(over="ignore"):
            owner_hash = mix(owner_hash + _sum_by(table.owner, seen, len(owner_hash)))
    return mix(owner_hash[table.owner] ^ place)


def color_hashes(program: Program, batches: Sequence[OpBatch], colors: Colors) -> np.ndarray:
    """[colors] a structural hash of each: colors with equal structure have equal hashes."""
    v_hash, o_hash = value_hashes(program), op_hashes(program, batches)
    known: np.ndarray | None = None
    for _ in range(2):
        v_names, o_names = (
            _name_hashes(colors.values, v_hash, known),
            _name_hashes(colors.ops, o_hash, known),
        )
        with np.errstate(over="ignore"):
            known = _sum_by(colors.values.color, v_names, colors.count) + _sum_by(
                colors.ops.color, o_names, colors.count
            )
    assert known is not None
    return known


def group_colors(program: Program, batches: Sequence[OpBatch], colors: Colors) -> np.ndarray:
    """The group of each color, numbered in program order."""
    hashes = color_hashes(program, batches, colors)
    exact: dict[int, int] = {}
    group = np.array([exact.setdefault(int(h), len(exact)) for h in hashes], np.int64)
    near = _join_near_copies(program, batches, colors, group)
    dense: dict[int, int] = {}
    return np.array([dense.setdefault(near[g], len(dense)) for g in group.tolist()], np.int64)


def _join_near_copies(
    program: Program, batches: Sequence[OpBatch], colors: Colors, group: np.ndarray
) -> dict[int, int]:
    """group -> the group it joins: itself, or a larger one that splits the same inputs."""
    count = Counter(group.tolist())
    leader = {g: int(c) for c, g in reversed(list(enumerate(group.tolist())))}
    v_names = _name_hashes(colors.values, value_hashes(program), None)
    o_names = _name_hashes(colors.ops, op_hashes(program, batches), None)
    wanted = np.zeros(colors.count, bool)
    wanted[list(leader.values())] = True
    names: dict[int, Counter[int]] = {c: Counter() for c in leader.values()}
    inputs: dict[int, Counter[int]] = {c: Counter() for c in leader.values()}
    is_input = np.zeros(len(program.values), bool)
    is_input[list(program.inputs)] = True
    for table, hashes, on_values in ((colors.values, v_names, True), (colors.ops, o_names, False)):
        for row in np.flatnonzero(wanted[table.color]).tolist():
            c, h = int(table.color[row]), int(hashes[row])
            names[c][h] += 1
            if on_values and is_input[table.owner[row]]:
                inputs[c][h] += 1
    joined = {g: g for g in leader}
    by_inputs: dict[frozenset[tuple[int, int]], list[int]] = {}
    for g, c in leader.items():
        if inputs[c]:
            by_inputs.setdefault(frozenset(inputs[c].items()), []).append(g)
    for alike in by_inputs.values():
        alike.sort(key=lambda g: (-count[g], g))
        kept: list[int] = []
        for g in alike:
            mine = names[leader[g]]
            for other in kept:
                if _near(mine, names[leader[other]]):
                    joined[g] = other
                    break
            else:
                kept.append(g)
    return joined


def _near(a: Counter[int], b: Counter[int]) -> bool:
    """Whether two colors have nearly the same names."""
    shared = (a & b).total()
    smaller = min(a.total(), b.total())
    foreign = smaller - shared
    return shared >= LEAST_SHARED * (a | b).total() and foreign <= MOST_FOREIGN * smaller


def group_sets(program: Program, sets: Sequence[ConflictSet], color_group: np.ndarray) -> list[int]:
    """The group of each conflict set: same color group, same conflicts on the same kinds."""
    seen: dict[tuple[int, frozenset[tuple[object, int]]], int] = {}
    out = []
    for s in sets:
        kinds: Counter[tuple[object, ...]] = Counter()
        for conflict, flip in zip(s.conflicts, s.flips, strict=True):
            if conflict.is_op:
                op = program.ops[conflict.owner]
                what: object = (op.name, op.rule, op.transposed)
            else:
                what = program.values[conflict.owner].type
            kinds[what, conflict.places, flip] += 1
        key = (int(color_group[s.color]), frozenset(kinds.items()))
        out.append(seen.setdefault(key, len(seen)))
    return out
