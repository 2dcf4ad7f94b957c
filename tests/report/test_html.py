"""The page: well formed, self-contained, escaped, and with the plan's figures."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources

import pytest

from shardwright.mesh import Mesh
from shardwright.record.types import MeshRow, Spec
from shardwright.report.charts import pareto
from shardwright.report.html import to_html
from shardwright.report.mesh_drawing import CELL, MOST_CELLS, draw_mesh
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
    assert not {"link", "iframe", "img"} & set(found.tags) and found.tags.count("script") == 2
    assert not any(name in ("src", "href") for name, _ in found.attributes)
    assert len(plan.to_html().encode()) < 1_000_000
    text = html.unescape(" ".join(found.text))
    for words in (human_seconds(plan.cost.step_s), human_bytes(plan.cost.peak_bytes), "tpu-v5e"):
        assert words in text
    assert "prefers-color-scheme: dark" in plan.to_html()


def test_what_scrolls_can_be_reached_by_keyboard() -> None:
    attributes = parse(plan_of("transformer_train", "fsdp+tp").to_html()).attributes
    assert attributes.count(("class", "tall")) == 2  # each of them with a tabindex, and labels
    assert attributes.count(("tabindex", "0")) >= 4 and ("role", "region") in attributes


def test_only_our_script_may_run() -> None:
    page = plan_of("mlp_forward", "dp").to_html()
    text = resources.files("shardwright.report").joinpath("templates", "plan.js").read_bytes()
    digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html.unescape(page)
    assert f"<script>{text.decode()}</script>" in page


def test_everything_is_escaped() -> None:
    evil = "<script>alert('x')</script>"
    record = record_of("transformer_train", "fsdp+tp", program=evil, opaque={evil: 1})
    cause = Cause("operand", evil, evil)
    first, *rest = record.collectives
    page = to_html(replace(
        record, collectives=(replace(first, source=evil, cause=cause), *rest), notes=(evil,),
        memory=replace(record.memory, at=evil), device=replace(record.device, name=evil),
    ))  # fmt: skip
    assert page.count("<script") == 2
    assert "&lt;script&gt;" in page
    parse(page)


ONE, TWO = (("data",),), (("data",), ("model",))


@pytest.mark.parametrize("axes, spec, cells", [
    ({"data": 8}, ONE, 8),
    ({"data": 4, "model": 2}, ONE, 4),  # model is folded: its devices hold the same
    ({"data": 4, "model": 2}, TWO, 8),
    ({"data": 4, "model": 2}, (("data", "model"),), 8),
    ({"data": 4, "model": 2}, ((), ()), 1),
    ({"data": 2, "model": 2, "context": 2}, (("data", "model"), ("context",)), 8),
    ({"a": 4, "b": 4, "c": 4, "d": 4}, (("a", "b"), ("c", "d")), 256),
    ({"data": 64, "model": 64}, TWO, 16 * 16),
    ({"data": 4096}, ONE, 256),
])  # fmt: skip
def test_the_mesh_is_drawn(axes: dict[str, int], spec: Spec, cells: int) -> None:
    """Every device stands in one cell, and every shard of a dim is on some of them."""
    mesh = Mesh.of(axes)
    drawing = draw_mesh(mesh, spec)
    assert len(drawing.cells) == cells <= MOST_CELLS
    assert len({(cell.x, cell.y) for cell in drawing.cells}) == cells
    assert all(cell.x + CELL <= drawing.width for cell in drawing.cells)
    counts = [int(re.search(r"(\d+) devices? hold", cell.text)[1]) for cell in drawing.cells]
    assert sum(counts) == mesh.size
    for dim, on in enumerate(spec):
        shards = math.prod(axes[axis] for axis in on)
        held = set()
        for cell in drawing.cells if on else ():
            first, last = re.search(
                rf"part (\d+)-?(\d*) of {shards} of dim {dim}", cell.text
            ).groups()
            held |= set(range(int(first), int(last or first) + 1))
        assert held == (set(range(1, shards + 1)) if on else set())


def test_the_front_of_time_and_memory() -> None:
    points = pareto(record_of("transformer_train", "fsdp+tp"))
    front = sorted((p for p in points if p.best), key=lambda p: p.step_s)
    assert front and all(p.fits for p in front)
    assert all(a.peak_bytes >= b.peak_bytes for a, b in itertools.pairwise(front))


def test_two_plans_side_by_side() -> None:
    a, b = plan_of("transformer_train", "fsdp+tp"), plan_of("transformer_train", "zero")
    page = a.to_html(beside=b)
    text = html.unescape(" ".join(parse(page).text))
    for plan in (a, b):
        assert human_seconds(plan.cost.step_s) in text
    assert "Arguments that are sharded otherwise" in text and "decided for model" in text


def test_a_large_mesh_stays_under_a_megabyte() -> None:
    """Thousands of devices, and an array for each way to split four dims over four axes."""
    mesh = {"a": 8, "b": 8, "c": 8, "d": 8}
    ways = [tuple((axis,) for axis in order) for order in itertools.permutations(mesh)]
    record = record_of(
        "mlp_forward", "dp", mesh=Mesh.of(mesh), decisions=dict.fromkeys(mesh, ()),
        arguments={f"w[{i}]['{'x' * 60}{i}']": "f32[8,8,8,8]" for i in range(len(ways))},
        specs={f"w[{i}]['{'x' * 60}{i}']": way for i, way in enumerate(ways)}, kinds={},
    )  # fmt: skip
    assert len(to_html(record).encode()) < 1_000_000


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
