"""Op shapes whose seconds compilers estimate: what a step has besides dots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
from jax import lax

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
CONV = ("NHWC", "HWIO", "NHWC")


@dataclass(frozen=True, slots=True)
class OpShape:
    """One op on given shapes."""

    kind: str
    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]

    @property
    def held_out(self) -> bool:
        """Whether nothing is fitted to it: every third, by its name."""
        return crc32(self.name.encode()) % 3 == 0


def _of(*shape: int, dtype: Any = BF16) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _conv(x: Any, w: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=CONV)


def _convolutions() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    sizes = [(8, 64, 64), (8, 64, 320), (8, 32, 320), (4, 32, 640), (8, 16, 1280), (32, 56, 64)]
    for (b, s, c), window, wider in product(sizes, (1, 3), (1, 2)):
        x, w = _of(b, s, s, c), _of(window, window, c, c * wider)
        name = f"{b}x{s}x{s}x{c}, {window}x{window} to {c * wider}"
        yield f"conv {name}", _conv, (x, w)

        def of_inputs(x: Any, w: Any, g: Any) -> Any:
            return jax.vjp(lambda x: _conv(x, w), x)[1](g)[0]

        def of_kernel(x: Any, w: Any, g: Any) -> Any:
            return jax.vjp(lambda w: _conv(x, w), w)[1](g)[0]

        g = _of(b, s, s, c * wider)
        yield f"conv input gradient {name}", of_inputs, (x, w, g)
        yield f"conv kernel gradient {name}", of_kernel, (x, w, g)
    for b, s, c in sizes[:4]:
        strided = lambda x, w: _conv(x, w, 2)  # noqa: E731
        yield f"conv {b}x{s}x{s}x{c}, stride 2", strided, (_of(b, s, s, c), _of(3, 3, c, c))


def _lookups() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    def take(t: Any, i: Any) -> Any:
        return t.at[i].get(mode="clip")

    def take_sorted(t: Any, i: Any) -> Any:
        return t.at[i].get(mode="clip", indices_are_sorted=True)

    for rows, width, count in product((8_192, 131_072), (8, 64, 128, 1024), (2_048, 16_384)):
        for dtype in (BF16, F32):
            name = f"{count} of {rows}x{width} {jnp.dtype(dtype).name}"
            table, index = _of(rows, width, dtype=dtype), _of(count, dtype=I32)
            yield f"gather {name}", take, (table, index)
            if dtype is F32:
                yield f"gather sorted {name}", take_sorted, (table, index)


def _scatters() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    def add(t: Any, i: Any, u: Any) -> Any:
        return t.at[i].add(u, mode="drop")

    def add_sorted(t: Any, i: Any, u: Any) -> Any:
        return t.at[i].add(u, mode="drop", indices_are_sorted=True)

    def embedding_gradient(t: Any, i: Any, g: Any) -> Any:
        return jax.vjp(lambda t: t[i], t)[1](g)[0]

    for rows, width, count in product((8_192, 131_072), (8, 128, 1024), (2_048, 16_384)):
        args = (_of(rows, width, dtype=F32), _of(count, dtype=I32), _of(count, width, dtype=F32))
        name = f"{count} into {rows}x{width}"
        yield f"scatter-add {name}", add, args
        yield f"scatter-add sorted {name}", add_sorted, args
        yield f"embedding gradient {name}", embedding_gradient, args


def _sorts() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    for batch, n in product((1, 32, 512), (256, 4_096, 32_768)):
        if batch * n <= 1 << 21:
            yield f"sort {batch}x{n}", jnp.sort, (_of(batch, n, dtype=F32),)
            yield f"argsort {batch}x{n}", jnp.argsort, (_of(batch, n, dtype=F32),)
            yield f"top 2 of {batch}x{n}", lambda x: lax.top_k(x, 2), (_of(batch, n, dtype=F32),)


def _reductions() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    for (m, n), dtype in product([(2_048, 2_048), (16_384, 1_024), (512, 32_768)], (BF16, F32)):
        x = _of(m, n, dtype=dtype)
        name = f"{m}x{n} {jnp.dtype(dtype).name}"
        for axis in (0, 1):
            yield f"sum of dim {axis} {name}", lambda x, a=axis: jnp.sum(x, a), (x,)
            yield f"max of dim {axis} {name}", lambda x, a=axis: jnp.max(x, a), (x,)
        yield f"argmax {name}", lambda x: jnp.argmax(x, 1), (x,)
        yield f"cumsum {name}", lambda x: jnp.cumsum(x, 1), (x,)
        yield f"softmax {name}", lambda x: jax.nn.softmax(x, 1), (x,)
        yield f"log-softmax {name}", lambda x: jax.nn.log_softmax(x, 1), (x,)
        yield f"norm {name}", _norm, (x, _of(n, dtype=dtype))
        yield f"gelu {name}", jax.nn.gelu, (x,)
        yield f"exp {name}", jnp.exp, (x,)
        yield f"add {name}", lambda x, y: x + y, (x, x)


def _norm(x: Any, gain: Any) -> Any:
    wide = x.astype(F32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale * gain).astype(x.dtype)


def _random() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    for n in (1 << 16, 1 << 20, 1 << 22):
        key = _of(2, dtype=jnp.uint32)
        yield f"random bits {n}", lambda k, n=n: jax.random.bits(k, (n,)), (key,)
        yield f"normal {n}", lambda k, n=n: jax.random.normal(k, (n,)), (key,)
        yield f"dropout {n}", _dropout, (key, _of(n // 1024, 1024))


def _dropout(key: Any, x: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)


def _movements() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    for a, b, c in [(16, 1_024, 1_024), (2_048, 16, 128), (64, 256, 512), (8, 2_048, 640)]:
        for dtype in (BF16, F32):
            x = _of(a, b, c, dtype=dtype)
            name = f"{a}x{b}x{c} {jnp.dtype(dtype).name}"
            for order in ((0, 2, 1), (1, 0, 2), (2, 1, 0)):
                turn = lambda x, o=order: x.transpose(o)  # noqa: E731
                yield f"transpose {order} {name}", turn, (x,)
            yield f"reverse {name}", lambda x: x[::-1], (x,)
            yield f"reshape {name}", lambda x: x.reshape(x.shape[0] * x.shape[2], -1), (x,)
            yield f"concatenate {name}", lambda x, y: jnp.concatenate([x, y], 1), (x, x)
            yield f"slice {name}", lambda x: x[:, 1:], (x,)
            yield f"pad {name}", lambda x: jnp.pad(x, ((0, 0), (1, 1), (0, 0))), (x,)
            index = _of(dtype=I32)
            yield f"dynamic slice {name}", _dynamic_slice, (x, index)
            yield f"dynamic update {name}", _update, (x, _of(1, b, c, dtype=dtype), index)


def _dynamic_slice(x: Any, at: Any) -> Any:
    return lax.dynamic_slice_in_dim(x, at, x.shape[0] // 2)


def _update(x: Any, part: Any, at: Any) -> Any:
    return lax.dynamic_update_slice_in_dim(x * 2, part, at, 0)


def _loops() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    for steps, batch, width in product((128, 1_024), (8, 64), (256, 1_024)):
        x, w = _of(steps, batch, width), _of(width, width)
        name = f"{steps} x {batch}x{width}"

        def recurrent(x: Any, w: Any) -> Any:
            start = jnp.zeros(x.shape[1:], x.dtype)
            return lax.scan(lambda c, a: (jnp.tanh(c @ w + a),) * 2, start, x)[1]

        def leaky(x: Any) -> Any:
            start = jnp.zeros(x.shape[1:], x.dtype)
            return lax.scan(lambda c, a: (c * 0.5 + a,) * 2, start, x)[1]

        yield f"recurrent scan {name}", recurrent, (x, w)
        yield f"elementwise scan {name}", leaky, (x,)


KINDS: dict[str, Callable[[], Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]]] = {
    "convolutions": _convolutions,
    "lookups": _lookups,
    "scatters": _scatters,
    "sorts": _sorts,
    "reductions and elementwise": _reductions,
    "random numbers": _random,
    "movements": _movements,
    "loops": _loops,
}
OPS = [OpShape(kind, *row) for kind, rows in KINDS.items() for row in rows()]
