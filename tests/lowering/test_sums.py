"""A table that is looked up and multiplied with: its gradient's two parts are reduced as one."""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shardwright as sw
from tests.plans.runs import DEVICES

BATCH, SEQ, VOCAB, WIDTH = 512, 64, 48, 16
TABLE = 4 * VOCAB * WIDTH  # bytes


def rows(table: Any, tokens: Any) -> Any:
    return table[tokens]


def one_hot(table: Any, tokens: Any) -> Any:
    return jax.nn.one_hot(tokens, VOCAB, dtype=table.dtype) @ table


def straight(x: Any, table: Any) -> Any:
    return jnp.einsum("bsd,vd->bsv", x, table)


def transposed(x: Any, table: Any) -> Any:
    return x @ table.T


def gradient(look_up: Any, logits: Any) -> Any:
    def loss(table: Any, tokens: Any) -> Any:
        return jnp.sum(jnp.sin(logits(jnp.tanh(look_up(table, tokens)), table)))

    return jax.grad(loss)


ARGS = (
    jax.ShapeDtypeStruct((VOCAB, WIDTH), jnp.float32),
    jax.ShapeDtypeStruct((BATCH, SEQ), jnp.int32),
)


def test_a_sum_crosses_slices_in_parts() -> None:
    """Scattered inside, reduced across, gathered inside; compiled as planned, equal numbers."""

    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

    w, x = np.ones((512, 1024), np.float32), np.ones((8192, 512), np.float32)
    tactics = [sw.DataParallel("dcn_data"), sw.DataParallel("data")]
    plan = sw.partition(step, w, x, mesh={"dcn_data": 2, "data": 4}, tactics=tactics)
    assert {(c.kind, c.axes, c.bytes) for c in plan.collectives} == {
        ("reduce-scatter", ("data",), w.nbytes),
        ("all-reduce", ("dcn_data",), w.nbytes // 4),
        ("all-gather", ("data",), w.nbytes),
    }
    assert plan.verify(run=True).ok


def test_a_sum_crosses_slices_in_parts_along_a_dim_of_its_own() -> None:
    """Not along the dim that Megatron's axis splits: gathered back, that would be the whole one."""

    def step(up: Any, down: Any, x: Any) -> Any:
        def loss(up: Any, down: Any) -> Any:
            return jnp.sum((jnp.tanh(x @ up) @ down) ** 2)

        grads = jax.grad(loss, argnums=(0, 1))(up, down)
        return [w - 0.1 * g for w, g in zip((up, down), grads, strict=True)]

    up, down = np.ones((512, 4096), np.float32), np.ones((4096, 512), np.float32)
    tactics = [sw.DataParallel("dcn_data"), sw.DataParallel("data"), sw.Megatron("model")]
    plan = sw.partition(
        step, up, down, np.ones((8192, 512), np.float32),
        mesh={"dcn_data": 2, "data": 2, "model": 2}, tactics=tactics,
    )  # fmt: skip
    half = up.nbytes // 2  # of a weight, on one of Megatron's ranks
    assert sorted((c.kind, c.axes, c.bytes, c.count) for c in plan.collectives) == [
        ("all-gather", ("data",), half, 1), ("all-gather", ("data",), half, 1),
        ("all-reduce", ("dcn_data",), half // 2, 1), ("all-reduce", ("dcn_data",), half // 2, 1),
        ("all-reduce", ("model",), 8192 * 512, 1),
        ("reduce-scatter", ("data",), half, 1), ("reduce-scatter", ("data",), half, 1),
    ]  # fmt: skip
    result = plan.verify(run=True)
    assert result.ok and result.link_error < 0.01, str(result)


@pytest.mark.parametrize(
    "look_up, logits", [(rows, straight), (rows, transposed), (one_hot, transposed)]
)
@pytest.mark.parametrize(
    "mesh, tactics, moved",
    [
        ({"data": 8}, [sw.DataParallel("data")], {("all-reduce", ("data",)): TABLE}),
        (
            {"x": 4, "y": 2}, [sw.DataParallel("x"), sw.Pin("tokens", 1, "y")],
            {("all-reduce", ("x", "y")): TABLE},
        ),
        (
            {"data": 4, "model": 2}, [sw.DataParallel("data"), sw.Pin("table", 0, "model")],
            {("all-reduce", ("data",)): TABLE // 2},
        ),
        # The new table is kept in parts: the sum is scattered.
        (
            {"data": 8}, [sw.DataParallel("data"), sw.Pin("table", 1, "data")],
            {("reduce-scatter", ("data",)): TABLE},
        ),
    ],
)  # fmt: skip
def test_tied_gradient(look_up: Any, logits: Any, mesh: Any, tactics: Any, moved: Any) -> None:
    fn = gradient(look_up, logits)
    plan = sw.partition(fn, *ARGS, mesh=mesh, device="tpu-v5e", tactics=tactics)
    reduced = {
        (row.kind, tuple(row.axes)): row.bytes * row.count
        for row in plan.collectives
        if row.kind in ("all-reduce", "reduce-scatter") and tuple(row.axes) != ("model",)
    }
    assert reduced == moved
    result = plan.verify(run=True)
    assert result.ok, str(result)


def recurrent(w: Any, x: Any) -> Any:
    """A loop that uses its weight in every round: the gradient is added up over time."""

    def loss(w: Any) -> Any:
        def cell(h: Any, x_t: Any) -> Any:
            h = jnp.tanh(x_t + h @ w["h"] + w["b"])
            return h, jnp.sum(h)

        return jnp.sum(jax.lax.scan(cell, jnp.zeros(x.shape[1:]), x)[1])

    return jax.grad(loss)(w)


def microbatches(w: Any, x: Any) -> Any:
    """Gradients of a mean, accumulated over slices of the batch, from what is not zero."""

    def add(total: Any, part: Any) -> Any:
        grads = jax.grad(lambda w: jnp.mean(jnp.tanh(part @ w["h"] + w["b"]) @ w["h"].T))(w)
        return jax.tree.map(jnp.add, total, grads), None

    return jax.lax.scan(add, jax.tree.map(jnp.ones_like, w), x)[0]


@pytest.mark.parametrize(
    "mesh, pins", [({"d": 8}, [("x", 1, "d")]), ({"d": 4, "m": 2}, [("x", 1, "d"), ("b", 0, "m")])]
)
@pytest.mark.parametrize("fn", [recurrent, microbatches])
def test_sums_over_rounds_are_reduced_once(fn: Any, mesh: Any, pins: Any) -> None:
    rounds, batch, width = 6, 64, 32
    w = {"h": jnp.ones((width, width)) / width, "b": jnp.ones(width)}
    x = jax.random.normal(jax.random.key(0), (rounds, batch, width))
    tactics = [sw.Pin(*pin) for pin in pins]
    plan = sw.partition(fn, w, x, mesh=mesh, device="tpu-v5e", tactics=tactics)
    over_batch = [row for row in plan.collectives if row.kind == "all-reduce" and "d" in row.axes]
    assert sum(row.count for row in over_batch) == 2  # one for each gradient, not one a round
    result = plan.verify(run=True)
    assert result.ok and result.link_error == 0.0, str(result)


# Of one tenth of an H100's links: what moves in every trip does not hide behind the compute.
DEVICE = sw.Device.like(DEVICES["balanced"], name="slower links", link_bytes_per_s=4.5e10)
TRIPS, LAYERS, ROWS_EACH, D, F = 4, 3, 64, 16, 32


def stacked(remat: bool, w: Any, xs: Any) -> Any:
    """Gradients of scanned layers, accumulated over microbatches."""

    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(x @ w["up"] + w["b"]) @ w["down"], None

    def loss(w: Any, x: Any) -> Any:
        x, _ = lax.scan(jax.checkpoint(layer) if remat else layer, x @ w["in"], w["layers"])
        return jnp.mean(x @ w["out"])

    def add(total: Any, x: Any) -> Any:
        grads = jax.grad(loss)(w, x)
        return jax.tree.map(lambda t, g: t + g / TRIPS, total, grads), None

    return lax.scan(add, jax.tree.map(jnp.zeros_like, w), xs)[0]


@pytest.mark.parametrize(
    "remat, mesh, pins",
    [(False, {"d": 8}, []), (True, {"d": 4, "m": 2}, [sw.Pin("up", 2, "m")])],
    ids=["8", "4x2-remat"],
)
def test_sums_pass_what_an_inner_scan_stacks(remat: bool, mesh: Any, pins: Any) -> None:
    shapes = {"up": (LAYERS, D, F), "b": (LAYERS, F), "down": (LAYERS, F, D)}
    w = {
        "in": jnp.ones((8, D)) / 8, "out": jnp.ones((D, 8)) / D,
        "layers": {name: 0.1 * jnp.ones(shape) for name, shape in shapes.items()},
    }  # fmt: skip
    xs = jax.random.normal(jax.random.key(0), (TRIPS, ROWS_EACH, 8))
    fn = functools.partial(stacked, remat)
    tactics = [sw.Pin("xs", 1, "d"), *pins]
    plan = sw.partition(fn, w, xs, mesh=mesh, device="tpu-v5e", tactics=tactics)
    reduced = [row for row in plan.collectives if row.axes == ("d",)]
    split = mesh.get("m", 1)
    sizes = [prod(shape) // split for shape in shapes.values()]
    sizes += [8 * D, D * 8]
    assert sorted(row.bytes for row in reduced) == sorted(4 * size for size in sizes)
    assert all(row.kind == "all-reduce" and row.count == 1 for row in reduced)  # once a step
    (note,) = [note for note in plan.record.notes if "trips of the loop" in note]
    assert note.startswith(f"5 sums over the {TRIPS} trips of the loop at test_sums.py:")
    assert note.endswith(" are reduced once, after it")
    result = plan.verify(run=True)
    assert result.ok and result.link_error == 0.0, str(result)


def test_sums_that_are_scattered_in_every_trip_leave_the_total_alone() -> None:
    """The two terms are added and scattered, and only then added to what the loop carries."""

    def fn(w: Any, xs: Any, ys: Any) -> Any:
        def add(total: Any, pair: Any) -> Any:
            x, y = pair
            return total + (jnp.tanh(x).T @ y + jnp.sin(x).T @ (y * y)), None

        return lax.scan(add, w, (xs, ys))[0]

    w, xs = jnp.ones((32, 32)), jax.random.normal(jax.random.key(0), (TRIPS, 64, 32))
    tactics = [sw.Pin("xs", 1, "d"), sw.Pin("w", 1, "d")]
    plan = sw.partition(fn, w, xs, xs + 1, mesh={"d": 8}, device="tpu-v5e", tactics=tactics)
    assert [(row.kind, row.count) for row in plan.collectives] == [(RS, TRIPS)]
    assert any(
        "in every trip; to reduce them once would take 3.6 kB" in n for n in plan.record.notes
    )
    result = plan.verify(run=True)
    assert result.ok and result.link_error == 0.0, str(result)


def test_sums_are_reduced_once_where_memory_allows() -> None:
    """Whole weights save most: they are kept first, and a whole gradient is carried if it fits too.

    With memory for one of the two, weights that stay whole and gradients that are scattered in
    every trip move half of what gathered weights and a gradient reduced once do.
    """
    layers, rows, d, f = 4, 8192, 128, 512

    def step(w: Any, moments: Any, xs: Any) -> Any:
        def loss(w: Any, x: Any) -> Any:
            x, _ = lax.scan(
                jax.checkpoint(lambda x, w: (x + jnp.tanh(x @ w["up"]) @ w["down"], None)), x, w
            )
            return jnp.mean(x**2)

        def add(total: Any, x: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(w, x)), None

        grads, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, w), xs.reshape(8, -1, d))
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return jax.tree.map(lambda w, m: w - 0.1 * m, w, moments), moments

    shapes = {"up": (layers, d, f), "down": (layers, f, d)}
    w = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    xs = jax.ShapeDtypeStruct((rows, d), jnp.float32)
    weights = sum(4 * prod(shape) for shape in shapes.values())

    def planned(memory: float) -> sw.Plan:
        return sw.partition(
            step, w, w, xs, mesh={"d": 8}, device=DEVICE, memory=memory,
            donate_argnums=(0, 1), seconds=0.1,
        )  # fmt: skip

    once = planned(5.0 * weights)
    every_trip = planned(once.cost.peak_bytes - 1)
    assert "2 sums" in once.record.notes[0] and "once, after it" in once.record.notes[0]
    assert "2 sums" in every_trip.record.notes[0] and "in every trip" in every_trip.record.notes[0]
    assert once.cost.step_s < every_trip.cost.step_s
    for plan, kind, count in ((once, "all-reduce", 1), (every_trip, RS, 8 * layers)):
        gradients = [row for row in plan.collectives if row.kind == kind and row.bytes > 4]
        assert [row.count for row in gradients] == [count] * 2
        assert sum(row.bytes * row.count for row in gradients) == weights * (8 if kind == RS else 1)
        gathered = [row for row in plan.collectives if row.kind == "all-gather"]
        assert sum(row.bytes * row.count for row in gathered) == weights  # once, after the update
        result = plan.verify()
        assert result.ok and result.link_error == 0.0, str(result)


@jax.custom_vjp
def linear(x: Any, w: Any) -> Any:
    return x @ w


linear.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))


