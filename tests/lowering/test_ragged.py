"""Grouped dots: each device multiplies its rows by its groups' weights, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.pallas.ops.tpu.megablox import ops as megablox
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.rules.grouped import GROUPED_DOTS
from tests.plans.runs import DEVICES

MESH = {"data": 4, "model": 2}
ROWS, K, N, GROUPS, F32 = 64, 16, 32, 4, 4

X = jax.random.normal(jax.random.key(0), (ROWS, K))
W = jax.random.normal(jax.random.key(1), (GROUPS, K, N))
TOKENS = sw.Pin("x", 0, "data")
SENDS = replace(sw.devices()["tpu-v5p"], sends_rows=True)  # as ExpertParallel asks

# A group within a shard, over several, empty ones, rows of no group.
SIZES = [(16, 16, 16, 16), (1, 40, 3, 20), (0, 0, 64, 0), (5, 0, 20, 7), (0, 0, 0, 0)]


def experts(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    return lax.ragged_dot(x, w, sizes)


def gradients(x: jax.Array, w: jax.Array, sizes: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.grad(lambda x, w: jnp.sum(jnp.sin(lax.ragged_dot(x, w, sizes))), (0, 1))(x, w)


EXPERTS = sw.Pin("w", 0, "model")


@pytest.mark.parametrize(
    "tactics",
    [[TOKENS], [TOKENS, sw.Pin("w", 1, "model")], [EXPERTS, sw.Replicate("x")], [EXPERTS, TOKENS]],
)
def test_numbers(tactics: Sequence[sw.Pin]) -> None:
    """Rows that no group has are zero, on shards as on the whole."""
    first = jnp.array(SIZES[0], jnp.int32)
    for fn in (experts, gradients):
        plan = sw.partition(fn, X, W, first, mesh=MESH, tactics=[*tactics], seconds=0.2)
        run = plan.jit(fn)
        for sizes in SIZES:
            args = X, W, jnp.array(sizes, jnp.int32)
            for got, want in zip(
                jax.tree.leaves(run(*args)), jax.tree.leaves(fn(*args)), strict=True
            ):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_tokens_split_without_moving() -> None:
    sizes = jnp.array(SIZES[1], jnp.int32)
    plan = sw.partition(experts, X, W, sizes, mesh={"data": 8}, tactics=[TOKENS])
    assert not plan.collectives
    (row,) = [row for row in plan.ir().rows if row.name == "ragged_dot_general"]
    assert dict(row.claims) == {"data": "i"}
    assert plan.verify().ok


def test_gradients_of_the_weights_are_summed_over_the_tokens() -> None:
    sizes = jnp.array(SIZES[1], jnp.int32)
    plan = sw.partition(
        gradients, X, W, sizes, mesh={"data": 4}, tactics=[TOKENS, sw.Replicate("w")]
    )
    moved = {key: total.bytes for key, total in plan.ir().totals().items()}
    assert sum(moved.values()) == GROUPS * K * N * F32
    assert plan.verify().ok


def test_work_does_not_grow_with_the_groups() -> None:
    """FLOP of rows x k x n: as one dot, whatever the number of groups."""
    shapes = {"x": (4096, 1024), "w": (1024, 1024)}
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes.values())
    dot = sw.trace(jnp.matmul, x, w).ops[0].rule
    many = jax.ShapeDtypeStruct((8, *w.shape), w.dtype)
    ragged = sw.trace(experts, x, many, jax.ShapeDtypeStruct((8,), jnp.int32)).ops[0].rule
    assert ragged.work * np.prod(ragged.sizes) == dot.work * np.prod(dot.sizes)


def test_experts_split_where_tokens_are_whole() -> None:
    """Each device multiplies the rows of its experts; the results are summed. No weight moves."""
    sizes = jnp.array(SIZES[1], jnp.int32)
    pins = [sw.Pin("w", 0, "expert"), sw.Pin("x", 0, "data")]
    args = [jnp.tile(X, (1, 8)), jnp.tile(W, (1, 8, 32)), sizes]  # few tokens, large experts
    plan = sw.partition(experts, *args, mesh={"data": 2, "expert": 4}, tactics=pins)
    (row,) = [row for row in plan.ir().rows if row.name == "ragged_dot_general"]
    assert dict(row.claims) == {"data": "i", "expert": "k"}
    assert {c.kind for c in plan.collectives} <= {"reduce-scatter", "all-reduce"}
    found = plan.verify(run=True)
    assert found.ok and found.numbers_agree, found


@pytest.mark.parametrize(
    "mesh, rows",
    [
        ({"model": 8}, ("model",)), ({"data": 2, "model": 4}, ("data", "model")),
        ({"model": 4, "data": 2}, ("model", "data")), ({"data": 4, "model": 2}, ("model",)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("fn", [experts, gradients])
def test_rows_travel_to_their_experts(
    fn: Callable[..., Any], mesh: dict[str, int], rows: tuple[str, ...]
) -> None:
    """Experts and rows over one axis: rows go there and back, none is dropped, no weight moves.

    The device is one whose compiler has a ragged all-to-all, the numbers are those of host devices.
    """
    x = jax.random.normal(jax.random.key(0), (1024, 256))
    w = jax.random.normal(jax.random.key(1), (8, 256, 1024)) / 16
    pins = [sw.Pin("w", 0, "model"), sw.Pin("x", 0, rows)]
    first = jnp.full((8,), 128, jnp.int32)
    plan = sw.partition(fn, x, w, first, mesh=mesh, device=SENDS, tactics=pins)
    dots = [row for row in plan.ir().rows if row.name in GROUPED_DOTS]
    claims = dict(dots[0].claims)
    assert claims["model"] == "i to k"
    local = 1024 // math.prod(mesh[axis] for axis, factor in claims.items() if factor[0] == "i")
    sent = [c.bytes for c in dots[0].collectives if c.kind == "ragged-all-to-all"]
    over = {factor: mesh[axis] for axis, factor in claims.items()}
    sides = 256 // over.get("j", 1), 1024 // over.get("l", 1)  # that another axis may split
    assert sorted(sent) == sorted(local * side * F32 for side in sides)
    run = plan.jit(fn)
    for sizes in (
        (1, 600, 3, 0, 0, 0, 420, 0),
        (0, 0, 0, 0, 0, 1024, 0, 0),
        (9, 0, 0, 1, 2, 3, 4, 5),
    ):
        args = x, w, jnp.array(sizes, jnp.int32)
        for got, want in zip(jax.tree.leaves(run(*args)), jax.tree.leaves(fn(*args)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    found = plan.verify()
    assert found.ok, found  # gathers and scatters stand for a ragged all-to-all


def grouped_matmul(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    return megablox.gmm(x, w, sizes, jnp.float32, (128, 128, 128), interpret=True)


def grouped_gradients(x: jax.Array, w: jax.Array, sizes: jax.Array) -> tuple[jax.Array, ...]:
    return jax.grad(lambda x, w: jnp.sum(jnp.sin(grouped_matmul(x, w, sizes))), (0, 1))(x, w)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [EXPERTS, sw.Pin("w", 2, "model")], ids=["experts", "columns"])
def test_megablox(weights: sw.Pin) -> None:
    """gmm and tgmm are one op each: tokens over data, experts or columns over model."""
    x = jax.random.normal(jax.random.key(0), (1024, 128))
    w = jax.random.normal(jax.random.key(1), (GROUPS, 128, 256))
    first = jnp.array((256, 256, 256, 256), jnp.int32)
    plan = sw.partition(
        grouped_gradients, x, w, first, mesh=MESH, tactics=[TOKENS, weights], seconds=0.2
    )
    assert plan.record.opaque == {}
    rows = [row for row in plan.ir().rows if row.name.startswith("megablox")]
    assert [row.name for row in rows] == ["megablox_gmm", "megablox_gmm", "megablox_tgmm"]
    assert all({axis for axis, _ in row.claims} == {"data", "model"} for row in rows)
    assert plan.verify().ok
    run, alone = plan.jit(grouped_gradients), jax.jit(grouped_gradients)
    for sizes in ((1, 640, 3, 380), (0, 0, 1024, 0)):
        args = x, w, jnp.array(sizes, jnp.int32)
        for got, want in zip(run(*args), alone(*args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_rows_of_megablox_travel_to_their_experts() -> None:
    """Forward and backward: the tiles that come are of the groups here, in order."""
    x = jax.random.normal(jax.random.key(0), (1024, 128))
    w = jax.random.normal(jax.random.key(1), (16, 128, 512))
    first = jnp.full((16,), 64, jnp.int32)
    pins = [sw.Pin("w", 0, "model"), sw.Pin("x", 0, ("data", "model"))]
    plan = sw.partition(
        grouped_gradients, x, w, first, mesh={"data": 2, "model": 2}, device=SENDS,
        tactics=[*pins, sw.Replicate("sizes")], seconds=0.2,
    )  # fmt: skip
    rows = [row for row in plan.ir().rows if row.name.startswith("megablox")]
    run, alone = plan.jit(grouped_gradients), jax.jit(grouped_gradients)
    for sizes in ((1, 640, 3, 380, *[0] * 12), (*[0] * 13, 1024, 0, 0), (64,) * 16):
        args = x, w, jnp.array(sizes, jnp.int32)
        for got, want in zip(run(*args), alone(*args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    claims = [dict(row.claims)["model"] for row in rows]
    assert claims[:2] == ["i to l", "i to l"], claims


def some_groups(x: jax.Array, w: jax.Array, sizes: jax.Array, first: jax.Array) -> jax.Array:
    """Of the groups that rows are of, only as many as there are weights, from the first one on."""
    return megablox.gmm(x, w, sizes, jnp.float32, (128, 128, 128), first, interpret=True)


def groups_of_each_device(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    """Experts over model by hand, as MaxText has them: other devices' rows are zero, and summed."""

    def local(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        start = lax.axis_index("data") * len(x)
        ends = jnp.cumsum(sizes)
        ends, begins = (jnp.clip(edge, start, start + len(x)) for edge in (ends, ends - sizes))
        first = (lax.axis_index("model") * len(w)).astype(jnp.int32)
        out = some_groups(x, w, ends - begins, first)
        rows, edges = jnp.arange(len(x)), jnp.cumsum(ends - begins)
        low = jnp.where(first == 0, 0, edges[first - 1])
        mine = (rows >= low) & (rows < edges[first + len(w) - 1])
        return lax.psum(jnp.where(mine[:, None], out, 0), "model")

    specs = P("data"), P("model"), P()
    return jax.shard_map(local, in_specs=specs, out_specs=P("data"), check_vma=False)(x, w, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("written", ["an argument", "a number"])
def test_megablox_with_an_offset(written: str) -> None:
    """Rows split; groups stay where they are. The work is that of their rows, not of all."""
    x = jax.random.normal(jax.random.key(0), (1024, 128))
    w = jax.random.normal(jax.random.key(1), (GROUPS // 2, 128, 256))
    args = x, w, jnp.array((300, 200, 500, 24), jnp.int32), jnp.int32(1)

    def loss(x: jax.Array, w: jax.Array, sizes: jax.Array, first: jax.Array) -> jax.Array:
        first = jnp.array(1, jnp.int32) if written == "a number" else first
        return jnp.sum(jnp.sin(some_groups(x, w, sizes, first)))

    step = jax.grad(loss, (0, 1))
    plan = sw.partition(step, *args, mesh={"data": 4}, device="cpu", tactics=[TOKENS], seconds=0.2)
    assert plan.record.opaque == {}
    rows = [row for row in plan.ir().rows if row.name.startswith("megablox")]
    assert [dict(row.claims).keys() for row in rows] == [{"data"}] * 3
    for got, want in zip(plan.jit(step)(*plan.place(*args)), jax.jit(step)(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    (rule, *_) = [op.rule for op in sw.trace(some_groups, *args).ops if "gmm" in op.name]
    assert rule.work * np.prod(rule.sizes) == 2 * 1024 / 2 * 128 * 256


@pytest.mark.slow
def test_megablox_with_groups_that_were_split_by_hand() -> None:
    """Nothing is opaque, and no note says that other blocks would split it: it is split."""
    x = jax.random.normal(jax.random.key(0), (1024, 128))
    w = jax.random.normal(jax.random.key(1), (GROUPS, 128, 256))
    args = x, w, jnp.array((300, 200, 500, 24), jnp.int32)
    plan = sw.partition(groups_of_each_device, *args, mesh=MESH, device="cpu", seconds=0.2)
    assert plan.record.opaque == {} and not [n for n in plan.record.notes if "gmm" in n]
    got = plan.jit(groups_of_each_device)(*plan.place(*args))
    np.testing.assert_allclose(got, grouped_matmul(*args), rtol=1e-4, atol=1e-3)


def test_tiles_of_megablox_are_not_cut() -> None:
    """Rows in tiles of 128: 512 of them over 8 devices would cut tiles in two."""
    args = jnp.ones((512, 128)), jnp.ones((GROUPS, 128, 256)), jnp.array((128,) * 4, jnp.int32)
    rule = sw.trace(grouped_matmul, *args).ops[0].rule
    assert str(rule).startswith("([ij,k],[l,k,m],[n])->([ij,m]) {i=4,j=128")
    assert "need_replication={j,n}" in str(rule)


def sorted_experts(x: jax.Array, router: jax.Array, w: jax.Array) -> jax.Array:
    """One expert per token."""
    choice = jnp.argmax(x @ router, axis=-1)
    order, sizes = jnp.argsort(choice), jnp.bincount(choice, length=GROUPS)
    return lax.ragged_dot(x[order], w, sizes)[jnp.argsort(order)]


def sorted_on_each_device(x: jax.Array, router: jax.Array, w: jax.Array) -> jax.Array:
    specs = P("data"), P(), P()
    return jax.shard_map(sorted_experts, in_specs=specs, out_specs=P("data"))(x, router, w)


def sorted_and_numbered(x: jax.Array, router: jax.Array, w: jax.Array) -> jax.Array:
    """Where a row stands among those of all experts is added to it: it sees the order."""
    choice = jnp.argmax(x @ router, axis=-1)
    order, sizes = jnp.argsort(choice), jnp.bincount(choice, length=GROUPS)
    sent = x[order] + jnp.arange(len(x), dtype=x.dtype)[:, None]
    return lax.ragged_dot(sent, w, sizes)[jnp.argsort(order)]


def test_sorting_on_each_device_gives_the_same_and_moves_nothing() -> None:
    """A plan does it by itself; where the order is seen it says so, and at which lines."""
    args = X, jax.random.normal(jax.random.key(2), (K, GROUPS)), W
    pins = [sw.Pin("x", 0, "data"), sw.Replicate("w")]
    own = sw.partition(sorted_experts, *args, mesh=MESH, tactics=pins, seconds=0.2)
    assert not own.collectives and not any("sorted" in note for note in own.record.notes)
    everywhere = sw.partition(sorted_and_numbered, *args, mesh=MESH, tactics=pins, seconds=0.2)
    (note,) = [note for note in everywhere.record.notes if "sorted" in note]
    assert "ragged_dot_general at test_ragged.py" in note and "jax.shard_map" in note
    assert "add at test_ragged.py" in note and "looks at their order" in note
    plan = sw.partition(sorted_on_each_device, *args, mesh=MESH, tactics=pins, seconds=0.2)
    assert not plan.collectives and not any("sorted" in note for note in plan.record.notes)
    got = plan.jit(sorted_on_each_device)(*plan.place(*args))
    np.testing.assert_allclose(got, sorted_experts(*args), rtol=1e-5, atol=1e-5)


def test_rows_that_no_axis_divides_stay_whole() -> None:
    """Each device multiplies its shard in a shard_map, which pads nothing."""

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.ragged_dot(jnp.sin(x), w, jnp.array([5, 8], jnp.int32)) / 6

    x, w = np.ones((13, 6), np.float32), np.ones((2, 6, 12), np.float32)
    plan = sw.partition(
        fn, x, w, mesh={"x": 3, "y": 2}, device=DEVICES["balanced"], tactics=[sw.Pin("w", 1, "x")]
    )
    assert plan.verify(run=True).ok
