"""What one step costs one device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Predicted seconds and bytes of one step on one device."""

    compute_s: float = 0.0
    link_s: float = 0.0
    hidden_s: float = 0.0  # of link_s, behind compute
    host_s: float = 0.0  # of copies to the host's memory and back, beside compute and links
    peak_bytes: int = 0
    overlap: float | None = None  # what the user said of overlap; None: the model of docs/cost.md

    @property
    def exposed_s(self) -> float:
        """Seconds in which a device waits for its links."""
        return self.link_s - self.hidden_s

    @property
    def step_s(self) -> float:
        """Compute and the links that it does not hide; no less than the copies to the host."""
        return max(self.compute_s + self.exposed_s, self.host_s)
