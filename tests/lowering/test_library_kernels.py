"""Kernels of libraries: how they split, what they cost, and that they run on shards."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

import shardwright as sw
from shardwright import _jax
from shardwright.rules.rule import PASS

MESH = {"data": 4, "model": 2}
B, H, KV, S, D, BLOCK = 4, 4, 2, 256, 128, 128
HEADS = {"flash": (H, H, H), "splash": (H, KV, KV)}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run as plain XLA: all of them call `pallas.pallas_call`."""
    monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))


def flash_loss(q: Any, k: Any, v: Any) -> Any:
    return jnp.sum(flash.flash_attention(q, k, v, causal=True).astype(jnp.float32) ** 2)


def splash_loss(q: Any, k: Any, v: Any, segments: Any) -> Any:
    """Batch by vmap, as MaxText calls it; two query heads per key/value head."""
    heads, length = q.shape[1:3]
    mask = splash.MultiHeadMask([splash.CausalMask((length, length))] * heads)
    kernel = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1, interpret=True)
    out = jax.vmap(kernel)(q, k, v, splash.SegmentIds(segments, segments))
    return jnp.sum(out.astype(jnp.float32) ** 2)


def inputs(kind: str, batch: int = B, length: int = S, dtype: Any = jnp.float32) -> list[Any]:
    """Shapes of q, k, v, and of segments where they are asked for."""
    arrays = [jax.ShapeDtypeStruct((batch, n, length, D), dtype) for n in HEADS[kind]]
    segments = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    return arrays if kind == "flash" else [*arrays, segments]


