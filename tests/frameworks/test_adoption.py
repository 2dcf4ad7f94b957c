"""What it takes to adopt Shardwright, counted: the pages with their marked lines as they were."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from tests.test_docs import ROOT, blocks

FOLDER = ROOT / "docs" / "frameworks"
ROW = re.compile(r"^\| \[.*?\]\((\w+)\.md\).*\| `(@\S+)` \|.*\| (\d+) \|$", re.MULTILINE)
ROWS = ROW.findall((FOLDER / "index.md").read_text())  # (page, line that was there, lines changed)
MOST = 3


def as_it_was(program: str) -> tuple[str, list[str]]:
    """(the program without Shardwright, the lines that were changed for it)."""
    lines, changed = [], []
    for line in program.splitlines():
        code, _, was = line.partition("  # was: ")
        if line.endswith("  # new") or was:
            changed.append(was)
        if not line.endswith("  # new"):
            lines.append(was or code)
    return "\n".join(lines), changed


def test_every_page_is_in_the_table() -> None:
    assert {page for page, *_ in ROWS} == {p.stem for p in FOLDER.glob("*.md")} - {"index"}


@pytest.mark.slow
@pytest.mark.parametrize("page, line, count", ROWS, ids=[row[0] for row in ROWS])
def test_the_program_as_it_was_has_the_same_losses(page: str, line: str, count: str) -> None:
    """The page itself, with its outputs, is run by tests/test_docs.py."""
    program, shown = blocks((FOLDER / f"{page}.md").read_text())[0]
    before, changed = as_it_was(program)
    assert changed == ["", line] and len(changed) == int(count) <= MOST
    assert "sw." not in before and "shardwright" not in before
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(before, "page.py", "exec", dont_inherit=True), {"__name__": "page"})
    assert out.getvalue() == shown
    first = out.getvalue().splitlines()[0].split()
    assert len(set(first)) == 3  # three steps, and it trains
