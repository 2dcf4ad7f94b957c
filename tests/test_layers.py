"""The folders are the pipeline: a stage imports only stages above it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "shardwright"

# In order of import. `rules` stands first: a Program's ops have rules, which know no Program.
STAGES = (
    "rules", "program", "analysis", "spmd", "cost", "search", "lowering", "record",
    "referee", "report",
)  # fmt: skip
EVERYWHERE = {"errors", "mesh", "coordinates", "units", "_jax", "_version"}


def imported(path: Path) -> Iterator[str]:
    """Names of the modules of this package that a module needs to be imported itself."""
    for node in ast.parse(path.read_text()).body:  # not: inside functions or TYPE_CHECKING
        if isinstance(node, ast.ImportFrom) and node.module == "shardwright":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwright."):
            yield (node.module or "").split(".")[1]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_only_stages_above_it(stage: str) -> None:
    above = {*EVERYWHERE, *STAGES[: STAGES.index(stage) + 1]}
    for path in (SOURCE / stage).rglob("*.py"):
        below = set(imported(path)) - above
        assert not below, f"{path.relative_to(SOURCE)} imports {', '.join(sorted(below))}"


def test_every_folder_is_a_stage_or_stands_beside_them() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders == {*STAGES, "_jax", "zoo", "several", "cli"}


def test_the_tour_lists_the_folders_in_order_of_import() -> None:
    page = (ROOT / "docs" / "how_it_works.md").read_text()
    assert tuple(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == STAGES


def test_the_tour_follows_calls_through_functions_that_are_there() -> None:
    page = (ROOT / "docs" / "how_it_works.md").read_text()
    path = page.partition("follow one call")[2].partition("```python")[0]
    named = re.findall(r"`((?:\w+\.)+)(\w+)`", path)
    assert len(named) > 20
    for module, name in named:
        assert hasattr(importlib.import_module(f"shardwright.{module[:-1]}"), name), (module, name)


def test_one_door_to_the_internals_of_jax() -> None:
    inside = {path.parent for path in SOURCE.rglob("*.py") if "jax._src" in path.read_text()}
    assert inside == {SOURCE / "_jax"}


def test_the_door_knows_nothing_of_ours() -> None:
    for path in (SOURCE / "_jax").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                other = ast.unparse(node).replace("shardwright._jax", "")
                assert "shardwright" not in other, path.name
