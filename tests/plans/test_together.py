"""Many plans in one process: threads do not disturb each other, kills leave whole files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright import cache
from shardwright.record import files

F32 = jnp.float32


def steps(width: int) -> tuple[Any, tuple[Any, ...]]:
    """A train step whose sizes, and so whose plan, depend on `width`."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

    shapes = ((64, 32 * width), (16 * width, 64))
    return step, tuple(jax.ShapeDtypeStruct(shape, F32) for shape in shapes)


def plan(width: int) -> sw.Plan:
    step, args = steps(width)
    mesh = {"data": 4, "model": 2}
    return sw.partition(step, *args, mesh=mesh, device="h100", seconds=0.1, cache=False)


def test_threads_make_the_plans_that_one_thread_makes() -> None:
    widths = range(1, 9)
    alone = [plan(width).record for width in widths]
    with ThreadPoolExecutor(4) as pool:
        together = [made.record for made in pool.map(plan, widths)]
    assert together == alone


LEFT = """
from benchmarks.many_plans import blocks_left, plan, trace
for work in (trace, plan):
    for number in range(3):
        work(number)
print(blocks_left(trace, range(100, 110)), blocks_left(plan, range(200, 210)))
"""


@pytest.mark.slow
def test_plans_leave_nothing_behind_but_what_jax_keeps() -> None:
    """Prices of dots were kept for every size that was ever asked for."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run(
        [sys.executable, "-c", LEFT], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    traced, planned = map(float, child.stdout.split())
    assert planned < traced + 20


KILL = """
import os, signal, sys
from pathlib import Path
import jax
import shardwright as sw

kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
def half(self, text, **how):
    with self.open("w") as file:
        file.write(text[: len(text) // 2])
    kill()

def killed(when):
    if when == "half written":
        Path.write_text = half
    else:
        Path.replace = kill
"""
SAVING = """
plan = sw.load(sys.argv[2])
killed(sys.argv[1])
plan.save(sys.argv[3])
"""
CACHING = """
killed(sys.argv[1])
x = jax.ShapeDtypeStruct((64, 64), "float32")
sw.partition(lambda x: x @ x, x, mesh={"data": 4}, device="h100", seconds=0.1)
"""


@pytest.mark.parametrize("when", ["half written", "before it is put in place"])
def test_killed_while_saving(when: str, tmp_path: Path) -> None:
    """The file is the old one, whole."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    plan(1).save(old)
    plan(2).save(new)
    was = old.read_text()
    command = [sys.executable, "-c", KILL + SAVING, when, str(new), str(old)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert old.read_text() == was
    assert sw.load(old).record.program == "step"


@pytest.mark.parametrize("when", ["half written", "before it is put in place"])
def test_killed_while_caching(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan is found that is not whole; what is left of one is cleared away later."""
    monkeypatch.setenv(cache.FOLDER, str(tmp_path))
    command = [sys.executable, "-c", KILL + CACHING, when]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(files.UNFINISHED)
    step, args = steps(1)

    def cached() -> bool:
        return sw.partition(step, *args, mesh={"data": 4}, device="h100", seconds=0.1).cached

    assert (cached(), cached()) == (False, True)
    assert left.exists()  # somebody may be writing it
    os.utime(left, (0, 0))
    sw.partition(step, *args, mesh={"data": 2}, device="h100", seconds=0.1)
    assert not left.exists()
