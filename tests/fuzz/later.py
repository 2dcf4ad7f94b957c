"""Rows that came after 125,000 seeds were judged: programs of earlier seeds are without them."""

from __future__ import annotations

from functools import partial

from tests.fuzz.nesting import _body, _fit, _function, _parameters, _small
from tests.fuzz.scope import NoOperand, Scope, Value, row

SINCE = 130_000
later = partial(row, since=SINCE)

FP8 = ("float8_e4m3fn", "float8_e5m2")
INT4 = ("int4", "uint4")


def _matrices(s: Scope) -> tuple[Value, Value, str]:
    """(x, w, the dimension numbers of x @ w)."""
    x = s.pick("f", (2, 3), lambda v: v.size and v.dtype == "float32")
    w = s.argument((x.shape[-1], s.size()), "float32")
    return x, w, f"((({len(x.shape) - 1},), (0,)), ((), ()))"


@later("fp8_dot", 1.5)
def _fp8_dot(s: Scope) -> str:
    x, w, numbers = _matrices(s)
    one, other = s.one(*FP8), s.one(*FP8)
    return (
        f"lax.dot_general({x}.astype(jnp.{one}), {w}.astype(jnp.{other}), {numbers},"
        f" preferred_element_type=jnp.float32) / {x.shape[-1]}"
    )


@later("int4_dot", 1)
def _int4_dot(s: Scope) -> str:
    """Of numbers that are stored as int4: XLA:CPU has no dot of int4 itself."""
    x, w, numbers = _matrices(s)
    a, b = (f"jnp.clip({y} * 4, -8, 7).astype(jnp.int4).astype(jnp.int8)" for y in (x, w))
    return (
        f"lax.dot_general({a}, {b}, {numbers},"
        f" preferred_element_type=jnp.int32).astype(jnp.float32) / {16 * x.shape[-1]}"
    )


@later("narrow_moves", 2)
def _narrow_moves(s: Scope) -> str:
    """Arrays that are moved, cut and indexed while they are narrow."""
    x = s.pick("f", (1, 3))
    d, n = s.dim(x), x.shape
    narrow = s.one(*FP8, "int4", "bfloat16")
    y = f"jnp.clip({x} * 4, -8, 7).astype(jnp.{narrow})"
    moved = s.one(
        f"jnp.roll({y}, 1, {d})", f"jnp.flip({y}, {d})", f"jnp.concatenate([{y}, {y}], {d})",
        f"jnp.take({y}, {s.indices((s.size(),), n[d])}, axis={d}, mode='clip')",
        f"{y}.reshape(-1)", f"{y}.T", f"jnp.broadcast_to({y}, (2, *{n}))",
        f"lax.slice_in_dim({y}, {n[d] // 2}, {n[d]}, axis={d})",
        f"jnp.where({x} > 0, {y}, jnp.zeros({n}, jnp.{narrow}))",
        f"jnp.zeros({n}, jnp.{narrow}).at[{s.indices((), n[0])}].set({y}[0], mode='drop')",
    )  # fmt: skip
    return f"({moved}).astype(jnp.float32) / 4"


@later("narrow_argument", 1)
def _narrow_argument(s: Scope) -> str:
    """A quantised weight: narrow as it comes in."""
    x = s.pick("f", (1, 3))
    w = s.argument((x.shape[-1], s.size()), s.one(*FP8, *INT4))
    return f"{x} @ {w}.astype({x}.dtype) / {4 * max(1, x.shape[-1])}"


@later("narrow_result", 0.5)
def _narrow_result(s: Scope) -> str:
    x = s.pick("f", (1, 3))
    return f"jnp.clip({x} * 4, -8, 7).astype(jnp.{s.one(*FP8, 'int4')})"


NAMED = (
    "save_only_these_names('kept')", "save_anything_except_these_names('kept')",
    "save_any_names_but_these('kept')",
    "save_from_both_policies(jax.checkpoint_policies.dots_saveable,"
    " jax.checkpoint_policies.save_only_these_names('kept'))",
    "save_and_offload_only_these_names(names_which_can_be_saved=[],"
    " names_which_can_be_offloaded=['kept'], offload_src='device', offload_dst='pinned_host')",
    "offload_dot_with_no_batch_dims('device', 'pinned_host')",
)  # fmt: skip


@later("remat_names", 2)
def _remat_names(s: Scope) -> str:
    x = s.pick("f", (0, 3))
    (p,) = _parameters(s, [x])
    scope = _body(s, [p], s.integer(1, 3))
    name, made = s.name("block"), scope.values[-1]
    kept = f"jnp.sin(jax.ad_checkpoint.checkpoint_name({made}, 'kept'))"
    policy = f"jax.checkpoint_policies.{s.one(*NAMED)}"
    return _function(name, [p], scope, kept) + f"\njax.checkpoint({name}, policy={policy})({x})"


