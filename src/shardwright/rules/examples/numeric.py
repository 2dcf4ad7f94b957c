"""Examples of reductions, sorting, windows, random numbers and linear algebra."""

# One example per line, however long.
# fmt: off
# ruff: noqa: E501
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwright.rules.examples.example import Example, bind


def _pool(window: tuple[int, ...], strides: tuple[int, ...], padding: str = "VALID", by: Any = lax.add) -> Any:
    start = {lax.add: 0.0, lax.max: -jnp.inf, lax.min: jnp.inf}.get(by, 0.0)
    return lambda x: lax.reduce_window(x, start, by, window, strides, padding)


def _pool_gradient(window: tuple[int, ...], strides: tuple[int, ...], padding: str = "VALID") -> Any:
    return lambda x: jax.grad(lambda x: _pool(window, strides, padding, lax.max)(x).sum())(x)


def _pool_derivative(x: Any, t: Any) -> Any:
    return jax.jvp(_pool((1, 2), (1, 2), by=lax.max), (x,), (t,))


REDUCTIONS = [
    Example("reduce_sum", lambda x: x.sum(1), "f32[4,8]", "([i,j])->([i]) {i=4,j=8} reduction={j}"),
    Example("psum", jax.vmap(lambda x: lax.psum(x, "b"), axis_name="b", out_axes=None), "f32[4,8]", "([i,j])->([j]) {i=4,j=8} reduction={i}", "under vmap"),
    Example("pmax", jax.vmap(lambda x: lax.pmax(x, "b"), axis_name="b", out_axes=None), "f32[4,8]", "([i,j])->([j]) {i=4,j=8} reduction_max={i}", "under vmap"),
    Example("pmin", jax.vmap(lambda x: lax.pmin(x, "b"), axis_name="b", out_axes=None), "f32[4,8]", "([i,j])->([j]) {i=4,j=8} reduction_min={i}", "under vmap"),
    Example("reduce_sum", lambda x: x.sum(), "f32[4,8]", "([i,j])->([]) {i=4,j=8} reduction={i,j}", "all dims"),
    Example("reduce_sum", lambda x: x.sum((0, 2)), "f32[4,1,8]", "([i,1,j])->([1]) {i=4,j=8} reduction={i,j}", "with a dim of size 1"),
    Example("reduce_max", lambda x: x.max((0, 2)), "f32[4,6,8]", "([i,j,k])->([j]) {i=4,j=6,k=8} reduction_max={i,k}", "two dims"),
    Example("reduce_max", lambda x: x.max(1), "f32[4,8]", "([i,j])->([i]) {i=4,j=8} reduction_max={j}"),
    Example("reduce_min", lambda x: x.min(0), "f32[4,8]", "([i,j])->([j]) {i=4,j=8} reduction_min={i}"),
    Example("reduce_prod", lambda x: x.prod(1), "f32[4,8]", "([i,j])->([i]) {i=4,j=8} reduction_mul={j}"),
    Example("reduce_and", lambda x: x.all(1), "bool[4,8]", "([i,j])->([i]) {i=4,j=8} reduction_and={j}"),
    Example("reduce_and", lambda x: lax.reduce_and(x, (1,)), "i32[4,8]", "([i,j])->([i]) {i=4,j=8} need_replication={j}", "bitwise"),
    Example("reduce_or", lambda x: x.any(1), "bool[4,8]", "([i,j])->([i]) {i=4,j=8} reduction_or={j}"),
    Example("reduce_xor", lambda x: lax.reduce_xor(x, (1,)), "i32[4,8]", "([i,j])->([i]) {i=4,j=8} need_replication={j}"),
    Example("argmax", lambda x: x.argmax(1), "f32[4,8]", "([i,j])->([i]) {i=4,j=8} reduction_argmax={j} even={j}"),
    Example("argmin", lambda x: x.argmin(0), "f32[4,8]", "([i,j])->([j]) {i=4,j=8} reduction_argmin={i} even={i}"),
    Example("reduce", lambda x: lax.reduce(x, 0.0, jnp.logaddexp, (1,)), "f32[4,8]", "([i,j],[])->([i]) {i=4,j=8} need_replication={j}", "own function"),
    Example("reduce", lambda x, y: lax.reduce((x, y), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,)), "f32[4,8] f32[4,8]", "([i,j],[i,j],[],[])->([i],[i]) {i=4,j=8} need_replication={j}", "two at once"),
]

