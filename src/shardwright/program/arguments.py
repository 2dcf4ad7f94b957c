"""A call of the user's function as a flat list of arrays, and the names of its parts.

Anything may stand in the arguments: dataclasses, modules with functions inside, None, keys,
Python numbers. What is an array (or a number) is an input of the program; everything else, and
whatever the user calls static, is closed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import Any

import jax

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.program import frameworks
from shardwright.program.calls import (
    argument_names,
    check_call,
    check_callable,
    checked_positions,
    function_name,
    own_positions,
)  # fmt: skip
from shardwright.program.leaves import is_weak, same, type_of
from shardwright.program.results import Output, find_state, output_paths, paths_of
from shardwright.program.side_effects import changes


@dataclass(frozen=True, slots=True)
class Signature:
    """How a call flattens: argument paths in order, and the trees to put it back together."""

    name: str
    arguments: tuple[str, ...]  # names of the positional arguments
    paths: tuple[str, ...]  # of the array leaves
    weak: tuple[bool, ...]  # leaves that take the dtype of what they meet: Python numbers
    donated: tuple[bool, ...]
    tree: Any  # of (args, kwargs)
    is_input: tuple[bool, ...]  # per leaf of `tree`: array, or closed over
    static: tuple[Any, ...]  # the leaves closed over
    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]
    donated_argnums: tuple[int, ...]
    mesh: Any = field(default_factory=jax.sharding.get_abstract_mesh)  # set around the function
    rules: frameworks.Rules = field(default_factory=frameworks.logical_rules)  # likewise
    named: tuple[str, ...] = ()  # axes that Flax's boxes around arguments name
    filtered: bool = False  # whether all that is no array is static, as under eqx.filter_jit
    tie: bool = False  # whether a result that is the next step's argument is stored like it
    planned: Any = None  # abstract mesh of the plan, for functions that name axes of no mesh
    output: Output = field(default_factory=lambda: Output())

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
        """(leaves, tree) of a call."""
        call = _keep_static(args, kwargs, self.static_argnums, self.static_argnames)
        return jax.tree.flatten(frameworks.split(call))

    def match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The array leaves of a call of the same form, or None."""
        flat, tree = self.flatten(args, kwargs)
        if tree != self.tree:
            return None
        rest = compress(flat, map(not_, self.is_input))
        if not all(map(same, map(_unwrap, rest), map(_unwrap, self.static))):
            return None
        leaves = list(compress(flat, self.is_input))
        try:
            return leaves if tuple(map(is_weak, leaves)) == self.weak else None
        except TypeError:  # a leaf that is no array now
            return None

    @property
    def is_flat(self) -> bool:
        """Whether only its leaves can be compiled for: something inside an argument is no array.

        Objects that are updated in place are none either.
        """
        inside = any(not isinstance(x, _Static) for x in self.static)
        return inside or frameworks.has_split(self._unflatten(self.paths))

    @property
    def donated_leaves(self) -> list[int]:
        """The positions of the array leaves that are donated."""
        return [i for i, gone in enumerate(self.donated) if gone]

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The array leaves of a call of the same form; static parts must be equal."""
        flat, tree = self.flatten(args, kwargs)
        if tree != self.tree:
            raise ShardwrightError(
                f"the arguments of {self.name!r} have another structure than those it was"
                " planned for",
                planned=self.tree,
                got=tree,
                try_="plan again with these arguments",
            )
        return list(compress(flat, self.is_input))

    def call(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with these array leaves; the inverse of `leaves`."""
        return _unwrap_call(frameworks.merge(self._unflatten(leaves)))

    def _unflatten(self, leaves: Sequence[Any]) -> Any:
        arrays, rest = iter(leaves), iter(self.static)
        flat = [next(arrays if used else rest) for used in self.is_input]
        return jax.tree.unflatten(self.tree, flat)

    def run(self, fn: Callable[..., Any], leaves: Sequence[Any]) -> list[Any]:
        """The arrays that `fn` makes of these: its results, after what it updates in place."""
        fn = frameworks.plain_function(fn)

        def call(arguments: Any) -> Any:
            before = dict(self._held(arguments))
            args, kwargs = _unwrap_call(arguments)
            out = fn(*args, **kwargs)
            self.output.changed = changes(before, dict(self._held((args, kwargs))))
            return out

        left, made = frameworks.run(call, self._unflatten(leaves))
        kept = {id(x): i for i, x in enumerate(leaves) if not self.donated[i]}
        paths = [_path_text(self.arguments, p) for p in paths_of(left, made, 0)]
        data = frameworks.data_leaves(made, filtered=self.filtered)
        arrays = self.output.record(made, output_paths(paths, left, made), data, kept)
        if self.tie:
            self.output.sources = self._sources(leaves, made, paths, data)
        return arrays

    def _held(self, call: Any) -> Iterator[tuple[str, Any]]:
        """(path, leaf) of the arguments that no framework updates in place."""
        plain = frameworks.without_references(call)
        for path, leaf in zip(frameworks.leaf_paths(plain), jax.tree.leaves(plain), strict=True):
            yield _path_text(self.arguments, path), leaf

    def _sources(
        self, leaves: Sequence[Any], made: Any, updated: list[str], data: list[bool]
    ) -> dict[int, int]:
        """{output: the input that it is in the next step}, for what a step is meant to repeat."""
        numbers, rest = iter(range(len(leaves))), len(leaves)
        call = jax.tree.unflatten(
            self.tree, [next(numbers) if used else rest for used in self.is_input]
        )
        flat, tree = jax.tree.flatten(made)
        _, result = jax.tree.unflatten(tree, range(len(flat)))
        arguments = [*map(type_of, leaves), None]
        results = [type_of(x) if yes else None for x, yes in zip(flat, data, strict=True)]
        index = {path: i for i, path in enumerate(self.paths)}
        found = {i: index[path] for i, path in enumerate(updated) if path in index}
        found |= find_state(call, result, arguments, results)
        places = (i for i, yes in enumerate(self.output.is_array) if yes)
        return {
            output: found[i]
            for output, i in enumerate(places)
            if i in found and found[i] < rest and results[i] == arguments[found[i]]
        }


