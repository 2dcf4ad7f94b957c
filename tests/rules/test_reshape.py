"""Reshape: the factors that both sides share cut the same data, checked with numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.rules import OpShape, Rule, TensorShape, lookup
from shardwright.rules.rule import PASS


def rule_of(before: tuple[int, ...], after: tuple[int, ...]) -> Rule:
    shapes = [TensorShape(shape, "float32") for shape in (before, after)]
    return lookup(OpShape("reshape", (shapes[0],), (shapes[1],), {"dimensions": None}))


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of the same number of elements."""
    primes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 5]), min_size=1, max_size=7))

    def group(numbers: list[int]) -> tuple[int, ...]:
        cuts = draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers)))
        shape = [1]
        for number, cut in zip(numbers, cuts, strict=True):
            if cut:
                shape.append(number)
            else:
                shape[-1] *= number
        return tuple(shape)

    return group(primes), group(draw(st.permutations(primes)))


def coordinate(slot: tuple[tuple[int, ...], ...], rule: Rule, factor: int) -> np.ndarray:
    """For every element, in row-major order, which entry of the factor it belongs to."""
    (at,) = (d for d, dim in enumerate(slot) if factor in dim)
    shape = [math.prod(rule.sizes[f] for f in dim) for dim in slot]
    index = np.indices(shape)[at].ravel()
    minor = slot[at][slot[at].index(factor) + 1 :]
    return index // math.prod(rule.sizes[f] for f in minor) % rule.sizes[factor]


@settings(max_examples=300, deadline=None)
@given(reshapes())
def test_shared_factors_cut_the_same_data(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rule = rule_of(*shapes)
    (before,), (after,) = rule.operands, rule.results
    for slot, shape in zip((before, after), shapes, strict=True):
        assert [math.prod(rule.sizes[f] for f in dim) for dim in slot] == list(shape)
    for factor, kind in enumerate(rule.kinds):
        if kind == PASS:
            left, right = coordinate(before, rule, factor), coordinate(after, rule, factor)
            assert np.array_equal(left, right), rule


@settings(max_examples=300, deadline=None)
@given(reshapes())
def test_a_leading_factor_keeps_data_local(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    before, after = shapes
    rule = rule_of(before, after)
    array = np.arange(math.prod(before))
    leading = [d for d in (rule.operands[0] + rule.results[0]) if d and rule.kinds[d[0]] == PASS]
    for factor in {dim[0] for dim in leading}:
        places = [
            next((n for n, dim in enumerate(slot) if dim and dim[0] == factor), None)
            for slot in (rule.operands[0], rule.results[0])
        ]
        if None in places:
            continue  # a minor part on one side: it can only follow its majors
        parts = rule.sizes[factor]
        old = np.split(array.reshape(before), parts, axis=places[0])
        new = np.split(array.reshape(after), parts, axis=places[1])
        for mine, local in zip(old, new, strict=True):
            assert np.array_equal(np.sort(mine.ravel()), np.sort(local.ravel())), rule


@pytest.mark.parametrize("before, after, rule", [
    ((6, 4), (8, 3), "([ij,k])->([il,m]) {i=2,j=3,k=4,l=4,m=3} need_replication={j,k,l,m}"),
    ((32, 128), (32, 8, 16), "([i,jk])->([i,j,k]) {i=32,j=8,k=16}"),
    ((4, 6), (6, 4), "([ij,k])->([il,m]) {i=2,j=2,k=6,l=3,m=4} need_replication={j,k,l,m}"),
    ((2, 3, 7), (3, 2, 7), "([i,j,k])->([l,m,k]) {i=2,j=3,k=7,l=3,m=2} need_replication={i,j,l,m}"),
    ((0, 4), (4, 0), "([1,1])->([1,1])"),
    ((1,), (), "([1])->([])"),
])  # fmt: skip
def test_rules(before: tuple[int, ...], after: tuple[int, ...], rule: str) -> None:
    assert str(rule_of(before, after)) == rule
