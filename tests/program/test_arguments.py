"""What may stand in a call: each row is a function, its arguments, and the inputs it gives.

Inputs are written as "path: type". Everything that is not an array or a number is closed over.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.errors import ShardwrightError
from shardwright.program import trace
from shardwright.program.types import Program, format_type
from tests.arrays import f32
from tests.program.invariants import check

from .evaluate import assert_same_results

Array = jax.Array


def inputs(program: Program) -> list[str]:
    return [
        f"{program.values[v].path}: {format_type(program.values[v].type)}" for v in program.inputs
    ]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w", "b"], meta_fields=["name"])
@dataclass
class Layer:
    w: Any
    b: Any
    name: str = "dense"


class State(NamedTuple):
    params: Any
    step: Any


class Scale:
    """A callable object that is no pytree."""

    def __call__(self, x: Array) -> Array:
        return 2 * x


class Dense(eqx.Module):
    w: Any
    activation: Any
    name: str = eqx.field(static=True, default="dense")

    def __call__(self, x: Array) -> Array:
        return self.activation(x @ self.w)


def total(*trees: Any, **named: Any) -> Array:
    leaves = [x for x in jax.tree.leaves((trees, named)) if not isinstance(x, str)]
    return sum((jnp.sum(x) for x in leaves), jnp.float32(0))


def of_key(key: Any) -> Array:
    return jax.random.normal(key, (4,))


def one(x: Any) -> Array:
    return jnp.sum(x)


def pair(x: Any, y: Any) -> Array:
    return jnp.sum(x) + jnp.sum(y)


def variadic(x: Any, *rest: Any, **named: Any) -> Array:
    return total(x, rest, named)


@pytest.mark.parametrize(
    "fn, args, kwargs, expected",
    [
        pytest.param(one, (f32(8),), {}, ["x: f32[8]"], id="shape"),
        pytest.param(one, (np.ones(8, np.float32),), {}, ["x: f32[8]"], id="numpy"),
        pytest.param(one, (jnp.ones(8),), {}, ["x: f32[8]"], id="array"),
        pytest.param(pair, (f32(8), np.ones(2)), {}, ["x: f32[8]", "y: f32[2]"], id="mixture"),
        pytest.param(one, (3,), {}, ["x: i32[]"], id="int"),
        pytest.param(one, (3.0,), {}, ["x: f32[]"], id="float"),
        pytest.param(one, (True,), {}, ["x: bool[]"], id="bool"),
        pytest.param(one, (2j,), {}, ["x: c64[]"], id="complex"),
        pytest.param(one, (np.float32(3),), {}, ["x: f32[]"], id="numpy-scalar"),
        pytest.param(
            total, ({"b": f32(2), "a": [f32(3), (f32(4),)]},), {},
            ["trees[0]['a'][0]: f32[3]", "trees[0]['a'][1][0]: f32[4]", "trees[0]['b']: f32[2]"],
            id="dict-list-tuple",
        ),
        pytest.param(
            lambda layer: total(layer), (Layer(f32(2, 3), f32(3)),), {},
            ["layer.w: f32[2,3]", "layer.b: f32[3]"], id="dataclass",
        ),
        pytest.param(
            lambda state: total(state), (State({"w": f32(2)}, 0),), {},
            ["state.params['w']: f32[2]", "state.step: i32[]"], id="namedtuple",
        ),
        pytest.param(
            lambda state: total(state), (State({"w": f32(2), "b": None}, None),), {},
            ["state.params['w']: f32[2]"], id="none-leaves",
        ),
        pytest.param(of_key, (jax.random.key(0),), {}, ["key: key<fry>[]"], id="typed-key"),
        pytest.param(of_key, (jax.random.PRNGKey(0),), {}, ["key: u32[2]"], id="raw-key"),
        pytest.param(pair, (f32(8),), {"y": f32(2)}, ["x: f32[8]", "y: f32[2]"], id="keyword"),
        pytest.param(
            pair, (), {"y": f32(2), "x": f32(8)}, ["x: f32[8]", "y: f32[2]"], id="keywords-only"
        ),
        pytest.param(
            variadic, (f32(1), f32(2), f32(3)), {"last": {"z": f32(4)}},
            ["x: f32[1]", "rest[0]: f32[2]", "rest[1]: f32[3]", "last['z']: f32[4]"], id="variadic",
        ),
        pytest.param(
            variadic, (f32(1), "a word"), {"mode": "fast"}, ["x: f32[1]"], id="words-are-static"
        ),
        pytest.param(
            lambda x, names: x, (f32(1), np.array(["a", "b"])), {}, ["x: f32[1]"], id="words"
        ),
        pytest.param(functools.partial(pair, 2.0), (f32(2),), {}, ["y: f32[2]"], id="partial"),
        pytest.param(
            functools.partial(pair, y=np.ones(2)), (f32(2),), {}, ["x: f32[2]"], id="partial-named"
        ),
        pytest.param(Scale(), (f32(2),), {}, ["x: f32[2]"], id="callable-object"),
        pytest.param(
            lambda model, x: model(x), (Dense(f32(2, 3), jax.nn.relu), f32(4, 2)), {},
            ["model.w: f32[2,3]", "x: f32[4,2]"], id="module-with-function-leaf",
        ),
        pytest.param(
            Dense(jnp.ones((2, 3)), jnp.tanh), (f32(4, 2),), {}, ["x: f32[4,2]"], id="module"
        ),
        pytest.param(jnp.dot, (f32(4, 2), f32(2)), {}, ["a: f32[4,2]", "b: f32[2]"], id="jnp"),
        pytest.param(lambda: jnp.ones(3), (), {}, [], id="no-arguments"),
        pytest.param(lambda x: 1.0, ({},), {}, [], id="empty-tree"),
        pytest.param(one, (f32(0, 4),), {}, ["x: f32[0,4]"], id="zero-size"),
        pytest.param(one, (f32(*[2] * 12),), {}, [f"x: f32[{','.join('2' * 12)}]"], id="rank-12"),
    ],
)  # fmt: skip
def test_inputs(fn: Any, args: Any, kwargs: Any, expected: list[str]) -> None:
    program = trace(fn, *args, **kwargs)
    check(program)
    assert inputs(program) == expected


@pytest.mark.parametrize(
    "dtype, short",
    [
        ("bool", "bool"), ("int8", "i8"), ("int32", "i32"), ("uint8", "u8"), ("uint32", "u32"),
        ("float16", "f16"), ("bfloat16", "bf16"), ("float32", "f32"), ("complex64", "c64"),
        ("float8_e4m3fn", "f8_e4m3fn"), ("float8_e5m2", "f8_e5m2"), ("int4", "i4"), ("uint4", "u4"),
    ],
)  # fmt: skip
def test_dtypes(dtype: str, short: str) -> None:
    program = trace(lambda x: x.reshape(8), jax.ShapeDtypeStruct((2, 4), dtype))
    check(program)
    assert inputs(program) == [f"x: {short}[2,4]"]
    assert program.values[program.inputs[0]].bytes == 8 * jnp.dtype(dtype).itemsize


def test_a_tree_of_results_keeps_its_structure_and_its_functions() -> None:
    def fn(model: Dense, x: Array) -> dict[str, Any]:
        return {"model": model, "y": model(x), "none": None, "three": 3.0}

    model = Dense(jnp.ones((2, 3)), jax.nn.relu)
    program = trace(fn, model, f32(4, 2))
    check(program)
    assert program.output_paths == ("result['model'].w", "result['three']", "result['y']")
    rebuilt = program.signature.output.build([1, 2, 3])
    assert rebuilt["model"].w == 1 and rebuilt["model"].activation is jax.nn.relu
    assert (rebuilt["three"], rebuilt["y"], rebuilt["none"]) == (2, 3, None)


def test_static_arguments_are_closed_over() -> None:
    def power(x: Array, n: int, kind: str) -> Array:
        return x**n if kind == "power" else x

    program = trace(power, f32(8), 3, "power", static_argnums=1)
    assert inputs(program) == ["x: f32[8]"]
    assert [op.name for op in program.ops] == ["integer_pow", "return"]
    assert inputs(trace(power, f32(8), 3, "power", static_argnums=(-2, -1))) == ["x: f32[8]"]


@pytest.mark.parametrize(
    "options, args, kwargs",
    [
        ({"static_argnums": 1}, (f32(8), 3), {}),
        ({"static_argnums": -1}, (f32(8), 3), {}),
        ({"static_argnames": "n"}, (f32(8), 3), {}),
        ({"static_argnames": "n"}, (f32(8),), {"n": 3}),
        ({"static_argnums": 1}, (f32(8),), {"n": 3}),
    ],
)
def test_static_arguments_of_a_jitted_function(options: Any, args: Any, kwargs: Any) -> None:
    def power(x: Array, n: int) -> Array:
        return x**n if n > 2 else x

    program = trace(jax.jit(power, **options), *args, **kwargs)
    check(program)
    assert inputs(program) == ["x: f32[8]"]
    assert [op.name for op in program.ops] == ["integer_pow", "return"]


def update(state: Any, x: Array) -> tuple[Any, Array]:
    return jax.tree.map(lambda w: w - jnp.mean(x), state), jnp.sum(x)


@pytest.mark.parametrize(
    "fn, options",
    [
        (update, {"donate_argnums": 0}),
        (update, {"donate_argnums": (-2,)}),
        (jax.jit(update, donate_argnums=0), {}),
        (jax.jit(update, donate_argnames="state"), {}),
    ],
)
def test_donated_arguments_and_what_takes_their_place(fn: Any, options: Any) -> None:
    state = {"a": f32(4, 2), "b": f32(2), "c": f32(2), "n": f32(7)}
    program = trace(fn, state, f32(4, 2), **options)
    check(program)
    path = {v: program.values[v].path for v in program.inputs}
    assert {path[v] for v in program.donated} == {f"state['{k}']" for k in "abcn"}
    places = {program.output_paths[o]: path[v] for o, v in program.aliases.items()}
    assert places == {f"result[0]['{k}']": f"state['{k}']" for k in "abcn"}


def test_an_argument_donated_by_name() -> None:
    program = trace(jax.jit(update, donate_argnames="state"), state=f32(4), x=f32(2))
    assert [program.values[v].path for v in program.donated] == ["state"]
    assert list(program.aliases) == [0]


def test_arrays_that_a_function_closes_over_are_constants() -> None:
    table, scale = jnp.arange(12.0).reshape(4, 3), np.ones((3,), np.float32)

    @jax.jit
    def inner(x: Array) -> Array:
        return x @ table

    def fn(x: Array) -> Array:
        return inner(x) * scale + jax.lax.fori_loop(0, 3, lambda i, a: a + table[i, i], 0.0)

    program = assert_same_results(fn, jnp.ones((2, 4)))
    assert sorted(format_type(program.values[v].type) for v in program.consts) == [
        "f32[3]",
        "f32[4,3]",
    ]
    assert all(program.where(v) == "constant" for v in program.consts)


def test_names() -> None:
    assert trace(one, f32(2)).name == "one"
    assert trace(functools.partial(pair, 1.0), f32(2)).name == "pair"
    assert trace(Scale(), f32(2)).name == "Scale"
    assert trace(jax.jit(one), f32(2)).name == "one"


def test_an_untouched_argument_and_an_argument_returned() -> None:
    program = trace(lambda x, y: (x, 2.0), f32(2), f32(3))
    check(program)
    assert inputs(program) == ["x: f32[2]", "y: f32[3]"]
    assert str(program).splitlines() == [
        "program <lambda>(x: %0:f32[2], y: %1:f32[3]) -> (%2, literal)",
        "  %2:f32[2] = return %0   ([i])->([i]) {i=2}",
    ]


@pytest.mark.parametrize(
    "options, text",
    [
        (
            {"static_argnums": 2},
            "static_argnums names argument 2 of a call with 2 positional arguments\n"
            "  try     a number from 0 to 1",
        ),
        (
            {"donate_argnums": (0, -3)},
            "donate_argnums names argument -3 of a call with 2 positional arguments\n"
            "  try     a number from 0 to 1",
        ),
    ],
)
def test_arguments_out_of_range(options: Any, text: str) -> None:
    with pytest.raises(ShardwrightError) as error:
        trace(pair, f32(2), f32(2), **options)
    assert str(error.value) == text
