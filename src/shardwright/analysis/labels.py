"""Readable labels for groups, made from the program: argument paths and dims, or source lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase

_INDEX = re.compile(r"\[(\d+)\]")
_NAME = re.compile(r"(?:^|\.|\[')([A-Za-z_]\w*)(?:'\])?")

# What frameworks call the parameters of every layer.
GENERIC = ("kernel", "bias", "scale", "weight")


def any_index(path: str) -> str:
    """A path with every index starred: layers[*]['w1']."""
    return _INDEX.sub("[*]", path)


def short_path(path: str) -> str:
    """A path as reports print it: state.params['layers'][*]['w1'] -> state.params.layers[*].w1"""
    return path.replace("['", ".").replace("']", "")


def fits(path: str, pattern: str) -> bool:
    """Whether a path, as JAX or as reports write it, fits a pattern in which * is anything."""
    literal = short_path(pattern).replace("[", "[[]").replace("?", "[?]")
    return fnmatchcase(short_path(path), literal)


def starred(path: str, dim: int) -> str:
    """An argument dim with every index starred: layers[*]['w1'][1]."""
    return any_index(path) + f"[{dim}]"


def patterns(paths_dims: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Argument dims, by their starred form, with only the indices that vary starred."""
    found: dict[str, dict[tuple[str, ...], None]] = {}
    for path, dim in paths_dims:
        found.setdefault(starred(path, dim), {})[tuple(_INDEX.findall(path))] = None
    out = {}
    for form, indices in found.items():
        columns = [set(column) for column in zip(*indices, strict=True)]
        shown = [f"[{min(column)}]" if len(column) == 1 else "[*]" for column in columns]
        first, *rest = form.split("[*]")
        out[form] = first + "".join(a + b for a, b in zip(shown, rest, strict=True))
    return out


def short_label(pattern: str) -> str:
    """The last name of a pattern and what follows: state.params['layers'][*]['w1'][1] -> w1[1]."""
    names = list(_NAME.finditer(pattern))
    if not names:
        return pattern
    return names[-1].group(1) + pattern[names[-1].end() :]


def wide_label(pattern: str) -> str:
    """The short label with the name right before it: m.layers[*].linear.kernel[1] ->
    linear.kernel[1]. Neither the argument itself is such a name, nor one with an index.
    """
    names = list(_NAME.finditer(pattern))
    if len(names) < 3 or names[-2].end() != names[-1].start() or names[-2].group(1) == "params":
        return short_label(pattern)
    return f"{names[-2].group(1)}.{short_label(pattern)}"


def labels_of(patterns: Sequence[str]) -> list[str]:
    """A short label for each pattern; a wide one where short ones are equal or say nothing."""
    short = [short_label(p) for p in patterns]
    often = Counter(short)
    return [
        wide_label(p) if often[s] > 1 or s.partition("[")[0] in GENERIC else s
        for p, s in zip(patterns, short, strict=True)
    ]


def unique_labels(labels: Sequence[str]) -> list[str]:
    """The same labels, with a number behind repeated ones."""
    seen: dict[str, int] = {}
    out = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        out.append(label if seen[label] == 1 else f"{label}#{seen[label]}")
    return out
