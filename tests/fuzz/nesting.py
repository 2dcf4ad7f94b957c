"""Rows with bodies of their own: scan, while, cond, remat, custom derivatives, vmap, grad."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz.scope import NoOperand, Scope, Value, grow, indent, row

POLICIES = (
    "nothing_saveable", "everything_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable",
)  # fmt: skip


def _body(
    s: Scope, parameters: Sequence[Value], lines: int, *, closed: bool = False
) -> Scope:  # fmt: skip
    """A body of a few random lines over its parameters and, unless closed, what is around it."""
    if s.depth >= s.max_depth:
        raise NoOperand
    scope = s.inner([])
    if closed:
        scope.values.clear()
    asked = len(s.arguments)
    scope.values += parameters
    grow(scope, lines)
    for made in s.arguments[asked:]:  # what the body asked for is seen from outside
        if all(v.name != made.name for v in s.values):
            s.values.insert(0, Value(*made[:3]))
    return scope


def _function(name: str, parameters: Sequence[Value], scope: Scope, returned: str) -> str:
    head = f"def {name}({', '.join(map(str, parameters))}):"
    return "\n".join([head, *(indent(line) for line in scope.lines), f"    return {returned}"])


def _fit(s: Scope, scope: Scope, value: Value) -> str:
    """An expression of the value's type that depends on the body."""
    made = scope.values[-1]
    same = [v for v in scope.values if v[1:] == value[1:] and v.name != value.name]
    if same and s.chance(0.5):
        return str(same[-1])
    scalar = f"jnp.mean({made}.astype(jnp.float32))" if made.kind in "fib" else "0.5"
    if value.kind == "f":
        mixed = f"jnp.tanh({value} + {scalar})" if made.size else f"{value} * 0.5"
        return f"{mixed}.astype({value}.dtype)"
    return f"{value} + 1" if value.kind == "i" else str(value)


def _parameters(s: Scope, values: Sequence[Value]) -> list[Value]:
    return [v._replace(name=s.name("p")) for v in values]


def _small(v: Value) -> bool:
    return 0 < v.size <= 2048


@row("scan", 4)
def _scan(s: Scope) -> str:
    """A carry and one or two sequences; sometimes the next carry is a literal, or the sequence is
    the leading dim of a weight."""
    carry = s.pick("f", (0, 3), _small)
    try:
        xs = s.pick("fi", (1, 3), lambda v: _small(v) and v.shape[0] <= 12)
    except NoOperand:
        xs = s.argument((s.one(2, 3, 4, 8), *carry.shape))
    p, q = _parameters(s, [carry, xs._replace(shape=xs.shape[1:])])
    scope = _body(s, [q, p], s.integer(1, 3))
    after = _fit(s, scope, p)
    if s.chance(0.08):
        after = f"jnp.zeros({p.shape}, {p}.dtype)"
    name, y = s.name("body"), s.one(str(p), str(scope.values[-1]), str(scope.values[-1]))
    reverse = s.one("", "", ", reverse=True", ", unroll=2")
    return _function(name, [p, q], scope, f"{after}, {y}") + (
        f"\nlax.scan({name}, {carry}, {xs}{reverse})"
    )


@row("scan_literal", 0.4)
def _scan_literal(s: Scope) -> str:
    """The body returns a literal as its carry."""
    xs = s.pick("f", (1, 3), lambda v: _small(v) and v.shape[0] <= 12)
    c, q = s.name("p"), s.name("p")
    return f"lax.scan(lambda {c}, {q}: (0.5, jnp.sin({q}) * {c}), 0.1, {xs})[1]"


@row("fori", 1)
def _fori(s: Scope) -> str:
    carry = s.pick("f", (1, 3), _small)
    i = Value(s.name("p"), (), "int32")
    (p,) = _parameters(s, [carry])
    scope = _body(s, [i, p], s.integer(1, 3))
    name = s.name("body")
    return _function(name, [i, p], scope, _fit(s, scope, p)) + (
        f"\nlax.fori_loop(0, {s.integer(1, 4)}, {name}, {carry})"
    )


