"""What XLA:CPU holds in memory and accelerators' compilers do not, habit by habit.

Each program is compiled by the host compiler as well: its figure is arguments + results -
donated + temporaries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import shardwright as sw
from shardwright.analysis.analysis import analyze_program
from shardwright.cost.devices import COMPILED_MEMORY, Device, device
from shardwright.cost.model import CostModel
from shardwright.cost.schedule import breadth_first
from shardwright.mesh import Mesh
from shardwright.program.tracing import trace
from shardwright.referee.verify import peak_bytes
from shardwright.rules.indexing import SCATTER_WORDS
from shardwright.spmd.decisions import Decisions, empty
from tests.arrays import f32

HOST = device("cpu")
# The same buffers without the habits.
PLAIN = replace(
    HOST, breadth_first=False, expands=False, keeps_padded=False, keeps_looped=False,
    fused_reduction=0, library_reduction=0,
)  # fmt: skip
N, C, LENGTH = 128, 8, 4
ARRAY = 4 * N * N
IMAGE = 4 * C * 16 * 16 * C


X, WEIGHT, THIN = f32(N, N), f32(N, N), f32(N, 2)
PICTURES, KERNEL = f32(C, C, 16, 16), f32(C, C, 3, 3)


def long_sum(x: Any) -> Any:
    return jnp.sum(jnp.sin(x), axis=0)


def short_sum(x: Any) -> Any:
    return jnp.sum(jnp.sin(x), axis=1)


def channels_first(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(x, k, (1, 1), "SAME")


def pooled(x: Any) -> Any:
    largest = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return jnp.sum(largest)


def noisy(x: Any) -> Any:
    return x + jax.random.uniform(jax.random.key(0), x.shape)


def accumulated(x: Any) -> Any:
    return jnp.cumsum(x, axis=1)


def reordered(x: Any, y: Any) -> Any:
    """A batch dim that is not the first."""
    return jnp.einsum("bha,cha->hbc", x, y)


def after_a_loop(x: Any, v: Any) -> Any:
    _, stack = lax.scan(lambda c, _: (c, jnp.sin(c)), x, None, length=LENGTH)
    return jnp.tanh(stack) @ v


def after_a_scatter(x: Any, v: Any) -> Any:
    order = jnp.arange(N)[::-1] // 2
    return jnp.tanh(jnp.zeros((N, N)).at[order].add(x)) @ v


def scattered_in_rows(x: Any, i: Any, v: Any) -> Any:
    """The indices that the loop reads name the row as well: two for each update."""
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(), inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,),
        operand_batching_dims=(0,), scatter_indices_batching_dims=(0,),
    )  # fmt: skip
    return lax.scatter_max(x, i, v, numbers, mode="promise_in_bounds")


def padded_for_two(x: Any) -> Any:
    wide = jnp.pad(x, 1)
    return jnp.sin(wide[1:]), jnp.cos(wide[:-1])


def waits(x: Any, w: Any, v: Any) -> Any:
    """Both products are ready at once; the second waits for a chain that needs the first."""
    first = x @ w
    for _ in range(3):
        first = jnp.tanh(first @ w)
    return (first + w @ x) @ v


def grouped(x: Any, w: Any) -> Any:
    return lax.ragged_dot(x, w, jnp.full(4, N // 4))


# Program, arguments, what the host holds more at the peak, how far the compiler is from that.
HABITS: dict[str, tuple[Any, list[Any], int, float]] = {
    "a long sum reads memory": (long_sum, [X], ARRAY, 0.10),
    "a short sum does not": (short_sum, [f32(64, 32)], 0, 0.10),
    "a library does": (short_sum, [f32(N, 32)], 4 * N * 32, 0.10),
    # The compiler puts one of the copies where the result is to be.
    "convolutions in one order": (
        channels_first, [PICTURES, KERNEL], 2 * IMAGE + 4 * C * C * 9, 0.35,
    ),
    "coordinates of all that is pooled": (
        jax.grad(pooled), [PICTURES], 4 * IMAGE + 5 * IMAGE // 4 + 5 * 64, 0.25,
    ),
    "random bits in a loop": (noisy, [X], 3 * ARRAY + 13 * 64, 0.20),
    "sums along a dim in blocks": (accumulated, [X], ARRAY, 0.15),
    "dots in one order": (reordered, [f32(32, C, 64), f32(32, C, 64)], 2 * 4 * 32 * C * 64, 0.10),
    # Without the habit the most is held in the loop: the stack and what the round puts there.
    "after a loop": (after_a_loop, [X, THIN], (LENGTH - 1) * ARRAY, 0.15),
    "after a scatter": (after_a_scatter, [X, THIN], ARRAY - 4 * N, 0.15),  # its indices are gone
    "indices of a batch": (
        scattered_in_rows, [X, jax.ShapeDtypeStruct((N, N, 1), jnp.int32), X],
        2 * ARRAY + SCATTER_WORDS * 64, 0.15,
    ),
    "rows of each group": (grouped, [X, f32(4, N, C)], 4 * ARRAY + 4 * 4 * N * C, 0.10),
    "weights of each group": (
        lambda x, w, slopes: jax.vjp(lambda w: grouped(x, w), w)[1](slopes),
        [X, f32(4, N, C), f32(N, C)], 4 * ARRAY + 4 * 4 * N * C, 0.10,
    ),
    "columns that are updated": (
        lambda x, i, u: x.at[:, i].add(u),
        [f32(N, C), jax.ShapeDtypeStruct((N,), jnp.int32), X], ARRAY + SCATTER_WORDS * 64, 0.10,
    ),
    "padded for two readers": (padded_for_two, [X], 4 * (N + 2) ** 2, 0.10),
    "what can run does": (waits, [X, WEIGHT, THIN], ARRAY, 0.15),
}  # fmt: skip


def peak(fn: Any, args: list[Any], hw: Device) -> int:
    model = CostModel(analyze_program(trace(fn, *args)), Mesh({"a": 4}), hw)
    return model.cost(Decisions(empty(1))).peak_bytes


@pytest.mark.parametrize("name", HABITS)
def test_what_a_host_holds_more(name: str) -> None:
    fn, args, more, _ = HABITS[name]
    held = peak(fn, args, HOST) - peak(fn, args, PLAIN)
    assert held == pytest.approx(more, abs=HOST.buffer_bytes)


@pytest.mark.parametrize("name", HABITS)
def test_the_host_compiler_agrees(name: str) -> None:
    fn, args, _, off = HABITS[name]
    sizes = jax.jit(fn).lower(*args).compile().memory_analysis()
    compiled = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    assert peak(fn, args, HOST) == pytest.approx(compiled, rel=off)


@pytest.mark.parametrize("name", [name for name in sw.devices() if name != "cpu"])
def test_accelerators_have_none_of_it(name: str) -> None:
    habits = [field for field in COMPILED_MEMORY if getattr(HOST, field) != getattr(PLAIN, field)]
    assert len(habits) == 6
    assert not any(getattr(device(name), field) for field in habits)


def test_breadth_first_runs_everything_once_and_in_order() -> None:
    """Operands before readers, loops as a whole with their bodies inside."""

    def fn(x: Any, w: Any) -> Any:
        late = jnp.tanh(jnp.tanh(x @ w) @ w)
        carried, _ = lax.scan(lambda c, _: (jnp.sin(c) @ w, None), x, None, length=3)
        return late + carried, x.T @ w

    program = trace(fn, X, WEIGHT)
    model = CostModel(analyze_program(program), Mesh({"a": 2}), HOST)
    order = breadth_first(program, model.fusion)
    assert sorted(order.order.tolist()) == list(range(len(program.ops)))
    time = order.time.tolist()
    for op in program.ops:
        for v in op.operands:
            if v >= 0 and program.values[v].op >= 0:
                assert time[program.values[v].op] < time[op.index]
    inside = [time[op.index] for op in program.ops if op.region != 0]
    assert inside == list(range(min(inside), max(inside) + 1))
    dots = [op.index for op in program.ops if op.name == "dot_general" and op.region == 0]
    assert time[dots[-1]] < time[dots[1]]  # x.T @ w does not wait for the second of the chain


def test_verify_on_a_host_predicts_a_host() -> None:
    """The plan says what a GPU holds; beside what XLA:CPU compiled stands what a host holds."""
    plan = sw.partition(long_sum, X, mesh={"a": 2}, device="h100", tactics=[sw.Pin("x", 1, "a")])
    arguments, sine, result = ARRAY // 2, ARRAY // 2, 4 * N // 2
    assert peak_bytes(plan, "cuda") == plan.cost.peak_bytes == arguments + result
    assert peak_bytes(plan, "cpu") == arguments + sine + result
    found = plan.verify("cpu:2")
    assert found.predicted_peak_bytes == peak_bytes(plan, "cpu")
    assert found.memory_error < 0.1
