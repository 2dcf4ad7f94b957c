"""Pallas kernels: a rule read from the grid, and what is known of libraries' kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwright import _jax
from shardwright.rules.grid import Block, KernelGrid, kernel_grid
from shardwright.rules.kernels import Kernel, known_kernel
from shardwright.rules.registry import register
from shardwright.rules.rule import MATRIX, VECTOR, OpShape, Rule, einsum, opaque_rule, with_work


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
        return replace(opaque_rule(op, _why_whole(grid, len(op.results))), kernel=grid.work)
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


def _why_whole(grid: KernelGrid, results: int) -> str:
    """Why no grid dim may be split: one reason for each."""
    common = _in_every_result(grid, results)
    reasons = [
        f"{g} decides which block a step gets" if g in grid.decides
        else f"{g} is not in every result" if g not in common
        else f"{g} is where the kernel asks for its program_id" if g in grid.asked
        else f"{g} is not declared parallel, and steps share scratch memory"
        for g, size in enumerate(grid.sizes) if size > 1
    ]  # fmt: skip
    return "no grid dim may be split" + (": " + ", ".join(reasons) if reasons else "")


def _in_every_result(grid: KernelGrid, results: int) -> set[int | None]:
    given = grid.blocks[len(grid.blocks) - results :]
    return set.intersection(*({b.grid for b in blocks} for blocks in given))


def splittable(grid: KernelGrid, kernel: Kernel | None, results: int) -> set[int]:
    """The grid dims that devices may share out."""
    known = {grid.own[d] for d in kernel.independent} if kernel else set()
    common = _in_every_result(grid, results)
    return {
        g for g, size in enumerate(grid.sizes) if size > 1 and g not in grid.decides
        and (g in known or (g in common and g not in grid.asked and g in grid.parallel))
    }  # fmt: skip
