"""The TPU compiler, without a TPU, does what plans predict: bytes on links, peak memory.

The program is large enough that its buffers are in HBM: the compiler keeps small temporaries in
the 128 MB of on-chip memory, which no figure of ours counts.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.referee.plans import plan_for

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")


LARGE = {
    "d_model": 2048, "d_ff": 8192, "heads": 16, "kv_heads": 16, "vocab": 32768, "seq": 2048,
    "batch": 32,
}  # fmt: skip


@pytest.mark.parametrize("strategy", ["FSDP + TP", "found by the search"])
def test_predicted_equals_compiled(strategy: str) -> None:
    verification = plan_for(strategy, "tpu-v5e", **LARGE).verify("tpu:v5e:4x4")
    print(verification)
    assert verification.link_error <= 0.10
    assert verification.memory_error <= 0.15
    assert verification.rematerialisations == 0
