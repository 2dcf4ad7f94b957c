"""Compound dims: one list of atoms per dim, major to minor, the same wherever the dim appears."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.analysis.compound import Atoms


def sizes(atoms: Atoms, c: int) -> tuple[int, ...]:
    return tuple(atoms.sizes[a] for a in atoms.of(c))


@pytest.mark.parametrize(
    "class_sizes, equations, expected",
    [
        # A split and its inverse: dims 1, 2 are the parts of dim 0.
        ([8, 4, 2], [(0, (1, 2))], [(4, 2), (4,), (2,)]),
        # Two ways to cut 8: both are refined to (2, 2, 2).
        ([8, 4, 2, 2, 4], [(0, (1, 2)), (0, (3, 4))], [(2, 2, 2), (2, 2), (2,), (2,), (2, 2)]),
        # Grouped heads: 12 = 4 x 3 for queries, and 24 = 12 x 2 elsewhere.
        ([24, 12, 2, 4, 3], [(0, (1, 2)), (1, (3, 4))], [(4, 3, 2), (4, 3), (2,), (4,), (3,)]),
        # Microbatches: 32 = 4 x 8 here, 2 x 16 there.
        ([32, 4, 8, 2, 16], [(0, (1, 2)), (0, (3, 4))],
         [(2, 2, 8), (2, 2), (8,), (2,), (2, 8)]),
        # 6 = 2 x 3 and 6 = 3 x 2 have no common cut: each keeps its own parts.
        ([6, 2, 3, 3, 2], [(0, (1, 2)), (0, (3, 4))], [(2, 3), (2,), (3,), (3,), (2,)]),
        # A part of size 1 has nothing to split.
        ([8, 1, 8], [(0, (1, 2))], [(8,), (1,), (8,)]),
        # The whole joins a dim of its own size.
        ([8, 8], [(0, (1,))], [(8,), (8,)]),
    ],
)  # fmt: skip
def test_table(
    class_sizes: list[int],
    equations: list[tuple[int, tuple[int, ...]]],
    expected: list[tuple[int, ...]],
) -> None:
    atoms = Atoms(class_sizes)
    atoms.solve(equations)
    assert [sizes(atoms, c) for c in range(len(class_sizes))] == expected


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, tuple[int, ...]]]]:
    """Equations that cut rows of primes in several places: all have a common refinement."""
    class_sizes: list[int] = []
    equations: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(draw(st.integers(1, 3))):
        primes = draw(st.lists(st.sampled_from([2, 2, 3, 5]), min_size=1, max_size=6))
        whole = len(class_sizes)
        class_sizes.append(math.prod(primes))
        for _ in range(draw(st.integers(1, 4))):
            cuts = sorted(draw(st.sets(st.integers(1, max(len(primes) - 1, 1)))))
            edges = [0, *(c for c in cuts if c < len(primes)), len(primes)]
            parts = [math.prod(primes[a:b]) for a, b in pairwise(edges)]
            first = len(class_sizes)
            class_sizes += parts
            equations.append((whole, tuple(range(first, first + len(parts)))))
    return class_sizes, equations


@settings(max_examples=300, deadline=None, derandomize=True)
@given(chains(), st.randoms(use_true_random=False))
def test_unification(
    chain: tuple[list[int], list[tuple[int, tuple[int, ...]]]], rng: object
) -> None:
    class_sizes, equations = chain
    atoms = Atoms(class_sizes)
    atoms.solve(equations)
    for c, size in enumerate(class_sizes):
        assert math.prod(sizes(atoms, c)) == size, "sizes multiply"
    for whole, parts in equations:
        joined = tuple(a for p in parts for a in atoms.of(p) if atoms.sizes[a] > 1)
        assert joined == tuple(a for a in atoms.of(whole) if atoms.sizes[a] > 1), "order is kept"
    before = [atoms.of(c) for c in range(len(class_sizes))]
    atoms.solve(equations)
    assert [atoms.of(c) for c in range(len(class_sizes))] == before, "solved once is solved"
    shuffled = list(equations)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    other = Atoms(class_sizes)
    other.solve(shuffled)
    for c in range(len(class_sizes)):
        assert sizes(other, c) == sizes(atoms, c), "in any order"
