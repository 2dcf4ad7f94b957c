"""What tests compare: the colors of argument and result dims, as a partition."""

from __future__ import annotations

from typing import Any

from shardwright.analysis import Analysis, analyze_program
from shardwright.program import trace
from shardwright.program.types import LITERAL

Partition = list[tuple[Any, ...]]


def analyze(fn: Any, *args: Any, donate_argnums: Any = (), labels: Any = None) -> Analysis:
    """Trace, then analyse."""
    return analyze_program(trace(fn, *args, donate_argnums=donate_argnums), labels=labels)


def partition(analysis: Analysis) -> Partition:
    """(argument or result, dim, atoms as (color, size)); colors are numbered as met."""
    program, table = analysis.program, analysis.color_table
    seen: dict[int, int] = {}
    out: Partition = []
    borders = [("argument", v) for v in program.inputs] + [("result", v) for v in program.outputs]
    for n, (what, v) in enumerate(borders):
        if v == LITERAL:
            continue
        for d, atoms in enumerate(analysis.dim_atoms(v)):
            named = tuple(
                (seen.setdefault(int(table.atom_color[a]), len(seen)), int(table.atom_size[a]))
                for a in atoms
            )
            out.append((what, n, d, named))
    return out


def blocks(analysis: Analysis, *dims: str) -> list[set[str]]:
    """Which of these argument dims ("w1[0]") share a color, in the order given."""
    program, table = analysis.program, analysis.color_table
    by_name = {program.values[v].path: v for v in program.inputs}
    color: dict[int, set[str]] = {}
    for name in dims:
        path, dim = name.rsplit("[", 1)
        (atom,) = analysis.dim_atoms(by_name[path])[int(dim[:-1])]
        color.setdefault(int(table.atom_color[atom]), set()).add(name)
    return list(color.values())
