"""Function -> Program."""

from shardwright.program.tracing import trace
from shardwright.program.types import LITERAL, Op, Program, Region, Value

__all__ = ["LITERAL", "Op", "Program", "Region", "Value", "trace"]
