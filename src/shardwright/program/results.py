"""What a call leaves behind: results, and objects that the function has updated in place.

State in = state out: a result with the structure of an argument, and the shapes and dtypes of its
arrays, is meant to be passed again: it is stored as that argument is. Gradients have the structure
of their parameters and are stored like them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import and_, not_
from typing import Any

import jax

from shardwright.program import frameworks


@dataclass(slots=True)
class Output:
    """The structure of what the function made when it was traced: (updated arguments, result)."""

    tree: Any = None
    is_array: tuple[bool, ...] = ()
    static: tuple[Any, ...] = ()  # leaves that are no arrays, and _Unchanged ones
    paths: tuple[str, ...] = ()
    changed: dict[str, Any] = field(default_factory=dict)  # arguments changed, not as results
    sources: dict[int, int] = field(default_factory=dict)  # {output: its input in the next step}

    def record(
        self, made: Any, paths: list[str], data: list[bool], kept: dict[int, int]
    ) -> list[Any]:
        """The arrays of (updated arguments, result), both split, with the leaves that are data.

        `kept` has, for each array that need not be returned, the input at which it is found.
        """
        flat, self.tree = jax.tree.flatten(made)
        count = len(jax.tree.leaves(made[0]))
        flat[:count] = [_Unchanged(kept[id(x)]) if id(x) in kept else x for x in flat[:count]]
        returned = [not isinstance(x, _Unchanged) for x in flat]
        self.is_array = tuple(map(and_, data, returned))
        self.static = tuple(compress(flat, map(not_, self.is_array)))
        self.paths = tuple(compress(paths, self.is_array))
        return list(compress(flat, self.is_array))

    def build(
        self, arrays: Sequence[Any], inputs: Sequence[Any] = (), *, into: bool = False
    ) -> Any:
        """The result with these arrays in it; `into`: the caller's objects are updated as well."""
        values, rest = iter(arrays), iter(self.static)
        leaves = [next(values if yes else rest) for yes in self.is_array]
        flat = [inputs[x.input] if isinstance(x, _Unchanged) else x for x in leaves]
        tree = jax.tree.unflatten(self.tree, flat)
        _, out = frameworks.write_back(tree) if into else frameworks.merge(tree)
        return out


@dataclass(frozen=True, slots=True)
class _Unchanged:
    """An array of an argument that the function leaves as it is."""

    input: int


def paths_of(left: Any, made: Any, side: int) -> list[Any]:
    """The paths of the leaves of the updated arguments (0) or of the result (1)."""
    every = frameworks.split_paths(left, made)
    return [tuple(inner) for (first, *inner) in every if first.idx == side]


def output_paths(updated: list[str], left: Any, made: Any) -> list[str]:
    """What the leaves of (updated arguments, result) are called: as in the result, if there."""
    rows = zip(frameworks.leaf_paths(left[1]), jax.tree.leaves(left[1]), strict=True)
    returned = {id(leaf): path for path, leaf in rows}
    first = [
        "result" + jax.tree_util.keystr(returned[id(leaf)]) if id(leaf) in returned else path
        for leaf, path in zip(jax.tree.leaves(made[0]), updated, strict=True)
    ]
    return first + ["result" + jax.tree_util.keystr(p) for p in paths_of(left, made, 1)]


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
