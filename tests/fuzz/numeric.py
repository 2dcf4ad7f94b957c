"""Rows that compute: elementwise, contractions, reductions, cumulative ops, types, randomness."""

from __future__ import annotations

from tests.fuzz.scope import NoOperand, Scope, row

WIDE = ("float32", "float64")  # which FFTs and factorisations have

# Every result stays near 1, whatever the operand.
UNARY = (
    "jnp.tanh({x})", "jnp.sin({x})", "jnp.cos({x})", "jax.nn.relu({x})", "jax.nn.gelu({x})",
    "jax.nn.sigmoid({x})", "jnp.exp(-{x} * {x})", "jnp.log1p({x} * {x})", "{x} * 0.5",
    "jnp.sqrt(1 + {x} * {x})", "jnp.abs({x})", "jnp.clip({x}, -1, 1)", "-{x}", "1 - {x}",
    "lax.rsqrt(1 + {x} * {x})", "jnp.where({x} > 0, {x}, 0.1)", "jax.nn.softplus({x})",
    "lax.erf({x})", "{x} / (1 + {x} * {x})", "jnp.floor({x} * 4) / 4", "lax.stop_gradient({x})",
    "jnp.cbrt({x})", "lax.reduce_precision({x}, 8, 7)", "jnp.nan_to_num({x})", "jnp.sign({x})",
)  # fmt: skip
BINARY = (
    "{x} + {y}", "{x} - {y}", "jnp.tanh({x}) * {y}", "jnp.maximum({x}, {y})",
    "jnp.minimum({x}, {y})", "{x} / (1 + {y} * {y})", "jnp.where({x} > {y}, {x}, {y})",
    "jnp.arctan2({x}, {y})", "jnp.hypot({x}, {y})", "jnp.logaddexp({x}, {y})",
)  # fmt: skip


@row("unary", 5)
def _unary(s: Scope) -> str:
    return s.one(*UNARY).format(x=s.pick("f", (0, 9), lambda v: True))


@row("binary", 5)
def _binary(s: Scope) -> str:
    x = s.pick("f", (0, 9), lambda v: True)
    return s.one(*BINARY).format(x=x, y=s.like(x))


@row("broadcast_binary", 2)
def _broadcast_binary(s: Scope) -> str:
    """A bias along the last dim, a scale along the first, or an outer sum."""
    x = s.pick("f", (1, 3))
    return s.one(
        f"{x} + {s.argument(x.shape[-1:])}",
        f"{x} * {s.argument((x.shape[0], *(1 for _ in x.shape[1:])))}",
        f"{x}[..., None] * {s.argument((s.size(),))}",
        f"{x} + jnp.arange({x.shape[-1]}) / {x.shape[-1]}",
    )


@row("residual", 1)
def _residual(s: Scope) -> str:
    x = s.pick("f", (2, 2))
    n = x.shape[1]
    return f"{x} + jnp.tanh({x} @ {s.argument((n, n))}) @ {s.argument((n, n))} / {n}"


@row("compare", 1)
def _compare(s: Scope) -> str:
    x = s.pick("fi", (0, 4))
    return s.one(f"{x} > 0", f"{x} <= {s.like(x)}", f"({x} > 0) & ({x} < 1)")


@row("select", 1)
def _select(s: Scope) -> str:
    b = s.pick("b", (0, 4))
    x = s.argument(b.shape)
    return s.one(f"jnp.where({b}, {x}, 0.5)", f"{b}.astype({x}.dtype) * {x}", f"~{b}")


@row("integers", 1.5)
def _integers(s: Scope) -> str:
    i = s.pick("i", (0, 4))
    return s.one(
        f"{i} + 1", f"{i} * 3 % 7", f"jnp.maximum({i}, 2)", f"{i} // 2", f"{i} ^ 5", f"{i} << 1",
        f"jnp.abs({i})", f"lax.population_count({i})", f"jnp.tanh({i} * 0.1)", f"-{i}",
    )  # fmt: skip


