"""Eight host devices for every test that compiles, and no cached plans; before JAX is imported."""

from __future__ import annotations

import gc
import os

# Machine code is compiled quickly, not well: a fifth of the time; in one piece: 32 of them take two
# thirds more. Partitioning, collectives and buffers, which tests read, are settled before.
_FLAGS = {
    "--xla_force_host_platform_device_count": "8",
    "--xla_backend_optimization_level": "0",
    "--xla_llvm_disable_expensive_passes": "true",
    "--xla_cpu_use_fusion_emitters": "false",
    "--xla_cpu_parallel_codegen_split_count": "1",
}
_given = os.environ.get("XLA_FLAGS", "")
_added = [f"{flag}={value}" for flag, value in _FLAGS.items() if flag not in _given]
os.environ["XLA_FLAGS"] = " ".join([_given, *_added]).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Threads of XLA:CPU's pools. On two cores the default is one per device: all can wait at a
# rendezvous while the compute they wait for finds no thread, and XLA then aborts.
os.environ.setdefault("NPROC", str(max(2 * 8, os.cpu_count() or 1)))
# Tests judge the search, not what it found another time; tests/plans/test_cache.py has a folder.
os.environ["SHARDWRIGHT_CACHE"] = ""


def pytest_collection_finish() -> None:
    """What was imported stays: cycles are looked for among what tests make, and less often.

    JAX's traces are many small objects that live; Python would walk all of them again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