def drawn(shape: Any) -> Any:
    if shape.dtype == jnp.int32:  # two documents in a row
        return jnp.broadcast_to(jnp.arange(shape.shape[1]) // 100, shape.shape)
    return jax.random.normal(jax.random.key(sum(shape.shape)), shape.shape, shape.dtype)


LOSSES: dict[str, Callable[..., Any]] = {"flash": flash_loss, "splash": splash_loss}
PINS = [sw.Pin("q", 0, "data"), sw.Pin("q", 1, "model")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
def test_attention_and_its_gradient_run_on_shards(kind: str) -> None:
    """Over batch and heads: three kernels, and nothing moves but the loss."""
    args = [drawn(x) for x in inputs(kind)]
    step = jax.value_and_grad(LOSSES[kind], (0, 1, 2))
    plan = sw.partition(step, *args, mesh=MESH, tactics=PINS)
    assert plan.record.opaque == {}
    rows = [row for row in plan.ir().rows if row.name == "pallas_call"]
    assert [[axis for axis, _ in row.claims] for row in rows] == [["data", "model"]] * 3
    assert {(c.kind, c.bytes) for c in plan.collectives} == {("all-reduce", 4)}
    found = plan.verify(run=True)
    assert found.ok, found
    assert found.numbers_agree


def windowed(length: int, heads: int) -> Any:
    return [splash.LocalMask((length, length), (100, 0), 0)] * heads


def causal(length: int, heads: int) -> Any:
    return [splash.CausalMask((length, length))] * heads


def dense(length: int, heads: int) -> Any:
    """A mask that no function says: blocks of it are read from memory."""
    lower = np.tril(np.ones((length, length), bool))
    lower[300:, 100:200] = False
    return [splash.NumpyMask(lower)] * heads


def one_key_head(masks: Any) -> Callable[..., Any]:
    def loss(q: Any, k: Any, v: Any) -> Any:
        mask = splash.MultiHeadMask(masks(q.shape[2], q.shape[1]))
        kernel = splash.make_splash_mqa(mask, head_shards=1, q_seq_shards=1, interpret=True)
        return jnp.sum(jax.vmap(kernel)(q, k[:, 0], v[:, 0]).astype(jnp.float32) ** 2)

    return loss


def grouped_heads(masks: Any) -> Callable[..., Any]:
    def loss(q: Any, k: Any, v: Any) -> Any:
        mask = splash.MultiHeadMask(masks(q.shape[2], q.shape[1]))
        kernel = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1, interpret=True)
        return jnp.sum(jax.vmap(kernel)(q, k, v).astype(jnp.float32) ** 2)

    return loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "masks"),
    [(grouped_heads, causal), (one_key_head, causal), (grouped_heads, windowed),
     (grouped_heads, dense)],
)  # fmt: skip
def test_queries_of_splash_attention_split_over_devices(heads: Any, masks: Any) -> None:
    """Keys and values are gathered, their gradients are sums; masks are those of the rows here.

    Where a window makes the grid of the gradients smaller than there are rows, that one is whole.
    """
    args = [drawn(x) for x in inputs("splash", batch=1, length=512)[:3]]
    step = jax.value_and_grad(heads(masks), (0, 1, 2))
    pins = [sw.Pin("q", 2, "data")]
    plan = sw.partition(step, *args, mesh={"data": 4}, device="cpu", tactics=pins, seconds=0.5)
    rows = [row for row in plan.ir().rows if row.name == "pallas_call"]
    split = ["data" in dict(row.claims) for row in rows]  # forward, dk and dv, dq
    assert split == [True, masks is not windowed, True]
    run, alone = plan.jit(step)(*plan.place(*args)), jax.jit(step)(*args)
    for got, want in zip(jax.tree.leaves(run), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_last_queries_see_most_keys(kind: str) -> None:
    """Split in four, the busiest device has the last rows of a causal mask."""
    traced = sw.trace(LOSSES[kind], *inputs(kind, length=1024))
    (work,) = [op.rule.kernel for op in traced.ops if op.name == "pallas_call"]
    blocks, left = 1024 // BLOCK, 8 * 9 / 2
    assert work.uneven.heaviest(4) == pytest.approx((7 + 8) / 2 / (left / blocks))
    assert work.uneven.heaviest(1) == pytest.approx(1.0)


# dots in the code of: forward, dk and dv, dq
@pytest.mark.parametrize("kind", LOSSES)
def test_flops_are_those_of_the_blocks_that_the_mask_leaves(kind: str) -> None:
    length = 1024
    traced = sw.trace(jax.grad(LOSSES[kind], (0, 1, 2)), *inputs(kind, length=length))
    blocks = length // BLOCK
    left = blocks * (blocks + 1) / 2  # on and below the diagonal
    work = [op.rule.kernel for op in traced.ops if op.name == "pallas_call"]
    one_dot = 2 * B * H * left * BLOCK * BLOCK * D
    assert [sum(2 * d.times * d.m * d.n * d.k for d in w.dots) for w in work] == [
        dots * one_dot for dots in (2, 4, 3)
    ]


def test_keys_are_fetched_once_per_block_of_queries() -> None:
    """What passes through memory is blocks: no scores."""
    length = 1024
    forward = sw.trace(flash_loss, *inputs("flash", length=length, dtype=jnp.bfloat16))
    (work,) = [op.rule.kernel for op in forward.ops if op.name == "pallas_call"]
    blocks, array = length // BLOCK, 2 * B * H * length * D
    keys_and_values = 2 * array * blocks * (blocks + 1) / (2 * blocks)
    assert work.fetched_bytes == 2 * array + keys_and_values  # q and the result once


def test_no_scores_in_memory() -> None:
    length, scores = 16384, 2 * B * H * 16384**2 // 8
    args = inputs("flash", length=length, dtype=jnp.bfloat16)
    step = jax.grad(flash_loss, (0, 1, 2))
    plan = sw.partition(step, *args, mesh=MESH, device="tpu-v5e", tactics=PINS)
    assert plan.cost.peak_bytes < scores / 4


def heads_with_masks_of_their_own(q: Any, k: Any, v: Any, segments: Any) -> Any:
    length = q.shape[2]
    local = [splash.LocalMask((length, length), (128 * n, 0), 0) for n in range(1, H)]
    mask = splash.MultiHeadMask([splash.CausalMask((length, length)), *local])
    kernel = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1, interpret=True)
    return jax.vmap(kernel)(q, k, v, splash.SegmentIds(segments, segments))


@pytest.mark.slow
def test_heads_with_masks_of_their_own_are_told_which_they_are() -> None:
    """Which blocks a step gets depends on its head, and on the queries that it has."""
    args = [drawn(x) for x in inputs("splash", batch=1, length=512)]
    pins = [sw.Pin("q", 1, "model"), sw.Pin("q", 2, "data")]
    plan = sw.partition(
        heads_with_masks_of_their_own, *args, mesh={"data": 2, "model": 2}, device="cpu",
        tactics=pins, seconds=0.2,
    )  # fmt: skip
    (row,) = [row for row in plan.ir().rows if row.name == "pallas_call"]
    assert dict(row.claims).keys() == {"data", "model"}
    got = plan.jit(heads_with_masks_of_their_own)(*plan.place(*args))
    want = jax.jit(heads_with_masks_of_their_own)(*args)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def biased(q: Any, k: Any, v: Any, bias: Any, segments: Any) -> Any:
    """Every option of flash attention at once."""
    ids = flash.SegmentIds(segments, segments)
    out = flash.flash_attention(q, k, v, bias, ids, causal=True, sm_scale=0.1, block_sizes=BLOCKS)
    return jnp.sum(out.astype(jnp.float32) ** 2)


