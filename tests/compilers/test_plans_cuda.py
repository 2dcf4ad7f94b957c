"""The GPU compiler, without a GPU, does what plans predict: bytes on links, peak memory."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

import shardwright as sw
from shardwright.zoo import transformer
from tests.compilers.plans import STRATEGIES, plan_for

pytestmark = pytest.mark.skipif(
    not any(importlib.util.find_spec(f"jax_cuda{major}_plugin") for major in (12, 13)),
    reason="needs the CUDA plugin of JAX",
)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_predicted_equals_compiled(strategy: str) -> None:
    verification = plan_for(strategy, "h100").verify("cuda:h100:2x8")
    print(verification)
    assert verification.link_error <= 0.10
    assert verification.memory_error <= 0.15
    assert verification.rematerialisations == 0


# The step is later than predicted where AllReduceSplitter scatters what was to be all-reduced, and
# combines it into one collective that waits for the last gradient (docs/cost.md).
@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy, later",
    [
        ([sw.DataParallel("data"), sw.Megatron("model")], 1.05),
        ([sw.FSDP("data"), sw.FSDP("model")], 1.05),
        (None, 1.35),
    ],
)
def test_predicted_seconds_are_those_of_the_schedule(
    strategy: list[sw.Tactic] | None, later: float
) -> None:
    """The GPT of two layers on two nodes of eight."""
    example = transformer.train(replace(transformer.PRESETS["gpt_2l"], batch=8), "GPT")
    plan = sw.partition(
        example.fn, *example.args, mesh={"data": 2, "model": 8}, device="h100",
        donate_argnums=example.donate_argnums, tactics=strategy,
    )  # fmt: skip
    verification = plan.verify("cuda:h100:2x8")
    print(verification)
    predicted, scheduled = verification.predicted_seconds, verification.seconds
    assert verification and scheduled is not None
    assert predicted.compute_s == pytest.approx(scheduled.compute_s, rel=0.10)
    assert predicted.link_s == pytest.approx(scheduled.link_s, rel=0.10)
    assert 1 / 1.05 < scheduled.step_s / predicted.step_s < later
