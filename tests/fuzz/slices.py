"""Rows of many slices at once, as `vmap` makes gathers and scatters of them.

They are drawn from seed 200000 on, so that the programs of earlier seeds stay what they were.
"""

from __future__ import annotations

from collections.abc import Container
from functools import partial

from tests.fuzz.scope import Scope, row

late = partial(row, since=200_000)


def _starts(dims: int, moved: Container[int]) -> str:
    """The starts of a slice: `i` along these dims."""
    return "(" + "".join("i, " if d in moved else "0, " for d in range(dims)) + ")"


@late("slices_of_rows", 2)
def _slices_of_rows(s: Scope) -> str:
    """Of each row a slice of its own, anywhere and beyond the end."""
    x = s.pick("fi", (2, 3))
    d = s.integer(1, len(x.shape) - 1)
    sizes = tuple(s.integer(1, n) if k == d else n for k, n in enumerate(x.shape) if k)
    cut = f"lax.dynamic_slice(r, {_starts(len(sizes), [d - 1])}, {sizes})"
    return f"jax.vmap(lambda r, i: {cut})({x}, {s.indices((x.shape[0],), x.shape[d])})"


@late("slices_of_one", 2)
def _slices_of_one(s: Scope) -> str:
    """Many slices of one array, by starts of one dim or of all."""
    x = s.pick("fi", (1, 3))
    count = s.one(2, 4, 8, s.size())
    moved = [s.dim(x)] if s.chance(0.5) else range(len(x.shape))
    sizes = tuple(s.integer(1, n) if d in moved else n for d, n in enumerate(x.shape))
    cut = f"lax.dynamic_slice({x}, {_starts(len(sizes), moved)}, {sizes})"
    return f"jax.vmap(lambda i: {cut})({s.indices((count,), max(x.shape))})"


@late("updates_of_rows", 2)
def _updates_of_rows(s: Scope) -> str:
    """In each row a slice of its own is written."""
    x = s.pick("f", (2, 3))
    d = s.integer(1, len(x.shape) - 1)
    shape = tuple(s.integer(1, n) if k == d else n for k, n in enumerate(x.shape))
    new, i = s.argument(shape, x.dtype), s.indices((x.shape[0],), x.shape[d])
    write = f"lax.dynamic_update_slice(r, u, {_starts(len(shape) - 1, [d - 1])})"
    return f"jax.vmap(lambda r, u, i: {write})({x}, {new}, {i})"


@late("updates_of_one", 1)
def _updates_of_one(s: Scope) -> str:
    """Copies of one array, a slice of its own written in each."""
    x = s.pick("f", (1, 2))
    d, count = s.dim(x), s.one(2, 4, 8)
    shape = tuple(s.integer(1, n) if k == d else n for k, n in enumerate(x.shape))
    new, i = s.argument((count, *shape), x.dtype), s.indices((count,), x.shape[d])
    write = f"lax.dynamic_update_slice_in_dim({x}, u, i, {d})"
    return f"jax.vmap(lambda u, i: {write})({new}, {i})"
