"""Where values come from: argument paths, or the user's file, line and function."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardwright import zoo
from shardwright.program import Program, trace
from shardwright.program.source import is_own_code, is_user_code

X = jax.ShapeDtypeStruct((4, 8), jnp.float32)


def f(x: Any) -> Any:
    y = jnp.where(x > 0, x, 0.0)  # line 1: jnp.where is a cached jit
    y = jax.nn.gelu(y)  # line 2: so is gelu
    z = jnp.linalg.norm(y, axis=-1)  # line 3
    return helper(z)  # line 4


def helper(z: Any) -> Any:
    return jnp.sort(z)  # line 5


def line_of(comment: str) -> int:
    source, start = inspect.getsourcelines(inspect.getmodule(f))
    return next(n for n, text in enumerate(source, max(start, 1)) if f"# {comment}" in text)


def lines(program: Program, name: str) -> set[int]:
    return {op.source.line for op in program.ops if op.name == name and op.source}


@pytest.mark.parametrize(
    "primitive, comment",
    [
        ("gt", "line 1: jnp.where is a cached jit"),
        ("select_n", "line 1: jnp.where is a cached jit"),
        ("tanh", "line 2: so is gelu"),
        ("sqrt", "line 3"),
        ("sort", "line 5"),
    ],
)
def test_an_op_knows_the_line_that_wrote_it(primitive: str, comment: str) -> None:
    for _ in range(2):  # the second trace meets JAX's caches
        program = trace(f, X)
        assert lines(program, primitive) == {line_of(comment)}
        sources = {op.source.file.rsplit("/", 1)[-1] for op in program.ops if op.source}
        assert sources == {"test_source.py"}


def test_the_same_cached_function_called_from_two_lines() -> None:
    def g(x: Any) -> Any:
        a = jax.nn.gelu(x)  # first call
        return a + jax.nn.gelu(x + 1)  # second call

    assert lines(trace(g, X), "tanh") == {line_of("first call"), line_of("second call")}


def test_backward_ops_keep_the_line_of_the_forward_op() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w))  # the only line

    program = trace(jax.grad(loss), jax.ShapeDtypeStruct((8, 2), jnp.float32), X)
    assert lines(program, "dot_general") == {line_of("the only line")}


def test_where() -> None:
    def g(state: Any, x: Any) -> Any:
        return jnp.sin(state["w"] @ x) + jnp.ones(8)  # here

    program = trace(g, {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32)}, X)
    places = [program.where(v.index) for v in program.values]
    assert places[:2] == ["state['w']", "x"]
    assert set(places[2:-1]) == {f"test_source.py:{line_of('here')} g"}


def test_loops_and_zoo_models_have_lines() -> None:
    example = zoo.programs("tiny")["transformer_scan_train"]
    program = trace(example.fn, *example.args)
    unknown = [op for op in program.ops if op.source is None and op.name != "return"]
    assert not unknown
    attend = [op.source for op in program.ops if op.name == "exp" and op.source]
    assert {s.function for s in attend} == {"_softmax", "cross_entropy"}


def test_a_library_function_alone_has_no_line_of_ours() -> None:
    program = trace(jnp.where, jax.ShapeDtypeStruct((4, 8), bool), X, X)
    assert [op.source for op in program.ops] == [None] * len(program.ops)


@pytest.mark.parametrize(
    "file, user",
    [
        (__file__, True),
        ("/home/me/shardwright/train.py", True),  # a clone of this repository, say
        (jnp.__file__, False),
        (inspect.__file__, False),  # the standard library
        (inspect.getfile(trace), False),
        (inspect.getfile(zoo.programs), True),
        ("/opt/env/lib/python3.12/site-packages/flax/linen.py", False),
    ],
)
def test_whose_code(file: str, user: bool) -> None:
    assert is_user_code(file) is user
    assert is_own_code(inspect.getfile(trace)) and not is_own_code(__file__)
