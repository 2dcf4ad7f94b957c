"""Builds wheel and sdist into dist/ and tries each in an empty environment: `make release`."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TRY = """
import jax, shardwright as sw
x = jax.ShapeDtypeStruct((4096, 4096), "float32")
plan = sw.partition(lambda a, b: a @ b, x, x, mesh={"data": 4}, device="tpu-v5e")
print(sw.__version__, plan.specs(), len(plan.to_html()))
"""


def main() -> None:
    """Stops at the first thing that is wrong."""
    for old in DIST.glob("shardwright-*"):
        old.unlink()
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT)], check=True)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    check_contents(wheel, sdist)
    for package in (wheel, sdist):
        with tempfile.TemporaryDirectory() as folder:
            try_in(Path(folder), package)
    print(f"fine: {wheel.name}, {sdist.name}")


def check_contents(wheel: Path, sdist: Path) -> None:
    """Raises unless they hold the package and nothing but."""
    names = zipfile.ZipFile(wheel).namelist()
    strange = [name for name in names if not name.startswith(("shardwright/", "shardwright-"))]
    assert not strange, f"in the wheel: {strange}"
    wanted = [path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*") if _ships(path)]
    missing = [str(path) for path in wanted if str(path) not in names]
    assert not missing, f"not in the wheel: {missing}"
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/LICENSE") for name in archive.getnames())


def _ships(path: Path) -> bool:
    return path.suffix in {".py", ".toml", ".j2", ".css", ".js", ".typed"}


def try_in(folder: Path, package: Path) -> None:
    """Installs a package into an empty environment, plans there, and asks the command line."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    quietly = ["--quiet", "--disable-pip-version-check"]
    empty = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in (
        [python, "-m", "pip", "install", *quietly, str(package)],
        [python, "-c", TRY],
        [folder / "bin" / "shardwright", "--version"],
    ):
        subprocess.run(command, check=True, cwd=folder, env=empty)


if __name__ == "__main__":
    main()
