"""Two processes of four host devices each run one plan and get the numbers of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from examples import multi_process
from shardwright.zoo.example import materialize
from tests.plans.runs import PROGRAMS

EXAMPLE = Path(multi_process.__file__)


def losses(lines: list[str], what: str) -> list[float]:
    return [float(line.removeprefix(what)) for line in lines if line.startswith(what)]


def unsharded_losses(steps: int) -> list[float]:
    """The losses of the same steps on one device."""
    example = PROGRAMS["transformer_train"]
    (state, batch), step, found = materialize(example), jax.jit(example.fn), []
    for _ in range(steps):
        state, loss = step(state, batch)
        found.append(float(loss))
    return found


def test_two_processes(tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    one = multi_process.train(alone)  # in this process, which has all eight devices
    run = subprocess.run(
        [sys.executable, str(EXAMPLE), "--processes", "2", "--directory", str(together)],
        capture_output=True, text=True, timeout=400, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    two = run.stdout.splitlines()
    assert "processes 2, devices 8, rows 4" in two  # of 8: each loads its half
    for what in ("loss ", "restored loss "):
        assert len(losses(two, what)) == 2 * multi_process.STEPS  # both print
        np.testing.assert_allclose(
            sorted(losses(two, what)), sorted(2 * losses(one, what)), rtol=2e-5
        )
    # A restore under another plan changes nothing: the losses are those of one device that goes on.
    both = losses(one, "loss ") + losses(one, "restored loss ")
    np.testing.assert_allclose(both, unsharded_losses(len(both)), rtol=1e-4)
    # The plan itself does not depend on who makes it.
    for name in ("fsdp.json", "megatron.json"):
        assert (alone / name).read_bytes() == (together / name).read_bytes()
