"""What a plan says of rows that are sorted over the whole batch before a grouped dot."""

from __future__ import annotations

from math import prod

from shardwright.program.types import LITERAL, Program
from shardwright.rules.grouped import GROUPED_DOTS


def sorted_rows_notes(program: Program) -> list[str]:
    """A sentence where a grouped dot multiplies as many rows as an op outside shard_maps sorts."""
    manual = [bool(region.mesh) for region in program.regions]
    for region in program.regions[1:]:
        manual[region.index] |= manual[region.parent]
    sorts = {
        prod(program.values[op.results[0]].shape): op
        for op in reversed(program.ops)  # the first of them, not the one on the way back
        if op.key in program.unsorted and not manual[op.region]
    }  # fmt: skip
    for op in program.ops:
        shapes = [program.values[v].shape for v in op.operands[:1] if v != LITERAL]
        found = [sorts[n] for shape in shapes for n in shape if n in sorts]
        if op.name in GROUPED_DOTS and op.sorted_by is None and found:
            return [
                f"the rows of {op.name} at {op.source or found[0].source} are sorted over the whole"
                f" batch at {found[0].source}, so each may come from any device:"
                f" {program.unsorted[found[0].key]}; in a jax.shard_map over the axes of the batch"
                " every device sorts its own (docs/kernels.md, grouped dots)"
            ]
    return []
