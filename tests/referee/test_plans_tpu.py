"""The TPU compiler, without a TPU, does what plans predict: bytes on links, peak memory."""

from __future__ import annotations

import importlib.util

import pytest

from tests.referee.plans import plan_for

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")


@pytest.mark.parametrize("strategy", ["FSDP + TP", "found by the search"])
def test_predicted_equals_compiled(strategy: str) -> None:
    verification = plan_for(strategy, "tpu-v5e").verify("tpu:v5e:4x4")
    print(verification)
    assert verification.link_error <= 0.10
    assert verification.memory_error <= 0.15
    assert verification.rematerialisations == 0
