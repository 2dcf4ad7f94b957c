"""Notebooks: progress in the cell while a plan is made. IPython is used if the user has it open."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

from shardwright.search.objective import OVER_MEMORY_S, Progress
from shardwright.units import human_count, human_seconds

EVERY_S = 0.2  # between two updates of a cell


def shell() -> Any:
    """The notebook's shell, or None: a terminal's IPython has no cells to draw in."""
    module = sys.modules.get("IPython")
    found = module.get_ipython() if module is not None else None
    return found if found is not None and hasattr(found, "kernel") else None


def cell_progress() -> Callable[[Progress], None] | None:
    """What partition() calls while it searches, in a notebook: a line of the cell, kept fresh."""
    if shell() is None:
        return None
    display = sys.modules["IPython"].display.display
    handle = display({"text/html": "tracing", "text/plain": "tracing"}, raw=True, display_id=True)
    shown = [0.0]

    def show(p: Progress) -> None:
        now = time.monotonic()
        if now - shown[0] >= EVERY_S:
            shown[0] = now
            text = progress_text(p)
            rich = f"<code>{escape(text)}</code>"
            handle.update({"text/html": rich, "text/plain": text}, raw=True)

    return show


def progress_text(p: Progress) -> str:
    """proof, placement 3 of 40: best 4.60 s, at least 4.52 s; 2.8k plans, 1.9k/s"""
    best = human_seconds(p.best_s) if p.best_s < OVER_MEMORY_S else "nothing fits yet"
    bound = f", at least {human_seconds(p.bound_s)}" if p.bound_s else ""
    rate = f"{human_count(p.evaluations)} plans, {human_count(p.per_s)}/s"
    trying = f", {p.trying}" if p.trying else ""
    return f"{p.stage}{trying}: best {best}{bound}; {rate}"
