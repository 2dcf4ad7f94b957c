"""The programs of the sweep: functions that return (fn, args), in `*_programs.py`, by library.

They are listed without importing them: a library that is not installed still has its rows.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

from tests.frameworks.shapes import Program

FOLDERS = {"tests.frameworks": "../frameworks", "tests.sweep": "."}


def names() -> list[str]:
    """All programs as "library:function"."""
    return [f"{library}:{name}" for library, (_, found) in _libraries().items() for name in found]


def find(name: str) -> Program:
    """The function and the arguments of a program; imports its library."""
    library, function = name.split(":")
    module = importlib.import_module(_libraries()[library][0])
    return getattr(module, function)()


def _libraries() -> dict[str, tuple[str, list[str]]]:
    """{library: (module, its programs)}."""
    out = {}
    for package, folder in FOLDERS.items():
        for path in sorted((Path(__file__).parent / folder).resolve().glob("*_programs.py")):
            functions = [
                node.name for node in ast.parse(path.read_text()).body
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
                and isinstance(node.returns, ast.Name) and node.returns.id == "Program"
            ]  # fmt: skip
            out[path.stem.removesuffix("_programs")] = (f"{package}.{path.stem}", functions)
    return out
