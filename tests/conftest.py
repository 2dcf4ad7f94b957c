"""Eight host devices for every test that compiles, and no cached plans; before JAX is imported."""

from __future__ import annotations

import os

_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Threads of XLA:CPU's pools. On two cores the default is one per device: all can wait at a
# rendezvous while the compute they wait for finds no thread, and XLA then aborts.
os.environ.setdefault("NPROC", str(max(2 * 8, os.cpu_count() or 1)))
# Tests judge the search, not what it found another time; tests/plans/test_cache.py has a folder.
os.environ["SHARDWRIGHT_CACHE"] = ""
