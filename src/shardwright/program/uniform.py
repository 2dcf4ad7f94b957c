"""Values whose entries are all one number: zeros, a gradient that nothing reaches.

Whatever picks, arranges or reduces such entries has equal entries again, at every index, and
compilers fold it into a constant: such an op reads no array, it fills its result with a number.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from jax.lax import GatherScatterMode

from shardwright.program.types import LITERAL, Op, point_by_point
from shardwright.rules.rule import Rule

# XLA folds these on one device and on many; dots, convolutions and cumulative sums it computes.
PICKS = frozenset(("transpose", "rev", "slice", "dynamic_slice", "gather"))
REDUCES = frozenset(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min"))


def fills(eqn: Any, operands: Sequence[int], uniform: Set[int]) -> bool:
    """Whether an op picks or reduces equal entries, and fills in no others at wrong indices."""
    if not operands or operands[0] not in uniform or len(eqn.outvars) != 1:
        return False
    if 0 in eqn.invars[0].aval.shape or 0 in eqn.outvars[0].aval.shape:
        return False
    name = eqn.primitive.name
    if name == "gather" and eqn.params["mode"] == GatherScatterMode.FILL_OR_DROP:
        return False
    return name in PICKS or name in REDUCES


def is_filled(op: Op) -> bool:
    """Whether an op of a program fills in a number."""
    return op.name in PICKS | REDUCES and all(v == LITERAL for v in op.operands)


def keeps_uniform(rule: Rule, operands: Sequence[int], uniform: Set[int]) -> bool:
    """Whether an op computes entry by entry from equal entries."""
    known = bool(operands) and all(v == LITERAL or v in uniform for v in operands)
    return known and rule.fusible and len(rule.results) == 1 and point_by_point(rule)
