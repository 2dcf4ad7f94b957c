"""Rows that each device sorts for itself: the same numbers, and nothing moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import shardwright as sw
from tests.plans import expert_programs as experts

MESH = {"data": 4, "model": 2}
TINY = experts.TINY
TILED = TINY._replace(seq=64, width=128, hidden=128)
BATCH = [sw.Pin("x", 0, ("data", "model"))]
# Tokens over both axes, over one of them, experts over the other, both over one.
TACTICS = {
    "tokens": BATCH,
    "columns": [sw.Pin("x", 0, "data"), sw.Pin("w['w1']", 2, "model")],
    "experts": [sw.Pin("x", 0, "data"), sw.Pin("w['w1']", 0, "model")],
    "experts and tokens": [*BATCH, sw.Pin("w['w1']", 0, "model"), sw.Pin("w['w2']", 0, "model")],
}
STORED = {
    "weights": [*BATCH, *(sw.Pin(f"w['{w}']", d, ("data", "model")) for w, d in
                          (("w1", 2), ("w3", 2), ("w2", 1)))],
}  # fmt: skip


def drawn(sizes: experts.Sizes) -> Any:
    shapes = experts.arguments(sizes, jnp.float32)
    leaves, tree = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    rows = zip(keys, leaves, strict=True)
    return jax.tree.unflatten(tree, [jax.random.normal(k, s.shape) * 0.2 for k, s in rows])


def same(plan: sw.Plan, fn: Callable[..., Any], args: Any) -> None:
    got, want = plan.jit(fn)(*plan.place(*args)), jax.jit(fn)(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


CASES = [
    *((style, "tokens") for style in experts.STYLES),
    *(("unsorted", tactics) for tactics in TACTICS if tactics != "tokens"),
    ("segmented", "experts"),
    ("tiled", "experts and tokens"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("style", "tactics"), CASES)
def test_numbers(style: str, tactics: str) -> None:
    sizes = TILED if style == "tiled" else TINY
    args = drawn(sizes)
    for make in (experts.layer, experts.gradients):
        fn = make(style, sizes)
        plan = sw.partition(fn, *args, mesh=MESH, tactics=TACTICS[tactics], seconds=0.2)
        same(plan, fn, args)


@pytest.mark.parametrize("style", [s for s in experts.STYLES if s != "each_sequence"])
def test_tokens_never_move(style: str) -> None:
    """Forward and backward; only gradients of weights are summed."""
    sizes = experts.MIXTRAL
    for make in (experts.layer, experts.gradients):
        given = experts.arguments(sizes)
        plan = sw.partition(make(style, sizes), *given, mesh=MESH, device="tpu-v5p", tactics=BATCH)
        rows = sizes.batch * sizes.seq // 8
        assert not any(c.bytes > 2**25 for c in plan.collectives if c.kind == "all-to-all")
        dots = [row for row in plan.ir().rows if "ragged" in row.name or "megablox" in row.name]
        assert dots and all({"data", "model"} <= set(dict(row.claims)) for row in dots)
        if make is experts.layer:
            assert sum(c.bytes for c in plan.collectives) < rows
        assert not any("sorted" in note for note in plan.record.notes)


@pytest.mark.slow
def test_bytes_of_stored_weights() -> None:
    """Gradients of weights that both axes store are scattered over one, then over the other."""
    sizes = TINY._replace(seq=64, width=128, hidden=256)
    fn, args = experts.gradients("unsorted", sizes), experts.arguments(sizes, jnp.float32)
    plan = sw.partition(fn, *args, mesh=MESH, device="tpu-v5e", tactics=STORED["weights"])
    assert {c.kind for c in plan.collectives if c.bytes > 4096} == {"all-gather", "reduce-scatter"}
    found = plan.verify(run=True)
    assert found.ok and found.numbers_agree, found


def moe(
    w: experts.Weights, x: jax.Array, *,
    sizes_of: Callable[..., Any] = lambda flat: jnp.bincount(flat, length=4),
    between: Callable[..., Any] = lambda rows: rows, back: bool = True,
) -> jax.Array:  # fmt: skip
    rows = x.reshape(-1, x.shape[-1])
    _, choices = experts.route(w, rows, 2)
    flat = choices.reshape(-1)
    order = jnp.argsort(flat)
    done = experts.gated(w, between(rows[order // 2]), sizes_of(flat))
    return done[jnp.argsort(order)] if back else done


ODD = jnp.arange(TINY.batch * TINY.seq * TINY.top_k) % 2
COUNT = "bincount"
SEEN: dict[str, tuple[dict[str, Any], str]] = {
    "accumulated": ({"between": lambda rows: rows + jnp.cumsum(rows, 0)}, "cumsum at test_own"),
    "masked by place": (
        {"between": lambda rows: jnp.where(jnp.arange(len(rows))[:, None] < 9, rows, 0)},
        "select_n at test_own",
    ),
    "rolled": ({"between": lambda rows: jnp.roll(rows, 1, 0)}, "looks at their order"),
    "random by place": (
        {"between": lambda rows: rows * jax.random.normal(jax.random.key(0), rows.shape)},
        "mul at test_own",
    ),
    "cut": ({"between": lambda rows: jnp.tile(rows[:128], (2, 1))}, "slice at test_own"),
    "returned": ({"back": False}, "they are returned"),
    "other sizes": ({"sizes_of": lambda flat: jnp.full((4,), len(flat) // 4)}, COUNT),
    "sizes of half": ({"sizes_of": lambda flat: jnp.bincount(flat[::2], length=4)}, COUNT),
    "shifted": ({"sizes_of": lambda flat: jnp.bincount((flat + 1) % 4, length=4)}, COUNT),
    "joined": ({"sizes_of": lambda flat: jnp.bincount(jnp.minimum(flat, 2), length=4)}, COUNT),
    "reversed": ({"sizes_of": lambda flat: jnp.bincount(flat, length=4)[::-1]}, COUNT),
    "weighted": (
        {"sizes_of": lambda flat: jnp.sum(jax.nn.one_hot(flat, 4, dtype=int) * ODD[:, None], 0)},
        COUNT,
    ),
}


@pytest.mark.parametrize("how", SEEN)
def test_what_sees_the_order_keeps_it(how: str) -> None:
    """The sort is over the whole batch then, and the plan says why."""
    given, why = SEEN[how]
    args = experts.arguments(TINY, jnp.float32)
    program = sw.trace(lambda w, x: moe(w, x, **given), *args)
    assert all(op.rule.own is None and op.sorted_by is None for op in program.ops)
    assert why in next(iter(program.unsorted.values()))


def test_numbers_that_are_no_group() -> None:
    """Below 0 they are of group 0, as bincount clips; above the last one they are of none."""

    def fn(x: jax.Array, w: jax.Array, groups: jax.Array) -> jax.Array:
        order = jnp.argsort(groups)
        sizes = jnp.bincount(groups, length=4)
        return jax.lax.ragged_dot(x[order], w, sizes)[jnp.argsort(order)]

    keys = jax.random.split(jax.random.key(0), 3)
    x, w = jax.random.normal(keys[0], (64, 8)), jax.random.normal(keys[1], (4, 8, 16))
    args = x, w, jax.random.randint(keys[2], (64,), -2, 6)
    plan = sw.partition(fn, *args, mesh={"data": 8}, tactics=[sw.Pin("x", 0, "data")])
    assert not plan.collectives
    same(plan, fn, args)


def test_an_order_that_a_checkpoint_saves() -> None:
    """The order is kept from the forward pass, the dots are made again in the backward pass."""

    def layer(w: Any, x: jax.Array) -> jax.Array:
        rows = x.reshape(-1, x.shape[-1])
        _, choices = experts.route(w, rows, 2)
        flat = choices.reshape(-1)
        order = checkpoint_name(jnp.argsort(flat), "order")
        sizes = checkpoint_name(jnp.bincount(flat, length=4), "sizes")
        done = experts.gated(w, rows[order // 2], sizes)
        return done[jnp.argsort(order)].reshape(len(rows), 2, -1).sum(1)

    policy = jax.checkpoint_policies.save_only_these_names("order", "sizes")
    kept = jax.checkpoint(layer, policy=policy)
    fn = jax.grad(lambda w, x: jnp.sum(jnp.sin(kept(w, x))), (0, 1))
    args = drawn(TINY)
    plan = sw.partition(fn, *args, mesh=MESH, tactics=BATCH, seconds=0.2)
    assert not any("sorted" in note for note in plan.record.notes)
    same(plan, fn, args)


@jax.custom_vjp
def permuted(rows: jax.Array, groups: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows by their group, and the order: a gather is the gradient of a gather."""
    order = jnp.argsort(groups)
    return rows[order], order


