"""Seconds of single collectives that others published, beside the predicted ones.

    python -m benchmarks.measured_links       # the worst first

measured_links.csv has NVIDIA's NCCL on 8 GPUs of a node and 64 of a rack, and an all-gather of four
Ironwood chips. The links of a node are fitted to other rows of NVIDIA's tables, the latency of an
Ironwood call to these.
"""

from __future__ import annotations

import csv
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from shardwright.cost.links import Network

ROWS = Path(__file__).resolve().with_name("measured_links.csv")


@dataclass(frozen=True, slots=True)
class Row:
    """One collective over all devices of a node, rack or slice."""

    device: str
    members: int
    kind: str
    bytes: float  # the larger side on one device
    seconds: float
    source: str

    @property
    def name(self) -> str:
        """What is moved, where."""
        return f"{self.kind} of {self.bytes / 1e6:.3g} MB, {self.members} x {self.device}"

    def predicted_s(self) -> float:
        """The seconds of one axis over all members."""
        network = Network({"x": self.members}, self.device)
        return network.seconds(self.kind, ("x",), self.bytes)


def rows() -> list[Row]:
    """The published rows."""
    with ROWS.open(encoding="utf-8") as file:
        return [
            Row(one["device"], int(one["members"]), one["kind"], float(one["bytes"]),
                float(one["seconds"]), one["source"])
            for one in csv.DictReader(file)
        ]  # fmt: skip


def summary_table() -> str:
    """One line per device: how far its rows are apart."""
    lines = ["| device | rows | median error | worst |", "|---|---|---|---|"]
    for name in dict.fromkeys(row.device for row in rows()):
        apart = [row.predicted_s() / row.seconds for row in rows() if row.device == name]
        median = statistics.median(abs(ratio - 1) for ratio in apart)
        worst = max(apart, key=lambda ratio: abs(math.log(ratio)))
        lines.append(f"| `{name}` | {len(apart)} | {median:.1%} | {worst:.2f} x |")
    return "\n".join(lines)


def table() -> str:
    """One line per row, the worst first."""
    lines = ["| collective | measured | predicted | ratio |", "|---|---|---|---|"]
    for row in sorted(rows(), key=lambda row: -abs(math.log(row.predicted_s() / row.seconds))):
        ratio = row.predicted_s() / row.seconds
        lines.append(
            f"| {row.name} | {row.seconds * 1e6:.1f} us | {row.predicted_s() * 1e6:.1f} us "
            f"| {ratio:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary_table(), table(), sep="\n\n")
