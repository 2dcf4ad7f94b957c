"""What Shardwright knows about each primitive: one factor rule per op."""

from shardwright.rules import (  # noqa: F401  (they register)
    collectives,
    contraction,
    convolution,
    cudnn,
    elementwise,
    fft,
    grouped,
    indexing,
    linalg,
    misc,
    paged,
    pallas,
    partitioned,
    random,
    reduction,
    shape,
    sorting,
    windows,
)  # fmt: skip
from shardwright.rules.opaque import OPAQUE
from shardwright.rules.registry import RULES, STRUCTURAL, lookup
from shardwright.rules.rule import OpShape, Rule, TensorShape

__all__ = ["OPAQUE", "RULES", "STRUCTURAL", "OpShape", "Rule", "TensorShape", "lookup"]
