"""What may be installed beside us: ranges for users, exact versions for development."""

from __future__ import annotations

import re
import tomllib
import warnings
from pathlib import Path

import jax
import pytest

from shardwright import _jax

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "constraints.txt").read_text()


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~ ]", r)[0].lower().replace("_", "-") for r in requirements}


def test_every_package_of_development_is_locked() -> None:
    """`make lock` adds what is missing."""
    extras = PROJECT["optional-dependencies"]
    wanted = names(PROJECT["dependencies"])
    wanted |= {n for e in ("zoo", "test", "docs", "dev") for n in names(extras[e])}
    locked = names([line for line in LOCK.splitlines() if not line.startswith("#")])
    assert wanted - locked == {"shardwright"}
    assert "://" not in LOCK


def test_the_range_of_jax_is_the_one_that_is_checked() -> None:
    oldest, newer = (".".join(map(str, v)) for v in (_jax.OLDEST, _jax.NEWER))
    assert f"jax>={oldest},<{newer}" in PROJECT["dependencies"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _jax.check_version(jax.__version_info__)


def test_other_versions_of_jax() -> None:
    with pytest.raises(ImportError) as old:
        _jax.check_version((0, 9, 2))
    assert str(old.value).splitlines()[0].endswith("or newer, this is 0.9.2")
    with pytest.warns(UserWarning, match=r"tested with JAX up to 0.10, this is 0.11.2: prim"):
        _jax.check_version((0, 11, 2))
