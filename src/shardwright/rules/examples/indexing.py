"""Examples of gather, scatter and dynamic slices."""

# One example per line, however long.
# fmt: off
# ruff: noqa: E501
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwright.rules.examples.example import Example


def _rows(x: Any, i: Any) -> Any:
    """Windows of four rows, one for each index."""
    return jax.vmap(lambda i: lax.dynamic_slice(x, (i, 0), (4, 6)))(i)


_TABLE = "f32[16,6] i32[4,2]"
_UPDATE = "f32[16,6] i32[4,2] f32[4,2,6]"

EXAMPLES = [
    Example("gather", lambda x, i: x[i], _TABLE, "([i,j],[k,l,1])->([k,l,j]) {i=16,j=6,k=4,l=2} reduction={i} even={k,l}", "embedding"),
    Example("gather", lambda x, i: jnp.take(x, i, axis=0), _TABLE, "([i,j],[k,l,1])->([k,l,j]) {i=16,j=6,k=4,l=2} reduction={i} even={k,l}", "embedding, filled"),
    Example("gather", lambda x, i: jnp.take(x, i, axis=0, mode="clip"), _TABLE, "([i,j],[k,l,1])->([k,l,j]) {i=16,j=6,k=4,l=2} reduction={i} even={k,l}", "embedding, clipped"),
    Example("gather", lambda x, i: jnp.take(x, i, axis=1), "f32[6,16] i32[4]", "([i,j],[k,1])->([i,k]) {i=6,j=16,k=4} reduction={j} even={k}", "second dim"),
    Example("gather", lambda x, i: jnp.take_along_axis(x, i, 1), "f32[4,16] i32[4,2]", "([i,j],[i,k,1])->([i,k]) {i=4,j=16,k=2} reduction={j} even={i,k}", "batching dims"),
    Example("gather", lambda x, i, j: x[i, j], "f32[16,8] i32[4] i32[4]", "([i,j],[k,l])->([k]) {i=16,j=8,k=4,l=2} reduction={i,j} need_replication={l} even={k}", "two indexed dims"),
    Example("gather", _rows, "f32[16,6] i32[4]", "([i,j],[k,l])->([k,m,j]) {i=16,j=6,k=4,l=2,m=4} need_replication={i,l,m} even={k}", "windows"),
    Example("gather", lambda x, i: jax.vmap(lambda x, i: lax.dynamic_slice(x, (i, 0), (1, 6)))(x, i), "f32[4,16,6] i32[4]", "([i,j,k],[i,l])->([i,1,k]) {i=4,j=16,k=6,l=2} reduction={j} need_replication={l} even={i}", "vmapped dynamic_slice"),
    Example("scatter-add", lambda x, i, u: x.at[i].add(u), _UPDATE, "([i,j],[k,l,1],[k,l,j])->([i,j]) {i=16,j=6,k=4,l=2} reduction={k,l} even={i,k,l}"),
    Example("scatter-sub", lambda x, i, u: x.at[i].subtract(u), _UPDATE, "([i,j],[k,l,1],[k,l,j])->([i,j]) {i=16,j=6,k=4,l=2} need_replication={k,l} even={i,k,l}"),
    Example("scatter-max", lambda x, i, u: x.at[i].max(u), _UPDATE, "([i,j],[k,l,1],[k,l,j])->([i,j]) {i=16,j=6,k=4,l=2} reduction_max={k,l} even={i,k,l}"),
    Example("scatter-min", lambda x, i, u: x.at[i].min(u), _UPDATE, "([i,j],[k,l,1],[k,l,j])->([i,j]) {i=16,j=6,k=4,l=2} reduction_min={k,l} even={i,k,l}"),
    Example("scatter-mul", lambda x, i, u: x.at[i].multiply(u), _UPDATE, "([i,j],[k,l,1],[k,l,j])->([i,j]) {i=16,j=6,k=4,l=2} reduction_mul={k,l} even={i,k,l}"),
    Example("scatter", lambda x, i, u: x.at[i].set(u), _UPDATE, "([i,j],[k,l,1],[k,l,j])->([i,j]) {i=16,j=6,k=4,l=2} need_replication={k,l} even={i,k,l}"),
    Example("scatter", lambda x, u: x.at[:, 3].set(u), "f32[4,8] f32[4]", "([i,j],[1],[i])->([i,j]) {i=4,j=8} need_replication={j}", "one column"),
    Example("scatter", lambda x, i, u: jax.vmap(lambda x, i, u: lax.dynamic_update_slice(x, u, (i, 0)))(x, i, u), "f32[4,16,6] i32[4] f32[4,1,6]", "([i,j,k],[i,l],[i,1,k])->([i,j,k]) {i=4,j=16,k=6,l=2} need_replication={l} even={i,j}", "vmapped dynamic_update_slice"),
    Example("scatter-add", lambda x, i, j, u: x.at[i, j].add(u), "f32[16,8] i32[4] i32[4] f32[4]", "([i,j],[k,l],[k])->([i,j]) {i=16,j=8,k=4,l=2} reduction={k} need_replication={l} even={i,j,k}", "two indexed dims"),
    Example("scatter-add", lambda x, i, u: jax.vmap(lambda x, i, u: x.at[i].add(u))(x, i, u), "f32[4,16] i32[4,2] f32[4,2]", "([i,j],[i,k,1],[i,k])->([i,j]) {i=4,j=16,k=2} reduction={k} even={i,j,k}", "batching dims"),
    Example("scatter-add", lambda x, i: jax.grad(lambda x: _rows(x, i).sum())(x), "f32[16,6] i32[4]", "([i,j],[k,l],[k,m,j])->([i,j]) {i=16,j=6,k=4,l=2,m=4} need_replication={i,l,m} reduction={k} even={k}", "windows"),
    Example("scatter-add", lambda x, i, u: x.at[i].add(u, mode="drop"), _UPDATE, "([i,j],[k,l,1],[k,l,j])->([i,j]) {i=16,j=6,k=4,l=2} reduction={k,l} even={i,k,l}", "drop"),
    Example("gather", lambda x, i: jnp.take(x, i, axis=1), "f32[4,16,6] i32[]", "([i,j,k],[1])->([i,k]) {i=4,j=16,k=6} reduction={j}", "one index"),
    Example("scatter-add", lambda x, i, u: jax.vmap(lambda x, i, u: x.at[i].add(u))(x, i, u), "f32[4,16,6] i32[4,2] f32[4,2,6]", "([i,j,k],[i,l,1],[i,l,k])->([i,j,k]) {i=4,j=16,k=6,l=2} reduction={l} even={i,j,l}", "batching dims and windows"),
    Example("dynamic_update_slice", lambda x, u: lax.dynamic_update_slice(x, u, (0, 0)), "f32[4,6] f32[4,6]", "([i,j],[i,j],[],[])->([i,j]) {i=4,j=6}", "whole"),
    Example("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, 0), (4, 6)), "f32[16,6] i32[]", "([i,j],[],[])->([k,j]) {i=16,j=6,k=4} need_replication={i,k}"),
    Example("dynamic_slice", lambda x, i: lax.dynamic_index_in_dim(x, i, 0), "f32[16,6] i32[]", "([i,j],[],[])->([1,j]) {i=16,j=6} need_replication={i}", "one entry"),
    Example("dynamic_update_slice", lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)), "f32[16,6] f32[4,6] i32[]", "([i,j],[k,j],[],[])->([i,j]) {i=16,j=6,k=4} need_replication={i,k}"),
    Example("dynamic_update_slice", lambda x, u, i: lax.dynamic_update_slice(x, u, (0, i, 0, 0)), "f32[2,16,4,6] f32[2,1,4,6] i32[]", "([i,j,k,l],[i,1,k,l],[],[],[],[])->([i,j,k,l]) {i=2,j=16,k=4,l=6} even={j}", "key-value cache"),
]
