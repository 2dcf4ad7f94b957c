"""Whose code a line is: the user's, or that of Python, JAX, a library or Shardwright itself."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from functools import cache
from typing import Any

from shardwright import _jax

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ZOO = os.path.join(_PACKAGE, "zoo", "")  # its models stand in for a user's
_LIBRARIES = ("site-packages", "dist-packages")
_CELL = re.compile(r"<ipython-input-(\d+)-")
_PYTHON = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")})


@cache
def is_user_code(file: str) -> bool:
    """Whether a file is the user's own (or a model of the zoo)."""
    if is_own_code(file):
        return False
    if file.startswith(_ZOO):
        return True
    return not file.startswith(_PYTHON) and not any(part in file for part in _LIBRARIES)


@cache
def is_own_code(file: str) -> bool:
    """Whether a file is Shardwright's own, its zoo left out."""
    return file.startswith(os.path.join(_PACKAGE, "")) and not file.startswith(_ZOO)


@cache
def cell_name(file: str) -> str:
    """What a file is called: a cell of a notebook as its prompt, In[3], others as they are."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", {})
    if file in numbers:
        return f"In[{numbers[file]}]"
    found = _CELL.match(file)  # of a terminal's IPython
    return f"In[{found[1]}]" if found else file


def user_frame(source_info: Any) -> _jax.Frame | None:
    """The innermost line of the user's code, or of a library if the user wrote none of it."""
    first = None
    for frame in _jax.frames(source_info):
        if is_user_code(frame.file):
            return frame._replace(file=cell_name(frame.file))
        if first is None and not is_own_code(frame.file):
            first = frame
    return first
