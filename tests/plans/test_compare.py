"""compare(): variants on meshes of devices as rows, the best of them, and the Pareto front."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax.sharding import PartitionSpec

import shardwright as sw
from shardwright import cache
from shardwright.analysis import analyze_program
from shardwright.cli import main
from shardwright.record.comparison import ComparisonRecord, Row, pareto_front
from shardwright.search.items import Items, count_items
from shardwright.search.objective import Progress
from shardwright.several import forks
from shardwright.zoo import transformer

cli_variants = sys.modules["shardwright.cli.variants"]
compare = sys.modules["shardwright.several.compare"]  # the module; sw.compare is its function
MESH = {"data": 4, "model": 2}
LAYERS, WIDTH, ROWS = 4, 64, 256
W = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
X = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)


def make(remat: bool = False, scan: bool = True) -> Any:
    """A train step of a few layers."""
    layer = lambda x, w: jnp.tanh(jnp.sin(x @ w) @ w)  # noqa: E731
    layer = jax.checkpoint(layer) if remat else layer

    def loss(ws: Any, x: Any) -> Any:
        if scan:
            x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)
        else:
            for i in range(LAYERS):
                x = layer(x, ws[i])
        return jnp.mean(x**2)

    def step(ws: Any, x: Any) -> Any:
        return ws - 0.1 * jax.grad(loss)(ws, x)

    return step


def of(found: sw.Comparison, **wanted: Any) -> Row:
    (row,) = [r for r in found.rows if all(getattr(r, k) == v for k, v in wanted.items())]
    return row


def test_a_dict_of_functions_on_meshes_and_devices() -> None:
    variants = {"plain": make(), "remat": make(remat=True)}
    found = sw.compare(
        variants, W, X, mesh=[MESH, {"data": 8}], device=["h100", "tpu-v5e"], seconds=0.2
    )
    assert [(r.variant, r.mesh, r.device) for r in found.rows] == [
        (name, mesh, device)
        for name in variants
        for mesh in ("data=4 x model=2", "data=8")
        for device in ("h100", "tpu-v5e")
    ]
    assert found.record.per == "example"
    assert all(row.items == ROWS for row in found.rows)
    best = min(found.rows, key=lambda row: row.item_s or 0)
    assert found.rows[found.record.best or 0] == best
    # Each searched row is what partition() finds.
    for row, plan in zip(found.rows, found.plans, strict=True):
        if plan is not None:
            mesh = dict(part.split("=") for part in row.mesh.split(" x "))
            alone = sw.partition(
                variants[row.variant], W, X, mesh={k: int(v) for k, v in mesh.items()},
                device=row.device, seconds=0.2,
            )  # fmt: skip
            assert row.cost == alone.cost == plan.cost
    # The best one runs.
    assert found.best is not None
    arrays = np.full(W.shape, 0.1, "f"), np.ones(X.shape, "f")
    np.testing.assert_allclose(
        found.best.jit()(*arrays), jax.jit(variants[best.variant])(*arrays), rtol=1e-5
    )


def test_a_factory_and_a_grid() -> None:
    found = sw.compare(
        make, W, X, mesh=MESH, grid={"remat": [False, True], "scan": [True]}, device="h100"
    )
    assert [row.variant for row in found.rows] == [
        "remat=False, scan=True", "remat=True, scan=True"
    ]  # fmt: skip


def test_batches_are_compared_per_example() -> None:
    def batch(rows: int) -> Any:
        return make(), (W, jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32))

    found = sw.compare(batch, mesh={"data": 8}, device="h100", grid={"rows": [64, 1024]})
    small, large = found.rows
    assert (small.items, large.items) == (64, 1024)
    assert small.cost is not None and large.cost is not None
    assert small.cost.step_s < large.cost.step_s
    assert found.record.best == 1  # a longer step, less time for each example
    assert large.item_s == large.cost.step_s / 1024
    by_step = sw.compare(
        batch, mesh={"data": 8}, device="h100", grid={"rows": [64, 1024]}, per="step"
    )
    assert by_step.record.best == 0


def test_what_has_no_plan_is_a_row_with_its_reason() -> None:
    def broken(ws: Any, x: Any) -> Any:
        return ws @ x

    def factory(kind: str) -> Any:
        if kind == "unknown":
            raise KeyError(kind)
        return {"plain": make(), "broken": broken, "other": 3}[kind]

    found = sw.compare(
        factory, W, X, mesh=[{"data": 8}, {"data": 3, "model": 5}], device="h100",
        grid={"kind": ["plain", "broken", "unknown", "other"]},
    )  # fmt: skip
    assert found.best is not None
    for variant, why in {
        "kind=broken": "broken failed while being traced: TypeError: dot_general requires",
        "kind=unknown": "KeyError: 'unknown'",
        "kind=other": "expected a function to partition, got int: 3",
    }.items():
        rows = [row for row in found.rows if row.variant == variant]
        assert len(rows) == 2
        assert all(row.why.startswith(why) and not row.fits for row in rows)
        said = " ".join(str(found).split())
        assert f"no plan: {variant} on data=8; data=3 x model=5: {why[:60]}" in said


def test_what_does_not_fit_is_a_row_with_the_memory_it_needs() -> None:
    wide = jax.ShapeDtypeStruct((ROWS * 64, WIDTH), jnp.float32)
    variants = {"plain": make(scan=False), "remat": make(remat=True, scan=False)}
    free = sw.compare(variants, W, wide, mesh={"data": 2}, device="h100")
    plain, remat = (row.cost.peak_bytes if row.cost else 0 for row in free.rows)
    assert remat < plain
    tight = sw.compare(
        variants, W, wide, mesh={"data": 2}, device="h100", memory=(plain + remat) // 2
    )
    assert of(tight, variant="plain").why.startswith("no plan fits ")
    assert " at least " in of(tight, variant="plain").why
    assert tight.best is not None and of(tight, variant="remat").fits
    none = sw.compare(variants, W, wide, mesh={"data": 2}, device="h100", memory=1000)
    assert none.best is None and none.record.pareto == ()
    assert str(none).startswith("no variant fits")


def test_the_same_program_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Any] = []
    search_case = compare.search_case
    monkeypatch.setattr(compare, "search_case", lambda one: planned.append(one) or search_case(one))
    variants = {"one": make(), "other": make()}
    found = sw.compare(variants, W, X, mesh=MESH, device="h100", processes=1)
    assert [row.same_as for row in found.rows] == ["", "one"]
    assert found.rows[0].cost == found.rows[1].cost
    assert len(planned) == 1
    assert "the same program as one" in str(found)


def test_an_analysis_is_shared_by_meshes_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwright.several import variants

    made: list[Any] = []
    monkeypatch.setattr(
        variants, "analyze_program", lambda *a: made.append(a) or analyze_program(*a)
    )
    sw.compare(
        {"one": make(), "two": make()}, W, X, mesh=[MESH, {"data": 8}], device=["h100", "a100-80"]
    )
    assert len(made) == 1


def test_a_function_that_names_axes_is_traced_for_each_mesh() -> None:
    def named(ws: Any, x: Any) -> Any:
        return make()(ws, jax.lax.with_sharding_constraint(x, PartitionSpec("data", None)))

    found = sw.compare(
        {"named": named}, W, X, mesh=[MESH, {"data": 8}, {"model": 8}], device="h100"
    )
    assert [row.fits for row in found.rows[:2]] == [True, True]


def test_what_cannot_be_best_is_not_searched() -> None:
    """Eight devices of a kind that is a hundred times slower: the bound alone says so."""
    slow = sw.Device.like(
        "h100", name="slow", flops_per_s={"f32": 1e9}, vector_flops_per_s=1e8,
        memory_bytes_per_s=1e9,
    )  # fmt: skip
    found = sw.compare({"plain": make()}, W, X, mesh={"data": 8}, device=["h100", slow])
    row = of(found, device="slow")
    best = of(found, device="h100")
    assert not row.searched and best.searched
    assert row.cost is not None and row.cost.step_s >= row.bound_s > (best.cost or row.cost).step_s
    assert "quick look" in str(found)


def test_long_names_stay_within_a_terminal() -> None:
    """In rows, as the best, and where another row has the same program."""
    word = "a_step_whose_name_is_one_word_of_more_than_half_the_width_of_a_terminal"
    cost = sw.plan.Cost(compute_s=1.0, peak_bytes=8)
    rows = tuple(
        Row(
            variant=name, mesh="data=2 x model=4", devices=8, device=device, limit_bytes=80,
            items=1.0, cost=cost, searched=device == "h100", same_as="" if i < 2 else word,
        )
        for i, name in enumerate((word, f"{'many words ' * 12}", "short"))
        for device in ("h100", "tpu-v5e")
    )  # fmt: skip
    record = ComparisonRecord(per="token", rows=rows, best=0, pareto=(0,))
    text = str(sw.Comparison(record, (), None))
    assert max(map(len, text.splitlines())) <= 80
    assert "8 x tpu-v5e; quick look" in text


@pytest.mark.parametrize("seed", range(3))
def test_the_pareto_front(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = [
        Row(
            variant=str(i), mesh="data=8", devices=8, device="h100", limit_bytes=80, items=1.0,
            cost=sw.plan.Cost(compute_s=float(s), peak_bytes=int(b)), searched=True,
        )
        for i, (s, b) in enumerate(random.integers(1, 100, (30, 2)))
    ]  # fmt: skip

    def beaten(a: Row) -> bool:
        return any(
            b.fits and (b.item_s, b.cost.peak_bytes) != (a.item_s, a.cost.peak_bytes)
            and b.item_s <= a.item_s and b.cost.peak_bytes <= a.cost.peak_bytes
            for b in rows
        )  # fmt: skip

    expected = {(r.item_s, r.cost.peak_bytes) for r in rows if r.fits and not beaten(r)}
    front = [rows[i] for i in pareto_front(rows)]
    assert {(r.item_s, r.cost.peak_bytes) for r in front} == expected
    assert [r.item_s for r in front] == sorted(r.item_s for r in front)


def test_plans_are_looked_up_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path))
    step = make()
    sw.partition(step, W, X, mesh=MESH, device="h100")
    searched: list[Any] = []
    search_case = compare.search_case
    monkeypatch.setattr(
        compare, "search_case", lambda one: searched.append(one) or search_case(one)
    )
    options: dict[str, Any] = {"mesh": [MESH, {"data": 8}], "device": "h100", "processes": 1}
    sw.compare({"step": step}, W, X, **options)
    assert [job.asked for job in searched] == ["data=8"]
    again = sw.compare({"step": step}, W, X, **options)
    assert len(searched) == 1
    assert all(row.searched for row in again.rows)
    assert sw.partition(step, W, X, mesh={"data": 8}, device="h100").cached


# What a step processes ----------------------------------------------------------------------

TINY = transformer.PRESETS["tiny"]


def accumulated(parts: int) -> Any:
    example = transformer.train(replace(TINY, batch=TINY.batch))
    loss = functools.partial(transformer.loss, TINY)

    def step(params: Any, batch: Any) -> Any:
        split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)

        def one(total: Any, part: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None

        return jax.lax.scan(one, jax.tree.map(jnp.zeros_like, params), split)[0]

    return step, (example.args[0].params, example.args[1])


@pytest.mark.parametrize(
    "program, items",
    [
        (lambda: (make(), (W, X)), Items(ROWS, 0)),
        (
            lambda: (lambda e: (e.fn, e.args))(transformer.train(TINY)),
            Items(TINY.batch, TINY.batch * TINY.seq),
        ),
        (lambda: accumulated(4), Items(TINY.batch, TINY.batch * TINY.seq)),
        (lambda: (jnp.sum, (jax.ShapeDtypeStruct((), jnp.float32),)), Items(0, 0)),
    ],
    ids=["examples", "tokens", "microbatches", "nothing"],
)
def test_examples_and_tokens_are_read_off_the_program(program: Any, items: Items) -> None:
    fn, args = program()
    assert count_items(analyze_program(sw.trace(fn, *args))) == items


def test_a_count_of_the_users_own() -> None:
    def pixels(ws: Any, x: Any) -> float:
        return x.shape[0] * 1024

    found = sw.compare({"a": make()}, W, X, mesh={"data": 8}, device="h100", per=pixels)
    assert found.record.per == "pixels"
    assert found.rows[0].items == ROWS * 1024


@pytest.mark.parametrize(
    "given, options, message",
    [
        ({}, {}, "there are no variants"),
        (3, {}, "expected variants, got int: 3"),
        ({"a": make()}, {"grid": {"x": [1]}}, "a grid is of a factory's arguments"),
        ({"a": make()}, {"per": "epoch"}, "per='epoch' is nothing that a step processes"),
        ({"a": make()}, {"per": "token"}, "'a' has no tokens that can be counted"),
        ({"a": make()}, {"per": lambda ws, x: 0}, "'a' has no items that can be counted"),
        ({"a": make()}, {"device": "h999"}, "unknown device 'h999'"),
    ],
)
def test_bad_input(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(sw.ShardwrightError, match=message):
        sw.compare(given, W, X, **{"mesh": {"data": 8}} | options)


# Processes ----------------------------------------------------------------------------------


@pytest.fixture
def always_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PAYS_S", -1.0)


def test_children_find_what_one_process_finds(always_fork: None) -> None:
    options: dict[str, Any] = {"mesh": [MESH, {"data": 8}, 8], "device": "h100", "seconds": 0.2}
    variants = {"plain": make(), "remat": make(remat=True)}
    assert sw.compare(variants, W, X, **options, processes=4).record == (
        sw.compare(variants, W, X, **options, processes=1).record
    )


def test_work_of_a_child_that_dies_or_stands_still_is_done_here(
    always_fork: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "STUCK_S", 0.5)
    monkeypatch.setattr(forks, "_LOOK_S", 0.1)
    here = os.getpid()
    held = threading.Lock()
    held.acquire()

    def task(i: int) -> tuple[int, bool]:
        if os.getpid() != here and i == 1:
            os._exit(3)
        if os.getpid() != here and i == 2:
            held.acquire()  # which nobody will release
        return i * i, os.getpid() == here

    found = forks.run_all([functools.partial(task, i) for i in range(5)], 3)
    assert found == [(0, True), (1, True), (4, True), (9, False), (16, False)]


def test_short_work_is_not_forked() -> None:
    start, here = time.monotonic(), os.getpid()
    assert forks.run_all([os.getpid] * 3, 8) == [here] * 3
    assert time.monotonic() - start < 1


# The command line ---------------------------------------------------------------------------

STEPS = """
import jax, jax.numpy as jnp

