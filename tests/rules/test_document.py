"""docs/rules.md is what the registry says."""

from __future__ import annotations

from pathlib import Path

from shardwright.rules import OPAQUE, RULES, STRUCTURAL
from tests.rules.document import page
from tests.rules.test_examples import NO_EXAMPLE

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.rules.document"


def test_every_primitive_is_on_the_page() -> None:
    text = PAGE.read_text()
    for name in ({*RULES, *STRUCTURAL, *OPAQUE}) - set(NO_EXAMPLE):
        assert f"`{name}`" in text
