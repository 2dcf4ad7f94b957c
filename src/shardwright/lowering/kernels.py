"""Pallas kernels on shards: the same kernel with the steps of one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.lowering.specs import Spec
from shardwright.rules.grid import KernelGrid
from shardwright.rules.pallas import known_grid
from shardwright.rules.registry import USER_RULES


def run_on_shards(
    eqn: Any, shards: Sequence[Any], specs: Sequence[Spec], results: Sequence[tuple[int, ...]]
) -> list[Any]:
    """The results of a pallas_call that runs the steps of one device, from its shards.

    `specs`: of the operands, then of the results, whose shapes here are `results`.
    """
    _, grid = known_grid(eqn.params)
    changes = kernel_on_shards(eqn, shards, results)
    given = prefetched_rows_first(eqn, shards, specs)
    first = _first_steps(grid, [*(s.shape for s in shards), *results], specs)
    if not first or _jax.kernel_name(eqn.params) in USER_RULES:  # it can run on shards as it is
        return _jax.bind(eqn, given, **changes)
    local = [[block.grid is not None for block in blocks] for blocks in grid.blocks]
    kernel, mapping = _jax.with_place(
        changes.get("jaxpr", eqn.params["jaxpr"]), changes["grid_mapping"], list(first), local
    )
    changes |= {"jaxpr": kernel, "grid_mapping": mapping}
    aliases = eqn.params.get("input_output_aliases") or ()
    changes["input_output_aliases"] = tuple((operand + 1, result) for operand, result in aliases)
    return _jax.bind(eqn, [jnp.stack(list(first.values())), *given], **changes)


def _first_steps(
    grid: KernelGrid, shapes: Sequence[tuple[int, ...]], specs: Sequence[Spec]
) -> dict[int, Any]:
    """{grid dim: the first of all its steps that this device runs}, of dims that must be told."""
    count = grid.index_operands
    return {
        block.grid: jax.lax.axis_index(axes).astype(jnp.int32) * (size // block.size * block.group)
        for blocks, shape, spec in zip(grid.blocks, shapes[count:], specs[count:], strict=True)
        for block, size, axes in zip(blocks, shape, spec, strict=True)
        if axes and block.grid in grid.told
    }  # fmt: skip


def kernel_on_shards(
    eqn: Any, shards: Sequence[Any], results: Sequence[tuple[int, ...]]
) -> dict[str, Any]:
    """The parameters of a pallas_call that runs the steps of these shards."""
    params = eqn.params
    kernel, grid = known_grid(params)
    mapping = params["grid_mapping"]
    shapes = [*(shard.shape for shard in shards), *results]
    _check(eqn, grid, shapes)
    shapes = shapes[grid.index_operands :]
    sizes = list(mapping.grid)  # one that depends on data is an operand
    for blocks, shape in zip(grid.blocks, shapes, strict=True):
        for block, size in zip(blocks, shape, strict=True):
            if block.grid is not None:
                sizes[block.grid] = size // block.size * block.group

    mappings = tuple(
        dataclasses.replace(m, array_aval=m.array_aval.update(shape=shape))
        for m, shape in zip(mapping.block_mappings, shapes, strict=True)
    )
    changes: dict[str, Any] = {
        "grid_mapping": dataclasses.replace(mapping, grid=tuple(sizes), block_mappings=mappings),
        "out_avals": tuple(
            a.update(shape=shape) for a, shape in zip(params["out_avals"], results, strict=True)
        ),
    }
    if kernel and kernel.adds and grid.rows is not None:
        axis, steps = grid.own.index(grid.rows), grid.sizes[grid.rows]
        changes["jaxpr"] = _jax.with_last_step(params["jaxpr"], axis, steps, sizes[grid.rows])
    if params.get("cost_estimate") is not None:  # the compiler schedules by it
        split = [g for g in range(len(sizes)) if g not in grid.of_data]
        here = prod(sizes[g] for g in split) / prod(grid.sizes[g] for g in split)
        fields = dataclasses.asdict(params["cost_estimate"])
        less = {name: int(value * here) for name, value in fields.items()}
        changes["cost_estimate"] = dataclasses.replace(params["cost_estimate"], **less)
    return changes


def prefetched_rows_first(eqn: Any, shards: Sequence[Any], specs: Sequence[Spec]) -> list[Any]:
    """The shards, with the rows of prefetched arrays that the steps here read in front.

    Their shapes stay: the kernel was traced for them. Where the rows are split that are added up,
    the first array holds numbers of blocks of them, which are counted from the first one here.
    """
    kernel, grid = known_grid(eqn.params)
    count = grid.index_operands
    several = zip(grid.blocks, shards[count:], specs[count:], strict=False)
    found = [
        (spec[d], shard.shape[d] // block.size) for blocks, shard, spec in several
        for d, block in enumerate(blocks) if block.grid == grid.rows is not None
    ]  # fmt: skip
    if kernel is None or not found or not found[0][0]:
        return list(shards)
    axes, here = found[0]
    first = jax.lax.axis_index(axes) * here
    prefetched = [jnp.roll(a, -first, axis=1) for a in shards[:count]]
    if kernel.adds:
        numbers = prefetched[0]
        prefetched[0] = jnp.clip(numbers.astype(jnp.int32) - first, 0, here - 1).astype(
            numbers.dtype
        )
    return [*prefetched, *shards[count:]]


def _check(eqn: Any, grid: KernelGrid, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raises where a rule of the user's splits what the kernel cannot do in shards."""
    whole = [v.aval.shape for v in (*eqn.invars, *eqn.outvars)]
    for n, (shape, before) in enumerate(zip(shapes, whole, strict=True)):
        for d in [d for d, size in enumerate(shape) if size != before[d]]:
            which = f"operand {n}" if n < len(eqn.invars) else f"result {n - len(eqn.invars)}"
            why = "every step of it reads all of that"
            if n >= grid.index_operands:
                block = grid.blocks[n - grid.index_operands][d]
                if shape[d] % block.size == 0:
                    continue
                why = f"no block of {block.size} fits in its shards of {shape[d]}"
            name = _jax.kernel_name(eqn.params)
            raise ShardwrightError(
                f"the rule of kernel {name!r} splits dim {d} of {which}: {why}",
                at=next(_jax.frames(eqn.source_info), None),
                try_=f'replicate= with that factor in sw.rule("{name}", ...), or other blocks',
            )
