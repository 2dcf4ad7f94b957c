"""What one step processes: examples and tokens, read off the program's roles."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwright.analysis.analysis import Analysis
from shardwright.search.roles import find_roles, group_roles


@dataclass(frozen=True, slots=True)
class Items:
    """How many examples and tokens a step processes; 0 where the program has none."""

    examples: int
    tokens: int


def count_items(analysis: Analysis) -> Items:
    """The examples of a batch, microbatches and all, and the positions of their sequences.

    A dim of the data counts examples if it is the batch, or if a loop goes over it with the batch
    behind it. A sequence is a dim that meets itself, as attention scores do.
    """
    roles, kinds = find_roles(analysis), group_roles(analysis)
    batch, sequences = set(roles.batch), {g for g, kind in kinds.items() if kind == "sequence"}
    examples = 0
    for v in analysis.program.inputs:
        dims = [(dim, g) for g, dim in roles.groups_of[v]]
        last = max((dim for dim, g in dims if g in batch), default=None)
        if last is None:
            continue
        time = {dim for dim, g in dims if g in sequences}  # of data with time first
        shape = analysis.program.values[v].shape
        counted = [size for dim, size in enumerate(shape[: last + 1]) if dim not in time]
        examples = max(examples, math.prod(counted))
    length = max((analysis.all_groups[g].size for g in sequences), default=0)
    return Items(examples, examples * length)
