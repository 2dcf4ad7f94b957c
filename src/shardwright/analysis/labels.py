"""Readable labels for groups, made from the program: argument paths and dims, or source lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

_INDEX = re.compile(r"\[(\d+)\]")
_STAR = re.compile(r"\[\*\]")
_TAIL = re.compile(r"([A-Za-z_]\w*)'?\]?(?:\[[\d*]+\])*$")


def patterns(paths_dims: Sequence[tuple[str, int]]) -> list[str]:
    """Argument dims with the indices that vary starred: layers[*]['w1'][1]."""
    found: dict[str, dict[tuple[str, ...], None]] = {}
    for path, dim in paths_dims:
        starred = _INDEX.sub("[*]", path) + f"[{dim}]"
        found.setdefault(starred, {})[tuple(_INDEX.findall(path))] = None
    out = []
    for starred, indices in found.items():
        columns = iter([set(column) for column in zip(*indices, strict=True)])
        out.append(_STAR.sub(lambda star, columns=columns: _common(next(columns), star[0]), starred))
    return out


def _common(indices: set[str], otherwise: str) -> str:
    return f"[{min(indices)}]" if len(indices) == 1 else otherwise


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
