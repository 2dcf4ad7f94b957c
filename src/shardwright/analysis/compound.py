"""Compound dims: what a reshape merges or splits is refined to the same atoms everywhere.

Each class of dims is an atom, or a list of smaller classes, major to minor. An equation
"dim = (factor, factor)" is solved by unification: equal sizes are one class, a larger one is
split. [8] = (4, 2) here and (2, 4) there gives (2, 2, 2) in both places.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


class Atoms:
    """Classes of dims with their decompositions: a union-find whose classes may be split."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)  # per class
        self._parent = list(range(len(self.sizes)))
        self._factors: dict[int, list[int]] = {}

    def find(self, c: int) -> int:
        """The representative of the class of c."""
        while self._parent[c] != c:
            self._parent[c] = self._parent[self._parent[c]]
            c = self._parent[c]
        return c

    def of(self, c: int) -> tuple[int, ...]:
        """The atoms of a class, major to minor."""
        c = self.find(c)
        if c not in self._factors:
            return (c,)
        return tuple(atom for factor in self._factors[c] for atom in self.of(factor))

    def solve(self, equations: Iterable[tuple[int, tuple[int, ...]]]) -> None:
        """Makes every dim equal to the list of its factors, as far as sizes allow."""
        for dim, factors in equations:
            self._unify([dim], [f for f in factors if self.sizes[f] > 1])

    def _new(self, size: int) -> int:
        self.sizes.append(size)
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def _split(self, c: int, head: int) -> list[int]:
        """Splits an atom into factors of sizes (head, rest), which are returned."""
        self._factors[c] = [self._new(head), self._new(self.sizes[c] // head)]
        return self._factors[c]

    def _join(self, a: int, b: int) -> None:
        """Makes two classes of one size one, and their factors with them."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        a, b = min(a, b), max(a, b)
        self._parent[b] = a
        mine, theirs = self._factors.get(a), self._factors.pop(b, None)
        if theirs is not None:
            self._factors.setdefault(a, theirs)
            if mine is not None:
                self._unify(mine, theirs)

    def _unify(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Aligns two lists of classes from the major end until their sizes stop matching."""
        xs = [a for c in left for a in self.of(c)][::-1]
        ys = [a for c in right for a in self.of(c)][::-1]
        while xs and ys:
            x, y = self.find(xs.pop()), self.find(ys.pop())
            if self.sizes[x] == self.sizes[y]:
                self._join(x, y)
                continue
            if self._is_split(x) or self._is_split(y):  # a join above has split it meanwhile
                xs += self.of(x)[::-1]
                ys += self.of(y)[::-1]
                continue
            common = math.gcd(self.sizes[x], self.sizes[y])
            if common == 1:
                return  # nothing more in common: the rest stays apart
            for c, rest in ((x, xs), (y, ys)):
                pieces = self._split(c, common) if self.sizes[c] != common else [c]
                rest += pieces[::-1]

    def _is_split(self, c: int) -> bool:
        return c in self._factors
