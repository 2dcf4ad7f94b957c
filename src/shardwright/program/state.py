"""State in = state out: which results of a step are its arguments of the next step.

A result with the structure of an argument, and the shapes and dtypes of its arrays, is meant to be
passed again: it is stored as that argument is. Gradients have the structure of their parameters
and are stored like them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

Types = list[Any]  # one (shape, dtype) per leaf, None for what is no array


def find_state(call: Any, result: Any, arguments: Types, results: Types) -> dict[int, int]:
    """{leaf of the result: leaf of the arguments} for each part that has an argument's structure.

    Both trees have the number of each leaf in its place. Arguments of equal structure are taken in
    order; a result that finds none left has the first.
    """
    args, kwargs = call
    candidates = [a for a in (*args, *kwargs.values()) if _is_state(a, arguments)]
    left, found = list(candidates), dict[int, int]()
    for part in _parts(result, [jax.tree.structure(a) for a in candidates]):
        alike = [a for a in left if _alike(a, part, arguments, results)]
        known = alike or [a for a in candidates if _alike(a, part, arguments, results)]
        if known:
            found |= zip(jax.tree.leaves(part), jax.tree.leaves(known[0]), strict=True)
            left = [a for a in left if a is not known[0]]
    return found


def _is_state(argument: Any, types: Types) -> bool:
    """Whether an argument has a structure to be recognised by, and arrays in it."""
    leaves = jax.tree.leaves(argument)
    return leaves != [argument] and any(types[i] is not None for i in leaves)


def _parts(result: Any, structures: Sequence[Any]) -> Iterator[Any]:
    """The result if it has one of these structures, else those of its items that have."""
    if jax.tree.structure(result) in structures:
        yield result
    elif type(result) in (tuple, list, dict):
        for item in result.values() if isinstance(result, dict) else result:
            yield from _parts(item, structures)


def _alike(argument: Any, part: Any, arguments: Types, results: Types) -> bool:
    taken, taken_tree = jax.tree.flatten(argument)
    given, given_tree = jax.tree.flatten(part)
    was, now = [arguments[i] for i in taken], [results[i] for i in given]
    return (taken_tree, was) == (given_tree, now)