@row("cast", 1.5)
def _cast(s: Scope) -> str:
    x = s.pick("fib", (0, 4))
    if x.kind != "f":
        return f"{x}.astype(jnp.float32) * 0.1"
    narrow = s.one("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "float16")
    return s.one(
        f"({x} * 4).astype(jnp.int32)", f"{x}.astype(jnp.{narrow}).astype(jnp.float32)",
        f"jnp.round({x} * 8) / 8", f"({x} * 9).astype(jnp.int8)",
    )  # fmt: skip


@row("dot", 5)
def _dot(s: Scope) -> str:
    x = s.pick("f", (1, 3))
    n = x.shape[-1]
    w = s.argument((n, s.size()))
    return f"{x} @ {w} / {max(1, round(n**0.5))}"


@row("dot_values", 2)
def _dot_values(s: Scope) -> str:
    """Two values of the program contracted along dims of one size."""
    x = s.pick("f", (1, 3))
    d = s.dim(x)
    y = s.pick("f", (1, 3), lambda v: v.size and x.shape[d] in v.shape)
    e = y.shape.index(x.shape[d])
    return f"jnp.tensordot({x}, {y}, axes=({d}, {e})) / {x.shape[d]}"


@row("einsum", 3)
def _einsum(s: Scope) -> str:
    """Batch, contracted and free dims in any order."""
    letters = "abcdef"
    x = s.pick("f", (2, 3))
    mine = letters[: len(x.shape)]
    batch, contracted = mine[0], mine[-1]
    size = dict(zip(mine, x.shape, strict=True)) | {"z": s.size()}
    other = [contracted, "z"] + ([batch] if s.chance(0.6) else [])
    s.rng.shuffle(other)
    w = s.argument(tuple(size[c] for c in other))
    out = [*mine[:-1], "z"]
    s.rng.shuffle(out)
    eq = f"{mine},{''.join(other)}->{''.join(out)}"
    return f"jnp.einsum('{eq}', {x}, {w}) / {max(1, x.shape[-1])}"


@row("scores", 1.5)
def _scores(s: Scope) -> str:
    """Attention of rows to rows: a conflict."""
    x = s.pick("f", (2, 3))
    return s.one(
        f"jax.nn.softmax({x} @ {x}.swapaxes(-1, -2)) @ {x}",
        f"jnp.tanh({x} @ {s.like(x)}.swapaxes(-1, -2) / {x.shape[-1]})",
    )


@row("reduce", 4)
def _reduce(s: Scope) -> str:
    x = s.pick("f", (1, 4))
    how = s.one("sum", "mean", "max", "min", "mean", "var", "prod")
    keep = f", keepdims={s.chance(0.5)}" if s.chance(0.5) else ""
    axis = s.one(s.dim(x), s.dim(x), None)
    operand = f"jnp.tanh({x})" if how == "prod" else str(x)
    scale = f" / {max(1, round(x.shape[axis] ** 0.5))}" if how == "sum" and axis is not None else ""
    return f"jnp.{how}({operand}, axis={axis}{keep}){scale}"


@row("reduce_integers", 1)
def _reduce_integers(s: Scope) -> str:
    x = s.pick("ib", (1, 3))
    how = s.one("sum", "max", "min") if x.kind == "i" else s.one("any", "all", "sum")
    return f"jnp.{how}({x}, axis={s.dim(x)})"


@row("softmax", 2)
def _softmax(s: Scope) -> str:
    x = s.pick("f", (1, 4))
    return f"jax.nn.{s.one('softmax', 'log_softmax')}({x}, axis={s.dim(x)})"


@row("logsumexp", 1)
def _logsumexp(s: Scope) -> str:
    x = s.pick("f", (1, 3))
    return f"jax.nn.logsumexp({x}, axis={s.dim(x)})"


@row("layernorm", 1.5)
def _layernorm(s: Scope) -> str:
    x = s.pick("f", (1, 4))
    d = s.dim(x)
    centre = f"({x} - jnp.mean({x}, {d}, keepdims=True))"
    return f"{centre} * lax.rsqrt(jnp.var({x}, {d}, keepdims=True) + 0.1)"


@row("cumulative", 3)
def _cumulative(s: Scope) -> str:
    x = s.pick("f", (1, 3))
    d, n = s.dim(x), max(1, max(x.shape))
    back = s.one("", ", reverse=True")
    return s.one(
        f"jnp.cumsum({x}, axis={d}) / {n}", f"jnp.cumprod(1 + 0.1 * jnp.tanh({x}), axis={d}) / {n}",
        f"lax.cummax({x}, axis={d}{back})", f"lax.cumlogsumexp({x}, axis={d}{back})",
        f"lax.cumsum({x}, axis={d}{back}) / {n}", f"lax.cummin({x}, axis={d}{back})",
        f"lax.cumprod(jnp.cos({x}), axis={d}{back})",
    )  # fmt: skip


@row("associative_scan", 1.5)
def _associative_scan(s: Scope) -> str:
    x = s.pick("f", (1, 3), lambda v: 0 < max(v.shape) <= 64)
    d = s.dim(x)
    if s.chance(0.5):
        return f"lax.associative_scan(jnp.add, {x}, axis={d}) / {max(1, x.shape[d])}"
    how = s.one("jnp.maximum", "jnp.minimum", "jnp.logaddexp")
    return f"lax.associative_scan({how}, {x}, axis={d}, reverse={s.chance(0.3)})"


@row("complex", 0.6)
def _complex(s: Scope) -> str:
    z = s.pick("fc", (1, 3), lambda v: v.dtype in (*WIDE, "complex64", "complex128"))
    if z.kind == "f":
        return s.one(f"{z} + 1j * {s.like(z)}", f"jnp.exp(1j * {z})")
    return s.one(f"jnp.abs({z})", f"jnp.real({z})", f"jnp.imag({z} * {z})", f"jnp.conj({z})",
                 f"jnp.sum({z}, axis={s.dim(z)})", f"jnp.angle({z} + 2)")  # fmt: skip


@row("fft", 0.8)
def _fft(s: Scope) -> str:
    x = s.pick("f", (1, 3), lambda v: v.dtype in WIDE and v.shape[-1] > 0)
    n = max(1, x.shape[-1])
    return s.one(
        f"jnp.abs(jnp.fft.fft({x})) / {n}", f"jnp.real(jnp.fft.ifft({x} + 0j))",
        f"jnp.imag(jnp.fft.rfft({x})) / {n}", f"jnp.real(jnp.fft.fft({x}, axis=0)) / {n}",
    )  # fmt: skip


@row("linalg", 1)
def _linalg(s: Scope) -> str:
    x = s.pick("f", (2, 3), lambda v: v.dtype in WIDE and v.size and v.shape[-1] <= 32)
    n = x.shape[-1]
    gram = f"jnp.swapaxes({x}, -1, -2) @ {x} / {x.shape[-2]} + 2 * jnp.eye({n})"
    factor = f"jnp.tril({s.argument((n, n), x.dtype)}, -1) * 0.3 + 2 * jnp.eye({n})"
    if len(x.shape) == 2:
        solve = f"lax.linalg.triangular_solve({factor}, {x}, lower=True)"
        return s.one(f"jnp.linalg.cholesky({gram})", solve, f"jnp.linalg.solve({gram}, {x}.T)",
                     f"jnp.linalg.inv({gram})")  # fmt: skip
    return f"jnp.linalg.cholesky({gram})"


@row("random", 1)
def _random(s: Scope) -> str:
    """Random numbers from a fixed key: the same however they are split."""
    x = s.pick("f", (1, 3))
    impl = s.one("", "", ", impl='rbg'", ", impl='unsafe_rbg'")
    key = f"jax.random.key({s.integer(0, 9)}{impl})"
    if s.chance(0.3):
        key = f"jax.random.split({key})[1]"
    draw = s.one("normal", "uniform", "bernoulli", "randint")
    if draw == "bernoulli":
        return f"jnp.where(jax.random.bernoulli({key}, 0.5, {x.shape}), {x}, 0)"
    if draw == "randint":
        return f"jax.random.randint({key}, {x.shape}, 0, {s.size()})"
    return f"{x} + jax.random.{draw}({key}, {x.shape})"


@row("iota", 0.5)
def _iota(s: Scope) -> str:
    shape = (s.size(), s.size())
    return s.one(
        f"lax.broadcasted_iota(jnp.int32, {shape}, {s.integer(0, 1)})", f"jnp.eye({shape[0]})",
        f"jnp.linspace(-1.0, 1.0, {shape[0]})", f"jnp.tri({shape[0]}, {shape[1]})",
        f"jnp.zeros({shape})",
    )  # fmt: skip


@row("histogram_like", 0.3)
def _quantile(s: Scope) -> str:
    x = s.pick("f", (1, 2))
    return s.one(f"jnp.median({x}, axis={s.dim(x)})", f"jnp.quantile({x}, 0.3, axis={s.dim(x)})")


@row("interp", 0.3)
def _interp(s: Scope) -> str:
    n = s.size()
    if n < 2:
        raise NoOperand
    return f"jnp.interp({s.pick('f', (1, 2))}, jnp.linspace(-1, 1, {n}), {s.argument((n,))})"
