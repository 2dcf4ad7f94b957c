"""Functions that run on each device's own shards of their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from shardwright import _jax
from shardwright.lowering.specs import Spec, partition_spec


def on_shards(
    fn: Callable[..., Any], mesh: Any, operands: Sequence[Spec], results: Any
) -> Callable[..., Any]:
    """`fn`, written for shards, as a function of global arrays; `results`: one spec or a list."""
    out = [*map(partition_spec, results)] if isinstance(results, list) else partition_spec(results)
    return jax.shard_map(
        fn, mesh=mesh, in_specs=tuple(map(partition_spec, operands)), out_specs=out,
        check_vma=False, axis_names=_jax.automatic_axes(mesh),
    )  # fmt: skip
