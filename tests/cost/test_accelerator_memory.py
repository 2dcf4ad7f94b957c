"""What compilers for accelerators hold in memory, habit by habit (docs/cost.md, Memory).

Each was read in a schedule of the TPU or the GPU compiler; benchmarks/memory.py is where these
judge whole plans.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardwright.analysis.analysis import analyze_program
from shardwright.cost.devices import device
from shardwright.cost.fusion import find_fusions
from shardwright.cost.liveness import NO_POINT
from shardwright.cost.model import CostModel
from shardwright.cost.schedule import Schedule, near_program_order
from shardwright.mesh import Mesh
from shardwright.program.tracing import trace
from shardwright.program.types import Op, Program
from tests.arrays import f32

TPU, GPU = device("tpu-v5e"), device("h100")
N = 512


def model_of(fn: Any, *args: Any, on: Any = TPU) -> CostModel:
    return CostModel(analyze_program(trace(fn, *args)), Mesh({"x": 1}), on)


def dots(program: Program) -> list[Op]:
    return [op for op in program.ops if op.name == "dot_general"]


def runs_in_order(program: Program, schedule: Schedule) -> bool:
    """Whether every op runs once, after what makes its operands."""
    time, made = schedule.time.tolist(), program.values
    once = sorted(schedule.order.tolist()) == list(range(len(program.ops)))
    return once and all(
        time[made[v].op] < time[op.index]
        for op in program.ops for v in op.operands if v >= 0 and made[v].op >= 0
    )  # fmt: skip


def masked(x: Any) -> Any:
    places = jnp.arange(N)
    mask = places[:, None] >= places[None, :]
    return lax.scan(lambda c, _: (jnp.where(mask, jnp.sin(c), 0.0), None), x, None, length=3)[0]


@pytest.mark.parametrize("on", [TPU, GPU], ids=lambda one: one.name)
def test_a_mask_is_made_in_the_loop_that_reads_it(on: Any) -> None:
    model = model_of(masked, f32(N, N), on=on)
    program = model.analysis.program
    bools = [v.index for v in program.values if v.dtype == jnp.bool_]
    assert bools
    assert all(model.lifetimes.first[v] == NO_POINT for v in bools)


def test_a_mask_that_a_dot_in_the_loop_reads_is_there() -> None:
    def fn(x: Any) -> Any:
        ramp = jnp.broadcast_to(jnp.arange(N, dtype=jnp.float32), (N, N))
        return lax.scan(lambda c, _: (c @ ramp, None), x, None, length=3)[0]

    model = model_of(fn, f32(N, N), on=GPU)
    program = model.analysis.program
    (dot,) = dots(program)
    assert model.lifetimes.first[dot.operands[1]] != NO_POINT


def trained(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        y = x
        for w in weights:
            y = jnp.sin(y @ w)
        return jnp.sum(y)

    gradients = jax.grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


def backward_dots(program: Program) -> tuple[list[Op], list[Op]]:
    """(gradients of weights, gradients of hidden layers), in program order."""
    ops = [op for op in dots(program) if op.transposed]
    weights = [op for op in ops if program.values[op.results[0]].type.shape == (N, N)]
    return weights, [op for op in ops if op not in weights]


def test_updates_are_early() -> None:
    """A weight right behind its gradient; all gradients first, as the program has it."""
    program = trace(trained, [f32(N, N)] * 4, f32(64, N))
    early = near_program_order(program, late=False, early=True)
    assert runs_in_order(program, early)
    weights, _ = backward_dots(program)
    updates = [op.index for op in program.ops if op.name == "sub"]
    assert min(updates) > weights[-1].index
    assert early.time[weights[0].index] < min(early.time[updates]) < early.time[weights[1].index]


def test_gradients_of_weights_wait() -> None:
    """Half of the way to the last one: the first behind that of its layer."""
    program = trace(trained, [f32(N, N)] * 4, f32(64, N))
    late = near_program_order(program, late=True, early=False)
    assert runs_in_order(program, late)
    weights, hidden = backward_dots(program)
    assert weights[0].index < hidden[0].index
    assert late.time[hidden[0].index] < late.time[weights[0].index]
    assert late.time[weights[0].index] < late.time[weights[-1].index]


def test_a_loop_and_its_body_stay_together() -> None:
    def fn(x: Any, w: Any) -> Any:
        def loss(w: Any) -> Any:
            y = lax.scan(lambda c, _: (jnp.sin(c @ w), None), x, None, length=3)[0]
            return jnp.sum(y @ w)

        return w - jax.grad(loss)(w)

    program = trace(fn, f32(N, N), f32(N, N))
    schedule = near_program_order(program, late=True, early=True)
    assert runs_in_order(program, schedule)
    for region in range(1, len(program.regions)):
        inside = sorted(schedule.time[op.index] for op in program.ops if op.region == region)
        assert inside == list(range(inside[0], inside[-1] + 1))


@pytest.mark.parametrize(
    "precision, on, held", [(None, TPU, 0.5), ("highest", TPU, 1.0), (None, GPU, 1.0)]
)
def test_what_dots_round_is_held_rounded(precision: Any, on: Any, held: float) -> None:
    def fn(x: Any, w: Any) -> Any:
        return jnp.dot(jnp.sin(x), w, precision=precision)

    program = trace(fn, f32(N, N), f32(N, N))
    fusion = find_fusions(program, on)
    (dot,) = dots(program)
    assert fusion.held[dot.operands[0]] == held
    assert fusion.held[dot.results[0]] == 1.0  # a result


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("sngk,tnk->ngst", q, k).astype(jnp.float32)
    probabilities = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return jnp.sum(jnp.einsum("ngst,tnk->sngk", probabilities, v).astype(jnp.float32))


HEADS = tuple(
    jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((N, 2, 4, 64), (N, 2, 64), (N, 2, 64))
)


def test_the_gradient_of_grouped_scores_is_turned_on_gpus() -> None:
    """That of the probabilities in f32, that of the scores in two orders."""
    program = trace(jax.grad(attention, (0, 1, 2)), *HEADS)
    square = sorted((2, 4, N, N))
    for on, expected in ((GPU, [2.0, 2.0]), (TPU, [])):
        fusion = find_fusions(program, on)
        large = [v for v in program.values if sorted(v.type.shape) == square]
        kept = [v for v in large if fusion.materialised[v.index]]
        assert [h for v in kept if (h := fusion.held[v.index]) != 1.0] == expected


def test_a_softmax_keeps_its_exponentials_on_tpus() -> None:
    """And dots divide them: neither scores nor probabilities are kept for the second dot."""
    program = trace(attention, *HEADS)
    second = dots(program)[-1]
    probabilities = next(v for v in second.operands if program.values[v].type.shape == (2, 4, N, N))
    exponentials = next(op.results[0] for op in program.ops if op.name == "exp")
    tpu, gpu = find_fusions(program, TPU), find_fusions(program, GPU)
    assert (tpu.materialised[exponentials], tpu.materialised[probabilities]) == (True, False)
    assert (gpu.materialised[exponentials], gpu.materialised[probabilities]) == (False, True)
