"""A call of the user's function as a flat list of arrays, and the names of its parts.

Anything may stand in the arguments: dataclasses, modules with functions inside, None, keys,
Python numbers. What is an array (or a number) is an input of the program; everything else, and
whatever the user calls static, is closed over.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import jax
import numpy as np

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.program import frameworks

F = TypeVar("F", bound=Callable[..., Any])
NO_DATA = (
    "O",
    "S",
    "U",
    "M",
    "m",
)  # kinds of NumPy arrays that JAX has none of: objects, words, dates


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
    planned: Any = None  # abstract mesh of the plan, for functions that name axes of no mesh
    output: _Output = field(default_factory=lambda: _Output())

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
        """(leaves, tree) of a call."""
        call = _keep_static(args, kwargs, self.static_argnums, self.static_argnames)
        return jax.tree.flatten(frameworks.split(call))

    def match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The array leaves of a call of the same form, or None."""
        flat, tree = self.flatten(args, kwargs)
        if tree != self.tree:
            return None
        rest = [_unwrap(x) for x, used in zip(flat, self.is_input, strict=True) if not used]
        mine = [_unwrap(x) for x in self.static]
        if not all(map(_same, rest, mine)):
            return None
        leaves = [leaf for leaf, used in zip(flat, self.is_input, strict=True) if used]
        try:
            return leaves if tuple(map(_is_weak, leaves)) == self.weak else None
        except TypeError:  # a leaf that is no array now
            return None

    @property
    def is_flat(self) -> bool:
        """Whether only its leaves can be compiled for: something inside an argument is no array.

        Objects that are updated in place are none either.
        """
        inside = any(not isinstance(x, _Static) for x in self.static)
        return inside or frameworks.has_split(self._unflatten(self.paths))

    def donates(self, argnum: int) -> bool:
        """Whether a positional argument is donated."""
        return argnum in self.donated_argnums

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
        return [leaf for leaf, used in zip(flat, self.is_input, strict=True) if used]

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
            args, kwargs = _unwrap_call(arguments)
            return fn(*args, **kwargs)

        left, arrays = frameworks.run(call, self._unflatten(leaves))
        kept = {id(x): i for i, x in enumerate(leaves) if not self.donated[i]}
        return self.output.record(arrays, _output_paths(self.arguments, left, arrays), kept)


@dataclass(slots=True)
class _Output:
    """The structure of what the function made when it was traced: (updated arguments, result)."""

    tree: Any = None
    is_array: tuple[bool, ...] = ()
    static: tuple[Any, ...] = ()  # leaves that are no arrays, and _Unchanged ones
    paths: tuple[str, ...] = ()
    updates: int = 0  # how many of the arrays belong to arguments, updated in place

    def record(self, made: Any, paths: list[str], kept: dict[int, int]) -> list[Any]:
        """The arrays of (updated arguments, result), both split.

        `kept` has, for each array that need not be returned, the input at which it is found.
        """
        flat, self.tree = jax.tree.flatten(made)
        count = len(jax.tree.leaves(made[0]))
        flat[:count] = [_Unchanged(kept[id(x)]) if id(x) in kept else x for x in flat[:count]]
        self.is_array = tuple(is_array(leaf) for leaf in flat)
        self.static = tuple(x for x, yes in zip(flat, self.is_array, strict=True) if not yes)
        self.updates = sum(self.is_array[:count])
        self.paths = tuple(p for p, yes in zip(paths, self.is_array, strict=True) if yes)
        return [x for x, yes in zip(flat, self.is_array, strict=True) if yes]

    def build(self, arrays: Sequence[Any], inputs: Sequence[Any], *, into: bool = False) -> Any:
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


def _output_paths(names: Sequence[str], left: Any, arrays: Any) -> list[str]:
    """What the leaves of (updated arguments, result) are called: by the result if they are in it."""
    rows = zip(frameworks.leaf_paths(left[1]), jax.tree.leaves(left[1]), strict=True)
    returned = {id(leaf): "result" + jax.tree_util.keystr(path) for path, leaf in rows}
    texts = []
    for (side, *path), leaf in zip(
        frameworks.split_paths(left, arrays), jax.tree.leaves(arrays), strict=True
    ):
        if side.idx == 0:
            texts.append(returned.get(id(leaf)) or _path_text(names, path))
        else:
            texts.append("result" + jax.tree_util.keystr(tuple(path)))
    return texts


def _path_text(names: Sequence[str], path: Any) -> str:
    """The path of a leaf of (args, kwargs), as a user would write it."""
    side, which, *inner = path
    head = names[which.idx] if side.idx == 0 else which.key
    return head + jax.tree_util.keystr(tuple(inner))


class _Static:
    """A static argument, kept whole."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _same(a: Any, b: Any) -> bool:
    """Whether two things that are no data are equal, whatever they take equality for."""
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(np.all(a == b))
    except Exception:  # their own __eq__ may raise anything; then they are not known to be equal
        return False


def is_array(leaf: Any) -> bool:
    """Whether a leaf is data: an array, its shape, or a Python number."""
    if isinstance(leaf, bool | int | float | complex):
        return True
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype") or callable(leaf):
        return False
    return getattr(leaf.dtype, "kind", "") not in NO_DATA


def _is_weak(leaf: Any) -> bool:
    return bool(getattr(leaf if hasattr(leaf, "dtype") else jax.typeof(leaf), "weak_type", False))


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


def _argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """The parameter names of the positional arguments, as the user wrote them."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return [f"args[{i}]" for i in range(count)]
    names: list[str] = []
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
        elif p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}[{i}]" for i in range(count - len(names))]
    return names[:count] + [f"args[{i}]" for i in range(len(names), count)]


