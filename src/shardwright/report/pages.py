"""Templates of pages: one environment, in which what comes from a record is escaped."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

import jinja2

from shardwright.report.causes import sentence
from shardwright.report.words import (
    counted,
    gap_text,
    human_bytes,
    human_seconds,
    percent,
    short_path,
    short_source,
    spec_text,
    times,
    upper_first,
)  # fmt: skip


@functools.cache
def environment() -> jinja2.Environment:
    """The templates and their filters."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("shardwright.report", "templates"),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    found.filters |= {
        "seconds": human_seconds, "bytes": human_bytes, "percent": percent, "counted": counted,
        "times": times, "short": short_path, "spec": spec_text, "sentence": sentence,
        "line": short_source, "upper_first": upper_first, "gap": gap_text,
    }  # fmt: skip
    return found


def render(template: str, shown: Mapping[str, Any]) -> str:
    """A page of one of the templates."""
    return environment().get_template(template).render(shown)


@functools.cache
def script() -> dict[str, str]:
    """The page's script, and the digest by which its policy knows it."""
    text = resources.files("shardwright.report").joinpath("templates", "plan.js").read_text("utf-8")
    digest = hashlib.sha256(text.encode()).digest()
    return {"script": text, "digest": base64.b64encode(digest).decode()}
