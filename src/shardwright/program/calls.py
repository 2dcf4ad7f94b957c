"""A call of the user's function as it was written: checked, and with the names of its parts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from shardwright.errors import ShardwrightError

F = TypeVar("F", bound=Callable[..., Any])


def check_callable(fn: Any) -> None:
    """Raises unless it can be called."""
    if not callable(fn):
        raise ShardwrightError(
            f"expected a function to partition, got {type(fn).__name__}: {fn!r:.60}",
            try_="pass the function itself, then its arguments:"
            " partition(train_step, state, batch)",
        )


def check_call(fn: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises a ShardwrightError unless the function takes these arguments."""
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
            what, name = public.__name__, function_name(fn)
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


def function_name(fn: Any) -> str:
    """The name of a function; of a partial, that of the function inside."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def argument_names(fn: Callable[..., Any], count: int) -> list[str]:
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


def checked_positions(what: str, argnums: int | Sequence[int], count: int) -> tuple[int, ...]:
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


def own_positions(argnums: Sequence[int], count: int) -> set[int]:
    """Positions that jax.jit was told of; the arguments it means may be passed by name."""
    return {n % count for n in argnums if -count <= n < count}
