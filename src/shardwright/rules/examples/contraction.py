"""Examples of dots and convolutions."""

# One example per line, however long.
# fmt: off
# ruff: noqa: E501
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwright.rules.examples.example import Example


def _conv(strides: tuple[int, ...] = (1, 1), padding: Any = "SAME", layout: str = "NHWC", **more: Any) -> Any:
    def conv(x: Any, w: Any) -> Any:
        numbers = (layout, "HWIO", layout)
        return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=numbers, **more)

    return conv


def _conv_kernel_gradient(x: Any, w: Any) -> Any:
    return jax.linear_transpose(lambda w: _conv()(x, w), w)(jnp.ones((4, 8, 8, 10)))


def _conv_kernel_gradient_strided(x: Any, w: Any) -> Any:
    return jax.linear_transpose(lambda w: _conv((2, 2))(x, w), w)(jnp.ones((4, 4, 4, 10)))


_IMAGE = "f32[4,8,8,6] f32[3,3,6,10]"
_RAGGED_SUM = lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])
_GROUP_SIZES = [jnp.array([3, 1, 4]), jnp.array([2, 6])]

EXAMPLES = [
    Example("dot_general", jnp.matmul, "f32[4,8] f32[8,6]", "([i,j],[j,k])->([i,k]) {i=4,j=8,k=6} reduction={j}"),
    Example("dot_general", jnp.matmul, "bf16[2,4,8] bf16[2,8,6]", "([i,j,k],[i,k,l])->([i,j,l]) {i=2,j=4,k=8,l=6} reduction={k}", "batch"),
    Example("dot_general", jnp.dot, "f32[8] f32[8]", "([i],[i])->([]) {i=8} reduction={i}", "vectors"),
    Example("dot_general", lambda x, y: jnp.einsum("i,j->ij", x, y), "f32[4] f32[6]", "([i],[j])->([i,j]) {i=4,j=6}", "outer"),
    Example("dot_general", lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), "f32[2,4,6,8] f32[2,10,6,8]", "([i,j,k,l],[i,m,k,l])->([i,k,j,m]) {i=2,j=4,k=6,l=8,m=10} reduction={l}", "attention scores"),
    Example("dot_general", lambda x, w: jnp.einsum("bshk,hkd->bsd", x, w), "f32[2,4,6,8] f32[6,8,10]", "([i,j,k,l],[k,l,m])->([i,j,m]) {i=2,j=4,k=6,l=8,m=10} reduction={k,l}", "two contracted dims"),
    Example("dot_general", lambda x, y: lax.dot(x, y, preferred_element_type=jnp.int32), "i8[4,8] i8[8,6]", "([i,j],[j,k])->([i,k]) {i=4,j=8,k=6} reduction={j}", "integers"),
    Example("dot_general", lambda x, w: jnp.einsum("bd,df->bf", x, w), "f32[1,8] f32[8,6]", "([1,i],[i,j])->([1,j]) {i=8,j=6} reduction={i}", "a dim of size 1"),
    Example("ragged_dot_general", lambda x, w: lax.ragged_dot(x, w, _GROUP_SIZES[0]), "f32[8,4] f32[3,4,6]", "([i,j],[k,j,l],[m])->([i,l]) {i=8,j=4,k=3,l=6,m=3} reduction={j,k} need_replication={m} even={i,j,k,l}", "grouped rows"),
    Example("ragged_dot_general", lambda x, y: lax.ragged_dot_general(x, y, _GROUP_SIZES[1], _RAGGED_SUM), "f32[8,4] f32[8,6]", "([i,j],[i,k],[l])->([m,j,k]) {i=8,j=4,k=6,l=2,m=2} reduction={i} need_replication={l} even={i,j,k,m}", "grouped sums"),
    Example("scaled_dot", lambda x, y, a, b: lax.scaled_dot(x, y, lhs_scale=a, rhs_scale=b), "f32[8,64] f32[64,8] f32[8,2] f32[2,8]", "([i,jk],[jk,l],[i,j],[j,l])->([i,l]) {i=8,j=2,k=32,l=8} reduction={j,k}"),
    Example("conv_general_dilated", _conv(), _IMAGE, "([i,j,k,l],[m,n,l,o])->([i,j,k,o]) {i=4,j=8,k=8,l=6,m=3,n=3,o=10} permutation={j,k} reduction={l} need_replication={m,n}", "3x3 same"),
    Example("conv_general_dilated", _conv(padding="VALID"), "f32[4,10,10,6] f32[3,3,6,10]", "([i,j,k,l],[m,n,l,o])->([i,p,q,o]) {i=4,j=10,k=10,l=6,m=3,n=3,o=10,p=8,q=8} need_replication={j,k,m,n,p,q} reduction={l}", "3x3 valid"),
    Example("conv_general_dilated", _conv((2, 2)), _IMAGE, "([i,j,k,l],[m,n,l,o])->([i,j,k,o]) {i=4,j=4,k=4,l=6,m=3,n=3,o=10} permutation={j,k} reduction={l} need_replication={m,n}", "3x3 stride 2"),
    Example("conv_general_dilated", _conv((2, 4), "VALID"), "f32[4,8,8,6] f32[2,4,6,10]", "([i,jk,lm,n],[k,m,n,o])->([i,j,l,o]) {i=4,j=4,k=2,l=2,m=4,n=6,o=10} need_replication={k,m} reduction={n}", "patches"),
    Example("conv_general_dilated", _conv(), "f32[4,8,8,6] f32[1,1,6,10]", "([i,j,k,l],[1,1,l,m])->([i,j,k,m]) {i=4,j=8,k=8,l=6,m=10} reduction={l}", "1x1"),
    Example("conv_general_dilated", _conv(rhs_dilation=(2, 2)), _IMAGE, "([i,j,k,l],[m,n,l,o])->([i,j,k,o]) {i=4,j=8,k=8,l=6,m=3,n=3,o=10} permutation={j,k} reduction={l} need_replication={m,n}", "dilated kernel"),
    Example("conv_general_dilated", _conv(padding=((1, 2), (1, 2)), lhs_dilation=(2, 2)), _IMAGE, "([i,j,k,l],[m,n,l,o])->([i,j,k,o]) {i=4,j=16,k=16,l=6,m=3,n=3,o=10} permutation={j,k} reduction={l} need_replication={m,n}", "transposed"),
    Example("conv_general_dilated", _conv(feature_group_count=2), "f32[4,8,8,6] f32[3,3,3,8]", "([i,j,k,lm],[n,o,m,lp])->([i,j,k,lp]) {i=4,j=8,k=8,l=2,m=3,n=3,o=3,p=4} permutation={j,k} need_replication={m,n,o,p} even={l}", "two groups"),
    Example("conv_general_dilated", _conv(feature_group_count=6), "f32[4,8,8,6] f32[3,3,1,6]", "([i,j,k,l],[m,n,1,l])->([i,j,k,l]) {i=4,j=8,k=8,l=6,m=3,n=3} permutation={j,k} need_replication={m,n} even={l}", "depthwise"),
    Example("conv_general_dilated", _conv(feature_group_count=4), "f32[4,8,8,4] f32[3,3,1,8]", "([i,j,k,l],[m,n,1,lo])->([i,j,k,lo]) {i=4,j=8,k=8,l=4,m=3,n=3,o=2} permutation={j,k} need_replication={m,n,o} even={l}", "depthwise, two per channel"),
    Example("conv_general_dilated", _conv(batch_group_count=2), "f32[4,8,8,6] f32[3,3,6,8]", "([ij,k,l,m],[n,o,m,ip])->([j,q,r,ip]) {i=2,j=2,k=8,l=8,m=6,n=3,o=3,p=4,q=8,r=8} need_replication={j,k,l,n,o,p,q,r} reduction={m} even={i}", "batch groups"),
    Example("conv_general_dilated", _conv_kernel_gradient, _IMAGE, "([i,j,k,l],[i,j,k,m])->([n,o,l,m]) {i=4,j=8,k=8,l=6,m=10,n=3,o=3} reduction={i} need_replication={j,k,n,o}", "gradient of the kernel"),
    Example("conv_general_dilated", _conv_kernel_gradient_strided, _IMAGE, "([i,j,k,l],[i,m,n,o])->([p,q,l,o]) {i=4,j=8,k=8,l=6,m=4,n=4,o=10,p=3,q=3} reduction={i} need_replication={j,k,m,n,p,q}", "gradient of the kernel, stride 2"),
    Example("conv_general_dilated", lambda x, w: lax.conv(x, w, (1, 1), "SAME"), "f32[4,6,8,8] f32[10,6,3,3]", "([i,j,k,l],[m,j,n,o])->([i,m,k,l]) {i=4,j=6,k=8,l=8,m=10,n=3,o=3} reduction={j} permutation={k,l} need_replication={n,o}", "channels first"),
    Example("conv_general_dilated", lambda x, w: lax.conv(x, w, (1, 1, 1), "SAME"), "f32[2,4,4,4,4] f32[6,4,3,3,3]", "([i,j,k,l,m],[n,j,o,p,q])->([i,n,k,l,m]) {i=2,j=4,k=4,l=4,m=4,n=6,o=3,p=3,q=3} reduction={j} permutation={k,l,m} need_replication={o,p,q}", "3D"),
    Example("conv_general_dilated", lambda x, w: lax.conv_general_dilated(x, w, (1,), [(3, 0)], feature_group_count=6), "f32[4,6,16] f32[6,1,4]", "([i,j,k],[j,1,l])->([i,j,k]) {i=4,j=6,k=16,l=4} permutation={k} need_replication={l} even={j}", "causal 1D"),
]
