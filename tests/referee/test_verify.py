"""verify(run=True): which arguments are drawn, and that wrong numbers do not pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shardwright as sw
from shardwright.referee import verify
from shardwright.referee.agreement import compare
from shardwright.referee.draws import (
    FAR,
    IN_RANGE,
    LAST,
    MOST_TRIPS,
    NEGATIVE,
    NEXT,
    PROMISED,
    draws,
)  # fmt: skip
from shardwright.referee.integers import integer_uses

ROWS, WIDTH, SLICE = 32, 8, 4
MESH = {"data": 4, "model": 2}


def shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


TABLE, SCALAR, MANY = shape(ROWS, WIDTH), shape(dtype=jnp.int32), shape(16, dtype=jnp.int32)


def slice_(x: Any, i: Any) -> Any:
    return lax.dynamic_slice(x, (i, 0), (SLICE, WIDTH))


def update(x: Any, i: Any) -> Any:
    return lax.dynamic_update_slice(x, jnp.ones((SLICE, WIDTH)), (i, 0))


def take(x: Any, i: Any) -> Any:
    return jnp.take(x, i, axis=0)


def scatter(x: Any, i: Any) -> Any:
    return x.at[i].add(1.0)


def windows(x: Any, i: Any) -> Any:
    return jax.vmap(lambda at: slice_(x, at))(i)


def promised(x: Any, i: Any) -> Any:
    return x.at[i].get(mode="promise_in_bounds")


def branches(x: Any, i: Any) -> Any:
    return lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x)


def rounds(x: Any, i: Any) -> Any:
    return lax.fori_loop(0, i, lambda _, y: y * 2, x)


def sliced_in_a_scan(x: Any, i: Any) -> Any:
    def step(at: Any, _: Any) -> Any:
        return at + 1, slice_(x, at)

    return lax.scan(step, i, None, length=3)[1]


def one_hot(x: Any, i: Any) -> Any:
    return jax.nn.one_hot(i, ROWS) @ x


@pytest.mark.parametrize("fn, index, limits", [
    (slice_, SCALAR, {ROWS - SLICE + 1}),
    (update, SCALAR, {ROWS - SLICE + 1}),
    (windows, MANY, {ROWS - SLICE + 1}),
    (sliced_in_a_scan, SCALAR, {ROWS - SLICE + 1}),
    (jax.jit(slice_), SCALAR, {ROWS - SLICE + 1}),
    (take, MANY, {ROWS}),
    (scatter, MANY, {ROWS}),
    (promised, MANY, {ROWS}),
    (branches, SCALAR, {3}),
    (rounds, SCALAR, set()),
    (one_hot, MANY, set()),
])  # fmt: skip
def test_what_integers_are_for(fn: Callable[..., Any], index: Any, limits: set[int]) -> None:
    use = integer_uses(jax.make_jaxpr(fn)(TABLE, index))[1]
    assert use.limits == limits
    assert use.counts_trips == (fn is rounds)
    assert ("promised" in use.promised) == (fn is promised)


def drawn(fn: Callable[..., Any], index: Any) -> dict[str, np.ndarray]:
    uses = integer_uses(jax.make_jaxpr(fn)(TABLE, index))
    return {draw.name: draw.inputs[1] for draw in draws([TABLE, index], uses, 0)}


def test_integers_in_range_and_out_of_it() -> None:
    n = ROWS - SLICE + 1
    found = {name: int(at) for name, at in drawn(slice_, SCALAR).items()}
    assert 0 <= found.pop(IN_RANGE) < n
    assert found == {LAST: n - 1, NEXT: n, FAR: 2 * n + 1, NEGATIVE: -1}
    many = drawn(take, MANY)
    assert all(((at >= 0) & (at < ROWS)).any() for at in many.values())
    assert (many[NEXT] == ROWS).any() and (many[FAR] > ROWS).any() and (many[NEGATIVE] < 0).any()


def test_promises_and_loops_are_kept() -> None:
    found = drawn(promised, MANY)
    outside = {name for name, at in found.items() if ((at < 0) | (at >= ROWS)).any()}
    assert outside == {PROMISED}
    assert (
        list(drawn(rounds, SCALAR)) == [IN_RANGE] and drawn(rounds, SCALAR)[IN_RANGE] <= MOST_TRIPS
    )


def plan(fn: Callable[..., Any], *args: Any) -> sw.Plan:
    return sw.partition(fn, *args, mesh=MESH, device="cpu", seconds=0.2)


@pytest.mark.parametrize("right, wrong, index, where", [
    (slice_, lambda x, i: slice_(x, i) * (i <= ROWS - SLICE), SCALAR, {NEXT, FAR}),
    (slice_, lambda x, i: slice_(x, i) * (i >= 0), SCALAR, {NEGATIVE}),
    (slice_, lambda x, i: slice_(x, jnp.minimum(i, ROWS - SLICE - 1)), SCALAR, {LAST, NEXT, FAR}),
    (scatter, lambda x, i: x.at[jnp.minimum(i, ROWS - 1)].add(1.0), MANY, {NEXT, FAR}),
])  # fmt: skip
def test_a_wrong_number_shows_where_it_is_wrong(
    right: Any, wrong: Any, index: Any, where: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_builder", lambda plan: lambda mesh: jax.jit(wrong))
    found = plan(right, TABLE, index).verify(run=True)
    assert {ran.draw for ran in found.runs if not ran.agreement} == where
    assert not found and found.numbers_agree is False


def slice_of_slice(x: Any, i: Any, j: Any) -> Any:
    rows = lax.dynamic_slice_in_dim(x, i, 2 * SLICE)
    return lax.dynamic_slice_in_dim(rows, j, SLICE)


def test_the_unsharded_function_is_right_where_xla_is_not() -> None:
    """XLA adds up the starts of two slices, also on one device, and loses the first clamp."""
    i, j = np.int32(ROWS), np.int32(1)
    table = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    first = ROWS - 2 * SLICE + int(j)
    assert not np.array_equal(jax.jit(slice_of_slice)(table, i, j), table[first : first + SLICE])
    found = plan(slice_of_slice, TABLE, SCALAR, SCALAR).verify(args=(table, i, j))
    assert found.numbers_agree


def test_a_broken_promise_is_told_and_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def zero_beyond(x: Any, i: Any) -> Any:
        return jnp.take(x, i, axis=0, mode="fill", fill_value=0.0)

    made = plan(promised, TABLE, MANY)
    monkeypatch.setattr(verify, "_builder", lambda plan: lambda mesh: jax.jit(zero_beyond))
    found = made.verify(run=True)
    assert [ran.draw for ran in found.runs if not ran.agreement] == [PROMISED]
    assert found.numbers_agree
    assert "promised promises that its indices are in range" in str(found)


def chaos(x: Any, w: Any) -> Any:
    """The logistic map doubles a difference in every round."""
    y = jax.nn.sigmoid(x @ w)
    for _ in range(60):
        y = 3.9 * y * (1 - y)
    return y


def test_a_chaotic_function_is_compared_with_its_own_noise() -> None:
    made = sw.partition(
        chaos, shape(16, 512), shape(512, 16), mesh=MESH, device="cpu",
        tactics=[sw.Pin("x", 1, "data")], seconds=0.2,
    )  # fmt: skip
    (ran,) = made.verify(run=True).runs
    assert ran.agreement.worst > 0.1 and ran.agreement.noise is not None
    assert ran.agreement.close


@pytest.mark.parametrize("got, want, noisy, close", [
    ([1.0, 2.0], [1.0, 2.001], [], True),
    ([1.0, 2.0], [1.0, 2.1], [], False),
    ([1.0, 2.0], [1.0, 2.1], [[1.0, 2.12]], True),
    ([1.0, 9.0], [1.0, 2.1], [[1.0, 2.12]], False),
    ([np.nan, 1.0], [np.nan, 1.0], [], True),
    ([np.nan, 1.0], [1.0, 1.0], [], False),
    ([np.nan, 1.0], [1.0, 1.0], [[np.inf, 1.0]], False),
    ([np.inf, 1.0], [np.inf, 1.0], [], True),
    ([np.inf, 2.0], [np.inf, 1.0], [], False),  # infinity is no scale
    ([1000, 7], [1001, 7], [], False),
    ([1000, 7], [1001, 7], [[1000, 7]], True),
    ([2**60], [2**60 + 1], [], False),
    ([True], [False], [], False),
])  # fmt: skip
def test_agreement(got: list[Any], want: list[Any], noisy: list[Any], close: bool) -> None:
    found = compare(np.array(got), np.array(want), noisy=lambda: [np.array(n) for n in noisy])
    assert found.close == close
    assert close or found.worst > 0.0


def test_the_users_own_arguments() -> None:
    x, i = jax.random.normal(jax.random.key(0), (ROWS, WIDTH)), jnp.arange(16)
    made = sw.partition(scatter, x, i, mesh=MESH, device="cpu", seconds=0.2, donate_argnums=0)
    found = made.verify(args=(x, i))
    assert found and [ran.draw for ran in found.runs] == [verify.GIVEN]
    assert not x.is_deleted()


@pytest.mark.parametrize("options, says", [
    ({"seed": -1}, "seed must be an integer from 0 on, got -1"),
    ({"seed": 0.5}, "seed must be an integer from 0 on, got 0.5"),
    ({"timeout": 0}, "timeout must be a number of seconds, got 0"),
    ({"timeout": "soon"}, "timeout must be a number of seconds, got 'soon'"),
    ({"timeout": 0.001}, "the compiler for cpu:8 was not done after 0.001 s"),
    ({"target": "cpu:8", "timeout": 0.001}, "the compiler for cpu:8 was not done after 0.001 s"),
    ({"args": 3}, "args must be the arguments of a call, got int"),
    ({"args": (TABLE, MANY)}, "args must be arrays to run on"),
    ({"args": (np.ones((ROWS, WIDTH), np.float32),)}, "another structure"),
    ({"args": (np.ones((ROWS, 2), np.float32), np.arange(16, dtype=np.int32))}, "x: was f32"),
])  # fmt: skip
def test_errors(options: dict[str, Any], says: str) -> None:
    with pytest.raises(sw.ShardwrightError, match=says.replace("(", r"\(")):
        plan(take, TABLE, MANY).verify(run=True, **options)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_of_every_kind(impl: str) -> None:
    def noisy(key: Any, x: Any) -> Any:
        return x + jax.random.normal(key, x.shape)

    assert plan(noisy, jax.random.key(0, impl=impl), TABLE).verify(run=True).numbers_agree


def test_progress_is_told_while_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.referee.verify.REPORT_EVERY_S", 0.01)
    told: list[str] = []
    with verify.reporting(told.append, "compiling for tpu:v5e:4x4"):
        time.sleep(0.1)
    assert told[0] == "compiling for tpu:v5e:4x4"
    assert told[1] == "compiling for tpu:v5e:4x4: 0 s"
    with verify.reporting(None, "nobody asks"):
        pass
