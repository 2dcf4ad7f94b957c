"""The walk over a jaxpr: its keys, and that handlers which compute compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardwright import _jax
from shardwright.program import trace
from shardwright.program.interpret import OUTSIDE, Key, Place, enter
from shardwright.program.regions import Borders, Port
from shardwright.program.ties import Tie

X = np.arange(1.0, 5.0, dtype=np.float32)


@jax.jit
def called(x: Any) -> Any:
    return jnp.sin(x) * 2.0


def twice(x: Any) -> Any:
    return called(called(x))


def scanned(x: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        return carry + called(x), carry * x

    return lax.scan(body, jnp.float32(1.0), x)


def until(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < x.sum(), lambda c: (c[0] + x[0], c[1] * 1.5), (0.0, x))


def until_each(x: Any) -> Any:
    """Examples stop one by one: JAX writes what is lowered only then."""
    return jax.vmap(lambda n: lax.while_loop(lambda c: c < n, lambda c: c * 1.7, 1.0))(x)


def branch(x: Any) -> Any:
    return lax.cond(x[0] > 0, lambda x: (x * 2, x[0]), lambda x: (x, jnp.float32(3.0)), x)


def solved(x: Any) -> Any:
    return lax.custom_linear_solve(lambda v: v * x, x + 1, lambda matvec, b: b / x)


def derived(x: Any) -> Any:
    """Custom derivatives, remat and a backward pass through a loop."""

    def loss(x: Any) -> Any:
        y = jax.checkpoint(lambda x: jax.nn.silu(jax.nn.relu(x)))(x)
        return lax.scan(lambda c, y: (c * jnp.tanh(y), None), 1.0, y)[0]

    return jax.grad(loss)(x)


PROGRAMS = [twice, scanned, until, until_each, branch, solved, derived]


class Compute:
    """The handlers that compute; loops get bodies that were walked in turn."""

    def __init__(self) -> None:
        self.keys: list[Key] = []

    def literal(self, number: Any) -> Any:
        return number

    def constants(self, arrays: Sequence[Any]) -> list[Any]:
        return list(arrays)

    def op(self, eqn: Any, operands: list[Any], place: Place) -> list[Any]:
        self.keys.append(place.key)
        return _jax.bind(eqn, operands)

    def call(self, eqn: Any, called: Any, operands: list[Any], place: Place) -> list[Any]:
        return enter(self, called, operands, place)

    def region(self, eqn: Any, borders: Borders, operands: list[Any], place: Place) -> list[Any]:
        self.keys.append(place.key)
        bodies = [self.body(body.jaxpr, place.body(b)) for b, body in enumerate(borders.bodies)]
        return _jax.bind(eqn, operands, **borders.with_bodies(bodies))

    def body(self, jaxpr: Any, inside: Place) -> Any:
        def run(*args: Any) -> list[Any]:
            rows = zip(enter(self, jaxpr, args, inside), jaxpr.out_avals, strict=True)
            return [jnp.asarray(array, aval.dtype) for array, aval in rows]

        return _jax.retrace(run, jaxpr.in_avals)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_what_is_walked_is_what_is_computed(fn: Callable[[Any], Any]) -> None:
    walked = enter(Compute(), jax.make_jaxpr(fn)(X), [X], OUTSIDE)
    expected = jax.tree.leaves(fn(X))
    for got, want in zip(walked, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_keys_are_those_of_the_program_and_of_the_next_trace(fn: Callable[[Any], Any]) -> None:
    walks = [Compute(), Compute()]
    for walk in walks:
        enter(walk, jax.make_jaxpr(lambda x: fn(x))(X), [X], OUTSIDE)
    first, again = (walk.keys for walk in walks)
    assert first == again
    assert len(set(first)) == len(first)
    assert {op.key for op in trace(fn, X).ops if not op.tie} <= set(first)


def test_a_key_is_the_way_through_the_equations_around() -> None:
    """Both calls are of one jaxpr, whose equations are the same objects."""
    program = trace(twice, X)
    assert [op.key for op in program.ops] == [(0, 0), (0, 1), (1, 0), (1, 1), (Tie.RETURN, 0)]
    assert program.ops[0].eqn is program.ops[2].eqn


def test_keys_inside_a_loop_have_the_number_of_the_body() -> None:
    keys = {op.name: op.key for op in trace(until, X).ops}
    (loop,) = {op.key for op in trace(until, X).ops if op.name == "while"}
    assert keys["lt"][:-1] == (*loop, 0)
    assert keys["mul"][:-1] == (*loop, 1)
    assert keys["while.carry"] == (*loop, Tie.WHILE_CARRY, 1)


@pytest.mark.parametrize("fn", [scanned, until, branch])
def test_every_input_and_output_of_a_body_has_a_border(fn: Callable[[Any], Any]) -> None:
    found: list[tuple[Any, Borders]] = []

    class Find(Compute):
        def region(self, eqn: Any, borders: Borders, operands: Any, place: Place) -> list[Any]:
            found.append((eqn, borders))
            return super().region(eqn, borders, operands, place)

    enter(Find(), jax.make_jaxpr(fn)(X), [X], OUTSIDE)
    ((eqn, borders),) = found
    inputs = [port for entry in borders.entries for port in entry.inputs]
    outputs = [port for leaves in borders.exits for port in leaves.outputs]
    for b, body in enumerate(borders.bodies):
        ports = {Port(b, i) for i in range(len(body.jaxpr.in_avals))}
        assert {port for port in inputs if port.body == b} == ports
        ports = {Port(b, i) for i in range(len(body.jaxpr.out_avals))}
        assert {port for port in outputs if port.body == b} == (
            set() if body.kind == "while_cond" else ports
        )
    assert len(set(inputs)) == len(inputs) and len(set(outputs)) == len(outputs)
    assert [leaves.result for leaves in borders.exits] == list(range(len(eqn.outvars)))
