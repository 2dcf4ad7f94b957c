"""Values as plain data and back: a dataclass is a JSON object, a tuple a list, infinity is null.

Decoding is strict, since a file may hold anything. Numbers are finite and from 0 to 1e30, text is
one printable line, and no object has a field that its dataclass does not name. `Annotated` gives
another range (`Within`), or a noun for the message; a field with `metadata={"null": x}` may be
null, which stands for x. Nothing is called but the dataclasses that the type names.
"""

from __future__ import annotations

import functools
import itertools
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from shardwright.errors import ShardwrightError

MOST_NUMBER, MOST_TEXT = 1e30, 10_000


@dataclass(frozen=True, slots=True)
class Within:
    """The range of a number."""

    least: float = 0
    most: float = MOST_NUMBER


class Damaged(Exception):
    """Plain data that is not of its type; its text says where, and what was expected."""


def encode(value: Any) -> Any:
    """A value as plain data."""
    if is_dataclass(value):
        return {f.name: encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): encode(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return None if value == math.inf else value


def decode(value: Any, kind: Any, place: str = "") -> Any:
    """The value of a type that plain data stands for; raises Damaged where it stands for none.

    >>> decode({"axes": [3]}, dict[str, tuple[str, ...]])
    Damaged: axes[0]: expected one line of text, got 3
    """
    base, notes = _opened(kind)
    origin, args = get_origin(base), get_args(base)
    if origin in (Union, types.UnionType):
        chosen = next((arg for arg in args if isinstance(value, _in_json(arg))), None)
        if chosen is None:
            raise _damaged(value, kind, place)
        return decode(value, chosen, place)
    if not _is_of(value, base, _range(notes)):
        raise _damaged(value, kind, place)
    if origin is tuple:
        kinds = itertools.repeat(args[0]) if args[-1] is Ellipsis else args
        items = enumerate(zip(value, kinds, strict=False))
        return tuple(decode(item, arg, f"{place}[{i}]") for i, (item, arg) in items)
    if origin in (dict, Mapping):
        return {
            _name(name, args[0], place): decode(item, args[1], _inside(place, name))
            for name, item in value.items()
        }
    return _decode_fields(value, base, place) if is_dataclass(base) else value


def _is_of(value: Any, kind: Any, within: Within) -> bool:
    """Whether plain data is of a type, but for what is inside it."""
    args = get_args(kind)
    if get_origin(kind) is Literal:
        return any(value == one and type(value) is type(one) for one in args)
    if not isinstance(value, _in_json(kind)) or (isinstance(value, bool) and kind is not bool):
        return False
    if kind in (int, float):
        return within.least <= value <= within.most  # neither holds for NaN
    if kind is str:
        return len(value) <= MOST_TEXT and value.isprintable()
    return get_origin(kind) is not tuple or args[-1] is Ellipsis or len(value) == len(args)


def _decode_fields(value: dict[str, Any], kind: Any, place: str) -> Any:
    """The dataclass with these fields; Damaged for one that is missing, unknown or wrong."""
    known = _fields(kind)
    for name, (one, _) in known.items():
        if name not in value and one.default is MISSING and one.default_factory is MISSING:
            raise Damaged(f"{place or 'it'} has no {name!r}")
    given = {}
    for name, item in value.items():
        if name not in known:
            raise Damaged(f"{place or 'it'} has an unknown field {name!r:.60}")
        one, type_ = known[name]
        null = item is None and "null" in one.metadata
        given[name] = one.metadata["null"] if null else decode(item, type_, _inside(place, name))
    try:
        return kind(**given)
    except ShardwrightError as error:  # what the class checks itself
        raise Damaged(f"{place or 'it'}: {error.what}") from None


def _name(name: str, kind: Any, place: str) -> Any:
    """The name of an item of a table; the names of some tables are numbers."""
    number = _opened(kind)[0] is int and name.isascii() and name.isdigit() and len(name) < 20
    return decode(int(name) if number else name, kind, f"a name in {place or 'it'}")


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Field[Any], Any]]:
    """{name: (field, type)} of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    return {f.name: (f, hints[f.name]) for f in fields(kind)}


def _opened(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """(type, notes) of Annotated[type, *notes]."""
    if get_origin(kind) is Annotated:
        return kind.__origin__, kind.__metadata__
    return kind, ()


def _in_json(kind: Any) -> Any:
    """What JSON has in place of a type."""
    base = _opened(kind)[0]
    if is_dataclass(base) or get_origin(base) in (dict, Mapping):
        return dict
    return list if get_origin(base) is tuple else (int | float if base is float else base)


def _range(notes: tuple[Any, ...]) -> Within:
    return next((note for note in notes if isinstance(note, Within)), Within())


def _inside(place: str, name: str) -> str:
    return f"{place}[{name!r:.60}]" if place else name


def _damaged(value: Any, kind: Any, place: str) -> Damaged:
    return Damaged(f"{place or 'it'}: expected {_words(kind)}, got {_shown(value)}")


def _shown(value: Any) -> str:
    """The start of a value; ascii, since it may hold anything."""
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'table'} of {len(value)}"
    if isinstance(value, int) and abs(value) > MOST_NUMBER:
        return "a larger number"
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _words(kind: Any) -> str:
    """What a value of this type is called."""
    base, notes = _opened(kind)
    noun = next((note for note in notes if isinstance(note, str)), None)
    origin, args = get_origin(base), get_args(base)
    if noun:
        return noun
    if origin in (Union, types.UnionType, Literal):
        return " or ".join(repr(p) if origin is Literal else _words(p) for p in args)
    if origin is tuple and args[-1] is Ellipsis:
        return f"a list of {_plural(args[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_words, args))}]"
    if base in (int, float):
        within = _range(notes)
        return f"{_NOUNS[base]} from {within.least:g} to {within.most:g}"
    return _NOUNS.get(base, "a table")


def _plural(kind: Any) -> str:
    base, notes = _opened(kind)
    noun = next((note for note in notes if isinstance(note, str)), None)
    if noun:
        return f"{noun.removeprefix('an ').removeprefix('a ')}s"
    many = {str: "texts", int: "integers", float: "numbers", tuple: "lists"}
    return many.get(get_origin(base) or base, "tables")


_NOUNS = {
    str: "one line of text", int: "an integer", float: "a number", bool: "true or false",
    type(None): "null",
}  # fmt: skip