SORTING = [
    Example("sort", lambda x: jnp.sort(x, axis=1), "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8} need_replication={j}"),
    Example("sort", lambda x, y: lax.sort((x, y), dimension=0), "f32[4,8] i32[4,8]", "([i,j],[i,j])->([i,j],[i,j]) {i=4,j=8} need_replication={i}", "with values"),
    Example("sort", lambda x, y, z: lax.sort((x, y, z), num_keys=2), "f32[4,8] f32[4,8] i32[4,8]", "([i,j],[i,j],[i,j])->([i,j],[i,j],[i,j]) {i=4,j=8} need_replication={j}", "by two keys"),
    Example("top_k", lambda x: lax.top_k(x, 2), "f32[4,8]", "([i,j])->([i,k],[i,k]) {i=4,j=8,k=2} need_replication={j,k} even={i,j}"),
    Example("approx_top_k", lambda x: lax.approx_max_k(x, 2), "f32[4,8]", "([i,j])->([i,k],[i,k]) {i=4,j=8,k=2} need_replication={j,k} even={i,j}"),
    Example("cumsum", lambda x: lax.cumsum(x, 1), "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8} need_replication={j}"),
    Example("cumprod", lambda x: lax.cumprod(x, 0, reverse=True), "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8} need_replication={i}"),
    Example("cummax", lambda x: lax.cummax(x, 1), "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8} need_replication={j}"),
    Example("cummin", lambda x: lax.cummin(x, 1), "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8} need_replication={j}"),
    Example("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8} need_replication={j}"),
]

WINDOWS = [
    Example("reduce_window_sum", _pool((1, 2), (1, 2)), "f32[4,16]", "([i,jk])->([i,j]) {i=4,j=8,k=2} need_replication={k}", "windows side by side"),
    Example("reduce_window_sum", _pool((1, 3), (1, 1), "SAME"), "f32[4,16]", "([i,j])->([i,j]) {i=4,j=16} permutation={j}", "overlapping"),
    Example("reduce_window_sum", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 1), "SAME", window_dilation=(1, 2)), "f32[4,16]", "([i,j])->([i,j]) {i=4,j=16} permutation={j}", "dilated"),
    Example("reduce_window_max", _pool((1, 3), (1, 2), "SAME", lax.max), "f32[4,16]", "([i,j])->([i,j]) {i=4,j=16} permutation={j}"),
    Example("reduce_window_min", _pool((1, 2, 2, 1), (1, 2, 2, 1), by=lax.min), "f32[2,8,8,4]", "([i,jk,lm,n])->([i,j,l,n]) {i=2,j=4,k=2,l=4,m=2,n=4} need_replication={k,m}"),
    Example("reduce_window", _pool((1, 2), (1, 2), by=lambda a, b: a + 2 * b), "f32[4,16]", "([i,jk],[])->([i,j]) {i=4,j=8,k=2} need_replication={k}"),
    Example("select_and_scatter_add", _pool_gradient((1, 2), (1, 2)), "f32[4,16]", "([i,j],[i,jk])->([i,jk]) {i=4,j=8,k=2} need_replication={k}"),
    Example("select_and_scatter_add", _pool_gradient((1, 3), (1, 1), "SAME"), "f32[4,16]", "([i,j],[i,k])->([i,k]) {i=4,j=16,k=16} need_replication={j,k}", "overlapping"),
    Example("select_and_gather_add", _pool_derivative, "f32[4,16] f32[4,16]", "([i,jk],[i,jk])->([i,j]) {i=4,j=8,k=2} need_replication={k}"),
]

