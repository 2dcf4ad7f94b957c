"""What tests compare: the colors of argument and result dims, as a partition."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.analysis import Analysis, analyze_program
from shardwright.program import trace
from shardwright.program.types import LITERAL

Partition = list[tuple[Any, ...]]


def analyze(fn: Any, *args: Any, donate_argnums: Any = (), labels: Any = None) -> Analysis:
    """Trace, then analyse."""
    return analyze_program(trace(fn, *args, donate_argnums=donate_argnums), labels=labels)


def dim_atoms(analysis: Analysis, value: int) -> list[list[tuple[int, int]]]:
    """For each dim of a value its (atom, color), major to minor; a dim of size 1 has none."""
    table = analysis.color_table.values
    out: list[list[tuple[int, int]]] = [[] for _ in analysis.program.values[value].shape]
    for row in range(*np.searchsorted(table.owner, [value, value + 1])):
        out[table.dim[row]].append((int(table.atom[row]), int(table.color[row])))
    return out


def partition(analysis: Analysis) -> Partition:
    """(argument or result, dim, atoms as (color, size)); colors are numbered as met."""
    program, sizes = analysis.program, analysis.color_table.atom_size
    seen: dict[int, int] = {}
    out: Partition = []
    borders = [("argument", v) for v in program.inputs] + [("result", v) for v in program.outputs]
    for n, (what, v) in enumerate(borders):
        if v == LITERAL:
            continue
        for d, atoms in enumerate(dim_atoms(analysis, v)):
            named = tuple((seen.setdefault(c, len(seen)), int(sizes[a])) for a, c in atoms)
            out.append((what, n, d, named))
    return out


def blocks(analysis: Analysis, *dims: str) -> list[set[str]]:
    """Which of these argument dims ("w1[0]") share a color, in the order given."""
    program = analysis.program
    by_name = {program.values[v].path: v for v in program.inputs}
    color: dict[int, set[str]] = {}
    for name in dims:
        path, dim = name.rsplit("[", 1)
        ((_, c),) = dim_atoms(analysis, by_name[path])[int(dim[:-1])]
        color.setdefault(c, set()).add(name)
    return list(color.values())
