"""Numbers and rows as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from shardwright.analysis.table import human_bytes

__all__ = [
    "any_layer", "change", "columns", "counted", "human_bytes", "human_seconds", "listed",
    "percent", "short_path", "short_source", "spec_text", "times",
]  # fmt: skip

_INDEX = re.compile(r"(?<=\[)\d+(?=\]\[')|(?<=\[)\d+(?=\]\.)")  # layers[3]['w1'], opt[0].mu
_LOCALS = re.compile(r"[\w.<>]*<locals>\.")


def human_seconds(seconds: float) -> str:
    """Three digits and a unit: 4.56 s, 349 ms, 12.0 us.

    >>> human_seconds(0.34863)
    '349 ms'
    """
    if not seconds:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)):
        shown = seconds * scale
        if shown >= 0.9995 or unit == "ns":
            digits = max(0, 3 - len(str(int(round(shown, 2)))))
            return f"{shown:.{min(digits, 2)}f} {unit}"
    raise AssertionError


def percent(amount: float, total: float) -> str:
    """A share: 92%.

    >>> percent(1, 8)
    '12%'
    """
    share = amount / total if total else 0.0
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def change(new: float, old: float) -> str:
    """How much more or less, with enough digits to see it: +5.1%, -0.03%, x12.5.

    >>> change(105.1, 100.0), change(99.97, 100.0), change(1250.0, 100.0)
    ('+5.1%', '-0.03%', 'x12.5')
    """
    if not old:
        return "" if not new else "new"
    ratio = new / old - 1
    if ratio >= 4:
        return f"x{new / old:.3g}"
    return f"{ratio:+.{1 if abs(ratio) >= 1e-3 else 2}%}"


def short_path(path: str) -> str:
    """A path without quotes: state.params['layers'][*]['w1'] -> state.params.layers[*].w1"""
    return path.replace("['", ".").replace("']", "")


def any_layer(path: str) -> str:
    """A path, equal for all layers of a list: layers[3]['w1'] -> layers[*]['w1']"""
    return _INDEX.sub("*", path)


def short_source(source: str) -> str:
    """A line without the functions around its own: make.<locals>.step -> step"""
    return _LOCALS.sub("", source)


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


def columns(rows: Iterable[Sequence[str]], *, right: Sequence[int] = (), indent: int = 2) -> str:
    """Rows as aligned text; the columns in `right` are set flush right."""
    table = [list(row) for row in rows]
    if not table:
        return ""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [
            cell.rjust(w) if i in right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((" " * indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)
