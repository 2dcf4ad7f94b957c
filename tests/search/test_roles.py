"""The batch is what the data counts, however the step goes over it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import shardwright as sw
from shardwright.search.roles import find_roles
from tests.arrays import f32

V, D, H, K, S, B, N = 512, 64, 4, 16, 32, 64, 4


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "int32")


PARAMS = {"embed": f32(V, D), **{n: f32(D, H, K) for n in "qkv"}, "o": f32(H, K, D)}
TOKENS = {"t": i32(B, S), "y": i32(B, S)}
MICRO = {"t": i32(N, B // N, S), "y": i32(N, B // N, S)}
TIME_MAJOR = {"t": i32(S, B), "y": i32(S, B)}
TOWERS = {side: {"a": f32(D, 256), "b": f32(256, D)} for side in ("query", "document")}


def attention_loss(p: Any, t: Any, y: Any, data: str = "bs") -> jax.Array:
    """One layer with a tied vocabulary; `data` orders examples and positions."""
    x = p["embed"][t]
    q, k, v = (jnp.einsum(f"{data}d,dhk->{data}hk", x, p[n]) for n in "qkv")
    keys = data.replace("s", "z")
    a = jax.nn.softmax(jnp.einsum(f"{data}hk,{keys}hk->bhsz", q, k))
    x = x + jnp.einsum(f"bhsz,{keys}hk,hkd->{data}d", a, v, p["o"])
    logits = jax.nn.log_softmax(x @ p["embed"].T)
    return -jnp.take_along_axis(logits, y[..., None], -1).mean()


def updated(p: Any, grads: Any) -> Any:
    return jax.tree.map(lambda a, g: a - 0.1 * g, p, grads)


def plain(p: Any, batch: Any, data: str = "bs") -> Any:
    loss, grads = jax.value_and_grad(attention_loss)(p, batch["t"], batch["y"], data)
    return updated(p, grads), loss


def time_major(p: Any, batch: Any) -> Any:
    return plain(p, batch, "sb")


def scanned(p: Any, batch: Any) -> Any:
    def body(total: Any, micro: Any) -> Any:
        grads = jax.grad(attention_loss)(p, micro["t"], micro["y"])
        return jax.tree.map(jnp.add, total, grads), None

    return updated(p, lax.scan(body, jax.tree.map(jnp.zeros_like, p), batch)[0])


def reshaped(p: Any, batch: Any) -> Any:
    return scanned(p, jax.tree.map(lambda a: a.reshape(N, B // N, S), batch))


def interleaved(p: Any, batch: Any) -> Any:
    micro = jax.tree.map(lambda a: a.reshape(B // N, N, S).swapaxes(0, 1), batch)
    return scanned(p, micro)


def counted(p: Any, take: Any) -> Any:
    def body(i: Any, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, jax.grad(attention_loss)(p, *take(i)))

    return updated(p, lax.fori_loop(0, N, body, jax.tree.map(jnp.zeros_like, p)))


def indexed(p: Any, batch: Any) -> Any:
    return counted(p, lambda i: (batch["t"][i], batch["y"][i]))


def sliced(p: Any, batch: Any) -> Any:
    size = B // N
    return counted(
        p, lambda i: [lax.dynamic_slice_in_dim(batch[n], i * size, size) for n in ("t", "y")]
    )


def two_towers(p: Any, batch: Any) -> Any:
    def loss(p: Any) -> jax.Array:
        q, d = (jax.nn.relu(batch[s] @ p[s]["a"]) @ p[s]["b"] for s in ("query", "document"))
        return -jnp.diag(jax.nn.log_softmax(q @ d.T)).mean()

    return updated(p, jax.grad(loss)(p))


def policy(p: Any, batch: Any) -> Any:
    def loss(p: Any) -> jax.Array:
        chosen = jax.nn.log_softmax(jax.nn.relu(batch["seen"] @ p["a"]) @ p["b"])
        _, returns = lax.scan(
            lambda total, r: (r + 0.9 * total,) * 2, jnp.zeros(B), batch["reward"], reverse=True
        )
        return -(jnp.take_along_axis(chosen, batch["act"][..., None], -1)[..., 0] * returns).mean()

    return updated(p, jax.grad(loss)(p))


def translation(p: Any, batch: Any) -> Any:
    """An encoder-decoder: positions of two kinds, one batch."""

    def loss(p: Any) -> jax.Array:
        source, target = p["embed"][batch["source"]], p["embed"][batch["target"]]
        q = jnp.einsum("btd,dhk->bthk", target, p["q"])
        k, v = (jnp.einsum("bsd,dhk->bshk", source, p[n]) for n in "kv")
        a = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, k))
        x = target + jnp.einsum("bhts,bshk,hkd->btd", a, v, p["o"])
        return -jax.nn.log_softmax(x @ p["embed"].T)[..., 0].mean()

    return updated(p, jax.grad(loss)(p))


def decode(p: Any, batch: Any, write: Any, read: Any = lambda cache: cache) -> Any:
    """One token for each slot of a server, each at a position of its own; some slots are empty."""
    at = batch["at"]
    x = p["embed"][batch["t"]]
    q, *new = (jnp.einsum("bd,dhk->bhk", x, p[n]) for n in "qkv")
    caches = [write(batch[n], a, at) for n, a in zip("kv", new, strict=True)]
    k, v = map(read, caches)
    scores = jnp.einsum("bhk,bshk->bhs", q, k)
    scores = jnp.where(jnp.arange(k.shape[1]) <= at[:, None, None], scores, -1e9)
    x = x + jnp.einsum("bhs,bshk,hkd->bd", jax.nn.softmax(scores), v, p["o"])
    best = jnp.argmax(x @ p["embed"].T, -1)
    return caches, jnp.where(batch["live"], best, batch["t"]), at + batch["live"]


def slots(p: Any, batch: Any) -> Any:
    return decode(p, batch, lambda cache, a, at: cache.at[jnp.arange(B), at].set(a))


def slots_sliced(p: Any, batch: Any) -> Any:
    def write(cache: Any, a: Any, at: Any) -> Any:
        one = lambda c, a, i: lax.dynamic_update_slice(c, a[None], (i, 0, 0))  # noqa: E731
        return jax.vmap(one)(cache, a, at)

    return decode(p, batch, write)


def slots_time_major(p: Any, batch: Any) -> Any:
    write = lambda cache, a, at: cache.at[at, jnp.arange(B)].set(a)  # noqa: E731
    return decode(p, batch, write, lambda cache: cache.swapaxes(0, 1))


def paged(p: Any, batch: Any) -> Any:
    table = batch["table"]

    def write(pages: Any, a: Any, at: Any) -> Any:
        return pages.at[table[jnp.arange(B), at // 8], at % 8].set(a)

    return decode(p, batch, write, lambda pages: pages[table].reshape(B, -1, H, K))


SLOT = {"t": i32(B), "at": i32(B), "live": jax.ShapeDtypeStruct((B,), "bool")}


def cached(*shape: int) -> dict[str, Any]:
    return {"k": f32(*shape, H, K), "v": f32(*shape, H, K), **SLOT}


@pytest.mark.parametrize(
    "fn, params, batch, size, dims",
    [
        (plain, PARAMS, TOKENS, B, ["batch['t'][0]"]),
        (time_major, PARAMS, TIME_MAJOR, B, ["batch['t'][1]"]),
        (scanned, PARAMS, MICRO, B // N, ["batch['t'][1]"]),
        (reshaped, PARAMS, TOKENS, B // N, ["batch['t'][0]"]),
        (interleaved, PARAMS, TOKENS, B // N, ["batch['t'][0]"]),
        (indexed, PARAMS, MICRO, B // N, ["batch['t'][1]"]),
        (sliced, PARAMS, TOKENS, B // N, [None]),  # a slice: no dim of an argument
        (two_towers, TOWERS, {"query": f32(B, D), "document": f32(B, D)}, B,
         ["batch['query'][0]", "batch['document'][0]"]),
        (policy, {"a": f32(D, 256), "b": f32(256, 16)},
         {"seen": f32(S, B, D), "reward": f32(S, B), "act": i32(S, B)}, B,
         ["batch['seen'][1]"]),
        (translation, PARAMS, {"source": i32(B, S), "target": i32(B, 2 * S)}, B,
         ["batch['source'][0]"]),
        (slots, PARAMS, cached(B, S), B, ["batch['k'][0]"]),
        (slots_sliced, PARAMS, cached(B, S), B, ["batch['k'][0]"]),
        (slots_time_major, PARAMS, cached(S, B), B, ["batch['k'][1]"]),
        (paged, PARAMS, {**cached(2 * B * S // 8, 8), "table": i32(B, S // 8)}, B,
         ["batch['table'][0]"]),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)  # fmt: skip
def test_batch(fn: Any, params: Any, batch: Any, size: int, dims: list[str | None]) -> None:
    analysis = sw.analyze(fn, params, batch)
    found = [analysis.all_groups[g] for g in find_roles(analysis).batch]
    assert len(found) == len(dims)
    for group, dim in zip(found, dims, strict=True):
        assert group.sizes == (size,)
        assert dim in group.dims if dim else not group.dims


def test_fsdp_applies_to_a_batch_that_is_reshaped_to_microbatches() -> None:
    inside, outside = (
        sw.partition(fn, PARAMS, batch, mesh={"data": 8}, device="h100", seconds=0.05)
        for fn, batch in ((reshaped, TOKENS), (scanned, MICRO))
    )
    for tactic in ("DataParallel(data)", "FSDP(data)"):
        a, b = inside.baselines[tactic], outside.baselines[tactic]
        assert a.step_s == pytest.approx(b.step_s, rel=0.05)  # the data itself is moved
    fsdp, replicated = (inside.baselines[t] for t in ("FSDP(data)", "DataParallel(data)"))
    assert fsdp.peak_bytes < replicated.peak_bytes


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_each_layer_has_a_hidden_dim_of_its_own(layers: int) -> None:
    """The layers' hidden dims are one group, on every matrix; only the residual is one color."""

    def mlp(params: Any, x: jax.Array) -> jax.Array:
        for w in params:
            x = x + jax.nn.relu(x @ w["a"]) @ w["b"]
        return x

    analysis = sw.analyze(mlp, [TOWERS["query"]] * layers, f32(B, D))
    roles = find_roles(analysis)
    assert [analysis.all_groups[g].size for g in roles.hidden] == [256]
