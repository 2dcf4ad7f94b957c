"""Program -> names, colors, conflicts, groups: the decision space."""

from shardwright.analysis.analysis import Analysis, Group, analyze_program
from shardwright.analysis.conflicts import Conflict, ConflictSet

__all__ = ["Analysis", "Conflict", "ConflictSet", "Group", "analyze_program"]