def _path_text(names: Sequence[str], path: Any) -> str:
    """The path of a leaf of (args, kwargs), as a user would write it."""
    side, which, *inner = path
    head = names[which.idx] if side.idx == 0 else which.key
    return head + jax.tree_util.keystr(tuple(inner))


class _Static:
    """A static argument, kept whole."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _unwrap(argument: Any) -> Any:
    return argument.value if isinstance(argument, _Static) else argument


def _unwrap_call(call: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = call
    return tuple(map(_unwrap, args)), {k: _unwrap(v) for k, v in kwargs.items()}


def _keep_static(
    args: tuple[Any, ...], kwargs: dict[str, Any], nums: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with each static argument as one leaf."""
    kept = tuple(_Static(a) if i in nums else a for i, a in enumerate(args))
    return kept, {k: _Static(v) if k in names else v for k, v in kwargs.items()}


def sign(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
    mesh: Any = None,
    tie: bool = False,
) -> Signature:
    """The signature of one call; `mesh` is the abstract mesh it is planned for."""
    check_callable(fn)
    name, count = function_name(fn), len(args)
    check_call(fn, name, args, kwargs)
    own = _jax.jit_options(frameworks.jitted(fn))
    given = checked_positions("static_argnums", static_argnums, count)
    static = tuple(sorted({*given, *own_positions(own.static_argnums, count)}))
    given = checked_positions("donate_argnums", donate_argnums, count)
    donated = {*given, *own_positions(own.donate_argnums, count)}
    donated |= frameworks.filter_donated(fn, count) - set(static)
    if donated & set(static):
        raise ShardwrightError(
            f"argument {min(donated & set(static))} of {name} is both static and donated",
            try_="donate arrays only",
        )
    call = _keep_static(args, kwargs, static, own.static_argnames)
    arrays = frameworks.split(call)
    flat, tree = jax.tree.flatten(arrays)
    names = argument_names(fn, count)
    paths, weak, gone, rest = [], [], [], []
    is_input = frameworks.data_leaves(arrays, filtered=frameworks.is_filtered(fn))
    every = frameworks.split_paths(call, arrays)
    for path, leaf, used in zip(every, flat, is_input, strict=True):
        side, which, *_ = path
        if not used:
            rest.append(leaf)
            continue
        paths.append(_path_text(names, path))
        if hasattr(leaf, "__jax_array__"):  # JAX takes no such arguments
            kind, written = type(leaf).__name__, paths[-1]
            raise ShardwrightError(
                f"{written} is a {kind}, which stands for an array and is none",
                try_=f"pass its array: {written}.value, say",
            )
        try:
            jax.typeof(leaf)
        except TypeError as error:
            raise ShardwrightError(
                f"{paths[-1]} has a type that JAX has not: {leaf.dtype}",
                cause=error,
                try_=f"{paths[-1]}.astype(np.float32), say",
            ) from None
        weak.append(is_weak(leaf))
        gone.append(which.idx in donated if side.idx == 0 else which.key in own.donate_argnames)
    return Signature(
        name, tuple(names), tuple(paths), tuple(weak), tuple(gone), tree, tuple(is_input),
        tuple(rest), static, own.static_argnames, tuple(sorted(donated)), planned=mesh,
        tie=tie, filtered=frameworks.is_filtered(fn), named=frameworks.named_axes(call),
    )  # fmt: skip
