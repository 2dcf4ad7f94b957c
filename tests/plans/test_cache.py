"""Planning the same thing again is a look-up; what decides a plan is all in its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import shardwright as sw
from shardwright import cache
from shardwright.program.fingerprint import content

MESH = {"data": 4, "model": 2}
X, W = jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((32, 16), jnp.float32)


def step(w: Any, x: Any) -> Any:
    return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


def plan(fn: Callable[..., Any] = step, *args: Any, **options: Any) -> sw.Plan:
    """A plan that little search made: what is kept and found is the same."""
    usual = {"mesh": MESH, "device": "h100", "seconds": 0.1}
    return sw.partition(fn, *(args or (W, X)), **usual | options)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "plans"
    monkeypatch.setenv(cache.FOLDER, str(place))
    return place


def test_the_second_time_is_a_look_up(folder: Path) -> None:
    first, again = plan(), plan()
    assert (first.cached, again.cached) == (False, True)
    assert again.record == first.record
    assert str(again) == str(first)
    w, x = np.ones((32, 16), "f"), np.ones((64, 32), "f")
    np.testing.assert_allclose(again.jit(step)(w, x), jax.jit(step)(w, x), rtol=1e-5)
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_one_option_switches_it_off(folder: Path) -> None:
    plan(cache=False)
    assert not folder.exists()
    plan()
    assert not plan(cache=False).cached


def test_an_empty_variable_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.FOLDER, "")
    assert not plan().cached
    assert not plan().cached


@pytest.mark.parametrize(
    "change",
    [
        {"mesh": {"data": 2, "model": 4}},
        {"mesh": {"model": 4, "data": 2}},
        {"mesh": sw.Mesh(MESH, dcn=("data",))},
        {"mesh": 8},
        {"device": "a100-80"},
        {"device": sw.Device.like("h100", latency_s=1e-3, name="h100")},
        {"memory": 1e9},
        {"tactics": [sw.DataParallel("data")]},
        {"tactics": [sw.FSDP("data")]},
        {"seconds": 1},
        {"seed": 1},
        {"donate_argnums": 0},
        {"tie": False},
        {"overlap": 0.5},
        {"unshare": True},
        {"labels": {"features": "w[1]"}},
        {"timeout": 600},
    ],
    ids=str,
)
def test_options_that_decide_are_in_the_name(change: dict[str, Any]) -> None:
    plan()
    assert not plan(**change).cached
    assert plan(**change).cached


def constrained(spec: PartitionSpec) -> Callable[..., Any]:
    return lambda w, x: jax.lax.with_sharding_constraint(x @ w, spec)


@pytest.mark.parametrize(
    "one, other",
    [
        (lambda w, x: x @ w, lambda w, x: jnp.tanh(x @ w)),
        # the same ops and arguments: another dtype inside, a loop of other length, remat, precision
        (
            lambda w, x: (x.astype("bfloat16") @ w.astype("bfloat16")).astype("float32"),
            lambda w, x: (x.astype("float16") @ w.astype("float16")).astype("float32"),
        ),
        (
            lambda w, x: jax.lax.fori_loop(0, 2, lambda _, y: jnp.tanh(y), x @ w),
            lambda w, x: jax.lax.fori_loop(0, 9, lambda _, y: jnp.tanh(y), x @ w),
        ),
        (
            lambda w, x: jnp.dot(x, w, precision="highest"),
            lambda w, x: jnp.dot(x, w, precision="default"),
        ),
        (
            jax.grad(lambda w, x: jnp.sum(jnp.tanh(jnp.tanh(x @ w)))),
            jax.grad(lambda w, x: jnp.sum(jax.checkpoint(lambda y: jnp.tanh(jnp.tanh(y)))(x @ w))),
        ),
        (constrained(PartitionSpec("data")), constrained(PartitionSpec(None, "model"))),
    ],
    ids=["op", "dtype", "trips", "precision", "remat", "pin"],
)
def test_programs_that_differ_have_other_names(one: Any, other: Any) -> None:
    one.__name__ = other.__name__ = "step"
    plan(one)
    assert plan(one).cached
    assert not plan(other).cached


def test_the_shardings_of_arguments_are_in_the_name() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    plan()
    split = jax.ShapeDtypeStruct(
        X.shape, X.dtype, sharding=NamedSharding(mesh, PartitionSpec("data"))
    )
    assert not plan(step, W, split).cached
    assert plan(step, W, split).cached


def test_a_line_that_moved_is_another_name() -> None:
    """What a plan says of the user's lines must hold."""
    code = "def f(w, x):\n    return x @ w\n"
    programs = []
    for text in (code, "\n" + code):
        space: dict[str, Any] = {}
        exec(compile(text, "train.py", "exec"), space)
        programs.append(content(sw.trace(space["f"], W, X)))
    assert programs[0] != programs[1]


