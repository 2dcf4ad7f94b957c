"""Templates of pages: one environment, in which what comes from a record is escaped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jinja2

from shardwright.report.words import human_bytes, human_seconds


def environment(**filters: Callable[..., Any]) -> jinja2.Environment:
    """The templates with these filters beside those for seconds and bytes."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("shardwright.report", "templates"),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    found.filters |= {"seconds": human_seconds, "bytes": human_bytes, **filters}
    return found
