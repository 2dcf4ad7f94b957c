"""Loop-invariant code motion: where ops run that compute the same in every trip of a loop.

XLA takes them out of the loop, and with them what they move; whole inner loops too. Lowering puts
a barrier only where an op of the trip needs an invariant operand elsewhere (Mover.constrained), so
that this copy does not outlive the trip.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from shardwright.program.ties import CONSTS, ENTRIES, EXITS, LEAVES_TRIP, Tie
from shardwright.program.types import LITERAL, NO_OP, NO_REMAT, TOP, Op, Program


@dataclass(frozen=True, slots=True)
class Homes:
    """The region that each op runs in once invariant ones are hoisted."""

    of_op: list[int]  # [ops]
    parents: list[int]  # [regions] where the loop or branch itself runs

    def operands(self, op: Op) -> int:
        """Where its operands are moved; what leaves a trip is moved in every trip."""
        return op.body[0] if op.tie in LEAVES_TRIP else self.of_op[op.index]

    def results(self, op: Op) -> int:
        """Where its results are moved; an entry of a stack is moved in every trip."""
        return op.body[0] if op.tie is Tie.SCAN_XS else self.of_op[op.index]


def find_homes(program: Program) -> Homes:
    """Where every op runs: in the innermost loop in which one of its operands changes."""
    regions = program.regions
    outermost = [r.index for r in regions]  # [regions] as far out as its ops may go
    changes = [TOP] * len(program.values)  # [values] the innermost region in which it changes
    for r in regions[1:]:
        if r.kind in ("scan", "while"):  # a branch may not be taken, a condition is asked once more
            outermost[r.index] = outermost[r.parent]
        for v in r.inputs:
            changes[v] = r.index
    entering: dict[int, list[int]] = defaultdict(list)  # {loop or branch: what goes into it}
    for op in program.ops:
        if op.tie in ENTRIES:
            entering[regions[op.body[0]].op] += op.operands
    home: list[int] = []
    for op in program.ops:
        if op.tie in EXITS:
            home.append(home[regions[op.body[0]].op])
        elif op.rule.opaque or op.remat != NO_REMAT or _branches(program, op):
            home.append(op.region)
        else:
            reads = (*op.operands, *entering[op.index])
            varies = [changes[v] for v in reads if v != LITERAL]
            home.append(max([outermost[op.region], *varies]))
        for v in op.results:
            if op.tie in CONSTS:
                changes[v] = changes[op.operands[0]]
            elif op.tie not in ENTRIES:
                changes[v] = home[-1]
    return Homes(home, [home[r.op] if r.op != NO_OP else TOP for r in regions])


def _branches(program: Program, op: Op) -> bool:
    """Whether this is a branch or a shard_map itself: it stays where it is."""
    return op.is_region and program.regions[op.body[0]].kind in ("cond", "shard_map")
