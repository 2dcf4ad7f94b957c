"""Examples of ops that only rearrange."""

# One example per line, however long.
# fmt: off
# ruff: noqa: E501
from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from shardwright.rules.examples.example import Example, bind

EXAMPLES = [
    Example("reshape", lambda x: x.reshape(2, 2, 8), "f32[4,8]", "([ij,k])->([i,j,k]) {i=2,j=2,k=8}", "split"),
    Example("reshape", lambda x: x.reshape(16, 3), "f32[2,8,3]", "([i,j,k])->([ij,k]) {i=2,j=8,k=3}", "merge"),
    Example("reshape", lambda x: x.reshape(2, 4, 2, 3), "f32[8,6]", "([ij,kl])->([i,j,k,l]) {i=2,j=4,k=2,l=3}", "two splits"),
    Example("reshape", lambda x: x.reshape(8, 3), "f32[6,4]", "([ij,k])->([il,m]) {i=2,j=3,k=4,l=4,m=3} need_replication={j,k,l,m}", "only a leading 2 in common"),
    Example("reshape", lambda x: x.reshape(4, 6), "f32[2,12]", "([i,jk])->([ij,k]) {i=2,j=2,k=6}", "merge and split"),
    Example("reshape", lambda x: x.reshape(3, 2, 5), "f32[2,3,5]", "([i,j,k])->([l,m,k]) {i=2,j=3,k=5,l=3,m=2} need_replication={i,j,l,m}", "nothing in common, then 5"),
    Example("reshape", lambda x: x.reshape(1, 4, 1, 8), "f32[4,8,1]", "([i,j,1])->([1,i,1,j]) {i=4,j=8}", "only ones"),
    Example("reshape", lambda x: x.reshape(32), "f32[4,8]", "([i,j])->([ij]) {i=4,j=8}", "flatten"),
    Example("reshape", lambda x: x.reshape(()), "f32[1,1]", "([1,1])->([])", "to a scalar"),
    Example("reshape", lambda x: x.reshape(2, 4, 2, 4), "f32[4,2,8]", "([ij,k,lm])->([i,jk,l,m]) {i=2,j=2,k=2,l=2,m=4}", "heads and groups"),
    Example("transpose", lambda x: x.transpose(2, 0, 1), "f32[2,4,6]", "([i,j,k])->([k,i,j]) {i=2,j=4,k=6}"),
    Example("broadcast_in_dim", lambda x: jnp.broadcast_to(x, (4, 8)), "f32[8]", "([i])->([j,i]) {i=8,j=4}"),
    Example("broadcast_in_dim", lambda x: jnp.broadcast_to(x, (4, 8)), "f32[4,1]", "([i,1])->([i,j]) {i=4,j=8}", "1 to n"),
    Example("broadcast_in_dim", lambda x: x[:, None], "f32[4,8]", "([i,j])->([i,1,j]) {i=4,j=8}", "new dim of size 1"),
    Example("broadcast_in_dim", lambda: jnp.zeros((4, 8)), "", "([])->([i,j]) {i=4,j=8}", "scalar"),
    Example("squeeze", lambda x: jnp.squeeze(x, 1), "f32[4,1,8]", "([i,1,j])->([i,j]) {i=4,j=8}"),
    Example("iota", lambda: lax.broadcasted_iota(jnp.int32, (4, 8), 1), "", "()->([i,j]) {i=4,j=8}"),
    Example("empty", lambda: bind("empty", shape=(4, 8), dtype=jnp.dtype("float32"), out_sharding=None)(), "", "()->([i,j]) {i=4,j=8}"),
    Example("rev", lambda x: jnp.flip(x, 1), "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8} permutation={j}"),
    Example("slice", lambda x: x[:, 1:7], "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8} permutation={j}", "inner part"),
    Example("slice", lambda x: x[:, :4], "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8} permutation={j}", "first half"),
    Example("slice", lambda x: lax.slice(x, (0, 1), (4, 8), (1, 2)), "f32[4,8]", "([i,jk])->([i,j]) {i=4,j=4,k=2} need_replication={k}", "every other"),
    Example("slice", lambda x: lax.slice(x, (0, 3), (4, 8), (1, 3)), "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8} permutation={j}", "every third"),
    Example("slice", lambda x: x[2], "f32[4,8]", "([i,j])->([1,j]) {i=4,j=8} reduction={i} even={i}", "one entry"),
    Example("pad", lambda x: jnp.pad(x, ((0, 0), (1, 3))), "f32[4,8]", "([i,j],[])->([i,j]) {i=4,j=12} permutation={j}", "both ends"),
    Example("pad", lambda x: lax.pad(x, 0.0, [(0, 0, 0), (0, 8, 0)]), "f32[4,8]", "([i,j],[])->([i,j]) {i=4,j=16} permutation={j}", "to twice the size"),
    Example("pad", lambda x: lax.pad(x, 0.0, [(0, 0, 0), (1, 0, 1)]), "f32[4,8]", "([i,j],[])->([i,j]) {i=4,j=16} permutation={j}", "between"),
    Example("pad", lambda x: lax.pad(x, 0.0, [(0, 0, 0), (-1, -1, 0)]), "f32[4,8]", "([i,j],[])->([i,j]) {i=4,j=8} permutation={j}", "negative"),
    Example("concatenate", lambda x, y: jnp.concatenate([x, y], 1), "f32[4,8] f32[4,8]", "([i,j],[i,j])->([i,j]) {i=4,j=16} permutation={j}", "two halves"),
    Example("concatenate", lambda x, y: jnp.concatenate([x, y], 1), "f32[4,6] f32[4,2]", "([i,j],[i,j])->([i,j]) {i=4,j=8} permutation={j}", "unequal"),
    Example("concatenate", lambda x, y: jnp.concatenate([x, y], 1), "f32[4,7] f32[4,1]", "([i,j],[i,1])->([i,j]) {i=4,j=8} permutation={j}", "one more entry"),
    Example("split", lambda x: jnp.split(x, 2, axis=1), "f32[4,8]", "([i,j])->([i,j],[i,j]) {i=4,j=8} permutation={j}"),
    Example("split", lambda x: jnp.split(x, [2], axis=1), "f32[4,8]", "([i,j])->([i,j],[i,j]) {i=4,j=8} permutation={j}", "unequal"),
    Example("stack", lambda x, y: jnp.stack([x, y], 1), "f32[4,8] f32[4,8]", "([i,j],[i,j])->([i,k,j]) {i=4,j=8,k=2} need_replication={k}"),
    Example("unstack", lambda x: jnp.unstack(x, axis=1), "f32[4,2,8]", "([i,j,k])->([i,k],[i,k]) {i=4,j=2,k=8} need_replication={j}"),
    Example("tile", lambda x: jnp.tile(x, (1, 2)), "f32[4,4]", "([i,j])->([i,kj]) {i=4,j=4,k=2}"),
    Example("tile", lambda x: jnp.tile(x, (2, 1)), "f32[1,4]", "([1,i])->([j,i]) {i=4,j=2}", "a dim of size 1"),
]
