"""plan.advice(): judged by planning what it advises."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner

import shardwright as sw
from shardwright.cli import main
from shardwright.cost.residuals import NO_DOTS, NOTHING, find_residuals
from shardwright.several.advice import BATCH, DEVICES, MESH
from shardwright.zoo import transformer

# The peak must be in the layers, not in the logits: few words, many positions.
GPT = replace(
    transformer.PRESETS["gpt_2l"], layers=4, d_model=256, d_ff=1024, heads=4, kv_heads=4,
    d_head=64, vocab=512, seq=512, batch=32,
)  # fmt: skip
SAVES, COSTS = 0.2, 0.1  # parts of what is saved, and of a step, that advice may be wrong by


@functools.cache
def plan(scan: bool, policy: str | None = None, device: str = "tpu-v5e") -> sw.Plan:
    """A train step under FSDP, its blocks under a policy of jax.checkpoint."""
    config = replace(GPT, scan=scan, remat=policy is not None)
    checkpoint = jax.checkpoint
    example = transformer.train(config)
    if policy is not None:
        chosen = getattr(jax.checkpoint_policies, policy)
        jax.checkpoint = functools.partial(checkpoint, policy=chosen)  # type: ignore[assignment]
    try:
        return sw.partition(
            example.fn, *example.args, mesh={"data": 8}, device=device, donate_argnums=0,
            tactics=sw.FSDP("data"),
        )  # fmt: skip
    finally:
        jax.checkpoint = checkpoint


@pytest.mark.parametrize(
    "scan, policy, device",
    [
        (True, NO_DOTS, "tpu-v5e"),
        (True, NOTHING, "tpu-v5e"),
        (True, NO_DOTS, "h100"),
        (False, NO_DOTS, "tpu-v5e"),
    ],
)
def test_what_a_policy_costs_and_saves(scan: bool, policy: str, device: str) -> None:
    without, with_ = plan(scan, None, device), plan(scan, policy, device)
    bound = without._require("this test")
    rows = {row.what: row for row in find_residuals(bound.model, bound.decisions, 0)}
    saved = without.cost.peak_bytes - with_.cost.peak_bytes
    assert rows[policy].saves_bytes == pytest.approx(saved, rel=SAVES)
    costs = with_.cost.step_s - without.cost.step_s
    assert rows[policy].recompute_s == pytest.approx(costs, abs=COSTS * without.cost.step_s)


def test_what_lines_save() -> None:
    """A stack of each residual of a scanned layer, by the formula."""
    layers, rows, width, devices = 16, 8192, 64, 8

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            out, _ = jax.lax.scan(lambda x, w: (jnp.tanh(jnp.sin(x @ w) @ w), None), x, w)
            return jnp.sum(out)

        return w - jax.grad(loss)(w)

    args = [
        jax.ShapeDtypeStruct(shape, "float32") for shape in ((layers, width, width), (rows, width))
    ]
    tactics = sw.DataParallel("data")
    bound = sw.partition(step, *args, mesh={"data": devices}, tactics=tactics)._require("a test")
    lines = [
        row for row in find_residuals(bound.model, bound.decisions, 20)
        if row.what not in (NO_DOTS, NOTHING)
    ]  # fmt: skip
    stack = layers * rows * width * 4 // devices
    assert lines and all(row.bytes == row.count * stack for row in lines)
    for row in lines:  # the entry of one layer may stay
        assert row.bytes * (1 - 1 / layers) <= row.saves_bytes <= row.bytes
    rate = sw.devices()["tpu-v5e"].host_bytes_per_s
    assert all(row.offload_s == 2 * row.bytes / rate for row in lines)


def test_what_could_be_done_instead_is_what_partition_finds() -> None:
    def step(w: Any, x: Any) -> Any:
        return w - jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

    def args(rows: int) -> Any:
        return jnp.zeros((512, 256)), jax.ShapeDtypeStruct((rows, 512), jnp.float32)

    mesh = {"data": 2, "model": 4}
    found = sw.partition(step, *args(4096), mesh=mesh, device="h100").advice()
    rows = {row.variant: row for row in found.instead}
    assert found.record.per == "example"
    assert (found.record.now.items, rows[BATCH].items, rows[MESH].items) == (4096, 8192, 4096)
    twice = sw.partition(step, *args(8192), mesh=mesh, device="h100", seconds=1)
    assert rows[BATCH].cost == twice.cost
    free = {"data": None, "model": None}
    other = sw.partition(step, *args(4096), mesh=free, devices=8, device="h100", seconds=1)
    assert (rows[MESH].cost, rows[MESH].mesh) == (other.cost, str(other.mesh))
    more = sw.partition(step, *args(4096), mesh=free, devices=16, device="h100", seconds=1)
    assert (rows[DEVICES].cost, rows[DEVICES].devices) == (more.cost, 16)


def test_a_batch_that_the_function_does_not_take_is_a_row_with_its_reason() -> None:
    def step(w: Any, x: Any) -> Any:
        if x.shape[0] != 64:
            raise ValueError("a batch of 64, please")
        return x @ w

    args = jnp.zeros((16, 8)), jnp.zeros((64, 16))
    found = sw.partition(step, *args, mesh={"data": 8}, tactics=sw.DataParallel("data")).advice()
    (row,) = [row for row in found.instead if row.variant == BATCH]
    assert "a batch of 64, please" in row.why
    assert row.why in " ".join(str(found).split())
    assert str(found).endswith("note: other meshes and batches are planned without your tactics")
    assert "nothing that would lower the peak" in str(found)


def test_a_loaded_plan_must_be_bound(tmp_path: Path) -> None:
    plan(True).save(tmp_path / "plan.json")
    with pytest.raises(sw.ShardwrightError, match=r"advice\(\) needs the program"):
        sw.load(tmp_path / "plan.json").advice()


TRAIN = """
import jax, jax.numpy as jnp

def step(w, x):
    return w - jax.grad(lambda w: jnp.mean(jnp.tanh(jnp.sin(x @ w) @ w.T) ** 2))(w)

def example_args():
    return jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((4096, 8), "float32")
"""


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("steps.py").write_text(TRAIN)

    def run(*args: str) -> Any:
        return CliRunner().invoke(main, list(args), catch_exceptions=False)

    result = run("advice", "steps.py:step", "--mesh", "data=8", "--html", "page.html")
    assert result.exit_code == 0
    heads = [line for line in result.stdout.splitlines() if line and not line.startswith(" ")]
    assert heads[0].startswith("step on data=8, 8 x tpu-v5e: ")
    assert [head.split(",")[0] for head in heads[1:]] == [
        "At the peak", "Could be recomputed", "Instead"
    ]  # fmt: skip
    page = Path("page.html").read_text()
    assert page.startswith("<!doctype html>") and "Could be recomputed" in page
    run("plan", "steps.py:step", "--mesh", "data=8", "--save", "plan.json")
    record = json.loads(run("advice", "steps.py:step", "--plan", "plan.json", "--json").stdout)
    assert {row["variant"] for row in record["instead"]} == {BATCH, MESH, DEVICES}
    assert record["memory"]["peak_bytes"] == record["now"]["cost"]["peak_bytes"]
    wrong = run("advice", "steps.py:step")
    assert wrong.exit_code == 2 and "advice is on a plan" in wrong.stderr