def test_sums_stay_inside_functions_with_their_own_derivative() -> None:
    """Its derivative expects the results that it had, so they are reduced before they leave."""

    def fn(x: Any, w: Any) -> Any:
        return jnp.tanh(linear(x, w) + linear(jnp.sin(x), w))

    x, w = jax.random.normal(jax.random.key(0), (64, 32)), jnp.ones((32, 16)) / 32
    plan = sw.partition(fn, x, w, mesh={"d": 8}, device="tpu-v5e", tactics=[sw.Pin("x", 1, "d")])
    assert plan.verify(run=True).ok
    step = plan.jit(fn)
    grads = [jax.grad(lambda x, f=f: f(x, w).sum())(x) for f in (step, fn)]
    assert jnp.allclose(*grads, atol=1e-6)


RS, ROWS, COLUMNS = "reduce-scatter", 64, 32
REPLICATED = 4 * ROWS * COLUMNS  # bytes


def weight_gradient(x: Any, g: Any, w: Any) -> Any:
    return w - x.T @ g


@pytest.mark.parametrize(
    "device, dims, moved",
    [
        # One axis after the other, each of what the one before has left ...
        ("tpu-v5e", (0, 0), {(RS, ("data",)): REPLICATED, (RS, ("model",)): REPLICATED // 4}),
        ("tpu-v5e", (1, 1), {(RS, ("data",)): REPLICATED, (RS, ("model",)): REPLICATED // 4}),
        ("tpu-v5e", (0, 1), {(RS, ("data",)): REPLICATED, (RS, ("model",)): REPLICATED // 4}),
        # ... or in one collective for each dim.
        ("h100", (0, 0), {(RS, ("data", "model")): REPLICATED}),
        ("h100", (1, 1), {(RS, ("data", "model")): REPLICATED}),
    ],
)
def test_fsdp_over_two_axes_scatters_gradients(
    device: str, dims: tuple[int, int], moved: dict[Any, int]
) -> None:
    mesh = {"data": 4, "model": 2}
    pins = [
        pin for dim, axis in zip(dims, mesh, strict=True)
        for pin in (sw.Pin("x", 0, axis), sw.Pin("g", 0, axis), sw.Pin("w", dim, axis))
    ]  # fmt: skip
    shapes = [(16384, ROWS), (16384, COLUMNS), (ROWS, COLUMNS)]
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    plan = sw.partition(weight_gradient, *args, mesh=mesh, device=device, tactics=pins)
    assert {(row.kind, tuple(row.axes)): row.bytes for row in plan.collectives} == moved
    result = plan.verify(run=True)
    assert result.ok and result.link_error == 0.0, str(result)
    compiled = {(row.kind, row.axes): row.compiled[1] for row in result.traffic.rows}
    assert compiled == moved  # under their own names: nothing is folded


def test_what_crosses_slices_is_scattered_inside_them_first() -> None:
    """The axis between slices is the major one, so the parts change places in the end."""
    mesh = sw.Mesh({"slices": 2, "data": 4}, dcn=("slices",))
    pins = [sw.Pin(name, 0, axis) for axis in mesh.names for name in ("x", "g", "w")]
    shapes = [(16384, 256), (16384, 512), (256, 512)]
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    plan = sw.partition(weight_gradient, *args, mesh=mesh, device="tpu-v5e", tactics=pins)
    whole = 4 * prod(shapes[2])
    assert {(row.kind, tuple(row.axes)): row.bytes for row in plan.collectives} == {
        (RS, ("data",)): whole,
        (RS, ("slices",)): whole // 4,
        ("collective-permute", ("slices", "data")): whole // 8,
    }
    result = plan.verify(run=True)
    assert result.ok and result.link_error == 0.0, str(result)


@pytest.mark.parametrize("start, count", [(np.float32(0), 4), (jnp.zeros(()), 1)])
def test_a_loop_that_adds_dots_to_a_number(start: Any, count: int) -> None:
    """What is added to a literal is reduced in every round: it enters the loop by no tie."""

    def fn(xs: Any, w: Any) -> Any:
        return lax.scan(lambda c, x: (c + x @ w, None), start, xs)[0]

    xs, w = jnp.ones((4, 64)), jnp.arange(64.0)
    pins = [sw.Pin("xs", 1, "a")]
    plan = sw.partition(fn, xs, w, mesh={"a": 4}, device="h100", tactics=pins)
    assert [(row.kind, row.count) for row in plan.collectives] == [("all-reduce", count)]
    result = plan.verify(run=True)
    assert result.ok, str(result)