def _permuted(rows: jax.Array, groups: jax.Array) -> Any:
    out, order = permuted(rows, groups)
    return (out, order), order


permuted.defvjp(_permuted, lambda order, given: (given[0][jnp.argsort(order)], None))


def sorted_in(call: Callable[..., Any]) -> Callable[..., Any]:
    def loss(w: Any, x: jax.Array) -> jax.Array:
        rows = x.reshape(-1, x.shape[-1])
        groups = jnp.argmax(rows @ w["router"], axis=-1)
        sent, order = call(rows, groups)
        done = experts.gated(w, sent, jnp.bincount(groups, length=len(w["w1"])))
        return jnp.sum(jnp.sin(done[jnp.argsort(order)]))

    return loss


def test_a_sort_in_a_call_that_is_kept() -> None:
    """With a gradient of its own: rows stay. In a jax.checkpoint: the sort stays as it is."""
    args = drawn(TINY)
    for fn in (sorted_in(permuted), jax.grad(sorted_in(permuted), (0, 1))):
        plan = sw.partition(fn, *args, mesh=MESH, tactics=BATCH, seconds=0.2)
        assert not any("sorted" in note for note in plan.record.notes)
        same(plan, fn, args)
    kept = sorted_in(jax.checkpoint(lambda rows, by: (rows[jnp.argsort(by)], jnp.argsort(by))))
    fn = jax.grad(kept, (0, 1))
    same(sw.partition(fn, *args, mesh=MESH, tactics=BATCH, seconds=0.2), fn, args)


