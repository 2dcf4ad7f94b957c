"""The records of a comparison and of advice: what else could be, as rows of names and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.cost.breakdown import Breakdown
from shardwright.cost.cost import Cost
from shardwright.cost.residuals import Residual


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variant on one mesh of one device."""

    variant: str
    mesh: str  # data=4 x model=2; a number of devices where nothing was found
    devices: int
    device: str
    cost: Cost | None = None  # of one step; None: there is no plan
    limit_bytes: int = 0  # per device
    items: float = 0.0  # that one step processes; see ComparisonRecord.per
    searched: bool = False  # else its cost is of a quick look: a search may find better
    bound_s: float = 0.0  # no plan of it is faster than this; of what was not searched
    same_as: str = ""  # another variant that is the same program
    why: str = ""  # there is no plan

    @property
    def name(self) -> str:
        """The variant, its mesh and devices."""
        return f"{self.variant} on {self.mesh}, {self.devices} x {self.device}"

    @property
    def item_s(self) -> float | None:
        """Seconds per item (token, example or step)."""
        return self.cost.step_s / self.items if self.cost is not None else None

    @property
    def fits(self) -> bool:
        """Whether there is a plan, and it fits in memory."""
        return self.cost is not None and self.cost.peak_bytes <= self.limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord:
    """All rows, in the order they were asked for."""

    per: str  # what an item is: token, example or step, or a word of the user's
    rows: tuple[Row, ...]
    best: int | None  # the row with least seconds per item that fits and was searched
    pareto: tuple[int, ...]  # rows that fit and that none beats in time and memory, fastest first


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


def best_row(rows: Sequence[Row]) -> int | None:
    """The row with least seconds per item of those that were searched and fit."""
    fit = [(row.item_s or 0.0, i) for i, row in enumerate(rows) if row.fits and row.searched]
    return min(fit)[1] if fit else None


def pareto_front(rows: Sequence[Row]) -> tuple[int, ...]:
    """Rows that fit such that no other is as fast per item with less memory, fastest first."""
    fit = [
        (row.item_s or 0.0, row.cost.peak_bytes, i)
        for i, row in enumerate(rows)
        if row.cost is not None and row.fits and not row.same_as
    ]
    front: list[int] = []
    least = None
    for _, peak_bytes, i in sorted(fit):
        if least is None or peak_bytes < least:
            front.append(i)
            least = peak_bytes
    return tuple(front)