@row("loop_rows", 1.5)
def _loop_rows(s: Scope) -> str:
    """A loop that reads or writes one row of something per trip."""
    x = s.pick("f", (2, 3), lambda v: _small(v) and v.shape[0] <= 16)
    i, c = s.name("p"), s.name("p")
    index = s.indices((x.shape[0],), x.shape[1])
    n = x.shape[0]
    return s.one(
        f"lax.fori_loop(0, {n}, lambda {i}, {c}: {c}.at[{i}].set(jnp.sin({x}[{i}])), "
        f"jnp.zeros_like({x}))",
        f"lax.scan(lambda {c}, {i}: ({c} + {x}[jnp.arange({n}), ({index} + {i}) % {x.shape[1]}], "
        f"{c}), jnp.zeros({(n, *x.shape[2:])}), jnp.arange(3))[0] / 3",
        f"lax.scan(lambda {c}, {i}: ({c}, lax.dynamic_index_in_dim({c}, {i}, 1)), {x}, "
        f"jnp.arange({x.shape[1]}))[1]",
    )


@row("while", 1.5)
def _while(s: Scope) -> str:
    carry = s.pick("f", (0, 3), _small)
    i = Value(s.name("p"), (), "int32")
    (p,) = _parameters(s, [carry])
    scope = _body(s, [i, p], s.integer(1, 3))
    name, c = s.name("body"), s.name("p")
    body = [
        f"def {name}({c}):", f"    {i}, {p} = {c}", *(indent(line) for line in scope.lines),
        f"    return {i} + 1, {_fit(s, scope, p)}",
    ]  # fmt: skip
    stop = s.integer(1, 3)
    test = s.one(f"{c}[0] < {stop}", f"({c}[0] < {stop}) & (jnp.sum({c}[1]) < 1e3)")
    start = f"(jnp.int32(0), {carry})"
    return "\n".join(body) + f"\nlax.while_loop(lambda {c}: {test}, {name}, {start})[1]"


@row("cond", 3)
def _cond(s: Scope) -> str:
    """Two or three branches, one of them light."""
    x = s.pick("f", (0, 3))
    choice = s.indices((), 3)
    names, text = [], []
    for lines in (s.integer(1, 3), s.integer(0, 1), *([1] if s.chance(0.2) else [])):
        (p,) = _parameters(s, [x])
        scope = _body(s, [p], lines)
        names.append(s.name("branch"))
        text.append(_function(names[-1], [p], scope, _fit(s, scope, p)))
    if len(names) == 2 and s.chance(0.6):
        s.rng.shuffle(names)
        call = f"lax.cond({choice} > 0, {', '.join(names)}, {x})"
    else:
        call = f"lax.switch({choice}, [{', '.join(names)}], {x})"
    return "\n".join([*text, call])


@row("remat", 2)
def _remat(s: Scope) -> str:
    x = s.pick("f", (0, 4))
    (p,) = _parameters(s, [x])
    scope = _body(s, [p], s.integer(1, 4))
    name = s.name("block")
    policy = ""
    if s.chance(0.6):
        policy = f", policy=jax.checkpoint_policies.{s.one(*POLICIES)}"
    made = scope.values[-1]
    return _function(name, [p], scope, str(made)) + f"\njax.checkpoint({name}{policy})({x})"


@row("jit", 0.7)
def _jit(s: Scope) -> str:
    x = s.pick("fi", (0, 4))
    (p,) = _parameters(s, [x])
    scope = _body(s, [p], s.integer(1, 3))
    name = s.name("block")
    call = f"jax.jit({name})({x})"
    return _function(name, [p], scope, str(scope.values[-1])) + f"\n{call}"


@row("custom_vjp", 1)
def _custom_vjp(s: Scope) -> str:
    """Its derivative is not that of its body, so that using the wrong one is seen."""
    x = s.pick("f", (1, 3))
    name = s.name("custom")
    return "\n".join([
        "@jax.custom_vjp",
        f"def {name}(p):",
        f"    return jnp.sin(p) * {s.one('2.0', 'jnp.mean(p)')}",
        f"{name}.defvjp(lambda p: ({name}(p), p), lambda p, g: (g * jnp.tanh(p) * 3,))",
        f"{name}({x})",
    ])  # fmt: skip


