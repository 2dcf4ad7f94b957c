"""The GPU compiler, without a GPU, does what plans predict: bytes on links, peak memory."""

from __future__ import annotations

import importlib.util

import pytest

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
