"""Models with kernels and manual regions are planned as fast as the same models in plain JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.experimental.pallas.ops.tpu.megablox import ops as megablox
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.rules.grouped import GROUPED_DOTS
from shardwright.zoo import transformer

OPTIONS: dict[str, Any] = {"mesh": {"data": 4, "model": 4}, "device": "tpu-v5e"}
BOTH = ("data", "model")

plain = transformer.attend


def splashed(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Causal, as MaxText calls it: heads before the sequence, batch by vmap."""
    length, heads = q.shape[1], q.shape[2]
    masks = splash.MultiHeadMask([splash.CausalMask((length, length))] * heads)
    kernel = splash.make_splash_mha(masks, head_shards=1, q_seq_shards=1)
    scaled = q / jnp.asarray(q.shape[3] ** 0.5, q.dtype)
    out = jax.vmap(kernel)(*(jnp.swapaxes(x, 1, 2) for x in (scaled, k, v)))
    return jnp.swapaxes(out, 1, 2)


def manual(attend: Callable[..., Any]) -> Callable[..., Any]:
    """Attention in a shard_map over the batch."""

    def mapped(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        rows = P(BOTH)
        specs = (rows,) * 3 + (P(),)
        return jax.shard_map(attend, in_specs=specs, out_specs=rows, check_vma=False)(q, k, v, mask)

    return mapped


CONFIG = replace(
    transformer.PRESETS["tiny"], layers=8, d_model=2048, d_ff=8192, heads=16, kv_heads=16,
    d_head=128, vocab=32_768, seq=2048, batch=32, remat=True, scan=True, dtype=jnp.bfloat16,
)  # fmt: skip


def decoder(attend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> sw.Plan:
    monkeypatch.setattr(transformer, "attend", attend)
    step = transformer.train(CONFIG)
    return sw.partition(step.fn, *step.args, donate_argnums=step.donate_argnums, **OPTIONS)


@pytest.mark.slow
def test_a_decoder_with_its_attention_in_a_shard_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """In plain JAX the same to 1%; with splash attention, bare or in a shard_map, faster."""
    kinds = {
        "plain": plain, "manual": manual(plain), "splash": splashed,
        "splash, manual": manual(splashed),
    }  # fmt: skip
    plans = {name: decoder(attend, monkeypatch) for name, attend in kinds.items()}
    step_s = {name: plan.cost.step_s for name, plan in plans.items()}
    print({name: f"{1e3 * s:.1f} ms" for name, s in step_s.items()})
    assert all(plan.record.opaque == {} for plan in plans.values())
    assert step_s["manual"] <= 1.01 * step_s["plain"]
    assert step_s["splash"] < step_s["plain"]
    assert step_s["splash, manual"] <= 1.01 * step_s["splash"]
    memory = {name: plan.cost.peak_bytes for name, plan in plans.items()}
    assert memory["manual"] <= 1.05 * memory["plain"]


ROWS, WIDTH, HIDDEN, EXPERTS = 131_072, 4096, 14_336, 8
MIXTRAL = [(ROWS, WIDTH), (EXPERTS, WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH)]


def tensors(*shapes: tuple[int, ...]) -> list[Any]:
    return [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]


def loss_of(multiply: Callable[..., Any]) -> Callable[..., Any]:
    def loss(x: Any, w1: Any, w2: Any, sizes: Any) -> Any:
        return jnp.sum(multiply(jax.nn.silu(multiply(x, w1, sizes)), w2, sizes) ** 2)

    return jax.grad(loss, (0, 1, 2))


def every_expert(x: Any, w: Any, sizes: Any) -> Any:
    """In plain JAX: every expert multiplies every row, and a mask picks."""
    ends = jnp.cumsum(sizes)
    group = jnp.searchsorted(ends, jnp.arange(ROWS), side="right")
    mine = (group[:, None] == jnp.arange(EXPERTS)).astype(x.dtype)
    return jnp.einsum("tk,ekn,te->tn", x, w, mine)


def megablocks(x: Any, w: Any, sizes: Any) -> Any:
    return megablox.gmm(x, w, sizes, jnp.bfloat16, (512, 512, 512))


@pytest.mark.slow
def test_a_mixtral_like_block() -> None:
    """Tokens over data, as a batch is: ragged dot and megablox multiply them there, and faster."""
    sizes = jax.ShapeDtypeStruct((EXPERTS,), jnp.int32)
    kinds = {"plain": every_expert, "ragged": jax.lax.ragged_dot, "megablox": megablocks}
    plans = {
        name: sw.partition(
            loss_of(fn), *tensors(*MIXTRAL), sizes, tactics=[sw.Pin("x", 0, "data")], **OPTIONS
        )
        for name, fn in kinds.items()
    }
    step_s = {name: plan.cost.step_s for name, plan in plans.items()}
    print({name: f"{1e3 * s:.1f} ms" for name, s in step_s.items()})
    assert max(step_s["ragged"], step_s["megablox"]) <= step_s["plain"]
    for name in ("ragged", "megablox"):
        assert plans[name].record.opaque == {}
        dots = [row for row in plans[name].ir().rows if row.name in GROUPED_DOTS]
        assert len(dots) == 6 and all("data" in dict(row.claims) for row in dots)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["tpu-v5e", "h100"])
def test_no_device_multiplies_all_rows_of_a_bare_ragged_dot(device: str) -> None:
    """Without a pin the argument may be stored whole, which is free; no grouped dot takes it so."""
    sizes = jax.ShapeDtypeStruct((EXPERTS,), jnp.int32)
    plan = sw.partition(
        loss_of(jax.lax.ragged_dot), *tensors(*MIXTRAL), sizes, mesh=OPTIONS["mesh"], device=device
    )
    dots = [row for row in plan.ir().rows if row.name in GROUPED_DOTS]
    assert [len(row.claims) for row in dots] == [2] * 6


def test_a_program_that_is_one_shard_map_costs_its_body() -> None:
    """FLOP on one device at the rate of v5e, and one all-reduce of the local result."""
    rows, width = 65_536, 8192

    def fn(x: Any, w: Any) -> Any:
        specs = P("data", "model"), P("model")
        body = lambda x, w: jax.lax.psum(x @ w, "model")  # noqa: E731
        return jax.shard_map(body, in_specs=specs, out_specs=P("data"))(x, w)

    plan = sw.partition(fn, *tensors((rows, width), (width, width)), **OPTIONS)
    least_s = 2 * rows * width * width / 16 / 1.97e14
    assert least_s <= plan.cost.compute_s <= 1.5 * least_s
    assert [(c.kind, c.bytes) for c in plan.collectives] == [("all-reduce", 2 * rows // 4 * width)]


def test_flash_attention_keeps_no_argument_whole() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return flash.flash_attention(q, k, v, causal=True)

    plan = sw.partition(attend, *tensors(*[(32, 16, 4096, 128)] * 3), **OPTIONS)
    assert plan.specs() == dict.fromkeys("qkv", P(BOTH)) and not plan.collectives