BLOCKS = flash.BlockSizes(
    block_q=BLOCK, block_k_major=BLOCK, block_k=BLOCK, block_b=1, block_q_major_dkv=BLOCK,
    block_k_major_dkv=BLOCK, block_k_dkv=BLOCK, block_q_dkv=BLOCK, block_k_major_dq=BLOCK,
    block_k_dq=BLOCK, block_q_dq=BLOCK,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("loss", [flash_loss, biased])
def test_queries_and_keys_of_causal_flash_attention_split_over_devices(loss: Any) -> None:
    """Forward and dq by queries, dk and dv by keys: each device is told where it is."""
    length = 512
    args = [drawn(x) for x in inputs("flash", batch=1, length=length)]
    if loss is biased:
        shape = (1, H, length, length)
        args += [jax.random.normal(jax.random.key(9), shape), jnp.arange(length)[None] // 200]
    step = jax.value_and_grad(loss, tuple(range(min(4, len(args)))))
    pins = [sw.Pin(name, 2, "data") for name in "qkv"]
    plan = sw.partition(step, *args, mesh={"data": 4}, device="cpu", tactics=pins, seconds=0.5)
    rows = [row for row in plan.ir().rows if row.name == "pallas_call"]
    assert ["data" in dict(row.claims) for row in rows] == [True] * 3
    run, alone = plan.jit(step)(*plan.place(*args)), jax.jit(step)(*args)
    for got, want in zip(jax.tree.leaves(run), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


PAGES, PAGE, PER_SEQUENCE = 16, 16, 4


def pages_read(q: Any, k: Any, v: Any, lengths: Any, table: Any, **options: Any) -> Any:
    return paged_attention(q, k, v, lengths, table, pages_per_compute_block=2, **options)


def decode_arguments() -> list[Any]:
    shapes = [(B, H, D), *[(KV, PAGES, PAGE, D)] * 2]
    arrays = [jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate(shapes)]
    table = jax.random.randint(jax.random.key(3), (B, PER_SEQUENCE), 0, PAGES, jnp.int32)
    return [*arrays, jnp.array([5, 64, 33, 17], jnp.int32), table]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"attn_logits_soft_cap": 2.0}], ids=str)
def test_paged_attention_runs_on_shards(options: dict[str, Any]) -> None:
    """Sequences over data, heads with their pages over model; nothing moves."""
    args = decode_arguments()

    def decode(q: Any, k: Any, v: Any, lengths: Any, table: Any) -> Any:
        return pages_read(q, k, v, lengths, table, **options)

    plan = sw.partition(decode, *args, mesh=MESH, tactics=PINS, seconds=0.2)
    assert plan.record.opaque == {} and not plan.collectives
    (row,) = [row for row in plan.ir().rows if row.name == "paged_attention"]
    assert [axis for axis, _ in row.claims] == ["data", "model"]
    got = plan.jit(decode)(*plan.place(*args))
    np.testing.assert_allclose(got, decode(*args), rtol=1e-5, atol=1e-5)
    capless = np.abs(got - pages_read(*args)).max()
    assert (capless > 1e-3) == bool(options)  # the cap is that of the call


@pytest.mark.parametrize(
    "options",
    [{}, {"soft_cap": 30.0}, {"sliding_window": 24}, {"soft_cap": 50.0, "sliding_window": 40}],
    ids=str,
)
@pytest.mark.parametrize("scale", [D**-0.5, 1.0, 0.25])
def test_ragged_paged_attention_splits_heads(options: dict[str, Any], scale: float) -> None:
    """With the options of the call, which are read from its kernel."""

    def step(q: Any, kv: Any, lengths: Any, table: Any, starts: Any, count: Any) -> Any:
        return ragged_paged_attention(
            q, kv, lengths, table, starts, count, sm_scale=scale, num_kv_pages_per_block=2,
            num_queries_per_block=32, **options,
        )  # fmt: skip

    queries = jax.ShapeDtypeStruct((64, 2 * H, D), jnp.bfloat16)
    pages = jax.ShapeDtypeStruct((PAGES, PAGE, 2 * H, D), jnp.bfloat16)
    numbers = [jax.ShapeDtypeStruct(s, jnp.int32) for s in ((B,), (B, 4), (B + 1,), (1,))]
    (op, *_) = sw.trace(step, queries, pages, *numbers).ops
    rule, found = op.rule, _jax.paged_options(op.eqn.params)
    assert found["sm_scale"] == pytest.approx(scale)
    assert {key: value for key, value in found.items() if key in options} == options
    assert str(rule).startswith("([i,jk,l],[m,n,jo,l],[p],[p,q],[r],[1])->([i,jk,l])")
    assert [rule.sizes[f] for f, kind in enumerate(rule.kinds) if kind == PASS] == [H]


def test_options_that_a_trace_does_not_name() -> None:
    """It cannot be called again on shards: whole, and the plan says why."""
    args = decode_arguments()
    (op, *_) = sw.trace(functools.partial(pages_read, mask_value=-1e9), *args).ops
    assert op.rule.opaque and "options other than the default" in op.rule.why


