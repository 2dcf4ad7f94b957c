"""Pallas kernels: a rule read from the grid, where a block index is a grid index or 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright import _jax
from shardwright.rules.registry import USER_RULES, register
from shardwright.rules.rule import MATRIX, VECTOR, OpShape, Rule, einsum, with_work


@register("pallas_call")
def _pallas_call(op: OpShape) -> Rule:
    """A grid dim that every result has may be split: each device runs its steps.

    Unless the kernel asks where in that dim it is, or steps may hand something to each other in
    scratch memory. Blocks are never cut.
    """
    grid = _jax.kernel_grid(op.params)  # ValueError: it cannot be read, and the op is opaque
    tensors = (*op.operands[grid.index_operands :], *op.results)
    sizes: dict[Any, int] = {("grid", g): n for g, n in enumerate(grid.sizes)}
    slots: list[list[Any]] = [op.dims(n) for n in range(grid.index_operands)]
    whole = {label for dims in slots for label in dims}
    for n, (blocks, tensor) in enumerate(zip(grid.blocks, tensors, strict=True)):
        dims: list[Any] = []
        for d, (block, size) in enumerate(zip(blocks, tensor.shape, strict=True)):
            steps = 1 if block.grid is None else grid.sizes[block.grid]
            if steps * block.size != size:
                raise ValueError("blocks do not cover a dim, or reach beyond it")
            within = ("block", n, d)
            sizes[within] = block.size
            whole.add(within)
            dims.append([within] if block.grid is None else [("grid", block.grid), within])
        slots.append(dims)
    results = grid.blocks[len(grid.blocks) - len(op.results) :]
    common = set.intersection(*({b.grid for b in blocks} for blocks in results))
    whole |= {
        ("grid", g) for g in range(len(grid.sizes))
        if g not in common or g in grid.asked or g not in grid.parallel
    }  # fmt: skip
    count = len(op.operands)
    rule = einsum(
        op, slots[:count], slots[count:], replicate=whole, sizes=sizes,
        unit=MATRIX if grid.has_dots else VECTOR,
    )  # fmt: skip
    return with_work(rule, grid.operations)


def read_from_grid(params: Mapping[str, Any]) -> bool:
    """Whether the rule of a kernel is the one of its grid, and not the user's."""
    return USER_RULES.keys().isdisjoint(("pallas_call", _jax.kernel_name(params)))
