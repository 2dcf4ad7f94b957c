"""Loops, branches and calls: the Program computes what JAX computes, and says how it is nested.

Each row is a function and its arguments. The Program is run op by op (evaluate.py) and compared
with JAX; `regions` are the kinds and trip counts of its loops and branches in program order.
"""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardwright.program import trace
from shardwright.program.ties import Tie
from shardwright.program.types import Program
from tests.program.invariants import check

from .evaluate import assert_same_results

Array = jax.Array
KEY = jax.random.key(0)
X = jax.random.normal(KEY, (4, 8))
W = jax.random.normal(jax.random.key(1), (8, 8))


def carry_and_stack(x: Array, ws: Array) -> Any:
    def body(carry: Any, w: Array) -> Any:
        x, n = carry
        x = jnp.tanh(x @ w)
        return (x, n + 1), (x.sum(0), n)

    return lax.scan(body, (x, 0), ws)


def reverse_scan(x: Array, ws: Array) -> Any:
    return lax.scan(lambda c, w: (c @ w, c), x, ws, reverse=True)


def scan_in_scan(x: Array, ws: Array) -> Any:
    def outer(x: Array, w: Array) -> Any:
        x, ys = lax.scan(lambda c, i: (jnp.sin(c @ w) + i, c[0]), x, jnp.arange(3.0))
        return x, ys

    return lax.scan(outer, x, ws)


def halve_until_small(x: Array) -> Any:
    def small(carry: Any) -> Array:
        return (jnp.sum(carry[0] ** 2) > 0.1) & (carry[1] < 10)

    return lax.while_loop(small, lambda c: (c[0] / 2, c[1] + 1), (x, 0))


def while_with_constants(x: Array, limit: Array) -> Array:
    return lax.while_loop(lambda c: c.sum() < limit.sum(), lambda c: c + limit, jnp.abs(x))


def branch_on_data(x: Array) -> Array:
    return lax.cond(jnp.all(jnp.isfinite(x)), lambda x: x * 2, lambda x: jnp.zeros_like(x), x)


def switch(n: Array, x: Array) -> Any:
    return lax.switch(
        n, [lambda x: (x, 1.0), lambda x: (x.T.reshape(4, 8), 2.0), lambda x: (x + 1, x.sum())], x
    )


def cond_in_scan(x: Array) -> Any:
    def body(c: Array, i: Array) -> Any:
        return lax.cond(i % 2 == 0, jnp.sin, lambda v: v * c.mean(), c), None

    return lax.scan(body, x, jnp.arange(4))[0]


def vmapped_cond(x: Array) -> Array:
    return jax.vmap(lambda r: lax.cond(r.sum() > 0, jnp.sin, jnp.cos, r))(x)


def grad_of_scan(x: Array, ws: Array) -> Any:
    return jax.grad(lambda x, ws: carry_and_stack(x, ws)[0][0].sum(), argnums=(0, 1))(x, ws)


@jax.custom_vjp
def clipped(x: Array) -> Array:
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g * jnp.cos(x), -0.5, 0.5),))


@jax.custom_jvp
def softplus(x: Array) -> Array:
    return jnp.log1p(jnp.exp(x))


softplus.defjvp(
    lambda primals, tangents: (softplus(*primals), jax.nn.sigmoid(*primals) * tangents[0])
)


def counts_up(x: Array) -> Any:
    """From 1 to below 8 by 3: XLA knows how often that is, too."""
    return lax.while_loop(lambda c: c[0] < 8, lambda c: (c[0] + 3, c[1] * 2), (1, x))


def counts_up_in_halves(x: Array) -> Any:
    return lax.while_loop(lambda c: c[0] < 2.0, lambda c: (c[0] + 0.5, c[1] * 2), (0.0, x))


def solved(a: Array, b: Array) -> Array:
    a = a @ a.T + 8 * jnp.eye(8)
    return lax.custom_linear_solve(
        lambda v: a @ v, b, lambda _, b: jnp.linalg.solve(a, b), symmetric=True
    )


def remat_grad(x: Array, w: Array) -> Any:
    return jax.grad(lambda w: jax.checkpoint(lambda w: jnp.sin(jnp.sin(x @ w) @ w).sum())(w))(w)


