"""The record of advice: what stands at the peak, what could be done, what it would bring."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.cost.breakdown import Breakdown
from shardwright.cost.residuals import Residual
from shardwright.record.comparison import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRecord:
    """Advice on one plan; all bytes are per device."""

    program: str
    per: str  # what an item of `now` and `instead` is: token, example or step
    now: Row  # the plan itself
    memory: Breakdown  # its peak
    residuals: tuple[Residual, ...]  # policies of jax.checkpoint, then lines, most bytes first
    instead: tuple[Row, ...]  # a larger batch, another mesh, more devices
    notes: tuple[str, ...] = ()
