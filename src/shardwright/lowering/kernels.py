"""Pallas kernels on shards: the same kernel with the steps of one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import prod
from typing import Any

from shardwright.rules.grid import Block, kernel_grid


def kernel_on_shards(eqn: Any, shards: Sequence[Any]) -> dict[str, Any]:
    """The parameters of a pallas_call that runs the steps of these shards."""
    params = eqn.params
    mapping, grid = params["grid_mapping"], kernel_grid(params)
    sizes = list(grid.sizes)
    for blocks, shard in zip(grid.blocks, shards[grid.index_operands :], strict=False):
        for block, size in zip(blocks, shard.shape, strict=True):
            if block.grid is not None:
                sizes[block.grid] = size // block.size * block.group

    def local(aval: Any, blocks: Sequence[Block]) -> Any:
        rows = zip(blocks, aval.shape, strict=True)
        return aval.update(
            shape=tuple(n if b.grid is None else b.size * sizes[b.grid] // b.group for b, n in rows)
        )

    mappings = tuple(
        dataclasses.replace(m, array_aval=local(m.array_aval, blocks))
        for m, blocks in zip(mapping.block_mappings, grid.blocks, strict=True)
    )
    results = grid.blocks[-mapping.num_outputs :]
    changes: dict[str, Any] = {
        "grid_mapping": dataclasses.replace(mapping, grid=tuple(sizes), block_mappings=mappings),
        "out_avals": tuple(
            local(a, blocks) for a, blocks in zip(params["out_avals"], results, strict=True)
        ),
    }
    if params.get("cost_estimate") is not None:  # the compiler schedules by it
        here = prod(sizes) / prod(grid.sizes)
        fields = dataclasses.asdict(params["cost_estimate"])
        less = {name: int(value * here) for name, value in fields.items()}
        changes["cost_estimate"] = dataclasses.replace(params["cost_estimate"], **less)
    return changes
