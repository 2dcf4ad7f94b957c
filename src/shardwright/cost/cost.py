"""What one step costs one device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Predicted seconds and bytes of one step on one device."""

    compute_s: float = 0.0
    link_s: float = 0.0
    peak_bytes: int = 0
    overlap: float = 0.0  # part of the shorter of the two that hides behind the longer

    @property
    def step_s(self) -> float:
        """Compute and links one after the other, less what overlaps."""
        return self.compute_s + self.link_s - self.overlap * min(self.compute_s, self.link_s)
