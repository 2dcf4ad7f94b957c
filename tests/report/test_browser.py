"""Pages in a real browser: no errors, no overflow, filters and keys work, names inject nothing.

Skipped where no Chromium is installed; CONTRIBUTING.md says how to install one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.report.html import array_page, first_screen, side_by_side, to_html
from shardwright.spmd.ir import Cause
from tests.report import chromium
from tests.report.chromium import Browser
from tests.report.records import record_of

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
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("pages")
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.parametrize("name", ["train", "small", "two", "evil", "cell", "array"])
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