def cudnn_loss(q: Any, k: Any, v: Any) -> Any:
    out = jax.nn.dot_product_attention(q, k, v, implementation="cudnn", is_causal=True)
    return jnp.sum(out.astype(jnp.float32))


@pytest.mark.parametrize("kv_heads", [16, 4])
def test_cudnn_attention_is_planned_without_a_gpu(kv_heads: int) -> None:
    """Batch and key/value heads split, forward and backward; nothing moves."""
    batch, length, heads, width = 16, 2048, 16, 128
    q, k = (
        jax.ShapeDtypeStruct((batch, length, n, width), jnp.bfloat16) for n in (heads, kv_heads)
    )
    step = jax.grad(cudnn_loss, (0, 1, 2))
    pins = [sw.Pin("q", 0, "data"), sw.Pin("q", 2, "model")]
    plan = sw.partition(step, q, k, k, mesh=MESH, device="h100", tactics=pins)
    assert plan.record.opaque == {}
    assert not plan.collectives
    rows = [row for row in plan.ir().rows if row.name.startswith("dot_product_attention")]
    assert [[axis for axis, _ in row.claims] for row in rows] == [["data", "model"]] * 2
    scores = 2 * batch * heads * length**2 // 8
    assert plan.cost.peak_bytes < scores
    traced = sw.trace(step, q, k, k)
    work = [op.rule.kernel for op in traced.ops if op.name.startswith("dot_product_attention")]
    one_dot = batch * heads * length * (length + 1) * width  # the causal half of 2 t s h
    flops = [sum(2 * d.times * d.m * d.n * d.k for d in w.dots) for w in work]
    assert flops == [2 * one_dot, 5 * one_dot]


@pytest.mark.parametrize(
    ("kind", "causal"),
    [("flash", False), ("flash", True), ("cudnn", False)],
)
def test_queries_split_forward(kind: str, causal: bool) -> None:
    """One sequence, one head: the queries are all there is to split."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        if kind == "flash":
            return flash.flash_attention(q, k, v, causal=causal)
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn", is_causal=causal)

    shape = (1, 1, 4096, D) if kind == "flash" else (1, 4096, 1, D)
    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    plan = sw.partition(attend, x, x, x, mesh={"data": 4}, device="h100", seconds=0.2)
    (row,) = [row for row in plan.ir().rows if row.name.startswith(("pallas", "dot"))]
    assert row.claims


def test_cudnn_is_still_asked_for_where_it_would_run() -> None:
    """Only tracing for a plan goes without it."""
    x = jnp.zeros((2, 16, 2, 64), jnp.bfloat16)
    sw.trace(cudnn_loss, x, x, x)
    with pytest.raises(RuntimeError, match="cuDNN is not detected"):
        cudnn_loss(x, x, x)


def test_scaled_matmul() -> None:
    """A block of the contraction shares a scale; it splits between blocks."""
    a, b = (jax.ShapeDtypeStruct((2, n, 256), jnp.float8_e4m3fn) for n in (128, 64))
    scales = [jax.ShapeDtypeStruct((2, n, 8), jnp.float8_e8m0fnu) for n in (128, 64)]
    (op, *_) = sw.trace(jax.nn.scaled_matmul, a, b, *scales).ops
    assert str(op.rule) == (
        "([i,j,kl],[i,m,kl],[i,j,k],[i,m,k])->([i,j,m]) {i=2,j=128,k=8,l=32,m=64} reduction={k,l}"
    )


# dtype of both operands, device, how much faster than bf16 the device is with it
@pytest.mark.parametrize(
    ("dtype", "result", "device", "faster"),
    [
        (jnp.int8, jnp.int32, "tpu-v5e", 2.0),
        (jnp.float8_e4m3fn, jnp.float32, "h100", 2.0),
        (jnp.float8_e4m3fn, jnp.float32, "tpu-v5e", 1.0),
        (jnp.int8, jnp.int32, "tpu-v6e", 2.0),
        (jnp.int8, jnp.int32, "h100", 2.0),
        (jnp.float8_e4m3fn, jnp.float32, "b200", 2.0),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_quantised_dots_run_at_their_rates(
    dtype: Any, result: Any, device: str, faster: float
) -> None:
    def dot(x: Any, w: Any) -> Any:
        return jax.lax.dot(x, w, preferred_element_type=result)

    def seconds(dtype: Any) -> float:
        x = jax.ShapeDtypeStruct((16384, 16384), dtype)
        return sw.partition(dot, x, x, mesh=MESH, device=device, seconds=0.2).cost.compute_s

    assert seconds(jnp.bfloat16) / seconds(dtype) == pytest.approx(faster, rel=0.05)