RANDOM = [
    Example("random_bits", lambda k: jax.random.bits(k, (4, 8)), "key[]", "([])->([i,j]) {i=4,j=8}"),
    Example("random_bits", jax.vmap(lambda k: jax.random.bits(k, (8,))), "key[4]", "([i])->([i,j]) {i=4,j=8}", "an array of keys"),
    Example("random_split", lambda k: jax.random.split(k, 4), "key[]", "([])->([i]) {i=4}"),
    Example("random_fold_in", jax.vmap(jax.random.fold_in), "key[4] u32[4]", "([i],[i])->([i]) {i=4}"),
    Example("random_seed", jax.vmap(jax.random.key), "u32[4]", "([i])->([i]) {i=4}"),
    Example("random_clone", jax.random.clone, "key[4]", "([i])->([i]) {i=4}"),
    Example("random_wrap", jax.random.wrap_key_data, "u32[4,2]", "([i,j])->([i]) {i=4,j=2} need_replication={j}"),
    Example("random_unwrap", jax.random.key_data, "key[4]", "([i])->([i,j]) {i=4,j=2} need_replication={j}"),
    Example("random_gamma", lambda k, a: jax.random.gamma(k, a), "key[] f32[4,8]", "([],[i,j])->([i,j]) {i=4,j=8} need_replication={j}"),
    Example("rng_bit_generator", lambda k: lax.rng_bit_generator(k, (4, 8)), "u32[4]", "([i])->([i],[j,k]) {i=4,j=4,k=8} need_replication={i,j,k}"),
    Example("rng_uniform", lambda a, b: lax.rng_uniform(a, b, (4, 8)), "f32[] f32[]", "([],[])->([i,j]) {i=4,j=8}"),
    Example("threefry2x32", bind("threefry2x32"), "u32[] u32[] u32[4] u32[4]", "([],[],[i],[i])->([i],[i]) {i=4}"),
    Example("threefry4x32", bind("threefry4x32"), "u32[4] u32[4] u32[4] u32[4] u32[4] u32[4] u32[4] u32[4]", "([i],[i],[i],[i],[i],[i],[i],[i])->([i],[i],[i],[i]) {i=4}"),
    Example("philox2x32", bind("philox2x32"), "u32[4] u32[4] u32[4]", "([i],[i],[i])->([i],[i]) {i=4}"),
    Example("philox4x32", bind("philox4x32"), "u32[4] u32[4] u32[4] u32[4] u32[4] u32[4]", "([i],[i],[i],[i],[i],[i])->([i],[i],[i],[i]) {i=4}"),
    Example("iota_2x32_shape", bind("iota_2x32_shape", shape=(4, 8)), "", "()->([i,j],[i,j]) {i=4,j=8}"),
]


def _positive(x: Any, *more: Any) -> list[Any]:
    """A matrix that every decomposition accepts."""
    return [x @ jnp.swapaxes(x, -1, -2) + 4 * jnp.eye(x.shape[-1]), *more]


def _lower(x: Any, *more: Any) -> list[Any]:
    return [jnp.tril(x) + 4 * jnp.eye(x.shape[-1]), *more]


