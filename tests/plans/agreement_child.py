"""One process of a job of two, four host devices each, through a table of cases.

python agreement_child.py PROCESS PORT FOLDER

Writes FOLDER/said-PROCESS.json: what happened in each case.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROCESS, PORT, FOLDER = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
SECOND = PROCESS == 1
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402

jax.distributed.initialize(f"127.0.0.1:{PORT}", 2, PROCESS)

import shardwright as sw  # noqa: E402
from shardwright import api  # noqa: E402

W, X = np.full((16, 8), 0.1, "f"), np.ones((32, 16), "f")


def step(w: Any, x: Any) -> Any:
    return jnp.sum(jnp.tanh(x @ w))


def other(w: Any, x: Any) -> Any:
    return jnp.sum(jnp.sin(x @ w))


def partition(fn: Any = step, x: Any = X, **options: Any) -> sw.Plan:
    return sw.partition(fn, W, x, **{"mesh": {"data": 4, "model": 2}, "device": "h100"} | options)


def run(plan: sw.Plan, fn: Any = step) -> str:
    return f"ran {float(plan.jit(fn)(*plan.place(W, X))):.2f}"


def agree() -> str:
    searches: list[Any] = []
    search = api.plan_program
    api.plan_program = lambda *args: searches.append(args) or search(*args)
    plan = partition()
    api.plan_program = search
    plan.save(FOLDER / f"{PROCESS}.json")
    return f"searched {len(searches)}, {run(plan)}"


def another_plan() -> str:
    plans = [partition(tactics=[sw.DataParallel(axis)]) for axis in ("data", "model")]
    return run(plans[PROCESS])


def broken(w: Any, x: Any) -> Any:
    raise ValueError("only here")


def alone() -> str:
    """The first plans alone and writes a file that all read."""
    if not SECOND:
        partition().save(FOLDER / "plan.json")
    multihost_utils.sync_global_devices("written")
    return run(sw.load(FOLDER / "plan.json"))


CASES: dict[str, Callable[[], str]] = {
    "agree": agree,
    "planned when called": lambda: (
        f"ran {float(sw.jit(step, mesh={'data': 4, 'model': 2}, device='h100')(W, X)):.2f}"
    ),
    "other shapes": lambda: run(partition(x=X[:16] if SECOND else X)),
    "another program": lambda: run(partition(other if SECOND else step)),
    "other options": lambda: run(partition(seed=PROCESS, device=["h100", "a100-80"][PROCESS])),
    "does not trace here": lambda: run(partition(broken if SECOND else step)),
    "does not trace there": lambda: run(partition(step if SECOND else broken)),
    "nothing fits": lambda: run(partition(memory=10)),
    "another plan": another_plan,
    "another function": lambda: run(partition(), other if SECOND else step),
    "agree again": lambda: run(partition()),
    "one plans alone": alone,
    "alone, then together": lambda: run(partition(other)),
}


def happened(case: Callable[[], str]) -> str:
    try:
        return case()
    except sw.ShardwrightError as error:
        return f"ShardwrightError: {error}"


said = {name: happened(case) for name, case in CASES.items()}
(FOLDER / f"said-{PROCESS}.json").write_text(json.dumps(said))
jax.distributed.shutdown()
