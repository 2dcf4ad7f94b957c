"""Manual regions as people write them: planned, run on host devices, equal to plain JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardwright as sw
from tests.plans.runs import DEVICES

N = 4  # devices of the axis that sends
DATA_MODEL, STAGES = {"data": N, "model": 2}, {"stage": N, "data": 2}
RING = [(d, (d + 1) % N) for d in range(N)]
HEADS_SPLIT, TOKENS = P(None, "data", "model"), P("data", "model")


def manual(in_specs: Any, out_specs: Any, **how: Any) -> Callable[..., Any]:
    """A decorator: the function in a shard_map that gets the mesh of the plan."""

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(body)
        def call(*args: Any) -> Any:
            return jax.shard_map(body, in_specs=in_specs, out_specs=out_specs, **how)(*args)

        return call

    return decorate


@manual((HEADS_SPLIT,) * 3, HEADS_SPLIT)
def ring_attention(q: Any, k: Any, v: Any) -> Any:
    """Causal, keys and values going round; the softmax is corrected as blocks come in."""
    (batch, rows, heads, width), me = q.shape, lax.axis_index("data")

    def step(carry: Any, trip: Any) -> Any:
        total, largest, weight, k, v = carry
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width)
        row, column = me * rows + jnp.arange(rows), (me - trip) % N * rows + jnp.arange(rows)
        scores = jnp.where(row[:, None] >= column, scores, -1e30)
        now = jnp.maximum(largest, scores.max(-1))
        share, old = jnp.exp(scores - now[..., None]), jnp.exp(largest - now)
        total = total * old[..., None] + jnp.einsum("bhqk,bkhd->bhqd", share, v)
        k, v = (lax.ppermute(x, "data", RING) for x in (k, v))
        return (total, now, weight * old + share.sum(-1), k, v), None

    start = (
        jnp.zeros((batch, heads, rows, width)), jnp.full((batch, heads, rows), -1e30),
        jnp.zeros((batch, heads, rows)),
    )  # fmt: skip
    start = lax.pcast(start, ("data", "model"), to="varying")
    (total, _, weight, _, _), _ = lax.scan(step, (*start, k, v), jnp.arange(N))
    return jnp.swapaxes(total / weight[..., None], 1, 2)


@manual((P(None, "data"),) * 3, P(None, "data"), axis_names={"data"}, check_vma=False)
def ring_beside_automatic_axes(q: Any, k: Any, v: Any) -> Any:
    """A loop with numbers of its own; heads are for the plan to split."""

    def step(_: Any, carry: Any) -> Any:
        total, k, v = carry
        shares = jax.nn.sigmoid(jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.1)
        total = total + jnp.einsum("bhqk,bkhd->bqhd", shares, v)
        return total, *(lax.ppermute(x, "data", RING) for x in (k, v))

    return lax.fori_loop(0, N, step, (jnp.zeros_like(q), k, v))[0]


@manual((P("model", "data"),) * 3, P("model", "data"))
def ulysses(q: Any, k: Any, v: Any) -> Any:
    """Heads for tokens by an all-to-all, and back."""
    q, k, v = (lax.all_to_all(x, "data", 2, 1, tiled=True) for x in (q, k, v))
    out = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return lax.all_to_all(out, "data", 1, 2, tiled=True)


@manual((TOKENS, P(None, "model"), P("model")), TOKENS)
def gathered_and_scattered(x: Any, w1: Any, w2: Any) -> Any:
    x = lax.all_gather(x, "model", axis=1, tiled=True)
    return lax.psum_scatter(jax.nn.gelu(x @ w1) @ w2, "model", scatter_dimension=1, tiled=True)


@manual((P("data"), P("data", None, "model"), P("data", "model"), P()), P("data"))
def experts(x: Any, w1: Any, w2: Any, router: Any) -> Any:
    """Buffers of a fixed size, sent to the devices of their experts and back."""
    capacity = 16
    gates = jax.nn.softmax(x @ router)
    chosen = jax.nn.one_hot(jnp.argmax(gates, -1), N)
    place = (jnp.cumsum(chosen, 0) * chosen - chosen).sum(-1).astype(int)
    dispatch = chosen[:, :, None] * jax.nn.one_hot(place, capacity)[:, None, :]
    sent = lax.all_to_all(jnp.einsum("tec,td->ecd", dispatch, x), "data", 0, 1, tiled=True)
    hidden = jax.nn.silu(jnp.einsum("ecd,edf->ecf", sent, w1))
    done = lax.psum(jnp.einsum("ecf,efd->ecd", hidden, w2), "model")
    back = lax.all_to_all(done, "data", 1, 0, tiled=True)
    return jnp.einsum("tec,ecd->td", dispatch * gates.max(-1)[:, None, None], back)


@manual((P("stage"), P("stage")), P("stage"), axis_names={"stage"}, check_vma=False)
def pipeline(x: Any, w: Any) -> Any:
    """Microbatches through stages; the batch is for the plan to split."""
    stage, every = lax.axis_index("stage"), lax.all_gather(x[0], "stage")

    def step(t: Any, carry: Any) -> Any:
        state, done = carry
        state = jnp.where(stage == 0, every[jnp.clip(t, 0, N - 1)], state)
        state = jnp.tanh(state @ w[0])
        ends = (stage == N - 1) & (t >= N - 1)
        done = jnp.where(ends, done.at[jnp.clip(t - N + 1, 0, N - 1)].set(state), done)
        return lax.ppermute(state, "stage", RING), done

    _, done = lax.fori_loop(0, 2 * N - 1, step, (jnp.zeros_like(every[0]), jnp.zeros_like(every)))
    return lax.psum_scatter(jnp.where(stage == N - 1, done, 0.0), "stage", tiled=True)


def unchecked(x: Any, w: Any) -> Any:
    """Every collective in a scan, without the check of what varies."""
    rows = P(("data", "model"))

    @manual((rows, P()), (rows, P()), check_vma=False)
    def mapped(x: Any, w: Any) -> Any:
        def step(x: Any, _: None) -> Any:
            x = jnp.tanh(x @ w)
            every = lax.all_gather(x, "model", axis=0, tiled=True)
            half = lax.psum_scatter(every, "model", scatter_dimension=0, tiled=True) / 2
            largest = lax.pmax(lax.stop_gradient(x.sum()), "data")
            return x + half + lax.axis_index("data"), largest

        return lax.scan(step, x, None, length=3)

    x, largest = mapped(x, w)
    return x + largest.sum()


@manual((P("data", "model"), P("model")), P("data"))
def multiplied(x: Any, w: Any) -> Any:
    return jnp.tanh(lax.psum(x @ w, "model"))


def in_remat_in_scan(x: Any, w: Any) -> Any:
    layer = jax.checkpoint(lambda x, _: (multiplied(x, w) + x, None))
    return lax.scan(layer, x, None, length=3)[0]


def in_vmap(x: Any, w: Any) -> Any:
    return jax.vmap(multiplied, (0, None))(jnp.stack([x, -x]), w)


@manual((P("data"), P()), P("data"), axis_names={"data"})
def nested(x: Any, w: Any) -> Any:
    """Not differentiated: JAX 0.10 cannot lower the gradient of this, planned or not."""
    summed = manual((P(None, "model"), P("model")), P(), axis_names={"model"})(
        lambda x, w: lax.psum(x @ w, "model")
    )(x, w)
    return lax.pmean(summed, "data") * 0.5 + summed


QKV, XW = [(8, 64, 4, 16)] * 3, [(64, 32), (32, 32)]
# function: shapes of its arguments, mesh
PROGRAMS: dict[Callable[..., Any], tuple[list[tuple[int, ...]], dict[str, int]]] = {
    ring_attention: (QKV, DATA_MODEL),
    ring_beside_automatic_axes: (QKV, DATA_MODEL),
    ulysses: (QKV, DATA_MODEL),
    gathered_and_scattered: ([(64, 32), (32, 64), (64, 32)], DATA_MODEL),
    experts: ([(64, 32), (4, 32, 64), (4, 64, 32), (32, 4)], DATA_MODEL),
    pipeline: ([(4, 2, 64, 32), (4, 32, 32)], STAGES),
    unchecked: (XW, DATA_MODEL),
    in_remat_in_scan: (XW, DATA_MODEL),
    in_vmap: (XW, DATA_MODEL),
    nested: (XW, DATA_MODEL),
}  # fmt: skip
FORWARD = (nested,)


@pytest.mark.slow
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_a_manual_program_and_its_gradient(fn: Callable[..., Any]) -> None:
    shapes, mesh = PROGRAMS[fn]
    args = [jax.random.normal(jax.random.key(i), s) / 2 for i, s in enumerate(shapes)]

    def loss(*args: Any) -> Any:
        out = fn(*args)
        return jnp.sum(out * jnp.cos(jnp.arange(out.size)).reshape(out.shape))

    step = loss if fn in FORWARD else jax.value_and_grad(loss, tuple(range(len(args))))
    plan = sw.partition(step, *args, mesh=mesh, device=DEVICES["fast links"], seconds=0.2)
    assert plan.record.opaque == {}
    got = plan.jit(step)(*plan.place(*args))
    kinds = (AxisType.Auto,) * len(mesh)
    with jax.set_mesh(jax.make_mesh(tuple(mesh.values()), tuple(mesh), axis_types=kinds)):
        alone = jax.jit(step)(*args)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
