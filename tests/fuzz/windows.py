"""Rows over windows: pools, reduce_window, convolutions of every kind."""

from __future__ import annotations

from tests.fuzz.scope import NoOperand, Scope, Value, row


def _image(s: Scope) -> Value:
    """[batch, height, width, channels]: a value of rank 4, or a new argument."""
    try:
        if s.chance(0.5):
            return s.pick("f", (4, 4), lambda v: min(v.shape) > 0)
    except NoOperand:
        pass
    spatial = s.one((8, 8), (6, 10), (12, 5), (16, 4), (7, 7))
    return s.argument((s.one(1, 2, 4, 8), *spatial, s.one(1, 2, 3, 4, 6, 8)))


@row("reduce_window", 1.5)
def _reduce_window(s: Scope) -> str:
    x = s.pick("f", (1, 3))
    window = tuple(s.integer(1, min(3, n)) for n in x.shape)
    strides = tuple(s.one(1, 1, 2, w) for w in window)
    init, op, scale = s.one(("-jnp.inf", "lax.max", ""), ("0.0", "lax.add", " / 3"))
    pad = "'VALID'" if init == "-jnp.inf" else s.one("'SAME'", "'VALID'")
    init = f"jnp.asarray({init}, {x}.dtype)" if x.dtype != "float32" else init
    return f"lax.reduce_window({x}, {init}, {op}, {window}, {strides}, {pad}){scale}"


@row("pool", 1)
def _pool(s: Scope) -> str:
    x = _image(s)
    if x.shape[1] < 2 or x.shape[2] < 2 or x.dtype != "float32":
        raise NoOperand
    window = "(1, 2, 2, 1)"
    return s.one(
        f"lax.reduce_window({x}, -jnp.inf, lax.max, {window}, {window}, 'VALID')",
        f"lax.reduce_window({x}, 0.0, lax.add, {window}, {window}, 'VALID') / 4",
        f"lax.reduce_window({x}, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), 'SAME') / 9",
        f"lax.reduce_window({x}, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), 'SAME')",
    )


@row("conv2d", 2.5)
def _conv2d(s: Scope) -> str:
    """Strided, dilated, grouped or depthwise, with any padding."""
    x = _image(s)
    c = x.shape[3]
    groups = s.one(1, 1, c, *[g for g in (2, 3) if c % g == 0])
    out = groups * s.one(1, 2, 4)
    k = s.one(1, 2, 3)
    w = s.argument((k, k, c // groups, out), x.dtype)
    options = (
        f"{s.one((1, 1), (1, 1), (2, 2), (2, 1))}, {s.one('SAME', 'VALID', [(1, 1), (0, 2)])!r}"
    )
    if s.chance(0.2):
        options += f", rhs_dilation={s.one((2, 2), (1, 2))}"
    if s.chance(0.2) and "[" in options:
        options += ", lhs_dilation=(2, 2)"
    if groups > 1:
        options += f", feature_group_count={groups}"
    layout = "dimension_numbers=('NHWC', 'HWIO', 'NHWC')"
    return f"lax.conv_general_dilated({x}, {w}, {options}, {layout}) / {k * k}"


@row("conv1d", 1.5)
def _conv1d(s: Scope) -> str:
    """[batch, channels, length], as sequence models have it."""
    try:
        x = s.pick("f", (3, 3), lambda v: min(v.shape) > 0)
    except NoOperand:
        x = s.argument((s.one(1, 2, 8), s.one(2, 4, 6), s.size()))
    c, k = x.shape[1], s.one(1, 3, 4)
    groups = s.one(1, c)
    w = s.argument((groups * s.one(1, 2), c // groups, k), x.dtype)
    pad = s.one("'SAME'", f"[({k - 1}, 0)]")
    group = f", feature_group_count={groups}" if groups > 1 else ""
    return f"lax.conv_general_dilated({x}, {w}, ({s.one(1, 2)},), {pad}{group}) / {k}"


@row("convolve", 0.6)
def _convolve(s: Scope) -> str:
    x = s.pick("f", (1, 1))
    k = s.argument((s.integer(1, 4),), x.dtype)
    return f"jnp.convolve({x}, {k}, mode={s.one('same', 'full')!r}) / {k.shape[0]}"


@row("conv_transpose", 0.5)
def _conv_transpose(s: Scope) -> str:
    x = _image(s)
    w = s.argument((2, 2, x.shape[3], s.one(2, 4)), x.dtype)
    return f"lax.conv_transpose({x}, {w}, (2, 2), 'SAME') / 4"


@row("depthwise", 1)
def _depthwise(s: Scope) -> str:
    x = _image(s)
    c = x.shape[3]
    w = s.argument((3, 3, 1, c), x.dtype)
    layout = "dimension_numbers=('NHWC', 'HWIO', 'NHWC')"
    return (
        f"lax.conv_general_dilated({x}, {w}, (1, 1), 'SAME', feature_group_count={c}, {layout}) / 9"
    )


@row("resize", 0.4)
def _resize(s: Scope) -> str:
    x = s.pick("f", (2, 2))
    shape = (x.shape[0], max(1, x.shape[1] * 2 // s.one(1, 3)))
    return f"jax.image.resize({x}, {shape}, 'linear')"
