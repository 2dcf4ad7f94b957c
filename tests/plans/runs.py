"""Plans of the zoo's programs on eight host devices: which plans, how they run, what is compared.

The referee is XLA: its own run of the unmodified function on one device for the numbers, its
compiled program for the collectives.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

import shardwright as sw
from shardwright import zoo
from shardwright.referee.compiled import (
    captured_stderr,
    involuntary_remats,
    read_collectives,
    totals,
)
from shardwright.referee.equivalences import Traffic, compare_traffic
from shardwright.zoo.example import QUICK, materialize

MESHES = {
    "8": {"x": 8},
    "4x2": {"data": 4, "model": 2},
    "2x2x2": {"a": 2, "b": 2, "c": 2},
}

# Real chips answer "keep it whole" for programs of a few kilobytes, because every collective has
# a latency and every op an overhead. These have none, so the search splits whatever pays by bytes
# and FLOP alone; they differ in what a byte on a link costs against a FLOP.
NO_OVERHEAD: dict[str, Any] = {
    "latency_s": 0.0, "op_overhead_s": 0.0, "half_bandwidth_bytes": 0.0, "dcn_latency_s": 0.0,
    "hop_latency_s": 0.0, "link_efficiency": 1.0, "link_ramp": 0.0, "all_reduce_gain": 1.0,
    "matrix_efficiency": 0.75, "matrix_sustained": 1.0, "matrix_tile": (1, 1, 1),
    "matrix_fill_rows": 0, "matrix_units": 1,
}  # fmt: skip
DEVICES = {
    "balanced": sw.Device.like("h100", name="balanced", **NO_OVERHEAD),
    "slow links": sw.Device.like(
        "h100", name="slow links", link_bytes_per_s=1e9, node_bytes_per_s=8e9, **NO_OVERHEAD
    ),
    "fast links": sw.Device.like(
        "h100", name="fast links", link_bytes_per_s=1e14, node_bytes_per_s=8e14, **NO_OVERHEAD
    ),
}

PROGRAMS = zoo.programs("tiny")
STEPS = 3
LEARNING_RATE = 3e-3  # of the zoo's AdamW


def schedules(mesh: dict[str, int]) -> dict[str, list[Any]]:
    """Every tactic by name, on this mesh: alone, or with Megatron on the last axis."""
    names = list(mesh)
    if len(names) == 1:
        x = names[0]
        rows: list[list[Any]] = [
            [sw.DataParallel(x)], [sw.FSDP(x)], [sw.ZeRO(2, x)], [sw.Megatron(x)],
            [sw.Megatron(x), sw.SequenceParallel(x)], [sw.ContextParallel(x, "query")],
            [sw.ContextParallel(x, "key")], [sw.ExpertParallel(x)],
        ]  # fmt: skip
    elif len(names) == 2:
        a, b = names
        rows = [
            [sw.DataParallel(a), sw.Megatron(b)],
            [sw.FSDP(a), sw.Megatron(b)],
            [sw.FSDP(a), sw.Megatron(b), sw.SequenceParallel(b)],
            [sw.ZeRO(2, a), sw.Megatron(b)],
            [sw.FSDP(a), sw.FSDP(b)],
            [sw.FSDP(a), sw.ContextParallel(b, "query")],
            [sw.DataParallel(a), sw.ContextParallel(b, "key")],
            [sw.FSDP(a), sw.ExpertParallel(b)],
        ]
    else:
        a, b, c = names
        rows = [
            [sw.DataParallel(a), sw.FSDP(b), sw.Megatron(c), sw.SequenceParallel(c)],
            [sw.FSDP(a), sw.ContextParallel(b, "query"), sw.Megatron(c)],
            [sw.FSDP(a), sw.ExpertParallel(b), sw.Megatron(c)],
            [sw.FSDP(a), sw.FSDP(b), sw.FSDP(c)],
        ]
    return {" + ".join(map(str, row)): row for row in rows}


def plan_for(
    program: str,
    mesh: dict[str, int],
    *,
    tactics: Sequence[Any] | None = None,
    device: str = "balanced",
    memory_share: float | None = None,
    seed: int = 0,
    seconds: float = 1.0,
) -> sw.Plan:
    """The plan of a zoo program; `memory_share` limits memory to a share of one whole copy."""
    example = PROGRAMS[program]
    options: dict[str, Any] = {}
    if memory_share is not None:
        whole = plan_for(program, mesh, tactics=[sw.Replicate("*")])
        options["memory"] = memory_share * whole.cost.peak_bytes
    return sw.partition(
        example.fn, *example.args, mesh=mesh, device=DEVICES[device], tactics=tactics,
        donate_argnums=example.donate_argnums, seed=seed, seconds=seconds, **options,
    )  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What XLA made of a plan, and what came out of it, step by step."""

    traffic: Traffic
    rematerialisations: int
    results: list[Any]  # [steps] results as host arrays
    moved: list[str]  # leaves of the state that came back with another sharding

    def table(self) -> str:
        """Predicted and compiled (count, bytes) by kind and axes, for a failing test."""
        return "\n".join(map(str, (*self.traffic.rows, *self.traffic.folds)))


def compile_plan(plan: sw.Plan, program: str) -> tuple[Any, str]:
    """(executable, what the compiler wrote to standard error); a warning is an error."""
    example = PROGRAMS[program]
    with warnings.catch_warnings(), captured_stderr() as err:
        warnings.simplefilter("error")
        compiled = plan.jit(example.fn).lower(*example.args).compile(QUICK)
    return compiled, err.text


