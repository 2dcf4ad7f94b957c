"""What it takes to adopt Shardwright, counted: the pages with their marked lines as they were."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import jax
import numpy as np
import pytest

from tests.test_docs import ROOT, blocks

FOLDER = ROOT / "docs" / "frameworks"
ROW = re.compile(r"^\| \[.*?\]\((\w+)\.md\).*\| `(@\S+)` \|.*\| (\d+) \|$", re.MULTILINE)
ROWS = ROW.findall((FOLDER / "index.md").read_text())  # (page, line that was there, lines changed)
MOST = 3
# What a page's step returns, compared after three steps; test_nnx_in_place.py, test_equinox.py and
# test_keras.py do so for the others.
STATE = {"haiku": ("params", "state", "opt_state", "key"), "flax_linen": ("state",)}


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
    printed, names = run(before)
    assert printed == shown
    first = printed.splitlines()[0].split()
    assert len(set(first)) == 3  # three steps, and it trains
    if page in STATE:
        _, planned = run(program)
        for name in STATE[page]:
            assert_same_numbers(planned[name], names[name])


def run(program: str) -> tuple[str, dict[str, Any]]:
    """(what a program prints, its names when it is through)."""
    out, names = io.StringIO(), {"__name__": "page"}
    with contextlib.redirect_stdout(out):
        exec(compile(program, "page.py", "exec", dont_inherit=True), names)
    return out.getvalue(), names


def assert_same_numbers(got: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = map(jax.random.key_data, (a, b))
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5)