@row("custom_vjp_body", 1)
def _custom_vjp_body(s: Scope) -> str:
    """A body of its own, whose derivative is scaled; an argument that is no array.

    JAX has no derivative for what it closes over: the body sees its parameters alone.
    """
    x = s.pick("f", (1, 3))
    (p,) = _parameters(s, [x])
    asked = len(s.arguments)
    scope = _body(s, [p], s.integer(1, 3), closed=True)
    made, more = scope.values[-1], [Value(*a[:3]) for a in s.arguments[asked:]]
    if made.kind != "f":
        raise NoOperand
    body, name = s.name("inner"), s.name("custom")
    return "\n".join([
        _function(body, [p, *more], scope, str(made)),
        f"{name} = jax.custom_vjp(lambda scale, *p: {body}(*p) * scale, nondiff_argnums=(0,))",
        f"{name}.defvjp(lambda scale, *p: ({name}(scale, *p), p),",
        f"    lambda scale, p, g: jax.vjp({body}, *p)[1](g * scale * 2))",
        f"{name}({', '.join(map(str, (0.5, x, *more)))})",
    ])  # fmt: skip


@row("custom_jvp", 1)
def _custom_jvp(s: Scope) -> str:
    x = s.pick("f", (1, 3))
    name, rule = s.name("custom"), s.name("rule")
    body = s.one("jnp.sin(p)", "jnp.sort(p, axis=0)", "jnp.cumsum(p, axis=0) * 0.1")
    return "\n".join([
        "@jax.custom_jvp",
        f"def {name}(p):",
        f"    return {body}",
        f"@{name}.defjvp",
        f"def {rule}(primals, tangents):",
        f"    return {name}(primals[0]), jnp.cos(primals[0]) * tangents[0]",
        f"{name}({x})",
    ])  # fmt: skip


@row("vmap", 4)
def _vmap(s: Scope) -> str:
    """A body over one slice of a value, along any of its dims."""
    x = s.pick("fi", (1, 4), lambda v: 0 < v.size <= 4096)
    d = s.dim(x)
    p, q = s.name("p"), s.name("p")
    inner = [Value(p, (*x.shape[:d], *x.shape[d + 1 :]), x.dtype)]
    operands, axes = [str(x)], [d]
    if s.chance(0.5):
        y = s.pick("fi", (1, 4), lambda v: x.shape[d] in v.shape and 0 < v.size <= 4096)
        e = y.shape.index(x.shape[d])
        inner.append(Value(q, (*y.shape[:e], *y.shape[e + 1 :]), y.dtype))
        operands.append(str(y))
        axes.append(e)
    scope = _body(s, inner, s.integer(1, 3))
    name = s.name("each")
    out = scope.values[-1]
    out_axis = f", out_axes={s.integer(0, len(out.shape))}" if s.chance(0.2) else ""
    call = f"jax.vmap({name}, in_axes={tuple(axes)}{out_axis})({', '.join(operands)})"
    return _function(name, inner, scope, str(out)) + f"\n{call}"


@row("grad", 2)
def _grad(s: Scope) -> str:
    """The gradient of a body inside the program, so that it may be differentiated again."""
    x = s.pick("f", (1, 3))
    (p,) = _parameters(s, [x])
    scope = _body(s, [p], s.integer(1, 3))
    made = scope.values[-1]
    if made.kind not in "f":
        raise NoOperand
    name = s.name("loss")
    return _function(name, [p], scope, f"jnp.sum(jnp.sin({made})).astype(jnp.float32)") + (
        f"\njax.grad({name})({x})"
    )


@row("jvp", 0.5)
def _jvp(s: Scope) -> str:
    x = s.pick("f", (1, 3))
    (p,) = _parameters(s, [x])
    scope = _body(s, [p], s.integer(1, 2))
    name = s.name("inner")
    made = _function(name, [p], scope, str(scope.values[-1]))
    if "custom_vjp" in made:  # JAX traces its forward derivative, and refuses to compile it
        raise NoOperand
    return made + f"\njax.jvp({name}, ({x},), ({s.like(x)},))[1]"
