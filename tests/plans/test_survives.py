"""What a function has and can do, it still has and can do as plan.jit(fn): nothing is lost."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.state.discharge import run_state  # pallas runs its kernels on references with it
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback, sparse
from jax.experimental.scheduling_groups import scheduling_group
from jax.sharding import PartitionSpec as P

import shardwright as sw
from tests.plans.runs import DEVICES

MESH = {"data": 4, "model": 2}
KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (16, 8))
PARAMS = {
    "w1": jax.random.normal(jax.random.key(2), (8, 32)) / 3,
    "w2": jax.random.normal(jax.random.key(3), (32, 8)) / 6,
}


def plan(fn: Callable[..., Any], *args: Any, **options: Any) -> sw.Plan:
    """A plan that splits the batch, and the hidden dim where there is one."""
    options = {"mesh": MESH, "device": DEVICES["balanced"], "seconds": 0.2} | options
    return sw.partition(fn, *args, **options)


def forward(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["w1"]) @ params["w2"]


PINS = [sw.Pin("x", 0, "data"), sw.Pin("params['w1']", 1, "model")]


@pytest.fixture(scope="module")
def the_plan() -> sw.Plan:
    return plan(forward, PARAMS, X, tactics=PINS)


@pytest.fixture(scope="module")
def planned(the_plan: sw.Plan) -> Any:
    return the_plan.jit(forward)


def close(got: Any, want: Any) -> None:
    """All leaves agree within rounding, on the scale of their largest entry."""
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        scale = float(np.max(np.abs(w), initial=1.0))
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-5 * scale)


# Transformations of the planned function ------------------------------------------------------

TRANSFORMATIONS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "grad": lambda f: jax.grad(lambda p: jnp.sum(f(p, X) ** 2))(PARAMS),
    "value_and_grad of both": lambda f: jax.value_and_grad(
        lambda p, x: jnp.sum(f(p, x) ** 2), argnums=(0, 1)
    )(PARAMS, X),
    "jvp": lambda f: jax.jvp(lambda x: f(PARAMS, x), (X,), (jnp.ones_like(X),)),
    "vmap": lambda f: jax.vmap(f, in_axes=(None, 0))(PARAMS, jnp.stack([X, 2 * X, -X])),
    "grad of vmap": lambda f: jax.grad(
        lambda p: jnp.sum(jax.vmap(f, in_axes=(None, 0))(p, jnp.stack([X, -X])) ** 2)
    )(PARAMS),
    "jit around it": lambda f: jax.jit(lambda p, x: f(p, x) + 1)(PARAMS, X),
    "scan around it": lambda f: jax.lax.scan(lambda x, _: (f(PARAMS, x), x.sum()), X, None, 3),
    "hessian product": lambda f: jax.jvp(
        jax.grad(lambda x: jnp.sum(f(PARAMS, x) ** 2)), (X,), (jnp.ones_like(X),)
    ),
    "checkpoint": lambda f: jax.grad(lambda x: jax.checkpoint(f)(PARAMS, x).sum())(X),
    "checkpoint in scan, grad": lambda f: jax.grad(
        lambda p: jax.lax.scan(
            lambda x, _: (jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)(p, x), 0),
            X, None, 3,
        )[0].sum()
    )(PARAMS),
    "cond around it": lambda f: jax.lax.cond(X[0, 0] > 9, lambda x: x, lambda x: f(PARAMS, x), X),
    "grad of cond": lambda f: jax.grad(
        lambda x: jax.lax.cond(x[0, 0] < 9, lambda x: f(PARAMS, x), lambda x: x, x).sum()
    )(X),
    "while around it": lambda f: jax.lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, f(PARAMS, c[1])), (0, X)
    ),
    "vmap of scan": lambda f: jax.vmap(
        lambda x: jax.lax.scan(lambda x, _: (f(PARAMS, x), x.sum()), x, None, 2)
    )(jnp.stack([X, -X])),
    "vmap along the last dim": lambda f: jax.vmap(f, in_axes=(None, 2), out_axes=1)(
        PARAMS, jnp.stack([X, -X], 2)
    ),
    "lax.map": lambda f: jax.lax.map(lambda x: f(PARAMS, x), jnp.stack([X, -X])),
    "jacobian": lambda f: jax.jacrev(lambda x: f(PARAMS, x).sum(0))(X),
    "linearize": lambda f: jax.linearize(lambda x: f(PARAMS, x), X)[1](jnp.ones_like(X)),
    "vjp, later": lambda f: jax.vjp(f, PARAMS, X)[1](jnp.ones_like(X)),
    "a gradient of one's own": lambda f: jax.grad(lambda x: _doubled(f)(x).sum())(X),
    "itself twice": lambda f: f(PARAMS, f(PARAMS, X)),
    "jit, scan, vmap and grad": lambda f: jax.jit(
        lambda p, xs: jax.lax.scan(
            lambda p, x: (
                jax.tree.map(jnp.subtract, p, jax.grad(
                    lambda p: jax.vmap(lambda x: f(p, x).mean())(jnp.stack([x, -x])).mean()
                )(p)), 0,
            ),
            p, xs,
        )[0]
    )(PARAMS, jnp.stack([X, 2 * X])),
}  # fmt: skip


def _doubled(f: Callable[..., Any]) -> Callable[..., Any]:
    """f with a derivative that is twice its own."""
    doubled = jax.custom_vjp(lambda x: f(PARAMS, x))
    doubled.defvjp(lambda x: jax.vjp(lambda x: f(PARAMS, x), x), lambda pull, g: (2 * pull(g)[0],))
    return doubled


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformations(name: str, planned: Any) -> None:
    transform = TRANSFORMATIONS[name]
    close(transform(planned), transform(forward))


def test_ahead_of_time(planned: Any, the_plan: sw.Plan) -> None:
    lowered = planned.lower(PARAMS, X)
    compiled = lowered.compile()
    close(compiled(*the_plan.place(PARAMS, X)), forward(PARAMS, X))
    assert "all-reduce" in compiled.as_text()
    assert planned.eval_shape(PARAMS, X).shape == (16, 8)
    assert planned.trace(PARAMS, X).jaxpr is not None


def test_export(planned: Any, the_plan: sw.Plan) -> None:
    exported = jax.export.export(planned)(PARAMS, X)
    assert exported.nr_devices == 8
    close(jax.jit(exported.call)(*the_plan.place(PARAMS, X)), forward(PARAMS, X))


def test_an_export_survives_serialisation(planned: Any, the_plan: sw.Plan) -> None:
    """As bytes it needs neither the function nor Shardwright, only as many devices."""
    pytest.importorskip("flatbuffers", reason="JAX writes exported programs with it")
    data = jax.export.export(planned)(PARAMS, X).serialize(vjp_order=1)
    again = jax.export.deserialize(data)
    assert again.nr_devices == 8
    placed = the_plan.place(PARAMS, X)
    out = jax.jit(again.call)(*placed)
    close(out, forward(PARAMS, X))
    assert out.sharding.is_equivalent_to(the_plan.out_shardings(), out.ndim)
    grads = jax.jit(jax.grad(lambda p, x: jnp.sum(again.call(p, x) ** 2)))(*placed)
    close(grads, jax.grad(lambda p: jnp.sum(forward(p, X) ** 2))(PARAMS))


# Functions with something inside --------------------------------------------------------------


@jax.custom_vjp
def clipped(x: jax.Array) -> jax.Array:
    """The identity, with a gradient that nobody would derive."""
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (7 * g,))


@jax.custom_jvp
def strange(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


strange.defjvp(lambda primals, tangents: (strange(*primals), 5 * tangents[0]))


def with_scan(params: dict[str, jax.Array], x: jax.Array) -> Any:
    def body(c: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        c = jnp.tanh(c @ params["w1"]) @ params["w2"] * scale
        return c, c.sum(0)

    return jax.lax.scan(body, x, jnp.arange(3.0))


def with_while(params: dict[str, jax.Array], x: jax.Array) -> Any:
    return jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ params["w1"]) @ params["w2"]),
        (0, x),
    )  # fmt: skip


def with_cond(params: dict[str, jax.Array], x: jax.Array) -> Any:
    return jax.lax.cond(
        x.sum() > 0, lambda x: jnp.tanh(x @ params["w1"]) @ params["w2"], lambda x: 2 * x, x
    )


def with_switch(params: dict[str, jax.Array], x: jax.Array) -> Any:
    branches = [lambda x: x, lambda x: forward(params, x), lambda x: -x]
    return jax.lax.switch(jnp.argmax(x[0, :3]), branches, x)


def with_remat(params: dict[str, jax.Array], x: jax.Array) -> Any:
    block = jax.checkpoint(lambda x: x + forward(params, x))
    return jax.grad(lambda x: jnp.sum(block(block(x)) ** 2))(x)


def with_fori(params: dict[str, jax.Array], x: jax.Array) -> Any:
    return jax.lax.fori_loop(0, 4, lambda i, c: forward(params, c) + i, x)


def with_custom(params: dict[str, jax.Array], x: jax.Array) -> Any:
    return strange(clipped(x) @ params["w1"]) @ params["w2"]


def with_key(params: dict[str, jax.Array], x: jax.Array) -> Any:
    noise = jax.random.normal(jax.random.fold_in(KEY, 3), x.shape)
    return forward(params, x + noise)


def with_constants(params: dict[str, jax.Array], x: jax.Array) -> Any:
    table = np.arange(128.0, dtype=np.float32).reshape(16, 8)
    return forward(params, x + table), table, 3, None, "text"


def with_reference(params: dict[str, jax.Array], x: jax.Array) -> Any:
    kept = jax.new_ref(jnp.zeros((3, *x.shape)))

    def body(c: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        kept[i] = c = forward(params, c)
        return c, None

    jax.lax.scan(body, x, jnp.arange(3))
    return kept[...]


def with_unread_reference(params: dict[str, jax.Array], x: jax.Array) -> Any:
    """JAX drops the call before it does without the reference, which it could not inside."""

    @jax.custom_jvp
    def counted(x: jax.Array) -> jax.Array:
        kept = jax.new_ref(x)
        kept[...] += 1.0
        return jax.freeze(kept)

    counted.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    counted(x)
    return forward(params, x)


def with_run_state(params: dict[str, jax.Array], x: jax.Array) -> Any:
    def body(refs: Any) -> None:
        read, kept = refs

        def add(i: jax.Array, _: None) -> None:
            kept[...] += forward(params, read[...]) * i

        jax.lax.fori_loop(0, 3, add, None)

    return run_state(body)((x, jnp.zeros_like(x)))[1]


@jax.custom_vjp
def with_rule(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


with_rule.defvjp(
    lambda w, x: (jnp.tanh(x @ w), (w, x)),
    lambda kept, g: (3 * kept[1].T @ g, g @ kept[0].T), optimize_remat=True,
)  # fmt: skip


def with_optimized_remat(params: dict[str, jax.Array], x: jax.Array) -> Any:
    loss = jax.checkpoint(lambda w: jnp.sin(with_rule(w, x)).sum())
    return jax.grad(loss)(params["w1"])


def with_metadata(params: dict[str, jax.Array], x: jax.Array) -> Any:
    tower = scheduling_group("tower")(lambda w, x: jnp.tanh(x @ w))
    return jax.grad(lambda w: tower(w, x).sum())(params["w1"])


def with_sparse(params: dict[str, jax.Array], x: jax.Array) -> Any:
    """Sparse products forward and backward, from a dense array and back."""
    matrix = sparse.BCOO.fromdense(jnp.where(x > 1, x, 0), nse=32)
    grad = jax.grad(lambda w: jnp.sum((matrix @ w) ** 2))(params["w1"])
    return grad, matrix.T.todense(), (matrix.sort_indices() @ params["w1"]).sum(0)


BODIES = [
    with_scan, with_while, with_cond, with_switch, with_remat, with_fori, with_custom, with_key,
    with_constants, with_reference, with_unread_reference, with_run_state, with_optimized_remat,
    with_metadata,
    with_sparse,
]  # fmt: skip


@pytest.mark.parametrize("fn", BODIES)
def test_bodies(fn: Callable[..., Any]) -> None:
    planned = plan(fn, PARAMS, X, tactics=PINS)
    assert not planned.record.opaque
    got, want = planned.jit(fn)(PARAMS, X), fn(PARAMS, X)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if isinstance(w, str):
            assert g == w
        else:
            close(g, w)


def test_a_learned_scalar() -> None:
    """JAX writes the gradient of a scalar with other ops under a mesh than without one."""

    def step(temperature: jax.Array, x: jax.Array) -> jax.Array:
        return jax.grad(lambda t: jnp.sum((jnp.exp(t) * x) ** 2))(temperature)

    p = plan(step, jnp.float32(0.5), X, tactics=[sw.Pin("x", 0, "data")])
    close(p.jit(step)(jnp.float32(0.5), X), step(jnp.float32(0.5), X))


@pytest.mark.parametrize("fn", [with_scan, with_remat, with_cond])
def test_constraints_are_inside_bodies(fn: Callable[..., Any]) -> None:
    """The body of a loop, a branch or a recomputed block holds placements of its own."""
    jaxpr = plan(fn, PARAMS, X, tactics=PINS).jit(fn).trace(PARAMS, X).jaxpr.jaxpr

    def constraints(jaxpr: Any, inside: bool) -> int:
        count = 0
        for eqn in jaxpr.eqns:
            count += inside and eqn.primitive.name == "sharding_constraint"
            deeper = eqn.primitive.name in ("scan", "cond", "remat2", "checkpoint")
            for sub in jax.extend.core.jaxprs_in_params(eqn.params):
                count += constraints(sub, inside or deeper)
        return count

    assert constraints(jaxpr, False) > 0


@pytest.mark.parametrize("fn, slope", [(clipped, 7.0), (strange, 5.0)])
def test_custom_derivatives(fn: Callable[..., Any], slope: float) -> None:
    """grad of the planned function uses the user's rule, not the derivative of the body."""

    def f(x: jax.Array) -> jax.Array:
        return fn(x).sum()

    planned = plan(f, X, tactics=[sw.Pin("x", 0, "data")]).jit(f)
    close(jax.grad(planned)(X), jnp.full_like(X, slope))


