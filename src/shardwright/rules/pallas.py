"""Pallas kernels: a rule read from the grid, and what is known of libraries' kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwright import _jax
from shardwright.rules.grid import Block, KernelGrid, kernel_grid
from shardwright.rules.kernels import Kernel, known_kernel
from shardwright.rules.registry import USER_RULES, register
from shardwright.rules.rule import MATRIX, VECTOR, OpShape, Rule, einsum, with_work


@register("pallas_call")
def _pallas_call(op: OpShape) -> Rule:
    """A grid dim that every result has may be split: each device runs its steps.

    Unless the kernel asks where in that dim it is, block indices are computed from it, or steps may
    hand something to each other in scratch memory. Blocks are never cut, nor steps that share one.
    """
    grid = kernel_grid(op.params)  # ValueError: it cannot be read, and the op is opaque
    kernel = known_kernel(_jax.kernel_name(op.params))
    free = splittable(grid, kernel, len(op.results))
    if not free:
        raise ValueError("no grid dim may be split")
    groups = {b.grid: b.group for blocks in grid.blocks for b in blocks if b.group > 1}
    sizes: dict[Any, int] = {}
    for g, n in enumerate(grid.sizes):
        sizes[("grid", g)], sizes[("group", g)] = n // groups.get(g, 1), groups.get(g, 1)
    slots: list[list[Any]] = [op.dims(n) for n in range(grid.index_operands)]
    whole: set[Any] = {label for dims in slots for label in dims}
    tensors = (*op.operands[grid.index_operands :], *op.results)
    for n, (blocks, tensor) in enumerate(zip(grid.blocks, tensors, strict=True)):
        dims: list[Any] = []
        for d, (block, size) in enumerate(zip(blocks, tensor.shape, strict=True)):
            within = ("block", n, d)
            sizes[within] = size if block.grid is None else block.size
            whole.add(within)
            dims.append([*_steps(block), within])
        slots.append(dims)
    whole |= {("grid", g) for g in range(len(grid.sizes)) if g not in free}
    whole |= {("group", g) for g in range(len(grid.sizes))}
    count = len(op.operands)
    rule = einsum(
        op, slots[:count], slots[count:], replicate=whole, sizes=sizes,
        unit=MATRIX if grid.work.dots else VECTOR,
    )  # fmt: skip
    work = grid.work.share(kernel.share(op, grid) if kernel else 1.0)
    return replace(with_work(rule, work.flops), kernel=work)


def _steps(block: Block) -> list[Any]:
    """The labels of a dim's steps: those of its grid dim, in groups where they share blocks."""
    if block.grid is None:
        return []
    return [("grid", block.grid), *[("group", block.grid)] * (block.group == 1)]


def splittable(grid: KernelGrid, kernel: Kernel | None, results: int) -> set[int]:
    """The grid dims that devices may share out."""
    known = {grid.own[d] for d in kernel.independent} if kernel else set()
    given = grid.blocks[len(grid.blocks) - results :]
    common = set.intersection(*({b.grid for b in blocks} for blocks in given))
    return {
        g for g in range(len(grid.sizes)) if g not in grid.decides
        and (g in known or (g in common and g not in grid.asked and g in grid.parallel))
    }  # fmt: skip


def read_from_grid(params: Mapping[str, Any]) -> bool:
    """Whether the rule of a kernel is the one of its grid, and not the user's."""
    return USER_RULES.keys().isdisjoint(("pallas_call", _jax.kernel_name(params)))
