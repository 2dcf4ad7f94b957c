"""Layers share decisions; one may differ where that pays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import shardwright as sw
from shardwright.options import asked_again

LAYERS, B, D = 4, 8, 512
# Links are slow and nothing else costs much: whatever can stay whole should stay whole.
DEVICE = sw.Device.like(
    "h100", name="slow links", link_bytes_per_s=1e9, node_bytes_per_s=1e9, latency_s=0.0,
    half_bandwidth_bytes=0.0, op_overhead_s=0.0, scratch_bytes=0,
)  # fmt: skip


def forward(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for w1, w2 in weights:
        x = x + jnp.tanh(x @ w1) @ w2
    return x


def arguments() -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    rng = np.random.default_rng(0)
    pair = lambda: tuple(rng.normal(size=(D, D)).astype("float32") / 30 for _ in range(2))  # noqa: E731
    return [pair() for _ in range(LAYERS)], rng.normal(size=(B, D)).astype("float32")


def test_what_the_user_wants_whole_stays_whole() -> None:
    args = arguments()
    options = {"mesh": {"model": 8}, "device": DEVICE, "memory": 7 * 4 * D * D}
    tactics = [sw.Replicate("weights[1][0]"), sw.Search()]
    plan = sw.partition(forward, *args, unshare=True, tactics=tactics, **options)
    assert not any(plan.specs()["weights[1][0]"])


def test_one_layer_differs_when_memory_allows_only_some_whole() -> None:
    args = arguments()
    memory = 7 * 4 * D * D  # seven of the eight matrices, and nothing to spare for all eight
    options = {"mesh": {"model": 8}, "device": DEVICE, "memory": memory}
    shared = sw.partition(forward, *args, **options)
    apart = sw.partition(forward, *args, unshare=True, **options)
    assert shared.cost.peak_bytes <= memory and apart.cost.peak_bytes <= memory
    assert apart.cost.step_s < 0.9 * shared.cost.step_s
    assert (
        any("@" in claim.group for claim in apart.decisions["model"])
        or len({str(s) for p, s in apart.specs().items() if p.startswith("weights")}) > 1
    )
    # It is planned so again (`check --replan`), survives saving, and runs.
    assert apart.record.unshared
    assert sw.partition(forward, *args, **asked_again(apart.record)).specs() == apart.specs()
    step = sw.Plan(apart.record).jit(forward)
    np.testing.assert_allclose(step(*args), forward(*args), rtol=2e-4, atol=2e-4)
