"""The code on our pages runs and prints what they say; the site builds. To write outputs again:

python -m tests.test_docs [PAGE ...]
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted(ROOT.glob("docs/**/*.md"))

# ```python code ```, then perhaps ```text output ```
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def blocks(page: str) -> list[tuple[str, str | None]]:
    """(code, output shown below it, if any) in order."""
    return [(m.group(1), m.group(2)) for m in BLOCK.finditer(page)]


def run(page: str) -> list[str]:
    """What each block prints; all run in one namespace, as a reader would."""
    namespace: dict[str, object] = {"__name__": "page"}
    printed = []
    with a_folder_of_its_own(), rules_of_its_own():
        for code, _ in blocks(page):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(code, "page.py", "exec", dont_inherit=True), namespace)
            printed.append(out.getvalue())
    return printed


@contextlib.contextmanager
def a_folder_of_its_own() -> Iterator[None]:
    """Pages save plans; they may read the examples."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.symlink(ROOT / "examples", "examples")
        yield


@contextlib.contextmanager
def rules_of_its_own() -> Iterator[None]:
    """Pages register rules; a second rule for a name is an error."""
    from shardwright.rules.registry import USER_RULES

    before = dict(USER_RULES)
    try:
        yield
    finally:
        USER_RULES.clear()
        USER_RULES.update(before)


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


@pytest.mark.slow
def test_the_readme_runs() -> None:
    """Figures may move with the models; what the output is made of may not."""
    page = README.read_text()
    for (_, shown), printed in zip(blocks(page), run(page), strict=True):
        if shown is not None:
            assert headings(printed) == headings(shown), "run: python -m tests.test_docs"


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [page for page in PAGES if blocks(page.read_text())],
    ids=lambda path: str(path.relative_to(ROOT / "docs").with_suffix("")),
)
def test_the_page_runs_and_is_fresh(path: Path) -> None:
    page = path.read_text()
    for (code, shown), printed in zip(blocks(page), run(page), strict=True):
        if shown is not None:
            assert shown == printed, f"run: python -m tests.test_docs {path.stem}\n{code}"


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *PAGES], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES:
        assert f" {page.relative_to(ROOT / 'docs')}\n" in navigation, page


def test_every_public_name_is_in_the_reference() -> None:
    import shardwright

    reference = (ROOT / "docs" / "api.md").read_text()
    for name in shardwright.__all__:
        assert name == "__version__" or f"::: shardwright.{name}\n" in reference, name


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    """With --strict, in which a broken link or an unknown name of the API is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    subprocess.run([*command, "--site-dir", str(tmp_path)], cwd=ROOT, check=True)
    assert (tmp_path / "index.html").exists()


def shell_lines(page: str) -> list[list[str]]:
    """The commands of a page's ```sh blocks, without comments."""
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [README, ROOT / "docs/tutorials/ci.md"], ids=lambda page: page.stem
)
def test_the_commands_of_a_page_run(page: Path) -> None:
    """Literally, in order, from the root of a clone; `make` and `pip` lines are CI's business."""
    from click.testing import CliRunner

    from shardwright.cli import main

    with a_folder_of_its_own():
        for program, *words in shell_lines(page.read_text()):
            if program == "shardwright":
                result = CliRunner().invoke(main, words)
                differs = words[0] == "diff"  # of two plans that do: that is its exit code
                assert result.exit_code == differs, (words, result.output)


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for path in (README, *PAGES):
        text = path.read_text()
        if blocks(text) and (len(sys.argv) == 1 or path.stem in sys.argv):
            path.write_text(rewritten(text, run(text)))
