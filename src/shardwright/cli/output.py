"""What commands print and write: text, tables, JSON, files; colour and progress on terminals."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from shardwright.errors import ShardwrightError
from shardwright.notebook import progress_text
from shardwright.report.words import columns

STDOUT = "-"
INTERRUPTED = 130  # the exit code of what SIGINT ended: 128 + 2, as shells have it
_STYLES = (  # of what a line begins with, or has in it
    (re.compile(r"^[\w.<>]+ on \d+ x .*$", re.MULTILINE), "bold"),
    (re.compile(r"^[\w-]+ \(\d+\):", re.MULTILINE), "bold cyan"),
    (re.compile(r"^(step|memory|compute|links|proof|what else was possible|mesh shapes|except)\b",
                re.MULTILINE), "bold"),
    (re.compile(r"^(What|How|Time|Movements|Memory|Instead|Proof|Notes)$", re.MULTILINE), "bold"),
    (re.compile(r"\bthis plan\b|\bverified\b|\bchosen\b"), "green"),
    (re.compile(r"\bOOM\b|^NOT as predicted|<-- fails|^warning:|^Warnings$", re.MULTILINE), "red"),
    (re.compile(r"^note:", re.MULTILINE), "yellow"),
    (re.compile(r"^  - .*$", re.MULTILINE), "red"),
    (re.compile(r"^  \+ .*$", re.MULTILINE), "green"),
)  # fmt: skip


def say(text: str) -> None:
    """Prints text; with colours where it goes to a terminal."""
    if not sys.stdout.isatty():
        click.echo(text)
        return
    styled = Text(text)
    for pattern, style in _STYLES:
        styled.highlight_regex(pattern, style)
    Console(highlight=False).print(styled, soft_wrap=True)


def say_json(value: Any) -> None:
    """Prints a value as JSON."""
    click.echo(json.dumps(value, indent=1))


def say_table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> None:
    """Prints a table: drawn on a terminal, aligned text elsewhere."""
    if not sys.stdout.isatty():
        click.echo(columns([titles, *rows], right=right, indent=0))
        return
    table = Table(header_style="bold", box=None, pad_edge=False)
    for i, title in enumerate(titles):
        table.add_column(title, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    Console(highlight=False).print(table)


def write(path: str, text: str) -> None:
    """Writes a file; `-` is standard output."""
    if path == STDOUT:
        click.echo(text, nl=False)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ShardwrightError(f"cannot write {path}: {error.strerror}") from None


def writable(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    """A file that can be written as far as one can tell before a long search."""
    if path not in (None, STDOUT) and not Path(str(path)).parent.is_dir():
        raise ShardwrightError(
            f"cannot write {path}: there is no folder {Path(str(path)).parent}", try_="mkdir first"
        )
    return path


@contextmanager
def working(what: str, *, quiet: bool = False) -> Iterator[Callable[[str], None] | None]:
    """A spinner on a terminal's stderr while something runs; gives what changes its text."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    # A stream of its own: while a compiler runs, what it writes to the process's is captured.
    terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w")
    shown = Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
        console=Console(file=terminal, highlight=False), transient=True,
    )  # fmt: skip
    with terminal, shown:
        task = shown.add_task(what, total=None)
        yield lambda text: shown.update(task, description=text)


def search_progress(update: Callable[[str], None] | None) -> Callable[[Any], None] | None:
    """What partition() calls while it searches: the stage, best so far, bound and rate."""
    if update is None:
        return None

    return lambda p: update(progress_text(p))