def _numbers(what: str, argnums: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Positions of arguments, counted from the front."""
    every: tuple[Any, ...] = tuple(argnums) if isinstance(argnums, Iterable) else (argnums,)
    for n in every:
        if not isinstance(n, int | np.integer) or isinstance(n, bool):
            raise ShardwrightError(
                f"{what} are positions of arguments, got {n!r}", try_=f"{what}=0, or (0, 2)"
            )
        if not -count <= n < count:
            raise ShardwrightError(
                f"{what} names argument {n} of a call with {count} positional arguments",
                try_=f"a number from 0 to {count - 1}" if count else "no number",
            )
    return tuple(sorted(int(n) % count for n in every))


def _own_numbers(argnums: Sequence[int], count: int) -> set[int]:
    """Positions that jax.jit was told of; the arguments it means may be passed by name."""
    return {n % count for n in argnums if -count <= n < count}


def _name(fn: Any) -> str:
    """The name of a function; of a partial, that of the function inside."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def _check_call(fn: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # a builtin: let it speak for itself
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        try_ = "pass the arguments exactly as you would call the function"
        by_name = [k for k in ("static_argnames", "donate_argnames") if k in kwargs]
        if by_name:
            try_ = f"jax.jit({name}, {by_name[0]}=...): a jitted function keeps its options"
        raise ShardwrightError(
            f"the arguments do not fit {name}{signature}: {error}", try_=try_
        ) from None


def asks_which(public: F) -> F:
    """A public function that takes a call of the user's function next to options of its own.

    A keyword that may mean either is an error: silently taken, the function would run without it.
    """
    parameters = inspect.signature(public).parameters.values()
    options = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}

    @functools.wraps(public)
    def checked(fn: Any, /, *args: Any, **given: Any) -> Any:
        both = sorted(options & given.keys() & _open_parameters(fn, args))
        if both:
            what, name = public.__name__, _name(fn)
            raise ShardwrightError(
                f"{both[0]}= is an option of {what}() and a parameter of {name}: which is meant?",
                try_=f"functools.partial({name}, {both[0]}=...) for the function's own (an array:"
                " by position, or through a lambda)",
            )
        return public(fn, *args, **given)

    return cast(F, checked)


def _open_parameters(fn: Any, args: tuple[Any, ...]) -> set[str]:
    """The parameters that a call may still give by name; those that a partial gives are closed."""
    try:
        signature = inspect.signature(fn)
        bound = signature.bind_partial(*args).arguments
    except (TypeError, ValueError):
        return set()  # not a function, a builtin or too many arguments: said later
    closed = set(bound) | set(fn.keywords if isinstance(fn, functools.partial) else ())
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in signature.parameters.values() if p.kind in named} - closed


def check_callable(fn: Any) -> None:
    """Raises unless it can be called."""
    if not callable(fn):
        raise ShardwrightError(
            f"expected a function to partition, got {type(fn).__name__}: {fn!r:.60}",
            try_="pass the function itself, then its arguments:"
            " partition(train_step, state, batch)",
        )


def sign(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
    mesh: Any = None,
) -> Signature:
    """The signature of one call; `mesh` is the abstract mesh it is planned for."""
    check_callable(fn)
    name, count = _name(fn), len(args)
    _check_call(fn, name, args, kwargs)
    own_static, own_static_names, own_donated = _jax.jit_options(frameworks.jitted(fn))
    given = _numbers("static_argnums", static_argnums, count)
    static = tuple(sorted({*given, *_own_numbers(own_static, count)}))
    given = _numbers("donate_argnums", donate_argnums, count)
    donated = {*given, *_own_numbers(own_donated, count)}
    if donated & set(static):
        raise ShardwrightError(
            f"argument {min(donated & set(static))} of {name} is both static and donated",
            try_="donate arrays only",
        )
    donated_names = _jax.jit_donated_names(frameworks.jitted(fn))
    call = _keep_static(args, kwargs, static, own_static_names)
    arrays = frameworks.split(call)
    flat, tree = jax.tree.flatten(arrays)
    names = _argument_names(fn, count)
    paths, weak, is_input, gone, rest = [], [], [], [], []
    for path, leaf in zip(frameworks.split_paths(call, arrays), flat, strict=True):
        side, which, *_ = path
        is_input.append(is_array(leaf))
        if not is_input[-1]:
            rest.append(leaf)
            continue
        weak.append(_is_weak(leaf))
        paths.append(_path_text(names, path))
        gone.append(which.idx in donated if side.idx == 0 else which.key in donated_names)
    return Signature(
        name, tuple(names), tuple(paths), tuple(weak), tuple(gone), tree, tuple(is_input),
        tuple(rest), static, own_static_names, tuple(sorted(donated)), planned=mesh,
    )  # fmt: skip