@pytest.mark.slow
@pytest.mark.parametrize("remat", [True, False])
def test_layers_in_a_scan(remat: bool) -> None:
    """With jax.checkpoint each trip sorts again; without it the order leaves the loop as it is."""
    step = experts.layer("unsorted", TINY)
    body = jax.checkpoint(step) if remat else step

    def fn(layers: Any, x: jax.Array) -> Any:
        def loss(layers: Any, x: jax.Array) -> jax.Array:
            x, _ = jax.lax.scan(lambda x, w: (body(w, x), None), x, layers)
            return jnp.sum(jnp.sin(x))

        return jax.grad(loss)(layers, x)

    w, x = drawn(TINY)
    layers = jax.tree.map(lambda a: jnp.stack([a, a[::-1]]), w)
    plan = sw.partition(fn, layers, x, mesh=MESH, tactics=BATCH, seconds=0.2)
    found = [note for note in plan.record.notes if "are sorted over the whole batch" in note]
    assert len(found) == (0 if remat else 1)
    same(plan, fn, (layers, x))


@pytest.mark.parametrize("device", ["tpu-v5p", "h100"])
@pytest.mark.parametrize("make", [experts.layer, experts.gradients])
def test_faster_than_experts_that_multiply_every_token(
    make: Callable[..., Any], device: str
) -> None:
    """A sorted layer of Mixtral's size, beside the one-hot form; 1/4 of its products."""
    mesh, given = {"data": 4, "model": 4}, experts.arguments(experts.MIXTRAL)
    step_s = {
        style: sw.partition(
            make(style, experts.MIXTRAL), *given, mesh=mesh, device=device
        ).cost.step_s
        for style in ("unsorted", "one_hot")
    }
    assert step_s["unsorted"] < step_s["one_hot"] / 2