def run_plan(plan: sw.Plan, program: str, steps: int = STEPS) -> Run:
    """Compiles the plan and runs it, the state of each step being what the last one returned.

    The executable accepts arguments only where they are planned to be: that the second step runs
    shows that no state has moved.
    """
    example = PROGRAMS[program]
    compiled, said = compile_plan(plan, program)
    mesh = plan.mesh.shape
    found = totals(read_collectives(compiled.as_text(), mesh))
    traffic = compare_traffic(totals(plan.collectives), found, mesh, "cpu")
    if not example.donate_argnums:
        steps = min(steps, 1)
    results, moved = [], []
    if steps:
        args = list(plan.place(*_host(materialize(example))))
        shardings = jax.tree.map(lambda x: x.sharding, args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(steps):
            out = compiled(*args)
            results.append(_host(out))
            for i in example.donate_argnums:
                moved += _moved(shardings[i], out[i])
                assert all(x.is_deleted() for x in jax.tree.leaves(args[i])), "not donated"
                args[i] = out[i]
    return Run(traffic, involuntary_remats(said), results, moved)


def _moved(before: Any, after: Any) -> list[str]:
    rows = zip(jax.tree_util.tree_leaves_with_path(after), jax.tree.leaves(before), strict=True)
    return [
        jax.tree_util.keystr(path)
        for (path, leaf), planned in rows
        if not leaf.sharding.is_equivalent_to(planned, leaf.ndim)
    ]


def _host(tree: Any) -> Any:
    """Copies in host memory; random keys stay what they are."""
    return jax.tree.map(
        lambda x: x if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else np.array(x), tree
    )


@cache
def unsharded(program: str) -> list[Any]:
    """[steps] the results of the unmodified function on one device."""
    example = PROGRAMS[program]
    args = list(materialize(example))
    step = jax.jit(example.fn, compiler_options=QUICK)
    results = []
    for _ in range(STEPS if example.donate_argnums else 1):
        out = step(*args)
        results.append(_host(out))
        for i in example.donate_argnums:
            args[i] = out[i]
    return results


def assert_same_numbers(program: str, results: list[Any]) -> None:
    """Every result of every step is what one device computes, up to the order of sums."""
    for number, (got, want) in enumerate(zip(results, unsharded(program), strict=False), 1):
        if hasattr(want, "__len__") and hasattr(want[0], "opt_state"):
            (state, loss), (expected, expected_loss) = got, want
            rtol = 1e-4 if number == 1 else 1e-3
            np.testing.assert_allclose(loss, expected_loss, rtol=rtol, err_msg=f"step {number}")
            _assert_same_state(state, expected, number)
        else:
            _assert_close(got, want, f"step {number}")


def _assert_same_state(got: Any, want: Any, steps: int) -> None:
    """The train state after some steps of Adam.

    Gradients are compared through the moments, on the scale of the largest of all gradients: a
    bias under a normalisation has gradient zero, and what is computed is the rounding of sums.
    Adam divides the first moment by the root of the second, so that such an entry moves by the
    learning rate in a direction that the order of summation decides. A parameter may therefore be
    off by what the error allowed in its gradient, relative to that gradient, lets it move: next to
    nothing where the gradient is clear, two learning rates per step where it is noise. Later steps
    start from states that differ so: there only gross errors are told from noise, and the loss.
    """
    moments, expected = _adam(got), _adam(want)
    largest = max(float(np.max(np.sqrt(x))) for x in jax.tree.leaves(expected.nu))
    share = 1e-3 if steps == 1 else 0.1
    for name, power in (("mu", 1), ("nu", 2)):
        _assert_close(
            getattr(moments, name), getattr(expected, name), f"{name} after {steps} steps",
            share=share, floor=2e-5 * largest**power,
        )  # fmt: skip
    rows = zip(
        jax.tree_util.tree_leaves_with_path(want.params), jax.tree.leaves(got.params),
        jax.tree.leaves(expected.nu), strict=True,
    )  # fmt: skip
    for (path, value), given, second in rows:
        gradient = np.sqrt(second)
        noise = share * np.max(gradient) + 2e-5 * largest
        moves = np.minimum(2.1, 3 * noise / np.maximum(gradient, 1e-30))
        allowed = LEARNING_RATE * steps * moves + 1e-5 * np.abs(value)
        worst = np.max(np.abs(given - value) - allowed)
        assert worst <= 0, f"params{jax.tree_util.keystr(path)} after {steps} steps: {worst}"
    if hasattr(want, "stats"):
        _assert_close(got.stats, want.stats, f"statistics after {steps} steps", share=share)


def _adam(state: Any) -> Any:
    """The part of an optax state that holds the moments."""
    return next(s for s in state.opt_state if hasattr(s, "mu"))


def _assert_close(
    got: Any, want: Any, what: str, *, share: float = 1e-3, floor: float = 0.0
) -> None:
    """All leaves agree within a `share` of their largest entry, plus `floor`."""
    rows = zip(jax.tree_util.tree_leaves_with_path(want), jax.tree.leaves(got), strict=True)
    for (path, value), given in rows:
        assert given.shape == value.shape and given.dtype == value.dtype
        scale = float(np.max(np.abs(value), initial=0.0))
        off = float(np.max(np.abs(given.astype(np.float64) - value), initial=0.0))
        assert off <= share * scale + floor, (
            f"{what}: {jax.tree_util.keystr(path)} is off by {off}, its largest entry is {scale}"
        )
