"""Readable labels for groups, made from the program: argument paths and dims, or source lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

_INDEX = re.compile(r"\[(\d+)\]")
_TAIL = re.compile(r"([A-Za-z_]\w*)'?\]?(?:\[[\d*]+\])*$")


def patterns(paths_dims: Sequence[tuple[str, int]]) -> list[str]:
    """Argument dims with the indices that vary starred: layers[*]['w1'][1]."""
    out: dict[str, set[str]] = {}
    for path, dim in paths_dims:
        out.setdefault(_INDEX.sub("[*]", path) + f"[{dim}]", set()).add(f"{path}[{dim}]")
    return [next(iter(paths)) if len(paths) == 1 else star for star, paths in out.items()]


def short_label(pattern: str) -> str:
    """The last name of a path with its dim: state.params['layers'][*]['w1'][1] -> w1[1]."""
    head, dim = pattern.rsplit("[", 1)
    match = _TAIL.search(head)
    return f"{match.group(1) if match else head}[{dim}"


def unique_labels(labels: Sequence[str]) -> list[str]:
    """The same labels, with a number behind repeated ones."""
    seen: dict[str, int] = {}
    out = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        out.append(label if seen[label] == 1 else f"{label}#{seen[label]}")
    return out