@later("scan_of_remat", 2)
def _scan_of_remat(s: Scope) -> str:
    """Layers as users write them: a checkpointed body over stacked weights."""
    carry = s.pick("f", (1, 3), _small)
    n, d = s.one(2, 3, 4), carry.shape[-1]
    weights = s.argument((n, d, d), carry.dtype)
    p, q = _parameters(s, [carry, Value("", (d, d), carry.dtype)])
    scope = _body(s, [q, p], s.integer(1, 2))
    name = s.name("layer")
    after = f"({_fit(s, scope, p)} + {p} @ {q} / {d}).astype({p}.dtype)"
    policy = s.one("", ", policy=jax.checkpoint_policies.dots_saveable")
    block = f"jax.checkpoint({name}, prevent_cse={s.chance(0.5)}{policy})"
    return _function(name, [p, q], scope, f"{after}, jnp.sum({p})") + (
        f"\nlax.scan({block}, {carry}, {weights})[0]"
    )


@later("custom_jvp_body", 1)
def _custom_jvp_body(s: Scope) -> str:
    x = s.pick("f", (1, 3))
    (p,) = _parameters(s, [x])
    scope = _body(s, [p], s.integer(1, 2), closed=True)
    if scope.values[-1].kind != "f" or "custom_vjp" in "".join(scope.lines):
        raise NoOperand
    body, name = s.name("inner"), s.name("custom")
    return "\n".join([
        _function(body, [p], scope, str(scope.values[-1])),
        f"{name} = jax.custom_jvp({body})",
        f"{name}.defjvp(lambda primals, tangents: jax.jvp({body}, primals, (2 * tangents[0],)))",
        f"{name}({x})",
    ])  # fmt: skip


@later("custom_vmap", 0.7)
def _custom_vmap(s: Scope) -> str:
    """Batched by a rule that is not what vmap would do, so that using the wrong one is seen."""
    x = s.pick("f", (1, 3))
    name, rule = s.name("custom"), s.name("rule")
    return "\n".join([
        "@jax.custom_batching.custom_vmap",
        f"def {name}(p):",
        "    return jnp.sin(p) * 2",
        f"@{name}.def_vmap",
        f"def {rule}(size, batched, p):",
        "    return jnp.cos(p) * 3, batched[0]",
        f"jax.vmap({name})({x})",
    ])  # fmt: skip


@later("custom_solves", 0.7)
def _custom_solves(s: Scope) -> str:
    x = s.pick("f", (2, 2), lambda v: v.dtype == "float32" and v.size and v.shape[-1] <= 32)
    a, n = s.name("a"), x.shape[1]
    root = (
        f"lax.custom_root(lambda y: y ** 3 + y - {x}, jnp.zeros_like({x}), lambda f, y:"
        f" lax.fori_loop(0, 8, lambda i, y: y - f(y) / (3 * y * y + 1), y),"
        " lambda g, y: y / g(jnp.ones_like(y)))"
    )
    solve = (
        f"{a} = {x}.T @ {x} / {x.shape[0]} + 2 * jnp.eye({n})\n"
        f"lax.custom_linear_solve(lambda v: {a} @ v, {x}[0], symmetric=True,"
        f" solve=lambda _, b: jnp.linalg.solve({a}, b))"
    )
    return s.one(root, solve)


@later("derivatives", 1.5)
def _derivatives(s: Scope) -> str:
    """The other ways to ask for a derivative."""
    x = s.pick("f", (1, 2), lambda v: 0 < v.size <= 256)
    (p,) = _parameters(s, [x])
    scope = _body(s, [p], s.integer(1, 2))
    made = scope.values[-1]
    if made.kind != "f" or "custom_vjp" in "".join(scope.lines):
        raise NoOperand
    name = s.name("inner")
    total = f"lambda p: jnp.sum(jnp.sin({name}(p))).astype(jnp.float32)"
    return _function(name, [p], scope, str(made)) + "\n" + s.one(
        f"jax.linearize({name}, {x})[1](jnp.ones_like({x}))",
        f"jax.vjp({name}, {x})[1](jnp.ones({made.shape}, '{made.dtype}'))[0]",
        f"jax.jvp(jax.grad({total}), ({x},), (jnp.ones_like({x}),))[1]",
        f"jax.jacfwd(lambda p: jnp.sum({name}(p)))({x})",
        f"jax.jacrev(lambda p: {name}(p).reshape(-1)[:3])({x})",
    )  # fmt: skip


@later("lax_map", 1)
def _lax_map(s: Scope) -> str:
    xs = s.pick("f", (1, 3), lambda v: _small(v) and v.shape[0] <= 16)
    (p,) = _parameters(s, [xs._replace(shape=xs.shape[1:])])
    scope = _body(s, [p], s.integer(1, 2))
    name = s.name("each")
    batch = s.one("", f", batch_size={s.integer(1, 3)}")
    return _function(name, [p], scope, str(scope.values[-1])) + f"\nlax.map({name}, {xs}{batch})"


@later("vmap_axis", 1.5)
def _vmap_axis(s: Scope) -> str:
    """Collectives over the name of a mapped axis, which are no collectives of the mesh."""
    x = s.pick("f", (1, 3), lambda v: 0 < v.size <= 4096)
    n = x.shape[0]
    way = s.one(
        "p - lax.pmean(p, 'n')", "lax.psum(jnp.sin(p), 'n') / 8",
        "p / (1 + lax.pmax(jnp.abs(p), 'n'))", "lax.all_gather(p, 'n').mean(0) * p",
        "p * lax.axis_index('n')",
        f"lax.ppermute(p, 'n', [(i, (i + 1) % {n}) for i in range({n})])",
    )  # fmt: skip
    return f"jax.vmap(lambda p: {way}, axis_name='n')({x})"