WS = jnp.stack([W] * 5) / 8


@pytest.mark.parametrize(
    "fn, args, regions",
    [
        (carry_and_stack, (X, WS), ["scan x5"]),
        (reverse_scan, (X, WS), ["scan x5"]),
        (scan_in_scan, (X, WS), ["scan x5", "scan x3"]),
        (halve_until_small, (X,), ["while_cond x16", "while x16"]),
        (while_with_constants, (X, X**2), ["while_cond x16", "while x16"]),
        (counts_up, (X,), ["while_cond x3", "while x3"]),
        (counts_up_in_halves, (X,), ["while_cond x16", "while x16"]),
        (branch_on_data, (X,), ["cond x1"] * 2),
        (switch, (1, X), ["cond x1"] * 3),
        (switch, (2, X), ["cond x1"] * 3),
        (cond_in_scan, (X,), ["scan x4", "cond x1", "cond x1"]),
        (vmapped_cond, (X,), []),  # both branches and a select
        (grad_of_scan, (X, WS), ["scan x5", "scan x5"]),
        (lambda x: lax.fori_loop(0, 4, lambda i, c: c * i + 1, x), (X,), ["scan x4"]),
        (
            lambda n, x: lax.fori_loop(0, n, lambda i, c: c + i, x),
            (3, X),
            ["while_cond x16", "while x16"],
        ),
        (lambda x: lax.map(jnp.cumsum, x), (X,), ["scan x4"]),
        (lambda x: lax.associative_scan(jnp.add, x), (X,), []),
        (jax.grad(lambda x: clipped(x).sum()), (X,), []),
        (clipped, (X,), []),
        (jax.vmap(jax.grad(softplus)), (X[0],), []),
        (softplus, (X,), []),
        (solved, (W, X[0]), []),
        (jax.jit(jax.jit(lambda x: jnp.where(x > 0, x, 0.0))), (X,), []),
        (remat_grad, (X, W), []),
        (lambda k: jax.random.normal(jax.random.split(k)[0], (3,)), (KEY,), None),
        (lambda x: lax.reduce(x, 0.0, lax.add, (0,)), (X,), []),
        (lambda x: jnp.sort(x)[:, ::-1], (X,), []),
        (lambda x: lax.optimization_barrier((x, x + 1)), (X,), []),
    ],
)
def test_computes_what_jax_computes(fn: Any, args: Any, regions: list[str] | None) -> None:
    program = assert_same_results(fn, *args)
    assert program.opaque.total() == 0
    if regions is not None:
        assert [f"{r.kind} x{r.trips}" for r in program.regions[1:]] == regions


def test_what_a_loop_or_branch_tests_is_kept() -> None:
    """The sum over x costs an all-reduce when x is split: no plan may forget it."""
    for fn in (halve_until_small, branch_on_data):
        assert {"reduce_sum", "reduce_and"} & {op.name for op in trace(fn, X).ops}


def test_trips_multiply() -> None:
    program = trace(scan_in_scan, X, WS)
    assert [program.trips(r.index) for r in program.regions] == [1, 5, 15]


def test_a_scan_of_length_zero_and_one() -> None:
    for n in (0, 1):
        program = trace(lambda x, ws: lax.scan(lambda c, w: (c @ w, c), x, ws), X, WS[:n])
        check(program)
        assert program.regions[1].trips == n


def test_a_loop_that_gives_a_number() -> None:
    """There is nothing to tie to: the result stands for the number."""
    program = trace(lambda x: lax.scan(lambda c, _: (c + 1, 1.0), x, None, length=3), X)
    check(program)
    assert [op.name for op in program.ops] == [
        "scan", "scan.init", "add", "scan.carry", "return", "return",
    ]  # fmt: skip


def marks(program: Program, name: str) -> list[str]:
    """For each op of this name: b when it is part of a backward pass, r when in a remat body."""
    return [
        "b" * op.transposed + "r" * (op.remat > 0) or "-" for op in program.ops if op.name == name
    ]


