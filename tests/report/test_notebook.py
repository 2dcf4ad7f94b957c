"""Notebooks: the first screen, an array on the mesh, progress in the cell, lines named by cell."""

from __future__ import annotations

import html
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright import notebook
from shardwright.program import source
from shardwright.report.words import human_bytes, human_seconds
from shardwright.search.objective import OVER_MEMORY_S, Progress
from tests.report.records import MESH, plan_of


class Shell:
    """What IPython gives in a notebook, as far as it is used."""

    kernel = object()

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []
        self.compile = types.SimpleNamespace(_filename_map={"/tmp/ipykernel_7/11.py": 3})

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        self.shown.append(data)
        return types.SimpleNamespace(update=lambda data, raw: self.shown.append(data))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    one = Shell()
    module = types.SimpleNamespace(
        get_ipython=lambda: one, display=types.SimpleNamespace(display=one.display)
    )
    monkeypatch.setitem(notebook.sys.modules, "IPython", module)
    source.cell_name.cache_clear()
    yield one
    source.cell_name.cache_clear()


def test_a_plan_shows_its_first_screen() -> None:
    plan = plan_of("transformer_train", "fsdp+tp")
    shown = plan._repr_html_()
    assert shown.startswith("<iframe ") and "<script" not in html.unescape(shown)
    page = html.unescape(shown)
    for words in (human_seconds(plan.cost.step_s), human_bytes(plan.cost.peak_bytes), "(FSDP)"):
        assert words in page


def test_an_array_on_the_mesh() -> None:
    plan = plan_of("transformer_train", "fsdp+tp")
    picture = plan.visualize("layers[0].w1")
    assert "state.params.layers[0].w1: f32[" in str(picture)
    assert str(picture).count("1 device holds part") == 8  # data=4 x model=2, all of it split
    assert html.unescape(picture._repr_html_()).count("<rect ") == 8
    with pytest.raises(sw.ShardwrightError, match="the plan has no array 'w9'") as error:
        plan.visualize("w9")
    assert "try " in str(error.value)


def test_progress_in_the_cell(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "EVERY_S", 0.0)
    sw.partition(jnp.dot, jnp.ones((8, 8)), jnp.ones((8, 8)), mesh=MESH, seconds=0.1)
    texts = [row["text/plain"] for row in shell.shown]
    assert texts[0] == "tracing" and any(": best " in text for text in texts[1:])
    shell.shown.clear()
    sw.partition(
        jnp.dot, jnp.ones((8, 8)), jnp.ones((8, 8)), mesh=MESH, seconds=0.1,
        progress=lambda p: None,
    )  # fmt: skip
    assert shell.shown == []  # the user's own is shown instead


@pytest.mark.parametrize("progress, text", [
    (Progress("proof", 2769, 4.6, 1.5, 4.52),
     "proof: best 4.60 s, at least 4.52 s; 2.8k plans, 1.8k/s"),
    (Progress("strategies", 12, 2 * OVER_MEMORY_S, 0.0),
     "strategies: best nothing fits yet; 12 plans, 0/s"),
])  # fmt: skip
def test_what_progress_says(progress: Progress, text: str) -> None:
    assert notebook.progress_text(progress) == text


@pytest.mark.parametrize("file, name", [
    ("/tmp/ipykernel_7/11.py", "In[3]"),
    ("<ipython-input-5-0a1b2c>", "In[5]"),
    ("/home/me/train.py", "/home/me/train.py"),
])  # fmt: skip
def test_lines_are_named_by_cell(shell: Shell, file: str, name: str) -> None:
    assert source.cell_name(file) == name


def test_a_program_of_cells(shell: Shell) -> None:
    """What a cell defines is planned; its lines say which cell."""
    names: dict[str, Any] = {"jnp": jnp}
    code = "def f(w, x):\n    y = x @ w\n    return jnp.sum(y * y)\n"
    exec(compile(code, "/tmp/ipykernel_7/11.py", "exec"), names)
    shape = jax.ShapeDtypeStruct((64, 64), "float32")
    plan = sw.partition(
        names["f"], shape, shape, mesh=MESH, seconds=0.1, tactics=[sw.DataParallel("data")],
        progress=lambda p: None,
    )  # fmt: skip
    assert "at In[3]:2 f" in str(plan) and "sums, In[3]:" in str(plan)
