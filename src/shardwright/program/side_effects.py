"""What a function does besides returning results: changes that a compiled call would lose.

Compiled code runs no Python. An argument that is changed and not returned, or a key that an object
outside replaces by its successor, would stay as it was from the second call on.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import jax

from shardwright.errors import ShardwrightError
from shardwright.program.frameworks import keras_variables, leaf_paths

Held = dict[str, Any]  # {place: leaf}


def held_in(tree: Any) -> Held:
    """The leaves of a tree by their place in it."""
    paths = map(jax.tree_util.keystr, leaf_paths(tree))
    return dict(zip(paths, jax.tree.leaves(tree), strict=True))


def changes(before: Held, now: Held) -> Held:
    """Traced values that have come to a place since."""
    return {
        place: leaf
        for place, leaf in now.items()
        if isinstance(leaf, jax.core.Tracer) and before.get(place) is not leaf
    }


def held_outside(fn: Callable[..., Any]) -> Held:
    """The arrays in objects that a function reads from around it, and their fields."""
    held: Held = {}
    for name, thing in _around(fn):
        if isinstance(thing, ModuleType | type) or inspect.isroutine(thing):
            continue
        held |= {f"{name} ({path})": a for path, a in keras_variables(thing).items()}
        fields = vars(thing) if hasattr(thing, "__dict__") else {}
        try:
            held |= {f"{name}{place}": leaf for place, leaf in held_in(thing).items()}
            for field, inner in fields.items():
                held |= {f"{name}.{field}{at}": leaf for at, leaf in held_in(inner).items()}
        except Exception:  # a node of somebody's own that does not flatten: nothing is known
            continue
    return {place: leaf for place, leaf in held.items() if isinstance(leaf, jax.Array)}


def _around(fn: Any) -> Iterator[tuple[str, Any]]:
    """(name, object) for what a function has bound, closes over and reads of its module."""
    while isinstance(fn, functools.partial) or hasattr(fn, "__wrapped__"):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__wrapped__
    if hasattr(fn, "__self__"):
        yield "self", fn.__self__
        fn = getattr(fn, "__func__", fn)
    code = getattr(fn, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in code.co_names:
        if name in fn.__globals__:
            yield name, fn.__globals__[name]


def check_held(name: str, before: Held, now: Held) -> None:
    """Raises if an array outside the function has become a traced value."""
    for place in changes(before, now):
        if place in before and place.endswith(")"):
            raise ShardwrightError(
                f"{name} changes the Keras variable of {place} while it is traced: compiled code"
                " would not, and it now holds a value that does not exist",
                try_="pass the variables' values and return new ones: model.stateless_call(...),"
                " optimizer.stateless_apply(...); and make it again: this trace has spoilt it",
            )
        if place in before:
            raise ShardwrightError(
                f"{name} replaces {place} while it is traced: compiled code would not, and {place}"
                " now holds a value that does not exist",
                try_=f"pass {place} as an argument and return its new value (a random key: also"
                " jax.random.fold_in(key, step)), and make it again: this trace has spoilt it",
            )


def lost_change(name: str, lost: Mapping[str, Any]) -> ShardwrightError:
    """The error for arguments, {path: the user's line}, whose new content goes nowhere."""
    path, line = next(iter(lost.items()))
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return ShardwrightError(
        f"{name} changes its argument {path}{more} and does not return it: compiled, the change is"
        " lost",
        at=line,
        try_=f"return {re.split(r'[.[]', path)[0]} too, and pass what was returned the next time",
    )


def foreign_value(name: str, line: str | None) -> ShardwrightError:
    """The error for a function that uses a traced value from elsewhere."""
    return ShardwrightError(
        f"{name} uses a traced value that is no argument: it is left from an earlier trace, or"
        " belongs to a traced function around it",
        at=line,
        try_="pass it as an argument, and return the new value of what is kept between calls",
    )