_MATRIX = "f32[4,6,6]"
LINALG = [
    Example("cholesky", lax.linalg.cholesky, _MATRIX, "([i,j,k])->([i,l,m]) {i=4,j=6,k=6,l=6,m=6} need_replication={j,k,l,m}", prepare=_positive),
    Example("eig", jnp.linalg.eig, _MATRIX, "([i,j,k])->([i,l],[i,m,n]) {i=4,j=6,k=6,l=6,m=6,n=6} need_replication={j,k,l,m,n}", prepare=_positive),
    Example("eigh", jnp.linalg.eigh, _MATRIX, "([i,j,k])->([i,l,m],[i,n]) {i=4,j=6,k=6,l=6,m=6,n=6} need_replication={j,k,l,m,n}", prepare=_positive),
    Example("hessenberg", lax.linalg.hessenberg, _MATRIX, "([i,j,k])->([i,l,m],[i,n]) {i=4,j=6,k=6,l=6,m=6,n=5} need_replication={j,k,l,m,n}", prepare=_positive),
    Example("lu", lax.linalg.lu, _MATRIX, "([i,j,k])->([i,l,m],[i,n],[i,o]) {i=4,j=6,k=6,l=6,m=6,n=6,o=6} need_replication={j,k,l,m,n,o}", prepare=_positive),
    Example("qr", jnp.linalg.qr, _MATRIX, "([i,j,k])->([i,l,m],[i,n,o]) {i=4,j=6,k=6,l=6,m=6,n=6,o=6} need_replication={j,k,l,m,n,o}", prepare=_positive),
    Example("schur", lax.linalg.schur, _MATRIX, "([i,j,k])->([i,l,m],[i,n,o]) {i=4,j=6,k=6,l=6,m=6,n=6,o=6} need_replication={j,k,l,m,n,o}", prepare=_positive),
    Example("svd", jnp.linalg.svd, _MATRIX, "([i,j,k])->([i,l],[i,m,n],[i,o,p]) {i=4,j=6,k=6,l=6,m=6,n=6,o=6,p=6} need_replication={j,k,l,m,n,o,p}", prepare=_positive),
    Example("tridiagonal", lax.linalg.tridiagonal, _MATRIX, "([i,j,k])->([i,l,m],[i,n],[i,o],[i,p]) {i=4,j=6,k=6,l=6,m=6,n=6,o=5,p=5} need_replication={j,k,l,m,n,o,p}", prepare=_positive),
    Example("geqrf", bind("geqrf"), _MATRIX, "([i,j,k])->([i,l,m],[i,n]) {i=4,j=6,k=6,l=6,m=6,n=6} need_replication={j,k,l,m,n}", prepare=_positive),
    Example("cholesky", lax.linalg.cholesky, "f32[6,6]", "([i,j])->([k,l]) {i=6,j=6,k=6,l=6} need_replication={i,j,k,l}", "one matrix", prepare=_positive),
    Example("geqp3", bind("geqp3", use_magma=None), "f32[4,6,6] i32[4,6]", "([i,j,k],[i,l])->([i,m,n],[i,o],[i,p]) {i=4,j=6,k=6,l=6,m=6,n=6,o=6,p=6} need_replication={j,k,l,m,n,o,p}", prepare=lambda a, p: [a, p * 0]),
    Example("householder_product", lax.linalg.householder_product, "f32[4,6,6] f32[4,6]", "([i,j,k],[i,l])->([i,m,n]) {i=4,j=6,k=6,l=6,m=6,n=6} need_replication={j,k,l,m,n}"),
    Example("ormqr", lambda a, t, c: lax.linalg.ormqr(a, t, c), "f32[4,6,6] f32[4,6] f32[4,6,6]", "([i,j,k],[i,l],[i,m,n])->([i,o,p]) {i=4,j=6,k=6,l=6,m=6,n=6,o=6,p=6} need_replication={j,k,l,m,n,o,p}"),
    Example("lu_pivots_to_permutation", lambda p: lax.linalg.lu_pivots_to_permutation(p, 6), "i32[4,6]", "([i,j])->([i,k]) {i=4,j=6,k=6} need_replication={j,k}"),
    Example("triangular_solve", lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True), "f32[4,6,6] f32[4,6,2]", "([i,j,k],[i,k,l])->([i,k,l]) {i=4,j=6,k=6,l=2} need_replication={j,k} even={i,l}", "left", prepare=_lower),
    Example("triangular_solve", lambda a, b: lax.linalg.triangular_solve(a, b, lower=True), "f32[4,6,6] f32[4,2,6]", "([i,j,k],[i,l,k])->([i,l,k]) {i=4,j=6,k=6,l=2} need_replication={j,k} even={i,l}", "right", prepare=_lower),
    Example("tridiagonal_solve", lax.linalg.tridiagonal_solve, "f32[4,6] f32[4,6] f32[4,6] f32[4,6,2]", "([i,j],[i,k],[i,l],[i,m,n])->([i,o,p]) {i=4,j=6,k=6,l=6,m=6,n=2,o=6,p=2} need_replication={j,k,l,m,n,o,p}", prepare=lambda a, d, c, b: [a.at[..., 0].set(0), d + 4, c.at[..., -1].set(0), b]),
    Example("symmetric_product", lax.linalg.symmetric_product, "f32[2,4,6] f32[2,4,4]", "([i,j,k],[i,l,m])->([i,l,m]) {i=2,j=4,k=6,l=4,m=4} need_replication={j} reduction={k}"),
    Example("cholesky_update", lax.linalg.cholesky_update, "f32[6,6] f32[6]", "([i,j],[k])->([l,m]) {i=6,j=6,k=6,l=6,m=6} need_replication={i,j,k,l,m}", prepare=lambda r, w: [jnp.triu(r) + 4 * jnp.eye(6), w]),
    Example("fft", jnp.fft.fft, "c64[4,8]", "([i,j])->([i,j]) {i=4,j=8} need_replication={j} even={i,j}"),
    Example("fft", jnp.fft.rfft2, "f32[4,8,8]", "([i,j,k])->([i,j,l]) {i=4,j=8,k=8,l=5} need_replication={j,k,l} even={i,j,k}", "real, two dims"),
]
EXAMPLES = [*REDUCTIONS, *SORTING, *WINDOWS, *RANDOM, *LINALG]
