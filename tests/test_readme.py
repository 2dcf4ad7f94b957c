"""The code on our pages runs, and prints what the pages say. To write the outputs again:

python tests/test_readme.py
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README, TOUR = ROOT / "README.md", ROOT / "docs" / "how_it_works.md"
FRAMEWORKS = ROOT / "docs" / "frameworks.md"
COMMAND_LINE = ROOT / "docs" / "command_line.md"

# ```python code ```, then perhaps ```text output ```
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def blocks(page: str) -> list[tuple[str, str | None]]:
    """(code, output shown below it, if any) in order."""
    return [(m.group(1), m.group(2)) for m in BLOCK.finditer(page)]


def run(page: str) -> list[str]:
    """What each block prints; all run in one namespace, as a reader would."""
    namespace: dict[str, object] = {"__name__": "page"}
    printed = []
    for code, _ in blocks(page):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "page.py", "exec", dont_inherit=True), namespace)
        printed.append(out.getvalue())
    return printed


def rewritten(page: str, outputs: list[str]) -> str:
    """The page with these outputs."""
    fresh = iter(outputs)

    def put(match: re.Match[str]) -> str:
        output = next(fresh)
        shown = f"\n```text\n{output}```\n" if match.group(2) is not None else ""
        return f"```python\n{match.group(1)}```\n{shown}"

    return BLOCK.sub(put, page)


def headings(output: str) -> list[str]:
    """First line, and the first words of the other lines that are not indented."""
    first, *rest = output.splitlines()
    return [first] + [line.split(" ")[0] for line in rest if line and not line.startswith(" ")]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the code saves plans


@pytest.mark.slow
def test_the_readme_runs() -> None:
    """Figures may move with the models; what the output is made of may not."""
    page = README.read_text()
    for (_, shown), printed in zip(blocks(page), run(page), strict=True):
        if shown is not None:
            assert headings(printed) == headings(shown), "run: python tests/test_readme.py"


@pytest.mark.parametrize("path", [TOUR, FRAMEWORKS], ids=lambda path: path.stem)
def test_the_tour_is_fresh(path: Path) -> None:
    page = path.read_text()
    for (code, shown), printed in zip(blocks(page), run(page), strict=True):
        assert (shown or "") == printed, f"run: python tests/test_readme.py\n{code}"


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


COMMANDS = re.compile(r"^shardwright ([^#\n]+?)\s*(?:#.*)?$", re.MULTILINE)


@pytest.mark.parametrize("page", [README, COMMAND_LINE], ids=lambda path: path.stem)
def test_examples_and_commands_exist(page: Path) -> None:
    from shardwright.cli import main

    for line in COMMANDS.findall(page.read_text()):
        command, target, *_ = [*line.split(), ""]
        assert command in main.commands, line
        if ".py:" in target and "examples" in target:
            assert (ROOT / target.partition(":")[0]).exists()


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    """Literally, one after the other, in a folder that has the examples."""
    from click.testing import CliRunner

    from shardwright.cli import main

    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for line in COMMANDS.findall(README.read_text()):
        result = CliRunner().invoke(main, shlex.split(line))
        assert result.exit_code == 0, f"{line}\n{result.output}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    for page in ROOT.glob("docs/*.md"):
        assert f"(docs/{page.name})" in README.read_text()


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path.insert(0, str(ROOT / "src"))
    here = Path.cwd()
    for path in (README, TOUR, FRAMEWORKS):
        text = path.read_text()
        with contextlib.ExitStack() as stack:
            import tempfile

            os.chdir(stack.enter_context(tempfile.TemporaryDirectory()))
            path.write_text(rewritten(text, run(text)))
            os.chdir(here)
