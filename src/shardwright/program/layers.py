"""Which layer each op belongs to: an entry of a list of layers, a loop, or neither."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardwright.program.types import Program

# An entry of a list, layers[3].w1, or a numbered name, Block_3.Dense_0.kernel; more follows.
_ENTRY = re.compile(r"\[(\d+)\](?=[.\[])|(?<=[A-Za-z])_?(\d+)(?=(?:'\])?[.\[])")
_LAST_NAME = re.compile(r"([A-Za-z]\w*?)(?:'\])?$")
OUTSIDE = ""  # the layer of what is in none


def op_layers(program: Program) -> list[str]:
    """[ops] the layer of each: layers[3], "scan x32 at train.py:7 forward", or OUTSIDE.

    An op belongs to the layer whose parameters it reads. One that reads no argument belongs
    where the op before it does, which is where the gradients of a layer are.
    """
    paths = {v: program.values[v].path or "" for v in program.inputs}
    of_path = path_layers(paths.values())
    loops = [_loop(program, region.index) for region in program.regions]
    out, now = [], OUTSIDE
    for op in program.ops:
        read = [paths.get(program.origin(v)) for v in op.arrays]
        named = [of_path[path] for path in read if path is not None]
        if named:
            now = max(named)  # a layer's name before OUTSIDE
        out.append(now or loops[op.region])
    return out


def path_layers(paths: Iterable[str]) -> dict[str, str]:
    """{argument path: its layer}; a layer has others like it, with parameters of the same names."""
    paths = list(paths)
    forms: dict[str, set[str]] = {}  # {a path with one number left out: the numbers there}
    for path in paths:
        for found in _ENTRY.finditer(path):
            forms.setdefault(_form(found), set()).add(found[0])
    return {path: _layer(path, forms) for path in paths}


def _form(found: re.Match[str]) -> str:
    """The path around a number."""
    return f"{found.string[: found.start()]}*{found.string[found.end() :]}"


def _layer(path: str, forms: dict[str, set[str]]) -> str:
    for found in _ENTRY.finditer(path):
        if len(forms[_form(found)]) > 1:
            name = _LAST_NAME.search(path[: found.start()])
            return (name[1] if name else "") + found[0]
    return OUTSIDE


def _loop(program: Program, index: int) -> str:
    """The innermost loop around a region."""
    for region in program.around(index):
        if region.trips > 1:
            return f"{region.kind} x{region.trips} at {program.ops[region.op].source}"
    return OUTSIDE