def test_a_plan_of_another_version_is_planned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    plan()
    monkeypatch.setattr(cache, "__version__", "0.0.9")
    assert not plan().cached
    monkeypatch.undo()


def test_edited_code_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    plan()
    monkeypatch.setattr(cache, "_own_code", lambda: "edited")
    assert not plan().cached


@pytest.mark.parametrize("damage", ["", "{}", "not json", "cut", "decisions"])
def test_a_damaged_file_is_planned_anew_and_repaired(folder: Path, damage: str) -> None:
    first = plan()
    (path,) = folder.iterdir()
    text = path.read_text()
    if damage == "cut":
        damage = text[: len(text) // 2]
    elif damage == "decisions":  # well-formed, but not what it says: the specs do not follow
        file = json.loads(text)
        file["decisions"] = {axis: [] for axis in file["decisions"]}
        damage = json.dumps(file)
    path.write_text(damage)
    again = plan()
    assert not again.cached
    assert again.record == first.record
    assert path.read_text() == text


def test_a_cache_that_cannot_be_written_is_a_note(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "file" / "plans"))
    (note,) = [n for n in plan().record.notes if "cache" in n]
    assert note.startswith("the plan is not cached: ")
    assert note.endswith("(cache=False, or SHARDWRIGHT_CACHE=folder)")
    assert "note: the plan is not cached" in str(plan())
    assert not any("cache" in n for n in plan(cache=False).record.notes)


def test_a_search_that_was_ended_is_not_kept(folder: Path) -> None:
    first = plan(timeout=0)
    assert first.record.search.timed_out
    assert not plan(timeout=0).cached


def test_a_tactic_of_the_users_own_is_not_looked_up() -> None:
    class Mine(sw.DataParallel):
        __slots__ = ()

    plan(tactics=[Mine("data")])
    assert not plan(tactics=[Mine("data")]).cached


def test_the_oldest_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_PLANS", 2)
    for seed in (0, 1):
        plan(seed=seed)
    for age, path in enumerate(folder.iterdir()):
        os.utime(path, (age, age))
    assert plan(seed=0).cached  # used now
    plan(seed=2)
    assert plan(seed=0).cached
    assert not plan(seed=1).cached


def test_processes_that_plan_at_once(folder: Path) -> None:
    """They name a program alike, whatever their order of sets, and none reads half a file."""
    code = (
        "import shardwright as sw\n"
        "from shardwright.program.fingerprint import content\n"
        "from tests.plans.runs import PROGRAMS\n"
        "example = PROGRAMS['transformer_train']\n"
        "print(content(sw.trace(example.fn, *example.args)))\n"
        "from tests.plans.test_cache import plan\n"
        "for _ in range(10):\n"
        "    print(plan().cached)\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]  # fmt: skip
    (one, *first), (other, *second) = (child.communicate()[0].split() for child in children)
    assert one == other
    assert first[1:] == second[1:] == ["True"] * 9
    assert plan().cached
    assert len(list(folder.iterdir())) == 1  # and nothing left beside it


def test_where_plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache.folder() == Path("/somewhere/shardwright/plans")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache.folder() == Path("/home/me/.cache/shardwright/plans")


def test_a_cache_that_is_no_choice() -> None:
    with pytest.raises(sw.ShardwrightError, match="cache must be True or False, got 'no'"):
        plan(cache="no")
