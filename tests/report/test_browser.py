"""Pages in a real browser: no errors, no overflow, filters and keys work, names inject nothing.

Skipped where no Chromium is installed; CONTRIBUTING.md says how to install one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.cost.cost import Cost
from shardwright.record.comparison import (
    AdviceRecord,
    ComparisonRecord,
    Row,
    best_row,
    pareto_front,
)
from shardwright.report.advice import advice_html
from shardwright.report.comparison import comparison_html
from shardwright.report.html import array_page, first_screen, side_by_side, to_html
from shardwright.spmd.ir import Cause
from tests.report import chromium
from tests.report.chromium import Browser
from tests.report.records import plan_of, record_of

pytestmark = pytest.mark.skipif(chromium.PATH is None, reason="Chromium is not installed")

EVIL = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>'\"`${x}"
WIDTHS, SCHEMES = (1400, 390), (False, True)


@pytest.fixture(scope="module")
def open_browser() -> Iterator[Browser]:
    with chromium.browser() as one:
        yield one


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by name."""
    train = record_of("transformer_scan_train", "fsdp+tp")
    first, *rest = train.collectives
    evil = replace(
        train, program=EVIL, opaque={EVIL: 1}, notes=(EVIL,),
        collectives=(replace(first, source=EVIL, cause=Cause("operand", EVIL, EVIL)), *rest),
        timeline=replace(train.timeline, spans=tuple(
            replace(span, source=EVIL, op=EVIL) for span in train.timeline.spans
        )),
        baselines={EVIL: train.cost} | train.baselines,
        arguments={f"{EVIL}{i}": t for i, t in enumerate(train.arguments.values())},
        specs={f"{EVIL}{i}": s for i, s in enumerate(train.specs.values())},
        kinds={f"{EVIL}{i}": k for i, k in enumerate(train.kinds.values())},
    )  # fmt: skip
    texts = {
        "train": to_html(train), "small": to_html(record_of("mlp_grad")), "evil": to_html(evil),
        "two": side_by_side(train, record_of("transformer_scan_train", "zero")),
        "cell": first_screen(train), "array": array_page(train, "batch.tokens"),
        "comparison": comparison_html(_comparison(train.cost)), "advice": advice_html(_advice()),
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("pages")
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


def _comparison(cost: Cost) -> ComparisonRecord:
    """A fast variant, a small one, one that does not fit and one without a plan."""
    small = replace(cost, compute_s=2 * cost.compute_s, peak_bytes=cost.peak_bytes // 4)
    given = [
        ("fast", cost),
        (EVIL, small),
        ("large", replace(cost, peak_bytes=10**12)),
        ("no", None),
    ]
    rows = tuple(
        Row(variant=name, mesh="data=4", devices=4, device="h100", cost=one, limit_bytes=10**9,
            items=8.0, searched=True, why="" if one else "it does not trace")
        for name, one in given
    )  # fmt: skip
    return ComparisonRecord(per="token", rows=rows, best=best_row(rows), pareto=pareto_front(rows))


def _advice() -> AdviceRecord:
    return plan_of("mlp_grad", "dp").advice(seconds=0.1, processes=1).record


PAGES = ["train", "small", "two", "evil", "cell", "array", "comparison", "advice"]


@pytest.mark.parametrize("name", PAGES)
def test_pages_open_cleanly(open_browser: Browser, pages: dict[str, Path], name: str) -> None:
    """At both widths, in light and dark: nothing in the console, nothing wider than the window."""
    page = open_browser
    for width in WIDTHS:
        for dark in SCHEMES:
            page.problems.clear()
            page.requests.clear()
            page.open(pages[name], width=width, dark=dark)
            assert page.problems == []
            assert page.requests == [pages[name].as_uri()]  # self-contained
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, (name, width)
            back = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (back == "rgb(15, 19, 26)") == dark
            assert page.evaluate("document.title") != "hit"
            took = page.evaluate("performance.timing.domComplete - performance.timing.fetchStart")
            assert took < 2000


def test_filters_and_sorting(open_browser: Browser, pages: dict[str, Path]) -> None:
    page = open_browser
    page.open(pages["train"], width=1400, dark=False)
    rows = "[...document.querySelectorAll('#arguments tbody tr')]"
    every = page.evaluate(f"{rows}.length")
    page.evaluate(
        "(() => { const f = document.querySelector('[data-filter=arguments]');"
        " f.value = 'tokens'; f.dispatchEvent(new Event('input')); })()"
    )
    shown = page.evaluate(f"{rows}.filter(r => !r.hidden).map(r => r.textContent)")
    assert 0 < len(shown) < every and all("tokens" in text for text in shown)
    said = "document.querySelector('[data-filter=arguments]').parentElement.lastElementChild"
    assert page.evaluate(f"{said}.textContent") == f"{len(shown)} of {every}"
    page.evaluate("document.querySelector('#arguments th:last-child button').click()")
    sizes = page.evaluate(f"{rows}.map(r => Number(r.lastElementChild.dataset.sort))")
    assert sizes == sorted(sizes, reverse=True)
    assert page.evaluate(
        "document.querySelector('#arguments th:last-child').getAttribute('aria-sort')"
    ) == "descending"  # fmt: skip


def test_keys_move_through_the_step(open_browser: Browser, pages: dict[str, Path]) -> None:
    page = open_browser
    page.open(pages["train"], width=390, dark=True)
    page.evaluate("document.querySelector('[data-step]').focus()")
    page.press("End")
    page.press("ArrowLeft")
    said = page.evaluate("document.querySelector('[data-readout]').textContent")
    assert ".py:" in said and "in memory" in said
    page.evaluate("document.querySelector('[data-scatter]').focus()")
    page.press("ArrowRight")
    text = page.evaluate("document.querySelector('[data-point-text]').textContent")
    assert re.search(r"\d us, [\d.]+ [kM]B", text)


def test_an_array_is_chosen(open_browser: Browser, pages: dict[str, Path]) -> None:
    page = open_browser
    page.open(pages["train"], width=1400, dark=False)
    page.evaluate(
        "(() => { const s = document.querySelector('[data-arrays]');"
        " s.value = [...s.options].find(o => o.textContent.includes('tokens')).value;"
        " s.dispatchEvent(new Event('change')); })()"
    )
    assert "i32[" in page.evaluate("document.querySelector('[data-caption]').textContent")
    visible = "[...document.querySelectorAll('[data-drawing]')].filter(d => !d.hidden)"
    assert page.evaluate(f"{visible}.length") == 1
    assert page.evaluate(f"{visible}[0].querySelectorAll('rect').length") == 4  # data=4
    page.evaluate(f"{visible}[0].querySelector('svg').focus()")
    page.press("ArrowRight")
    said = page.evaluate("document.querySelector('[data-cell]').textContent")
    assert said == "data 1: 2 devices hold part 2 of 4 of dim 0"


NAMED = {
    "button", "combobox", "figure", "image", "region", "searchbox", "slider", "table", "link",
    "DisclosureTriangle", "heading",
}  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_screen_reader_finds_its_way(
    open_browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    """Every control and figure has a name, every table heads, headings no gaps."""
    page = open_browser
    page.open(pages[name], width=width, dark=False)
    nodes = page.spoken()
    for node in nodes:
        if node.role in NAMED or (node.properties.get("focusable") and node.role != "option"):
            assert node.name, node
    tables = sum(node.role == "table" for node in nodes)
    heads = page.evaluate(
        "[...document.querySelectorAll('table, [role=table]')].filter(t => t.checkVisibility())"
        ".map(t => t.querySelectorAll('th, [role=columnheader]').length)"
    )
    assert tables == len(heads) and all(heads)
    assert sum(node.role == "columnheader" for node in nodes) == sum(heads)
    levels = [node.properties["level"] for node in nodes if node.role == "heading"]
    assert levels[0] <= 2 and all(b <= a + 1 for a, b in itertools.pairwise(levels))
    assert sum(node.role == "main" for node in nodes) == 1


def test_what_keys_choose_is_read_out(open_browser: Browser, pages: dict[str, Path]) -> None:
    """Drawings are sliders: an arrow key changes the value that a screen reader says."""
    page = open_browser
    page.open(pages["train"], width=1400, dark=False)
    for chart in ("[data-step]", "[data-drawing]:not([hidden]) svg", "[data-scatter]"):
        found = f"document.querySelector('{chart}')"
        page.evaluate(f"{found}.focus()")
        before = page.evaluate(f"{found}.getAttribute('aria-valuetext')")
        page.press("ArrowRight")
        page.press("ArrowRight")
        after = page.evaluate(f"{found}.getAttribute('aria-valuetext')")
        assert after and after != before
        assert (
            1
            < int(page.evaluate(f"{found}.ariaValueNow"))
            <= int(page.evaluate(f"{found}.ariaValueMax"))
        )


def test_tab_reaches_every_control_in_order(open_browser: Browser, pages: dict[str, Path]) -> None:
    page = open_browser
    page.open(pages["train"], width=1400, dark=False)
    here = "document.activeElement"
    seen = []
    for _ in range(60):
        page.press("Tab")
        where = page.evaluate(
            f"[{here}.tagName, {here}.getBoundingClientRect().top + scrollY,"
            f" {here}.matches(':focus-visible')]"
        )
        if where[0] == "BODY":
            break
        assert where[2]  # an outline says where one is
        seen.append(where)
    kinds = [kind for kind, _, _ in seen]
    assert kinds.count("INPUT") == 2 and "SELECT" in kinds and "SUMMARY" in kinds
    assert kinds.count("BUTTON") == page.evaluate("document.querySelectorAll('th button').length")


CONTRAST = """(() => {
  const parts = (text) => {
    const n = text.match(/-?[\\d.]+/g).map(Number), unit = text.startsWith("color(") ? 1 : 255;
    return [n[0] / unit, n[1] / unit, n[2] / unit, n[3] === undefined ? 1 : n[3]];
  };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat([1]);
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => {
    const v = c[i] <= 0.03928 ? c[i] / 12.92 : ((c[i] + 0.055) / 1.055) ** 2.4;
    return sum + w * v;
  }, 0);
  const behind = (e) => {
    const all = [];
    for (let at = e; at; at = at.parentElement)
      all.push(parts(getComputedStyle(at).backgroundColor));
    return all.reverse().reduce((under, c) => over(c, under), [1, 1, 1, 1]);
  };
  const bad = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest("script, svg, option")) continue;
    const back = behind(e), ink = over(parts(getComputedStyle(e).color), back);
    const [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) bad.push([e.textContent.trim().slice(0, 40), ratio]);
  }
  return bad;
})()"""


@pytest.mark.parametrize("dark", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_text_has_contrast(
    open_browser: Browser, pages: dict[str, Path], name: str, dark: bool
) -> None:
    """At least 4.5 to 1, as WCAG 2.1 AA asks of text."""
    page = open_browser
    page.open(pages[name], width=1400, dark=dark)
    assert page.evaluate(CONTRAST) == []
