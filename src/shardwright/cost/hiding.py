"""Hiding: how many seconds of links run behind compute, phase by phase.

In each phase the hideable links run beside the compute: the shorter of the two is hidden,

    hidden = sum over phases of min(compute, hideable links)

so a phase takes max(compute, hideable links) + blocking links. Every factor counts in a few
*columns*: the compute of phase k is column 2k, its hideable links are column 2k + 1.

The sum of minima is not a sum over factors, but it has bounds that are: min(c, l) <= w c + (1-w) l
for every *weight* w in [0, 1] (shares.py).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from shardwright.program.types import TOP, Program
from shardwright.rules.rule import MATRIX
from shardwright.spmd.slack import BLOCKS, Slack
from shardwright.spmd.weights import Weights


class Hiding:
    """The columns of each op class and factor."""

    def __init__(self, weights: Weights, *, hides: bool) -> None:
        """Nothing hides unless the device `hides`."""
        linked = {p for of in weights.hideable for _, p, _ in of}
        linked |= {t.phase for t in weights.shared}
        linked |= {p for d in weights.deferred for p in (d.phase, d.phase_after)}
        computed = set(np.flatnonzero(weights.compute.any(0)).tolist())
        self.phases = sorted((linked - {BLOCKS}) & computed) if hides else []
        self.number = {p: k for k, p in enumerate(self.phases)}  # of a phase in which links hide
        self.compute_column = {p: 2 * k for p, k in self.number.items()}  # of such a phase
        self.link_column = {p: 2 * k + 1 for p, k in self.number.items()}
        self.compute = [  # [classes] (column, times per step)
            [(column, float(row[p])) for p, column in self.compute_column.items() if row[p]]
            for row in weights.compute
        ]
        self.links = [  # [classes] (slot, column, times per step)
            [(slot, self.link_column[p], w) for slot, p, w in of if p in self.link_column]
            for of in weights.hideable
        ]

    @property
    def columns(self) -> int:
        """How many columns there are: two for each phase."""
        return 2 * len(self.phases)


def unrolled_bytes(program: Program, slack: Slack) -> int:
    """Bytes of the gradients that one phase hands on; 0 where most of them are made in a loop."""
    made: dict[tuple[int, int], int] = defaultdict(int)  # (region, phase) -> bytes
    for op in program.ops:
        if slack.results[op.index] != BLOCKS and op.rule.unit == MATRIX:
            made[op.region, slack.phase[op.index]] += sum(
                program.values[v].bytes for v in op.results
            )
    (region, _), most = max(made.items(), key=lambda one: one[1], default=((TOP, BLOCKS), 0))
    return most if region == TOP else 0


def hidden_s(columns: np.ndarray) -> np.ndarray:
    """[...] seconds that are hidden, given the columns [..., 2 x phases]."""
    hidden: np.ndarray = np.minimum(columns[..., 0::2], columns[..., 1::2]).sum(-1)
    return hidden