def make(power=2, rows=32):
    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** power))(w)
    shapes = (8, 16), (rows, 8)
    return step, tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)

square, (cube, args) = make(2)[0], make(3)

def broken(w, x):
    return w @ w
"""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(STEPS)


def run(*args: str) -> Any:
    return CliRunner().invoke(main, ["compare", *args], catch_exceptions=False)


def test_the_command_line(steps: None) -> None:
    functions = ["steps.py:square", "steps.py:cube", "steps.py:broken", "--args", "args"]
    meshes = ["--mesh", "data=8", "--mesh", "data=4,model=2", "--device", "h100"]
    result = run(*functions, *meshes, "--html", "page.html", "--save", "best.json")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "all on 8 x h100"
    assert lines[1].split() == ["per", "example", "step", "memory", "variant"]
    assert "* best: square on " in result.stdout
    assert "broken failed while being traced" in result.stdout
    page = Path("page.html").read_text()
    assert page.startswith("<!doctype html>") and "Pareto front" in page
    assert sw.load("best.json").device.name == "h100"
    record = json.loads(run(*functions, *meshes, "--json").stdout)
    assert len(record["rows"]) == 6
    assert record["per"] == "example"
    assert record["rows"][record["best"]]["variant"] == "square"
    assert set(record["pareto"]) >= {record["best"]}


def test_the_command_line_with_a_grid(steps: None) -> None:
    result = run(
        "steps.py:make", "--grid", "power=2,3", "--grid", "rows=32,64", "--mesh", "8", "--json"
    )
    record = json.loads(result.stdout)
    assert [row["variant"] for row in record["rows"]] == [
        f"power={p}, rows={r}" for p in (2, 3) for r in (32, 64)
    ]
    assert [row["items"] for row in record["rows"]] == [32, 64, 32, 64]


def test_words_of_a_grid_stay_words() -> None:
    """`none` is the name of a policy; nothing is written None, as in Python."""
    assert cli_variants._axis("remat=none,None,true,8,dots") == (
        "remat", ["none", None, True, 8, "dots"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "args, message, code",
    [
        (["steps.py:broken", "--args", "args", "--mesh", "8"], "no variant fits", 1),
        (["steps.py:make", "--grid", "power", "--mesh", "8"], "cannot read grid 'power'", 2),
        (["steps.py:make", "steps.py:cube", "--grid", "power=2", "--mesh", "8"],
         "a grid is of one factory", 2),
    ],
)  # fmt: skip
def test_the_command_line_says_what_is_wrong(
    steps: None, args: list[str], message: str, code: int
) -> None:
    result = run(*args)
    assert message in result.output
    assert result.exit_code == code


def test_progress_tells_of_every_row() -> None:
    """A quick look at each, then the searches; the best so far only gets better."""
    told: list[Progress] = []
    variants = {"a": lambda w, x: jnp.sum(x @ w), "b": lambda w, x: jnp.sum(jnp.tanh(x @ w) @ w)}
    found = sw.compare(
        variants, jax.ShapeDtypeStruct((64, 64), "float32"),
        jax.ShapeDtypeStruct((256, 64), "float32"), mesh={"data": 4}, device="h100", per="step",
        processes=1, cache=False, progress=told.append,
    )  # fmt: skip
    looks = [p.trying for p in told if p.stage == "quick look"]
    assert looks == ["row 1 of 2", "row 2 of 2"]
    searched = sum(row.searched for row in found.rows)
    assert [p.stage for p in told if p.stage == "search"] == ["search"] * searched
    best = [p.best_s for p in told]
    assert best == sorted(best, reverse=True) and told[-1].evaluations > 0


def test_the_best_plan_knows_what_it_was_compared_with() -> None:
    """Its page shows them among the tactics; a file keeps them."""
    w, x = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((256, 64), "float32")
    found = sw.compare(
        lambda w, x: jnp.sum(x @ w), w, x, mesh=[{"data": 4}, {"data": 8}], device="h100",
        per="step", processes=1, cache=False,
    )  # fmt: skip
    assert found.best is not None
    other = found.rows[1 - (found.record.best or 0)]
    (row,) = found.best.record.variants
    assert row.name.endswith(f"on {other.mesh}, {other.devices} x h100")
    assert other.cost is not None
    assert (row.step_s, row.peak_bytes) == (other.cost.step_s, other.cost.peak_bytes)
    assert f"on {other.mesh}, {other.devices} x h100" in found.best.to_html()
