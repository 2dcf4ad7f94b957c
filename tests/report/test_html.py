"""The page: well formed, self-contained, escaped, and with the plan's figures."""

from __future__ import annotations

import html
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources

import pytest

from shardwright.mesh import Mesh
from shardwright.record.types import MeshRow
from shardwright.report.html import mesh_grid, to_html
from shardwright.report.text import format_plan
from shardwright.report.words import human_bytes, human_seconds
from shardwright.spmd.ir import Cause
from tests.report.records import plan_of, record_of

VOID = {"meta", "link", "br", "img", "input"}


class Checker(HTMLParser):
    """Fails on tags that do not close in order; remembers tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open
    return checker


@pytest.mark.parametrize("program, tactics", [
    ("transformer_train", "fsdp+tp"), ("transformer_train", "zero"), ("mlp_forward", ""),
])  # fmt: skip
def test_pages_are_whole_and_need_no_network(program: str, tactics: str) -> None:
    plan = plan_of(program, tactics)
    found = parse(plan.to_html())
    assert not {"script", "link", "iframe", "img"} & set(found.tags)
    assert not any(name in ("src", "href") for name, _ in found.attributes)
    text = html.unescape(" ".join(found.text))
    for words in (human_seconds(plan.cost.step_s), human_bytes(plan.cost.peak_bytes), "tpu-v5e"):
        assert words in text
    assert "prefers-color-scheme: dark" in plan.to_html()


def test_what_scrolls_can_be_reached_by_keyboard() -> None:
    attributes = parse(plan_of("transformer_train", "fsdp+tp").to_html()).attributes
    scrolled = attributes.count(("class", "scroll"))
    assert scrolled and attributes.count(("tabindex", "0")) == scrolled


def test_everything_is_escaped() -> None:
    evil = "<script>alert('x')</script>"
    record = record_of("transformer_train", "fsdp+tp", program=evil, opaque={evil: 1})
    cause = Cause("operand", evil, evil)
    first, *rest = record.collectives
    page = to_html(replace(
        record, collectives=(replace(first, source=evil, cause=cause), *rest), notes=(evil,),
        memory=replace(record.memory, at=evil), device=replace(record.device, name=evil),
    ))  # fmt: skip
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    parse(page)


@pytest.mark.parametrize("axes, cells, cut", [
    ({"data": 8}, 8, False),
    ({"data": 4, "model": 2}, 8, False),
    ({"data": 2, "model": 2, "context": 2}, 8, False),
    ({"data": 64, "model": 64}, 16 * 32, True),
])  # fmt: skip
def test_the_mesh_is_drawn(axes: dict[str, int], cells: int, cut: bool) -> None:
    grid = mesh_grid(Mesh.of(axes))
    assert (len(grid["cells"]), grid["cut"]) == (cells, cut)
    assert all(cell["x"] + 14 <= grid["width"] for cell in grid["cells"])


def test_mesh_shapes_are_shown() -> None:
    shape = MeshRow({"data": 4, "model": 2}, True, "", step_s=1.0, peak_bytes=5)
    other = MeshRow({"data": 8}, True, "over memory", step_s=None, peak_bytes=None)
    record = record_of("mlp_forward", "dp", meshes=(other, shape))
    parse(to_html(record))
    assert "  data=4 x model=2  1.00 s  5 B  chosen\n  data=8" in format_plan(record)


def test_the_templates_are_package_data() -> None:
    import tomllib
    from pathlib import Path

    root = Path(__file__).parents[2]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())
    kept = patterns["tool"]["setuptools"]["package-data"]["shardwright"]
    for file in resources.files("shardwright.report").joinpath("templates").iterdir():
        assert any(file.name.endswith(p.removeprefix("**/*")) for p in kept)