@later("references", 1)
def _references(s: Scope) -> str:
    """An array that is written in place, in a loop."""
    x = s.pick("f", (2, 3), lambda v: _small(v) and v.shape[0] <= 12)
    ref, body = s.name("ref"), s.name("body")
    write = s.one(f"{ref}[i] = jnp.sin({x}[i]) + c", f"{ref}[i] += {x}[i] * c")
    return "\n".join([
        f"{ref} = jax.new_ref(jnp.zeros_like({x}))",
        f"def {body}(i, c):",
        f"    {write}",
        f"    return c + jnp.mean({x}[i]).astype(c.dtype)",
        f"lax.fori_loop(0, {x.shape[0]}, {body}, jnp.float32(0)) + {ref}[...]",
    ])  # fmt: skip


@later("spectra", 0.8)
def _spectra(s: Scope) -> str:
    x = s.pick("f", (2, 3), lambda v: v.dtype == "float32" and v.size and max(v.shape[-2:]) <= 24)
    n = x.shape[-1]
    gram = f"jnp.swapaxes({x}, -1, -2) @ {x} / {x.shape[-2]} + 2 * jnp.eye({n})"
    return s.one(
        f"jnp.linalg.eigvalsh({gram})", f"jnp.linalg.svd({x}, compute_uv=False)",
        f"jnp.abs(jnp.linalg.qr({gram})[1])", f"jnp.linalg.slogdet({gram})[1]",
        f"jax.scipy.linalg.expm(({gram}) / 8)", f"jnp.linalg.matrix_power({gram}, 3) / 64",
        f"jax.scipy.linalg.cho_solve((jnp.linalg.cholesky({gram}), True), jnp.ones(({n}, 2)))"
        if len(x.shape) == 2 else f"jnp.linalg.det({gram})",
    )  # fmt: skip


@later("special", 1)
def _special(s: Scope) -> str:
    x = s.pick("f", (0, 3), lambda v: v.dtype in ("float32", "float64") and v.size)
    y = f"(1 + {x} * {x})"
    return s.one(
        f"lax.lgamma({y})", f"lax.digamma({y})", f"lax.igamma({y}, {y} / 2)",
        f"lax.betainc({y}, {y} + 1, jnp.clip(jnp.abs({x}), 0.1, 0.9))", f"lax.bessel_i0e({x})",
        f"lax.erf_inv(jnp.tanh({x}) / 2)", f"lax.zeta({y} + 1, {y})", f"jnp.sinc({x})",
        f"lax.optimization_barrier({x})", f"jnp.logaddexp({x}, 0.5)", f"jnp.nextafter({x}, {y})",
        f"lax.integer_pow({x}, 3) / 8", f"jnp.frexp({x})[0]", f"jax.nn.logsumexp({x})",
    )  # fmt: skip


@later("reduce_by", 1)
def _reduce_by(s: Scope) -> str:
    """Reductions by a function of one's own, of one array and of two at once."""
    x = s.pick("f", (1, 3), lambda v: v.size and v.dtype == "float32")
    d = s.dim(x)
    pair = "lambda a, b: tuple(jnp.where(a[0] >= b[0], u, v) for u, v in zip(a, b))"
    return s.one(
        f"lax.reduce({x}, jnp.float32(0), lax.add, ({d},)) / {x.shape[d]}",
        f"lax.reduce({x}, jnp.float32(-jnp.inf), lambda a, b: jnp.maximum(a, b), ({d},))",
        f"lax.reduce(({x}, lax.broadcasted_iota(jnp.int32, {x.shape}, {d})),"
        f" (jnp.float32(-jnp.inf), jnp.int32(0)), {pair}, ({d},))",
        f"jnp.bitwise_xor.reduce(({x} * 8).astype(jnp.int32), axis={d})",
    )  # fmt: skip


@later("ragged_dot", 0.8)
def _ragged_dot(s: Scope) -> str:
    """Rows in groups, each with a matrix of its own; some rows belong to none."""
    x = s.pick("f", (2, 2), lambda v: v.size and v.dtype == "float32")
    groups = s.one(1, 2, 4)
    sizes = s.rng.multinomial(x.shape[0], [1 / (groups + 1)] * (groups + 1))[:groups]
    w = s.argument((groups, x.shape[1], s.size()), "float32")
    counts = f"jnp.array({[int(n) for n in sizes]}, jnp.int32)"
    return f"lax.ragged_dot({x}, {w}, {counts}) / {x.shape[1]}"


@later("approx_max_k", 0.4)
def _approx_max_k(s: Scope) -> str:
    x = s.pick("f", (1, 3), lambda v: v.size and v.dtype == "float32")
    return f"lax.approx_max_k({x}, {s.integer(1, min(x.shape[-1], 5))})[0]"
