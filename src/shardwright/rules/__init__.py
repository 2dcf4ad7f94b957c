"""What Shardwright knows about each primitive: one factor rule per op."""

from shardwright.rules import (  # noqa: F401  (they register)
    contraction,
    convolution,
    elementwise,
    fft,
    indexing,
    linalg,
    misc,
    partitioned,
    random,
    reduction,
    shape,
    sorting,
    windows,
)  # fmt: skip
from shardwright.rules.registry import OPAQUE, RULES, STRUCTURAL, find_rule, lookup, register
from shardwright.rules.rule import OpShape, Rule, TensorShape, einsum, opaque_rule

__all__ = [
    "OPAQUE", "RULES", "STRUCTURAL", "OpShape", "Rule", "TensorShape", "einsum", "find_rule",
    "lookup", "opaque_rule", "register",
]  # fmt: skip
