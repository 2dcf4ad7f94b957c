"""Plain data checked against types: a TypedDict or a dataclass says what a JSON object holds.

Numbers are finite and from 0 to 1e30, text is one printable line, and no object has a field that
its type does not name; `Annotated` gives another range (`Within`), or a noun for the message.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)  # fmt: skip

MOST_NUMBER, MOST_TEXT = 1e30, 10_000


@dataclass(frozen=True, slots=True)
class Within:
    """The range of a number."""

    least: float = 0
    most: float = MOST_NUMBER


def faults(value: Any, kind: Any, place: str = "") -> Iterator[str]:
    """What is wrong with plain data that should be of this type, each with its place.

    >>> next(faults({"axes": [3]}, dict[str, list[str]]))
    "axes[0]: expected text, got 3"
    """
    base, notes = _opened(kind)
    origin, parts = get_origin(base), get_args(base)
    if origin in (Union, types.UnionType):
        if all(next(faults(value, part, place), None) for part in parts):
            yield _fault(value, kind, place)
    elif origin is Literal:
        if not any(value == one and type(value) is type(one) for one in parts):
            yield _fault(value, kind, place)
    elif base in (int, float):
        if not _is_number(value, base, _range(notes)):
            yield _fault(value, kind, place)
    elif base is str:
        if not isinstance(value, str) or len(value) > MOST_TEXT or not value.isprintable():
            yield _fault(value, kind, place)
    elif origin is tuple and parts[-1] is not Ellipsis:
        if not isinstance(value, list) or len(value) != len(parts):
            yield _fault(value, kind, place)
        else:
            for i, part in enumerate(parts):
                yield from faults(value[i], part, f"{place}[{i}]")
    elif origin in (list, tuple):
        if not isinstance(value, list):
            yield _fault(value, kind, place)
        else:
            for i, item in enumerate(value):
                yield from faults(item, parts[0], f"{place}[{i}]")
    elif not isinstance(value, dict if _is_object(base) else base):
        yield _fault(value, kind, place)
    elif origin in (dict, Mapping):
        for name, item in value.items():
            yield from faults(name, parts[0], f"a name in {place or 'it'}")
            yield from faults(item, parts[1], _inside(place, name))
    elif _is_object(base):
        yield from _field_faults(value, base, place)


def _field_faults(value: Mapping[str, Any], kind: Any, place: str) -> Iterator[str]:
    known, needed = _fields(kind)
    for name in needed:
        if name not in value:
            yield f"{place or 'it'} has no {name!r}"
    for name, item in value.items():
        if name in known:
            yield from faults(item, known[name], _inside(place, name))
        else:
            yield f"{place or 'it'} has an unknown field {name!r:.60}"


@functools.cache
def _fields(kind: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """({field: type}, the fields that must be there) of a dataclass or TypedDict."""
    hints = get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        empty = [f for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
        return hints, tuple(f.name for f in empty)
    return hints, tuple(name for name in hints if name in kind.__required_keys__)


def _opened(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """(type, notes) of Annotated[type, *notes], also inside NotRequired."""
    notes: tuple[Any, ...] = ()
    while get_origin(kind) in (Annotated, NotRequired):
        inner, *more = get_args(kind)
        kind, notes = inner, (*notes, *more)
    return kind, notes


def _is_object(kind: Any) -> bool:
    return get_origin(kind) in (dict, Mapping) or is_typeddict(kind) or is_dataclass(kind)


def _is_number(value: Any, kind: type, within: Within) -> bool:
    allowed = int if kind is int else int | float
    if isinstance(value, bool) or not isinstance(value, allowed):
        return False
    return within.least <= value <= within.most  # neither holds for NaN


def _range(notes: tuple[Any, ...]) -> Within:
    return next((note for note in notes if isinstance(note, Within)), Within())


def _inside(place: str, name: str) -> str:
    return f"{place}[{name!r:.60}]" if place else name


def _fault(value: Any, kind: Any, place: str) -> str:
    return f"{place or 'it'}: expected {_words(kind)}, got {_shown(value)}"


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
    origin, parts = get_origin(base), get_args(base)
    if noun:
        return noun
    if origin in (Union, types.UnionType, Literal):
        return " or ".join(repr(p) if origin is Literal else _words(p) for p in parts)
    if origin is tuple and parts[-1] is not Ellipsis:
        return f"[{', '.join(map(_words, parts))}]"
    if origin in (list, tuple):
        return f"a list of {_plural(parts[0])}"
    if _is_object(base):
        return "a table"
    if base in (int, float):
        within = _range(notes)
        return f"{_NOUNS[base]} from {within.least:g} to {within.most:g}"
    return _NOUNS.get(base, str(base))


def _plural(kind: Any) -> str:
    base, notes = _opened(kind)
    noun = next((note for note in notes if isinstance(note, str)), None)
    if noun:
        return f"{noun.removeprefix('an ').removeprefix('a ')}s"
    many = {str: "texts", int: "integers", float: "numbers", list: "lists", tuple: "lists"}
    return many.get(get_origin(base) or base, "tables")


_NOUNS = {
    str: "one line of text", int: "an integer", float: "a number", bool: "true or false",
    type(None): "null",
}  # fmt: skip