@pytest.mark.parametrize(
    "wrap, dots, sines",
    [
        (lambda f: f, "- - b b b", "- -"),
        (jax.jit, "- - b b b", "- -"),
        (jax.checkpoint, "- - br br br br br", "- - br"),  # the sine of the loss is not needed
        (lambda f: jax.jit(jax.checkpoint(jax.jit(f))), "- - br br br br br", "- - br"),
        (lambda f: lambda w: lax.scan(lambda c, _: (c + f(w), None), 0.0, None, 3)[0],
         "- - b b b", "- -"),
    ],
    ids=["plain", "jit", "remat", "jit-remat-jit", "scan"],
)  # fmt: skip
def test_backward_and_remat_marks(wrap: Any, dots: str, sines: str) -> None:
    """Two dots forward; backward one for each gradient: twice w, once the hidden layer."""

    def loss(w: Array) -> Array:
        return jnp.sin(jnp.sin(X @ w) @ w).sum()

    program = trace(jax.value_and_grad(wrap(loss)), W)
    check(program)
    assert " ".join(marks(program, "dot_general")) == dots
    assert " ".join(marks(program, "sin")) == sines


def test_effects_are_kept_in_order() -> None:
    def fn(x: Array) -> Array:
        jax.debug.print("sum {}", x.sum())
        seen = jax.experimental.io_callback(lambda v: v, jax.ShapeDtypeStruct((), x.dtype), x.max())
        jax.debug.callback(lambda v: None, x.min())
        return x + seen

    program = trace(fn, X)
    check(program)
    names = [op.name for op in program.ops]
    assert [n for n in names if n.startswith("reduce")] == [
        "reduce_sum",
        "reduce_max",
        "reduce_min",
    ]
    assert program.opaque == {"debug_print": 1, "io_callback": 1, "debug_callback": 1}


def test_an_unknown_primitive_is_opaque_counted_and_no_error() -> None:
    from jax.core import ShapedArray
    from jax.extend.core import Primitive

    mystery = Primitive("mystery_of_the_test")
    mystery.def_abstract_eval(lambda x: ShapedArray((x.shape[1],), x.dtype))
    program = trace(lambda x: mystery.bind(mystery.bind(x)[None]) * 2, X)
    check(program)
    assert program.opaque == {"mystery_of_the_test": 2}
    assert str(program).splitlines()[1] == (
        "  %1:f32[8] = mystery_of_the_test %0   ([i,j])->([k]) {i=4,j=8,k=8}"
        " need_replication={i,j,k} opaque"
    )


def test_a_primitive_lowered_as_a_jax_function_is_opened() -> None:
    """Equinox's own primitives (of its loops and errors), batched or not, are ops with rules."""
    import equinox.internal as eqxi

    def fn(x: Array) -> Array:
        def one(row: Array) -> Array:
            stop = eqxi.unvmap_any(row.sum() > 0)
            return eqxi.nondifferentiable_backward(jnp.where(stop, row, eqxi.nonbatchable(2.0)))

        return jax.vmap(one)(x)

    program = trace(fn, X)
    check(program)
    assert not program.opaque
    assert "reduce_or" in [op.name for op in program.ops]


def test_a_constraint_of_the_user_is_a_pin() -> None:
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=auto)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", "model"))

    def fn(x: Array) -> Array:
        return jnp.sin(lax.with_sharding_constraint(x * 2, sharding))

    program = trace(fn, X)
    check(program)
    ((value, got),) = [(p.value, p.sharding) for p in program.pins]
    assert program.ops[program.values[value].op].name == "sharding_constraint"
    assert got.is_equivalent_to(sharding, 2)


def test_dead_code_is_dropped_and_keys_stay_those_of_the_jaxpr() -> None:
    def fn(x: Array) -> Array:
        jnp.sin(x) @ W
        return x + 1

    program = trace(fn, X)
    check(program)
    assert [op.name for op in program.ops] == ["add", "return"]
    assert [op.key for op in program.ops] == [(2,), (Tie.RETURN, 0)]


def test_a_loop_whose_body_has_an_op_without_results_is_counted() -> None:
    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, x = carry
        jax.debug.print("{}", i)
        return i + 1, jnp.sin(x)

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda carry: carry[0] < 5, body, (jnp.int32(0), x))[1]

    assert {r.trips for r in trace(loop, jnp.ones(4)).regions[1:]} == {5}
