"""Rules of ops on rows that each device sorts for itself: what they index is on the same device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from shardwright.rules.rule import PASS, REPLICATE, Dim, Rule, with_work


def sorts_own(rule: Rule, rows: int) -> Rule:
    """The rule of a sort along a factor, of which each device sorts its own shard."""
    kinds = tuple(PASS if f == rows else kind for f, kind in enumerate(rule.kinds))
    return replace(rule, kinds=kinds, even=_with(rule.even, rows), own=rows)


def indexes_own(rule: Rule, slots: Sequence[int], dim: int, rows: int, each: int) -> Rule:
    """The rule of a gather or scatter whose indices say which rows of the same shard they mean.

    `slots` have the rows that are indexed as this dim, `rows` is the factor of the indices, and
    `each` of them in a row index one entry: several choices of one token.
    """
    (gone,) = rule.slots[slots[0]][dim]
    sizes, kinds = [*rule.sizes], [*rule.kinds]
    sizes[rows] //= each
    kinds[rows] = PASS
    together: Dim = (rows,)
    if each > 1:
        together = (rows, len(sizes))
        sizes.append(each)
        kinds.append(REPLICATE)

    def expanded(dims: tuple[Dim, ...], slot: int) -> tuple[Dim, ...]:
        return tuple(
            (rows,) if slot in slots and d == dim else together if factors == (rows,) else factors
            for d, factors in enumerate(dims)
        )

    new = [expanded(dims, n) for n, dims in enumerate(rule.slots)]
    count = len(rule.operands)
    tied = replace(
        rule, operands=tuple(new[:count]), results=tuple(new[count:]), sizes=tuple(sizes),
        kinds=tuple(kinds), even=_with(rule.even, rows), own=rows,
    )  # fmt: skip
    return with_work(_without(tied, gone), rule.work * math.prod(rule.sizes))


def groups_by_rows(rule: Rule, lhs_dim: int) -> Rule:
    """The rule of a grouped dot that is told the group of each row in place of groups' sizes."""
    lhs, rhs, sizes = rule.operands
    told = replace(rule, operands=(lhs, rhs, (lhs[lhs_dim],)))
    for (factor,) in sizes:
        told = _without(told, factor)
    return with_work(told, rule.work * math.prod(rule.sizes))


def _with(even: tuple[int, ...], factor: int) -> tuple[int, ...]:
    return tuple(sorted({*even, factor}))


def _without(rule: Rule, gone: int) -> Rule:
    """The rule without a factor that no dim has any more."""
    place = [f - (f > gone) for f in range(len(rule.sizes))]

    def renumbered(slots: tuple[tuple[Dim, ...], ...]) -> tuple[tuple[Dim, ...], ...]:
        return tuple(tuple(tuple(place[f] for f in dim) for dim in slot) for slot in slots)

    keep = [f for f in range(len(rule.sizes)) if f != gone]
    return replace(
        rule, operands=renumbered(rule.operands), results=renumbered(rule.results),
        sizes=tuple(rule.sizes[f] for f in keep), kinds=tuple(rule.kinds[f] for f in keep),
        even=tuple(place[f] for f in rule.even if f != gone),
        own=None if rule.own is None else place[rule.own],
        travels=None if rule.travels is None else (place[rule.travels[0]], place[rule.travels[1]]),
    )  # fmt: skip
