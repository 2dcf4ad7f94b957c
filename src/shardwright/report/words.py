"""Numbers and rows as people read them."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence

from shardwright.analysis.labels import short_path
from shardwright.units import human_bytes, human_count, human_seconds

__all__ = [
    "any_layer", "change", "columns", "counted", "gap_text", "human_bytes", "human_count",
    "human_seconds", "listed", "percent", "several", "short", "short_path", "short_source",
    "spec_text", "times", "type_bytes", "type_shape", "upper_first", "wrapped",
]  # fmt: skip

LEAST_CHANGE = 1e-4  # smaller changes are said to be less than this
LEAST_GAP = 1e-3  # smaller gaps are said as this one
_INDEX = re.compile(r"(?<=\[)\d+(?=\]\[')|(?<=\[)\d+(?=\]\.)")  # layers[3]['w1'], opt[0].mu
_LOCALS = re.compile(r"[\w.<>]*<locals>\.")


def percent(amount: float, total: float) -> str:
    """A share: 92%.

    >>> percent(1, 8)
    '12%'
    """
    share = amount / total if total else 0.0
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def change(new: float, old: float) -> str:
    """How much more or less, with enough digits to see it: +5.1%, -0.03%, x12.5.

    >>> change(105.1, 100.0), change(99.97, 100.0), change(1250.0, 100.0), change(1.00001, 1.0)
    ('+5.1%', '-0.03%', 'x12.5', '+<0.01%')
    """
    if not old:
        return "" if not new else "new"
    ratio = new / old - 1
    if ratio >= 4:
        return f"x{new / old:.3g}"
    if 0 < abs(ratio) < LEAST_CHANGE:
        return f"{'+' if ratio > 0 else '-'}<{LEAST_CHANGE:.2%}"
    return f"{ratio:+.{1 if abs(ratio) >= 1e-3 else 2}%}"


def any_layer(path: str) -> str:
    """A path, equal for all layers of a list: layers[3]['w1'] -> layers[*]['w1']"""
    return _INDEX.sub("*", path)


def short_source(source: str) -> str:
    """A line without the functions around its own: make.<locals>.step -> step"""
    return _LOCALS.sub("", source)


def short(text: str) -> str:
    """An array or a line as tables name it: neither an argument's name nor enclosing functions."""
    return short_source(short_path(text))


def type_bytes(text: str) -> int:
    """The bytes of a type as a record writes it: f32[8,4] -> 128.

    As in a program, sub-byte types take a byte per element; a PRNG key is 8 bytes.
    """
    name = text.partition("[")[0]
    bits = re.match(r"[a-z]+(\d+)", name)
    size = 1 if name == "bool" else max(int(bits[1]) // 8, 1) if bits else 8
    return size * math.prod(type_shape(text))


def type_shape(text: str) -> list[int]:
    """The sizes of a type as a record writes it: f32[8,4] -> [8, 4]."""
    return [int(size) for size in text.partition("[")[2].rstrip("]").split(",") if size]


def gap_text(gap: float) -> str:
    """How far at most from a bound: 3.4%, or 19x where that says more.

    >>> gap_text(0.034), gap_text(18.95), gap_text(0.0002)
    ('3.4%', '20x', '0.1%')
    """
    if gap < LEAST_GAP:
        return f"{LEAST_GAP:.1%}"
    return f"{gap:.1%}" if gap < 1 else f"{1 + gap:.0f}x"


def upper_first(text: str) -> str:
    """A sentence with its first letter large; an op's or a function's name is left as it is."""
    return text[:1].upper() + text[1:]


def several(count: int, shape: str, where: str) -> str:
    """Arrays of one line: 4 x f32[8,16] of params.layers[*].w1"""
    return f"{f'{count} x ' * (count > 1)}{shape} of {short(where)}"


def counted(count: float, thing: str) -> str:
    """1 call, 2 calls"""
    return f"{count:g} {thing}{'s' * (count != 1)}"


def times(count: float) -> str:
    """How often, as x64, or x2.5 where a branch is taken half of the time."""
    return f"x{count:.0f}" if count == int(count) else f"x{count:.3g}"


def listed(items: Sequence[str], most: int) -> str:
    """The first few, and how many more: a, b, +3."""
    more = [f"+{len(items) - most}"] if len(items) > most else []
    return ", ".join([*items[:most], *more])


def spec_text(spec: Sequence[Sequence[str]]) -> str:
    """A PartitionSpec as JAX users write it.

    >>> spec_text([["data"], [], ["data", "model"], []])
    "P('data', None, ('data', 'model'))"
    """
    entries = [repr(d[0]) if len(d) == 1 else (repr(tuple(d)) if d else "None") for d in spec]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


WIDTH = 80  # columns of a terminal


_TOGETHER = re.compile(r"\([^()]{1,40}\)|\S+(?: x \S+)+|\d (?=[kMGT]?B\b|[mun]?s\b)")
_NO_BREAK = "\u00a0"


def wrapped(
    text: str, *, indent: int = 0, width: int = WIDTH, break_long_words: bool = False
) -> str:
    """A sentence over as many lines as it needs, later ones indented.

    Long words stay whole unless asked otherwise, and so do amounts with their units and what is in
    parentheses.
    """

    def kept(found: re.Match[str]) -> str:
        fits = len(found[0]) <= width - indent
        return found[0].replace(" ", _NO_BREAK) if fits else found[0]

    together = _TOGETHER.sub(kept, text)
    filled = textwrap.fill(
        together, width, subsequent_indent=" " * indent, break_long_words=break_long_words,
        break_on_hyphens=False,
    )  # fmt: skip
    return filled.replace(_NO_BREAK, " ")


def columns(
    rows: Iterable[Sequence[str]], *, right: Sequence[int] = (), indent: int = 2,
    width: int | None = None,
) -> str:  # fmt: skip
    """Rows as aligned text; the columns in `right` are set flush right.

    With a `width`, the last column is wrapped where it does not fit, inside of words if need be.
    """
    table = [list(row) for row in rows]
    if not table:
        return ""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    before = indent + sum(widths[:-1]) + 2 * (len(widths) - 1)
    lines = []
    for row in table:
        cells = [
            cell.rjust(w) if i in right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        if width is not None and before + len(row[-1]) > width:
            room = max(width - before, 20)
            cells[-1] = wrapped(row[-1], width=room, break_long_words=True)
            cells[-1] = cells[-1].replace("\n", "\n" + " " * before)
        lines.append((" " * indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)
