"""cuDNN's attention on shards, with plain JAX in the place of cuDNN: there is no GPU here.

The stand-in does what cuDNN's documentation says of its masks, on whatever shapes it is called: a
causal mask counts queries from the first row that it is given. `tests/compilers` has the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.interpreters import mlir

import shardwright as sw

B, S, H, KV, D = 2, 64, 4, 2, 16


def attended(q: Any, k: Any, v: Any, bias: Any, **how: Any) -> tuple[Any, Any]:
    """Queries [b t h d]; the result and the logarithm of the sum of each row of scores."""
    assert how["layout"] == cudnn.AttentionLayout.BTNH.value
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * how["scale"]
    if how["variadic_args"][0]:
        scores += bias.astype(jnp.float32)
    row, column = (jnp.arange(n) for n in scores.shape[2:])
    seen = jnp.ones(scores.shape[2:], bool)
    if how["mask_type"] is cudnn.MaskType.CAUSAL:
        seen &= row[:, None] >= column
    if how["sliding_window_length"]:
        seen &= (row[:, None] >= column) & (row[:, None] - column < how["sliding_window_length"])
    scores = jnp.where(seen, scores, -1e30)
    out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
    return out.astype(jnp.bfloat16), jax.nn.logsumexp(scores, -1)


def forward(*args: Any, is_training: bool, **how: Any) -> list[Any]:
    return list(attended(*args[:4], **how))[: 1 + is_training]


def backward(*args: Any, **how: Any) -> list[Any]:
    """The gradients of q, k, v, and of the bias where they are asked for."""
    count = 3 + how["variadic_args"][1]
    fn = lambda *some: attended(*some, *args[count:4], **how)[0]  # noqa: E731
    return list(jax.vjp(fn, *args[:count])[1](args[-1]))


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """XLA:CPU gets the stand-in, in this module alone."""
    stand_ins = {
        cudnn._dot_product_attention_fwd_p_wrapper: forward,
        cudnn._dot_product_attention_bwd_p_wrapper: backward,
    }
    for primitive, fn in stand_ins.items():
        mlir.register_lowering(primitive, mlir.lower_fun(fn, multiple_results=True), platform="cpu")
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91900)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda least: True)
    yield
    for primitive in stand_ins:
        del mlir._platform_specific_lowerings["cpu"][primitive]
    jax.clear_caches()


def loss(options: dict[str, Any]) -> Callable[..., Any]:
    def fn(q: Any, k: Any, v: Any, *more: Any) -> Any:
        given = dict(zip(("bias", "mask"), more, strict=False)) if more else {}
        given = {name: a for name, a in given.items() if a is not None}
        out = jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **options, **given)
        return jnp.sum(out.astype(jnp.float32) * jnp.cos(jnp.arange(D)))

    return fn


# Options, the shape of a bias, what is split over data and over model
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...] | None, list[sw.Pin]]] = {
    "no mask": ({}, None, [sw.Pin("q", 1, "data")]),
    "causal": ({"is_causal": True}, None, [sw.Pin("q", 1, "data")]),
    "causal, heads too": (
        {"is_causal": True}, None, [sw.Pin("q", 1, "data"), sw.Pin("q", 2, "model")],
    ),
    "window": (
        {"is_causal": True, "local_window_size": (20, 0)}, None, [sw.Pin("q", 1, "data")],
    ),
    "causal and a bias": ({"is_causal": True}, (1, H, S, S), [sw.Pin("q", 1, "data")]),
    "a bias that the batch shares": (
        {}, (1, H, S, S), [sw.Pin("q", 0, "data"), sw.Pin("q", 2, "model")],
    ),
    "a bias that heads share": (
        {"is_causal": True}, (B, 1, S, S), [sw.Pin("q", 0, "data"), sw.Pin("q", 2, "model")],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_attention_and_its_gradient_on_shards(case: str) -> None:
    """Keys are gathered, their gradients summed; so is that of what is shared."""
    options, bias, pins = CASES[case]
    batch = B if any(pin.dim == 0 for pin in pins) else 1  # else queries are all there is to split
    shapes = [(batch, S, n, D) for n in (H, KV, KV)] + [bias] * (bias is not None)
    args = [
        jax.random.normal(jax.random.key(n), shape).astype(jnp.bfloat16)
        for n, shape in enumerate(shapes)
    ]
    step = jax.value_and_grad(loss(options), tuple(range(len(args))))
    plan = sw.partition(
        step, *args, mesh={"data": 2, "model": 2}, device="h100", tactics=pins, seconds=0.2
    )
    rows = [row for row in plan.ir().rows if row.name.startswith("dot_product_attention")]
    axes = {pin.axis for pin in pins}
    assert plan.record.opaque == {}
    assert [dict(row.claims).keys() >= axes for row in rows] == [True, True]
    got, want = plan.jit(step)(*plan.place(*args)), jax.jit(step)(*args)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        one, other = (np.asarray(x, np.float32) for x in (one, other))
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.02 * np.abs(other).max())


def test_the_gradient_of_a_mask_is_not_summed() -> None:
    """cuDNN makes it, nothing needs it."""
    mask = jnp.tri(S, dtype=bool)[None, None]
    args = [jax.ShapeDtypeStruct((B, S, n, D), jnp.bfloat16) for n in (H, KV, KV)]
    step = jax.grad(lambda q, k, v: loss({"mask": mask})(q, k, v), (0, 1, 2))
    pins = [sw.Pin("q", 0, "data"), sw.Pin("q", 2, "model")]
    plan = sw.partition(step, *args, mesh={"data": 2, "model": 2}, device="h100", tactics=pins)
    assert not plan.collectives and plan.record.opaque == {}
