"""What each op class is charged of a step: its own work, and a part of what several share.

Where several ops share a transfer or a reduction, each is charged a part of it, so that the sum
over op classes is never above the seconds of a state:

- a transfer that several uses share is made once for each placement that some of them need: for
  each placement one use is named that pays for it, and the others pay nothing;
- of a reduction that n leaves share, either each leaf is reduced, or one does for all: a leaf pays
  the lesser of its own reduction and one n-th of the common one;
- a phase takes the longer of compute c and hideable links l, which is at least c + w (l - c) for
  every w in [0, 1]: charges are affine in the *weight* w of each phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shardwright.cost.hiding import Hiding
from shardwright.spmd.decisions import Placement
from shardwright.spmd.follow import Choice
from shardwright.spmd.sums import Sizes
from shardwright.spmd.weights import SharedTransfer, Use, Weights

ALIKE = 0.9  # ops of this part of the heaviest one's compute are as heavy
Phase = int | None  # one of Hiding.phases by number; None: nothing hides


class Leaf(NamedTuple):
    """The part of one op class in a deferred reduction."""

    sizes: Sizes  # bytes that are reduced for each element
    part: float  # 1 / leaves
    weight: float  # times per step
    phase: Phase
    hoisted: float | None  # times per step after the loop, if it can be there
    phase_after: Phase  # of the reduction there


class Payment(NamedTuple):
    """What one use pays of a transfer that it shares."""

    slot: int
    parts: tuple[tuple[Placement, float], ...]  # (needed placement, times per step)
    rest: float  # times per step, for all further placements
    phase: Phase

    def part(self, need: Placement) -> float:
        """Times per step that it pays for this placement."""
        return next((part for known, part in self.parts if known == need), self.rest)


class Share(NamedTuple):
    """What an op class is charged, in times per step."""

    compute: tuple[tuple[Phase, float], ...]
    exchanges: float
    # (slot, phase, times): moves of operands not shared and of results not summed
    moves: tuple[tuple[int, Phase, float], ...]
    payments: tuple[Payment, ...]
    leaves: tuple[Leaf, ...]

    @property
    def phases(self) -> list[int]:
        """In which it counts."""
        found = [phase for phase, _ in self.compute] + [phase for _, phase, _ in self.moves]
        found += [one.phase for one in self.payments]
        found += [phase for leaf in self.leaves for phase in (leaf.phase, leaf.phase_after)]
        return sorted({phase for phase in found if phase is not None})


def shares(
    weights: Weights, near: Sequence[Choice], heavy: Sequence[float], hiding: Hiding
) -> list[Share]:
    """[classes] what each is charged, so that all is charged where ops choose as in `near`.

    For a placement that is needed there those uses pay that need it, for others the heaviest ops.
    """
    number = hiding.number.get
    payments: list[list[Payment]] = [[] for _ in near]
    for transfer in weights.shared:
        for c, payment in _payments(transfer, near, heavy, number(transfer.phase)):
            payments[c].append(payment)
    leaves: list[list[Leaf]] = [[] for _ in near]
    for one in weights.deferred:
        leaf = Leaf(
            one.sizes, 1.0 / len(one.leaves), one.weight, number(one.phase),
            one.after_loop if one.hoisted_past else None, number(one.phase_after),
        )  # fmt: skip
        for c, _ in one.leaves:
            leaves[c].append(leaf)
    out = []
    for c, row in enumerate(weights.compute):
        compute = tuple([(number(p), float(row[p])) for p in np.flatnonzero(row).tolist()])
        hidden = [(s, number(p), times) for s, p, times in weights.hideable[c]]
        moves = [one for one in hidden if one[1] is not None]
        for s, times in enumerate([*weights.operands[c], *weights.results[c]]):
            blocking = float(times) - sum(n for slot, _, n in moves if slot == s)
            moves += [(s, None, blocking)] if blocking else []
        out.append(Share(
            compute, float(weights.exchanges[c]), tuple(moves), tuple(payments[c]),
            tuple(leaves[c]),
        ))  # fmt: skip
    return out


def _payments(
    transfer: SharedTransfer, near: Sequence[Choice], heavy: Sequence[float], phase: Phase
) -> Iterator[tuple[int, Payment]]:
    """(op class, what it pays) for all uses."""
    needed: dict[Placement, list[Use]] = {}
    for c, slot in transfer.uses:
        needed.setdefault(near[c].needs[slot], []).append((c, slot))
    most = max(heavy[c] for c, _ in transfer.uses)
    heaviest = [use for use in transfer.uses if heavy[use[0]] >= most * ALIKE]
    for use in transfer.uses:
        parts = tuple([
            (need, transfer.weight / len(by) if use in by else 0.0) for need, by in needed.items()
        ])  # fmt: skip
        rest = transfer.weight / len(heaviest) if use in heaviest else 0.0
        yield use[0], Payment(use[1], parts, rest, phase)
