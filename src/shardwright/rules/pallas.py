"""Pallas kernels: a rule read from the grid, and what is known of libraries' kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from shardwright import _jax
from shardwright.rules.grid import Block, KernelGrid, kernel_grid
from shardwright.rules.kernels import Kernel, known_kernel
from shardwright.rules.registry import register
from shardwright.rules.rule import (
    MATRIX,
    VECTOR,
    OpShape,
    Rule,
    Uneven,
    einsum,
    opaque_rule,
    with_work,
)


@register("pallas_call")
def _pallas_call(op: OpShape) -> Rule:
    """A grid dim that every result has may be split: each device runs its steps.

    Where the kernel asks for its place in that dim, or block indices are computed from it, devices
    are told (lowering/kernels.py). Unless a result's blocks are computed, or steps may hand
    something to each other in scratch memory. Blocks are never cut, nor steps that share one.
    """
    kernel, grid = known_grid(op.params)  # ValueError: it cannot be read, and the op is opaque
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
    added = [("grid", grid.rows)] if kernel and kernel.adds else []
    rule = einsum(
        op, slots[:count], slots[count:], replicate=whole, sizes=sizes, reduce=added,
        unit=MATRIX if grid.work.dots else VECTOR,
    )  # fmt: skip
    computes = kernel.computes(op, grid) if kernel else None
    work = grid.work.share(1.0 if computes is None else float(np.mean(computes)))
    if kernel and computes is not None:
        work = work._replace(uneven=_uneven(computes, grid, grid.own[kernel.along], rule))
    return replace(with_work(rule, work.flops), kernel=work)


def known_grid(params: Mapping[str, Any]) -> tuple[Kernel | None, KernelGrid]:
    """The row of a kernel in the table, and its grid with what that row adds.

    Dims whose blocks are found by prefetched rows step along the grid dim of those rows.
    """
    grid = kernel_grid(params)
    kernel = known_kernel(_jax.kernel_name(params), len(grid.own))
    if kernel is None or kernel.rows is None:
        return kernel, grid
    rows = grid.own[kernel.rows]
    steps, mapping = grid.sizes[rows], params["grid_mapping"]
    prefetched = [v.aval.shape for v in params["jaxpr"].invars[: grid.index_operands]]
    if any(len(shape) != 3 or shape[1] != steps for shape in prefetched):
        return kernel, grid
    types = [b.array_aval for b in mapping.block_mappings]
    if kernel.adds:
        blocks = tuple(
            tuple(
                Block(b.size, rows) if b.grid is None and 1 < b.size == n / steps else b
                for b, n in zip(row, type_.shape, strict=True)
            )
            for row, type_ in zip(grid.blocks, types, strict=True)
        )
        results = blocks[len(blocks) - len(params["out_avals"]) :]
        added = blocks != grid.blocks and all(b.grid != rows for row in results for b in row)
        if not added or not _jax.asks_for_last_step(params["jaxpr"], kernel.rows, steps):
            return kernel, grid
        grid = grid._replace(blocks=blocks)
    return kernel, grid._replace(rows=rows)


def _uneven(computes: np.ndarray, grid: KernelGrid, along: int, rule: Rule) -> Uneven | None:
    """How much of the work is in each step along a grid dim; None where no dim steps along it."""
    factors = [
        dim[0] for dims, row in zip(rule.slots[grid.index_operands :], grid.blocks, strict=True)
        for dim, block in zip(dims, row, strict=True) if block.grid == along and dim
    ]  # fmt: skip
    if not factors or not computes.any() or rule.sizes[factors[0]] != len(computes):
        return None
    return Uneven(factors[0], tuple((computes / computes.mean()).tolist()))


def _steps(block: Block) -> list[Any]:
    """The labels of a dim's steps: those of its grid dim, in groups where they share blocks."""
    if block.grid is None:
        return []
    return [("grid", block.grid), *[("group", block.grid)] * (block.group == 1)]


def _why_whole(grid: KernelGrid, results: int) -> str:
    """Why no grid dim may be split: one reason for each."""
    common = _in_every_result(grid, results)
    reasons = [
        f"{g} has as many steps as data says" if g in grid.of_data
        else f"{g} decides which block a step writes" if g in grid.decides
        else f"{g} is not in every result" if g not in common
        else f"{g} is where the kernel asks for its program_id in a branch" if g in grid.untold
        else f"{g} is not declared parallel, and steps share scratch memory"
        for g, size in enumerate(grid.sizes) if size > 1
    ]  # fmt: skip
    if not grid.sizes:  # it may have a pipeline inside
        return "it has no grid that devices could share"
    if not reasons:
        return "its grid has one step, and blocks are never cut; smaller blocks could be split"
    return f"no grid dim may be split: {', '.join(reasons)}"


def _in_every_result(grid: KernelGrid, results: int) -> set[int | None]:
    given = grid.blocks[len(grid.blocks) - results :]
    return set.intersection(*({b.grid for b in blocks} for blocks in given))


def splittable(grid: KernelGrid, kernel: Kernel | None, results: int) -> set[int]:
    """The grid dims that devices may share out."""
    known = {grid.own[d] for d in kernel.independent} if kernel else set()
    common = _in_every_result(grid, results)
    return {
        g for g, size in enumerate(grid.sizes) if size > 1 and g not in grid.of_data and (
            g == grid.rows or (g not in grid.decides
            and (g in known or (g in common and g not in grid.untold and g in grid.parallel)))
        )
    }  # fmt: skip