def test_effects(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[float] = []

    def loud(x: jax.Array) -> jax.Array:
        total = x.sum()
        jax.debug.print("total {}", total)
        io_callback(lambda t: seen.append(float(t)), None, total, ordered=False)
        return x * 2

    with jax.default_device(jax.devices()[0]):
        out = plan(loud, X, tactics=[sw.Pin("x", 0, "data")]).jit(loud)(X)
        jax.block_until_ready(out)
        jax.effects_barrier()
    np.testing.assert_allclose(seen, [float(X.sum())], rtol=1e-5)
    assert capfd.readouterr().out.count("total") == 1


def test_names() -> None:
    def named(x: jax.Array) -> jax.Array:
        with jax.named_scope("tower"):
            return jnp.sin(x) * 2

    planned = plan(named, X, tactics=[sw.Pin("x", 0, "data")]).jit(named)
    assert planned.__name__ == "named"
    assert "tower" in planned.lower(X).compile().as_text()
    assert "jit_named" in planned.lower(X).as_text()


# Calls ------------------------------------------------------------------------------------------


def test_donation() -> None:
    def step(state: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        return {k: v + x.sum() for k, v in state.items()}

    p = plan(step, PARAMS, X, donate_argnums=0)
    state, x = p.place(jax.tree.map(np.asarray, PARAMS), np.asarray(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new = p.jit(step)(state, x)
    assert all(v.is_deleted() for v in state.values())
    assert not x.is_deleted()
    close(new, {k: v + X.sum() for k, v in PARAMS.items()})


def test_static_arguments() -> None:
    def power(x: jax.Array, n: int, name: str) -> jax.Array:
        return x**n if name == "power" else x

    p = plan(power, X, 3, "power", static_argnums=(1, 2), tactics=[sw.Pin("x", 0, "data")])
    f = p.jit(power)
    close(f(X, 3, "power"), X**3)
    close(f.lower(X, 3, "power").compile()(p.place(X, 3, "power")[0]), X**3)
    assert jax.tree.structure(p.in_shardings()) == jax.tree.structure((X,))
    close(f(X, 2, "power"), X**2)  # another number in the same ops: the plan fits as well
    with pytest.raises(sw.ShardwrightError, match="made for another program"):
        f(X, 3, "identity")


SETTINGS: dict[str, Callable[[], Any]] = {
    "disable_jit": jax.disable_jit,
    "debug_nans": lambda: jax.debug_nans(True),
    "enable_x64": lambda: jax.enable_x64(True),
    "float32 products": lambda: jax.default_matmul_precision("float32"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_jax(name: str) -> None:
    with SETTINGS[name]():
        wide = jax.dtypes.canonicalize_dtype(float)
        x = X.astype(wide)
        params = {k: v.astype(wide) for k, v in PARAMS.items()}
        out = plan(forward, params, x).jit(forward)(params, x)
        assert out.dtype == wide
        close(out, forward(params, x))


# What a caller may have switched on after the plan was made.
AROUND: dict[str, Callable[[], Any]] = {
    "disable_jit": jax.disable_jit,
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "set_mesh": lambda: jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"))),
    "set_mesh, automatic axes": lambda: jax.set_mesh(
        jax.make_mesh((4, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    ),
    "set_mesh of other axes": lambda: jax.set_mesh(
        jax.make_mesh((8,), ("z",), (jax.sharding.AxisType.Auto,))
    ),
    "checking_leaks": jax.checking_leaks,
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "no rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "another default device": lambda: jax.default_device(jax.devices()[3]),
    "another precision": lambda: jax.default_matmul_precision("float32"),
    "another random generator": lambda: jax.default_prng_impl("rbg"),
    "x64": lambda: jax.enable_x64(True),
}


@pytest.mark.parametrize("name", AROUND)
def test_called_under_settings_of_jax(name: str, the_plan: sw.Plan, planned: Any) -> None:
    """A plan that was made before: called, differentiated, and nested in jit under a setting."""
    placed, want = the_plan.place(PARAMS, X), forward(PARAMS, X)
    with AROUND[name]():
        fresh = the_plan.jit(forward)
        outs = [planned(*placed), fresh(*placed), jax.jit(fresh)(*placed)]
        grads = jax.grad(lambda p: jnp.sum(fresh(p, placed[1]) ** 2))(placed[0])
    for out in outs:
        close(out, want)
    close(grads, jax.grad(lambda p: jnp.sum(forward(p, X) ** 2))(PARAMS))


def test_debug_nans_finds_a_nan_of_a_planned_function() -> None:
    def root(x: jax.Array) -> jax.Array:
        return jnp.sqrt(x)

    planned = plan(root, X, tactics=[sw.Pin("x", 0, "data")]).jit(root)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.block_until_ready(planned(-jnp.abs(X) - 1))


def test_donated_by_a_jit_around_it(the_plan: sw.Plan, planned: Any) -> None:
    params, x = the_plan.place(PARAMS, X)
    placed = the_plan.place(PARAMS, np.asarray(X))[1]
    around = jax.jit(
        lambda p, x: planned(p, x) + 0 * x, donate_argnums=1, out_shardings=placed.sharding
    )
    out = around(params, placed)
    assert placed.is_deleted() and not x.is_deleted()
    close(out, forward(PARAMS, X))


@pytest.mark.parametrize("level", ["log", "disallow", "disallow_explicit"])
def test_transfer_guards(level: str, the_plan: sw.Plan, planned: Any) -> None:
    """What plan.place has placed is not moved again, on the first call or later."""
    placed = the_plan.place(PARAMS, X)
    fresh = the_plan.jit(forward)
    with jax.transfer_guard(level):
        outs = [fresh(*placed), fresh(*placed), planned(*placed)]
    for out in outs:
        close(out, forward(PARAMS, X))


def test_numpy_and_weak_types(planned: Any) -> None:
    """Host arrays are arguments like any other; so is an array of JAX's with a weak type."""
    close(planned(jax.tree.map(np.asarray, PARAMS), np.asarray(X)), forward(PARAMS, X))
    two, three = jnp.asarray(2.0), jnp.asarray(3.0)
    assert two.weak_type
    weak = plan(lambda x, s: x * s, X, two, tactics=[sw.Pin("x", 0, "data")])
    close(weak.jit()(X, three), X * 3)
    strong = plan(lambda x, s: x * s, X, jnp.float32(2), tactics=[sw.Pin("x", 0, "data")])
    close(strong.jit()(X, np.float32(3)), X * 3)


# Results that take the dtype of what they meet; a branch that returns a literal lost that.
WEAK: dict[str, Callable[[jax.Array], Any]] = {
    "a number": lambda x: (x, 2.0),
    "cond of literals": lambda x: jax.lax.cond(x.sum() > 0, lambda: 1.0, lambda: 2.0),
    "switch of literals": lambda x: jax.lax.switch(jnp.argmax(x[0]), [lambda: 1, lambda: 2]),
    "carry": lambda x: jax.lax.scan(lambda c, a: (c * 2.0, a), 1.0, x),
    "literal carry": lambda x: jax.lax.scan(lambda c, a: (3.0, c + a), 1.0, x),
    "literal in while": lambda x: jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, 2.0, c[2] * c[1]), (0, 1.0, x)),
    "where": lambda x: jnp.where(x > 0, 1.0, 2.0),
    "full": lambda x: jnp.full((16,), 2.0) + x.shape[0],
}  # fmt: skip


@pytest.mark.parametrize("name", WEAK)
def test_weakly_typed_results(name: str) -> None:
    fn = WEAK[name]
    got, want = plan(fn, X, tactics=[sw.Pin("x", 0, "data")]).jit(fn)(X), jax.jit(fn)(X)
    types = [(leaf.dtype, leaf.weak_type) for leaf in map(jnp.asarray, jax.tree.leaves(want))]
    assert [(leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(got)] == types
    assert any(weak for _, weak in types)
    close(got, want)


@pytest.mark.parametrize("pin", [sw.Pin("x", 0, "data"), sw.Pin("w", 1, "model")], ids=str)
def test_quantised_weights(pin: sw.Pin) -> None:
    """int4, whole and split; ahead of time JAX refuses them on several devices, with or without."""
    w = (np.arange(64).reshape(8, 8) % 15 - 7).astype(jnp.int4)

    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w.astype(jnp.float32)

    p = plan(f, X, w, tactics=[pin])
    close(p.jit(f)(X, w), f(X, w))
    close(p.jit(f)(*p.place(X, w)), f(X, w))
    assert p.verify(run=True)
    with pytest.raises(ValueError, match="layouts that disagree"):
        p.jit(f).lower(X, w).compile()(*p.place(X, w))


POLICIES: dict[str, Any] = {
    "dots": jax.checkpoint_policies.dots_saveable,
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "names": jax.checkpoint_policies.save_only_these_names("hidden"),
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["hidden"],
        offload_src="device", offload_dst="pinned_host",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
def test_checkpoint_policies(name: str) -> None:
    def step(params: dict[str, jax.Array], x: jax.Array) -> Any:
        def block(x: jax.Array) -> jax.Array:
            return checkpoint_name(jnp.tanh(x @ params["w1"]), "hidden") @ params["w2"]

        remat = jax.checkpoint(block, policy=POLICIES[name])
        return jax.grad(lambda x: jnp.sum(remat(remat(x)) ** 2))(x)

    p = plan(step, PARAMS, X, tactics=PINS)
    assert not p.record.opaque
    close(p.jit(step)(PARAMS, X), step(PARAMS, X))


def test_custom_derivatives_with_arguments_that_have_none() -> None:
    @partial(jax.custom_vjp, nondiff_argnums=(0, 2))
    def apply(f: Callable[..., Any], x: jax.Array, n: int) -> jax.Array:
        return f(x) * n

    apply.defvjp(lambda f, x, n: (f(x) * n, x), lambda f, n, x, g: (100 * n * g,))

    def f(x: jax.Array) -> jax.Array:
        return apply(jnp.sin, x, 3)

    planned = plan(f, X, tactics=[sw.Pin("x", 0, "data")]).jit(f)
    close(planned(X), f(X))
    close(jax.grad(lambda x: planned(x).sum())(X), jnp.full_like(X, 300.0))


def test_keyword_arguments() -> None:
    def f(x: jax.Array, *, scale: jax.Array, shift: float) -> jax.Array:
        return x * scale + shift

    scale = jnp.arange(8.0)
    p = plan(f, X, scale=scale, shift=2.0)
    g = p.jit(f)
    close(g(X, scale=scale, shift=2.0), X * scale + 2)
    close(g(X, shift=3.0, scale=scale), X * scale + 3)
    (x,), named = p.place(X, scale=scale, shift=2.0)
    close(g(x, **named), X * scale + 2)
    close(g.lower(X, scale=scale, shift=2.0).compile()(x, **named), X * scale + 2)


def test_pytrees_with_things_that_are_not_arrays() -> None:
    model = eqx.nn.MLP(8, 8, 32, 2, activation=jnp.tanh, key=KEY)

    def f(model: eqx.nn.MLP, x: jax.Array) -> tuple[Any, jax.Array]:
        return model, jax.vmap(model)(x)

    p = plan(f, model, X)
    same, out = p.jit(f)(model, X)
    close(out, jax.vmap(model)(X))
    assert same.activation is model.activation
    close(jax.vmap(same)(X), out)
    placed, x = p.place(model, X)
    close(p.jit(f)(placed, x)[1], out)


@jax.tree_util.register_dataclass
@dataclass
class Batch:
    x: jax.Array
    mask: jax.Array | None = None


@pytest.mark.parametrize("batch", [Batch(X), Batch(X, X > 0)])
def test_dataclasses_and_none(batch: Batch) -> None:
    def f(batch: Batch) -> Batch:
        return Batch(batch.x * 2, batch.mask)

    p = plan(f, batch)
    assert jax.tree.structure(p.jit(f)(batch)) == jax.tree.structure(batch)
    placed = p.place(batch)
    assert isinstance(placed, Batch)


def test_partials_and_methods() -> None:
    def f(config: str, x: jax.Array) -> jax.Array:
        return x + len(config)

    g = partial(f, "four")
    close(plan(g, X).jit(g)(X), X + 4)


# Parameters that are called as our options are ------------------------------------------------


def seeded(x: jax.Array, *, mesh: Any = 1.0, seed: float = 0.0, device: str = "up") -> jax.Array:
    return x * mesh + seed if device == "up" else x


@pytest.mark.parametrize("option", ["mesh", "seed", "device"])
def test_a_keyword_that_may_mean_two_things(option: str) -> None:
    value = {"mesh": MESH, "seed": 0, "device": "h100"}[option]
    others = {} if option == "mesh" else {"mesh": MESH}
    fn = seeded if option == "mesh" else partial(seeded, mesh=2.0)
    with pytest.raises(sw.ShardwrightError) as error:
        sw.partition(fn, X, **others, **{option: value})
    assert str(error.value) == (
        f"{option}= is an option of partition() and a parameter of seeded: which is meant?\n"
        f"  try     functools.partial(seeded, {option}=...) for the function's own (an array: by"
        " position, or through a lambda)"
    )


def test_a_partial_gives_the_function_its_own(tmp_path: Path) -> None:
    fn, want = partial(seeded, mesh=3.0, seed=1.0, device="up"), X * 3 + 1
    p = plan(fn, X, seed=5)
    p.save(tmp_path / "plan.json")
    loaded = sw.load(tmp_path / "plan.json")
    for run in (p.jit(fn), p.jit(), loaded.jit(fn)):
        close(run(X), want)
    ejected: dict[str, Any] = {}
    exec(loaded.to_python(), ejected)
    placed = ejected["place"](ejected["make_mesh"](), X)
    close(ejected["jit"](fn, ejected["make_mesh"](), *placed)(*placed), want)


def test_the_keywords_of_a_call_are_the_functions() -> None:
    """sw.jit has its options already; so have plan.jit and plan.bind."""
    f = sw.jit(seeded, mesh=MESH, device=DEVICES["balanced"], seconds=0.2)
    close(f(X, mesh=3.0, seed=1.0), X * 3 + 1)
    close(f.plan(X, mesh=3.0, seed=1.0).jit(seeded)(X, mesh=2.0, seed=4.0), X * 2 + 4)
    g = sw.jit(lambda fn, self: fn * self, mesh=MESH, device=DEVICES["balanced"], seconds=0.2)
    close(g(fn=X, self=2.0), X * 2)
    assert f.lower(X, mesh=3.0, seed=1.0).compile() is not None


@pytest.mark.parametrize(
    "options, says",
    [
        ({}, r'sw.jit needs a mesh\n  try     @sw.jit\(mesh=\{"data": 8\}\)'),
        ({"mehs": MESH}, "sw.jit has no option 'mehs'\n  try     mesh, device, memory"),
    ],
)
def test_options_of_the_decorator_are_checked_at_once(options: Any, says: str) -> None:
    with pytest.raises(sw.ShardwrightError, match=says):
        sw.jit(**options)
    with pytest.raises(sw.ShardwrightError, match=says):
        sw.jit(forward, **options)


def test_a_jitted_function_keeps_its_own_options() -> None:
    @partial(jax.jit, static_argnums=1, donate_argnums=0)
    def f(x: jax.Array, n: int) -> jax.Array:
        return x * n

    p = plan(f, X, 3)
    x, _ = p.place(np.asarray(X), 3)
    close(p.jit(f)(x, 3), X * 3)
    assert x.is_deleted()


def test_python_numbers() -> None:
    def f(x: jax.Array, n: float, k: int) -> jax.Array:
        return x * n + k

    p = plan(f, X, 2.0, 3)
    close(p.jit(f)(X, 2.0, 3), X * 2 + 3)
    close(p.jit(f)(X, 5.0, 1), X * 5 + 1)


def test_a_python_number_is_not_an_array() -> None:
    """What it meets keeps its dtype: the computation may be another one than with an array."""

    def f(x: jax.Array, rate: Any) -> jax.Array:
        return x.astype(jnp.bfloat16) * rate

    p = plan(f, X, 0.5)
    assert p.verify(run=True)
    assert p.jit(f)(X, 0.25).dtype == jnp.bfloat16
    with pytest.raises(sw.ShardwrightError, match="rate: was a Python number, is an array"):
        p.jit(f)(X, jnp.float32(0.25))
    g = sw.jit(f, mesh=MESH, device=DEVICES["balanced"], seconds=0.2)
    assert [g(X, r).dtype for r in (0.5, np.float32(0.5))] == [jnp.bfloat16, jnp.float32]


# As methods and decorators -----------------------------------------------------------------------


class Net:
    """A class as users write it, no pytree."""

    def __init__(self) -> None:
        self.w = PARAMS["w1"]

    def plain(self, x: jax.Array, scale: float = 2.0) -> jax.Array:
        return jnp.tanh(x @ self.w) * scale

    @sw.jit(mesh=MESH, device=DEVICES["balanced"], seconds=0.2)
    def decorated(self, x: jax.Array) -> jax.Array:
        return self.plain(x)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.plain(x)


@pytest.mark.parametrize("name", ["plain", "decorated", "__call__"])
def test_methods(name: str) -> None:
    net = Net()
    want = jnp.tanh(X @ net.w) * 2
    method = getattr(net, name)
    if name == "decorated":
        close(method(X), want)
        return
    close(plan(method, X).jit(method)(X), want)
    close(sw.jit(net, mesh=MESH, device=DEVICES["balanced"], seconds=0.2)(X), want)


def test_a_planned_method() -> None:
    class Planned(Net):
        run = plan(Net.plain, Net(), X).jit(Net.plain)

    net = Planned()
    close(net.run(X), net.plain(X))


def test_arguments_by_name_in_the_decorator() -> None:
    @sw.jit(mesh=MESH, device=DEVICES["balanced"], static_argnames="n", donate_argnames="x")
    def f(x: jax.Array, n: int) -> jax.Array:
        return x * n if n > 1 else x

    _, placed = f.plan(x=X, n=3).place(x=np.asarray(X), n=3)
    close(f(**placed), X * 3)
    assert placed["x"].is_deleted()
    close(f(X + 0, n=1), X)
    with pytest.raises(sw.ShardwrightError, match=r"try     jax.jit\(forward, static_argnames="):
        plan(forward, PARAMS, X, static_argnames="x")


def test_ahead_of_time_with_things_that_are_not_arrays() -> None:
    """JAX compiles for arrays alone: those are what the compiled function takes."""
    model = eqx.nn.MLP(8, 8, 32, 2, activation=jnp.tanh, key=KEY)

    def f(model: eqx.nn.MLP, x: jax.Array, mode: str) -> tuple[Any, jax.Array]:
        return model, jax.vmap(model)(x)

    p = plan(f, model, X, "fast")
    compiled = p.jit(f).lower(model, X, "fast").compile()
    leaves = jax.tree.leaves(eqx.filter(p.place(model, X, "fast"), eqx.is_array))
    close(compiled(*leaves)[-1], jax.vmap(model)(X))
    assert p.jit(f).eval_shape(model, X, "fast")[1].shape == (16, 8)


# Parts of an op that a compiler would gather ----------------------------------------------------

PARTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "fft": (jnp.fft.fft2, (jnp.ones((8, 16, 16)),)),
    "columns": (
        lambda a, b: jax.lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        (jnp.tril(jnp.ones((8, 8))), jnp.ones((8, 16))),
    ),
    "top_k": (lambda x: jax.lax.top_k(x, 3)[0], (jnp.ones((16, 8)),)),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_stay_on_their_devices(name: str) -> None:
    fn, args = PARTS[name]
    p = plan(fn, *args)
    assert any(any(spec) for spec in p.specs().values())
    found = p.verify(run=True)
    assert found and not found.compiled_bytes
    close(jax.grad(lambda *a: jnp.abs(p.jit(fn)(*a)).sum())(*args),
          jax.grad(lambda *a: jnp.abs(fn(*a)).sum())(*args))  # fmt: skip


def test_a_carry_is_not_gathered_in_secret() -> None:
    """What comes round in a loop is stored as the next trip reads it."""

    def newton_schulz(g: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 5, lambda i, x: 1.5 * x - 0.5 * x @ (x.T @ x), g)

    assert plan(newton_schulz, jnp.eye(32) / 2).verify()


# Shardings --------------------------------------------------------------------------------------


def test_shardings_are_plain_trees() -> None:
    """in_shardings and out_shardings work with jax.jit alone."""
    p = plan(forward, PARAMS, X, tactics=PINS)
    f = jax.jit(forward, in_shardings=p.in_shardings(), out_shardings=p.out_shardings())
    out = f(*p.place(PARAMS, X))
    close(out, forward(PARAMS, X))
    assert p.specs()["params['w1']"] == P(None, "model")
    assert p.specs()["x"] == P("data")
    assert p.in_shardings()[0]["w1"].spec == P(None, "model")


def test_init_creates_the_state_split() -> None:
    def make(key: jax.Array) -> dict[str, jax.Array]:
        return {k: jax.random.normal(key, v.shape) for k, v in PARAMS.items()}

    p = plan(forward, PARAMS, X, tactics=PINS)
    state = p.init(make, KEY)
    close(state, make(KEY))
    assert state["w1"].sharding.spec == P(None, "model")
    assert state["w1"].addressable_shards[0].data.shape == (8, 16)
    close(p.jit(forward)(state, X), forward(make(KEY), X))
