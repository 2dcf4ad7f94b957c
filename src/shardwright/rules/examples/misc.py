"""Examples of identities: markers, barriers, constraints."""

# One example per line, however long.
# fmt: off
# ruff: noqa: E501
from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.experimental import xla_metadata
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import PartitionSpec

from shardwright.rules.examples.example import Example, bind


def _constrained(x: Any) -> Any:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return lax.with_sharding_constraint(x, jax.NamedSharding(mesh, PartitionSpec()))


@custom_partitioning
def _whole_rows(x: Any, y: Any) -> Any:
    return jax.nn.softmax(x, -1) * y[:, None]


def _partition(mesh: Any, operands: Any, result: Any) -> Any:
    shardings = tuple(operand.sharding for operand in operands)
    return mesh, lambda x, y: jax.nn.softmax(x, -1) * y[:, None], result.sharding, shardings


_whole_rows.def_partition(
    partition=_partition, sharding_rule="i j, i -> i j", need_replication_factors=("j",)
)


EXAMPLES = [
    Example("custom_partitioning", _whole_rows, "f32[4,8] f32[4]", "([i,j],[i])->([i,j]) {i=4,j=8} need_replication={j}", "with a Shardy rule"),
    Example("optimization_barrier", lambda x, y: lax.optimization_barrier((x, y)), "f32[4,8] f32[6]", "([i,j],[k])->([i,j],[k]) {i=4,j=8,k=6}"),
    Example("sharding_constraint", _constrained, "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8}", "unsharded"),
    Example("layout_constraint", lambda x: with_layout_constraint(x, Layout((0, 1))), "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8}"),
    Example("device_put", lambda x: jax.device_put(x), "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8}"),
    Example("tie", bind("tie"), "f32[4] f32[6]", "([i],[j])->([j]) {i=4,j=6}"),
    Example("platform_index", lambda x: lax.platform_dependent(x, cpu=lax.sin, default=lax.cos), "f32[4]", "()->([])"),
    Example("xla_metadata_value", lambda x: xla_metadata.set_xla_metadata(x, a="b"), "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8}"),
]
