"""Bad input: one clear error each, compared whole."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.errors import ShardwrightError
from shardwright.program import trace

X = jax.ShapeDtypeStruct((4, 8), jnp.float32)


def f(x: Any, *, scale: float = 1.0) -> Any:
    return x * scale


def wrong_shapes(x: Any) -> Any:
    y = jnp.sin(x)
    return y @ y


def helper(x: Any) -> Any:
    raise ValueError("no such mode")


def calls_helper(x: Any) -> Any:
    return jax.vmap(helper)(x)


def branches(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def at(code: str) -> str:
    """The line of an error that points at this code in this file."""
    lines = Path(__file__).read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if line.strip() == code)
    return f"  at      test_errors.py:{number} `{code}`"


ASK = "\n  try     call it under jax.make_jaxpr with the same arguments to see the full traceback"


@pytest.mark.parametrize(
    "fn, args, kwargs, text",
    [
        (
            3, (X,), {},
            "expected a function to partition, got int: 3\n"
            "  try     pass the function itself, then its arguments:"
            " partition(train_step, state, batch)",
        ),
        (
            X, (), {},
            "expected a function to partition, got ShapeDtypeStruct:"
            " ShapeDtypeStruct(shape=(4, 8), dtype=float32)\n"
            "  try     pass the function itself, then its arguments:"
            " partition(train_step, state, batch)",
        ),
        (
            f, (), {},
            "the arguments do not fit f(x: Any, *, scale: float = 1.0) -> Any:"
            " missing a required argument: 'x'\n"
            "  try     pass the arguments exactly as you would call the function",
        ),
        (
            f, (X, X), {},
            "the arguments do not fit f(x: Any, *, scale: float = 1.0) -> Any:"
            " too many positional arguments\n"
            "  try     pass the arguments exactly as you would call the function",
        ),
        (
            f, (X,), {"sclae": 2.0},
            "the arguments do not fit f(x: Any, *, scale: float = 1.0) -> Any:"
            " got an unexpected keyword argument 'sclae'\n"
            "  try     pass the arguments exactly as you would call the function",
        ),
        (
            wrong_shapes, (X,), {},
            "wrong_shapes failed while being traced: TypeError: dot_general requires contracting"
            " dimensions to have the same shape, got (8,) and (4,).\n"
            + at("return y @ y") + ASK,
        ),
        (
            calls_helper, (X,), {},
            "calls_helper failed while being traced: ValueError: no such mode\n"
            + at('raise ValueError("no such mode")') + ASK,
        ),
    ],
)  # fmt: skip
def test_text(fn: Any, args: Any, kwargs: Any, text: str) -> None:
    with pytest.raises(ShardwrightError) as error:
        trace(fn, *args, **kwargs)
    assert str(error.value) == text


@pytest.mark.parametrize(
    "fn, shape, what, at",
    [
        (lambda x: x, (2**31, 2**31), "f32[2147483648,2147483648]", "x"),
        (lambda x: x, (2**62,), "f32[4611686018427387904]", "x"),
        (lambda x: (x[:, None] * x).sum(), (2**31,), "f32[2147483648,2147483648]", "test_errors"),
    ],
)
def test_arrays_larger_than_all_memory_are_refused(fn: Any, shape: Any, what: str, at: str) -> None:
    with pytest.raises(ShardwrightError) as error:
        trace(fn, jax.ShapeDtypeStruct(shape, jnp.float32))
    assert error.value.what == f"<lambda> has an array of {4 * 2**62:.3g} bytes, {what}"
    assert error.value.facts["at"].startswith(at)


def test_a_branch_on_data_names_the_users_line() -> None:
    with pytest.raises(ShardwrightError) as error:
        trace(branches, X)
    assert error.value.what.startswith(
        "branches failed while being traced: TracerBoolConversionError"
    )
    assert error.value.facts["at"] in at("return x if x.sum() > 0 else -x")


def repeated(x: Any, n: Any) -> Any:
    return jnp.zeros((n, 8)) + x[0]


def summed(x: Any, d: Any, scale: Any) -> Any:
    return scale * x.sum(axis=d)


def doubled(x: Any, *, n: Any) -> Any:
    for _ in range(n):
        x = x * 2
    return x


def grouped(x: Any, sizes: Any) -> Any:
    return x.reshape(sizes["rows"], -1)


def to_the_power(x: Any, n: Any) -> Any:
    return jax.jit(lambda x, n: x**n, static_argnums=1)(x, n)


def scaled_branches(x: Any, n: Any) -> Any:
    return n * branches(x)


# A Python number is traced like an array: what needs its value is told how it stays a number.
@pytest.mark.parametrize("fn, args, kwargs, try_", [
    (repeated, (3,), {}, "static_argnums=1: n must be known when it is traced"),
    (lambda x, n, m: jnp.zeros((n, m)), (3, 4), {},
     "static_argnums=(1, 2): n, m must be known when it is traced"),
    (summed, (0, 2.0), {}, "static_argnums=1: d must be known when it is traced"),
    (lambda x, train: x * 2 if train else x, (True,), {},
     "static_argnums=1: train must be known when it is traced"),
    (doubled, (), {"n": 3},
     "functools.partial(doubled, n=...): n must be known when it is traced"),
    (grouped, ({"rows": 4},), {},
     "functools.partial(grouped, sizes=...): sizes['rows'] must be known when it is traced"),
    (to_the_power, (3,), {}, "static_argnums=1: n must be known when it is traced"),
    (scaled_branches, (3,), {}, ASK.partition("try     ")[2]),  # x is an array
])  # fmt: skip
def test_a_number_that_python_needs(fn: Any, args: Any, kwargs: Any, try_: str) -> None:
    with pytest.raises(ShardwrightError) as error:
        trace(fn, X, *args, **kwargs)
    assert error.value.facts["try"] == try_
    assert "arrays[" not in str(error.value) and "tracing.py" not in str(error.value)


@pytest.mark.parametrize("dtype", [">f4", "longdouble", "i4,f4"])
def test_types_that_jax_has_not(dtype: str) -> None:
    """Of files in the byte order of other machines, of NumPy's own."""
    with pytest.raises(ShardwrightError) as error:
        trace(lambda batch: batch["x"] * 2, {"x": np.ones((4, 8), dtype)})
    assert error.value.what == f"batch['x'] has a type that JAX has not: {np.dtype(dtype)}"
    assert error.value.facts["try"] == "batch['x'].astype(np.float32), say"


def test_the_cause_is_kept() -> None:
    with pytest.raises(ShardwrightError) as error:
        trace(calls_helper, X)
    assert isinstance(error.value.__cause__, ValueError)


def test_a_result_that_is_no_array_is_kept_aside() -> None:
    program = trace(lambda x: (x, "done", print), X)
    assert program.output_paths == ("result[0]",)
    assert program.signature.output.build([1]) == (1, "done", print)
