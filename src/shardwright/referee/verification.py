"""A verification as a value: what was predicted, what was compiled, and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.referee.agreement import Agreement
from shardwright.referee.equivalences import Totals, Traffic, compare_traffic
from shardwright.referee.replay import Seconds

# What may lie between predicted and compiled for a plan to be called verified. Of 168 plans of
# other people's programs 166 are within the first (docs/sweep.md); the second is the bar that
# docs/fidelity.md sets for the worst peak.
LINK_TOLERANCE = 0.10
MEMORY_TOLERANCE = 0.15


@dataclass(frozen=True, slots=True)
class Ran:
    """One run beside the unsharded function's."""

    draw: str  # which arguments
    agreement: Agreement
    counts: bool = True  # whether it must agree
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Predicted against compiled; true when they agree."""

    target: str
    platform: str  # whose compiler: cpu, tpu or cuda
    mesh: Mapping[str, int]
    predicted: Totals  # {(kind, axes): (count, bytes per step)}
    compiled: Totals
    predicted_seconds: Seconds
    # What was compiled, under the same model of the planned device's links. Where the compiler
    # wrote a schedule for accelerators, `seconds` replays it.
    compiled_link_s: float
    seconds: Seconds | None
    predicted_peak_bytes: int  # with the buffers that this platform's compiler makes
    compiled_peak_bytes: int
    rematerialisations: int  # involuntary full ones
    runs: tuple[Ran, ...] = ()
    narrow_floats: bool = False  # are in the program; XLA:CPU computes and moves them as f32

    @property
    def checks_memory(self) -> bool:
        """A CPU's figure says nothing about an accelerator's."""
        return self.platform != "cpu"

    @property
    def traffic(self) -> Traffic:
        """Row by row: .rows[i].missing_bytes and .extra_bytes; .folds are known equivalences."""
        return compare_traffic(self.predicted, self.compiled, self.mesh, self.platform)

    @property
    def predicted_bytes(self) -> float:
        """Bytes of all predicted collectives, per step and device."""
        return sum(b for _, b in self.predicted.values())

    @property
    def compiled_bytes(self) -> float:
        """Bytes of all compiled collectives, per step and device."""
        return sum(b for _, b in self.compiled.values())

    @property
    def link_error(self) -> float:
        """Bytes apart, kind by kind and axes by axes, relative to the larger total."""
        return self.traffic.error

    @property
    def largest_error(self) -> float | None:
        """Of the results, relative to each array's scale; None when not run."""
        return max((ran.agreement.worst for ran in self.runs if ran.counts), default=None)

    @property
    def numbers_agree(self) -> bool | None:
        """Whether results are the unsharded function's; None when not run."""
        return all(ran.agreement for ran in self.runs if ran.counts) if self.runs else None

    @property
    def memory_error(self) -> float:
        """Predicted against compiled peak memory, relative to the larger."""
        top = max(self.predicted_peak_bytes, self.compiled_peak_bytes, 1)
        return abs(self.compiled_peak_bytes - self.predicted_peak_bytes) / top

    @property
    def ok(self) -> bool:
        """Whether all that is judged lies within its tolerance."""
        return (
            self.link_error <= LINK_TOLERANCE
            and (not self.checks_memory or self.memory_error <= MEMORY_TOLERANCE)
            and self.rematerialisations == 0
            and self.numbers_agree is not False
        )

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        from shardwright.report.verification import format_verification

        return format_verification(self)
