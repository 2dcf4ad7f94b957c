"""Dims that no axis divides: whole in arguments and results, padded inside where that pays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwright as sw
from shardwright.referee.compiled import read_collectives, totals
from shardwright.referee.equivalences import compare_traffic
from shardwright.zoo.example import QUICK
from tests.plans.runs import DEVICES

D, F, BATCH, SEQ = 32, 60, 8, 12
VOCAB = 251  # a prime, like GPT-2's 50257 nearly is


def loss(params: Any, tokens: Any, targets: Any) -> Any:
    x = params["table"][tokens]
    x = jax.nn.gelu(x @ params["up"]) @ params["down"] + x
    logits = x @ params["head"]
    picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def step(params: Any, tokens: Any, targets: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, tokens, targets)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def arguments() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    shapes = {"table": (VOCAB, D), "up": (D, F), "down": (F, D), "head": (D, VOCAB)}
    params = {k: rng.normal(0, 0.1, s).astype(np.float32) for k, s in shapes.items()}
    tokens, targets = rng.integers(0, VOCAB, (2, BATCH, SEQ), np.int32)
    return params, tokens, targets


@pytest.mark.parametrize("mesh", [{"x": 8}, {"data": 2, "model": 4}])
@pytest.mark.parametrize("device", ["balanced", "fast links"])
def test_numbers_and_bytes(mesh: dict[str, int], device: str) -> None:
    args = arguments()
    plan = sw.partition(step, *args, mesh=mesh, device=DEVICES[device], donate_argnums=0)
    compiled = plan.jit(step).lower(*args).compile(QUICK)
    found = totals(read_collectives(compiled.as_text(), mesh))
    traffic = compare_traffic(totals(plan.collectives), found, mesh, "cpu")
    assert traffic.error <= 0.10, traffic
    expected = jax.jit(step)(*args)
    result = compiled(*plan.place(*args))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), result, expected
    )


def test_padded_inside_whole_outside(tmp_path: Path) -> None:
    """Logits are split by vocabulary, also in a file; the head itself cannot be."""
    args = arguments()
    plan = sw.partition(
        step, *args, mesh={"data": 2, "model": 4}, device=DEVICES["fast links"], donate_argnums=0
    )
    assert len(plan.specs()["params['head']"]) == 1  # the second dim is whole
    assert re.search(rf"f32\[{BATCH}[/\d]*,{SEQ}[/\d]*,{VOCAB}/\d\]", str(plan.ir()))
    plan.save(tmp_path / "plan.json")
    assert sw.load(tmp_path / "plan.json").record == plan.record


@pytest.mark.parametrize("heads", [6, 12])
def test_heads_that_do_not_divide(heads: int) -> None:
    """6 or 12 heads over 4 devices: 2 or 3 on each, one pair of hands idle for 6."""

    def attention(x: Any, wq: Any, wo: Any) -> Any:
        q = jnp.einsum("bsd,dhk->bshk", x, wq)
        scores = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, q))
        return jnp.einsum("bhst,bthk,hkd->bsd", scores, q, wo)

    rng = np.random.default_rng(1)
    x, wq, wo = (
        rng.normal(0, 0.3, s).astype(np.float32)
        for s in ((1, 32, 24), (24, heads, 4), (heads, 4, 24))
    )
    plan = sw.partition(attention, x, wq, wo, mesh={"model": 4}, device=DEVICES["fast links"])
    result = plan.jit(attention)(*plan.place(x, wq, wo))
    np.testing.assert_allclose(result, attention(x, wq, wo), rtol=2e-5, atol=2e-6)
