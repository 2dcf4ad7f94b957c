"""Which movements have slack: what is there early, what may end late, what blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardwright.program.tracing import trace
from shardwright.program.types import LITERAL
from shardwright.spmd.slack import BLOCKS, find_slack

W, X, STACK = jnp.ones((8, 8)), jnp.ones((4, 8)), jnp.ones((3, 8, 8))


def forward(ws: Any, x: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return x


def loss(ws: Any, x: Any) -> Any:
    return jnp.sum(forward(ws, x) ** 2)


def sgd(ws: Any, x: Any) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws, x))


def clipped(ws: Any, x: Any) -> Any:
    grads = jax.grad(loss)(ws, x)
    norm = sum(jnp.sum(g**2) for g in grads)
    return [w - g / norm for w, g in zip(ws, grads, strict=True)]


def scanned(stack: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w) @ w, None), x, stack)[0]


def scanned_grad(stack: Any, x: Any) -> Any:
    return jax.grad(lambda stack: jnp.sum(scanned(stack, x)))(stack)


def accumulated(w: Any, xs: Any) -> Any:
    def add(total: Any, x: Any) -> Any:
        return total + x.T @ x, x @ w

    return jax.lax.scan(add, jnp.zeros_like(w), xs)


def looped(w: Any, x: Any) -> Any:
    return jax.lax.while_loop(lambda x: x[0, 0] < 1, lambda x: x @ w @ w, x)


def two(w: Any, x: Any) -> Any:
    """Neither dot needs the other; a cast weight is there as early as the weight."""
    return x @ w.astype(jnp.bfloat16).T, x.T @ x


# Of every dot, in order: operands -> result; a letter for each phase, - for what blocks.
CASES: list[tuple[Callable[..., Any], tuple[Any, ...], list[str]]] = [
    # The first dot has nothing to hide behind, nor has the last. Activations wait for each other.
    (forward, ([W, W, W], X), ["- - -> -", "- a -> -", "- a -> -"]),
    (two, (W, X.astype(jnp.bfloat16)), ["- - -> a", "a a -> -"]),
    # Backward (b): gradients of weights end late, those of activations block. What the forward
    # pass saved is there when the backward pass begins, and so is what is computed from it alone.
    (sgd, ([W, W], X), ["- - -> -", "- a -> -", "- - -> b", "b b -> -", "- b -> -"]),
    # A norm of all gradients is computed after the backward pass: until its end they may be late.
    (clipped, ([W, W], X), ["- - -> -", "- a -> -", "- - -> b", "b b -> -", "- b -> -"]),
    # A trip's weights are there when it begins (b: the body), what it carries is not.
    (scanned, (STACK, X), ["- - -> -", "- b -> -"]),
    (
        scanned_grad,
        (STACK, X),
        ["- - -> -", "- b -> -", "- - -> d", "- d -> -", "- d -> d", "- d -> -"],
    ),
    # A carry that is only added to is handed on, from trip to trip.
    (accumulated, (W, jnp.ones((3, 8, 8))), ["- - -> b", "b b -> -"]),
    (looped, (W, X), ["- - -> -", "- c -> -"]),  # b: the condition
]


@pytest.mark.parametrize("fn, args, expected", CASES, ids=[fn.__name__ for fn, _, _ in CASES])
def test_slack_of_dots(fn: Callable[..., Any], args: tuple[Any, ...], expected: list[str]) -> None:
    program = trace(fn, *args)
    slack = find_slack(program)

    def letter(phase: int) -> str:
        return "-" if phase == BLOCKS else "abcdefgh"[phase]

    assert [
        " ".join(map(letter, slack.operands[op.index])) + " -> " + letter(slack.results[op.index])
        for op in program.ops if op.name == "dot_general"
    ] == expected  # fmt: skip


def test_dots_that_a_platform_splits() -> None:
    """What a dot of large arrays reads or makes moves beside it; what is summed of two dots too."""

    def two_layers(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w + x @ (w + 1.0)) @ w

    program = trace(two_layers, W, X)
    dots = [op.index for op in program.ops if op.name == "dot_general"]
    (added,) = [op.index for op in program.ops if op.name == "add" and op.index > dots[0]
                and op.index > dots[1]]  # fmt: skip
    bytes_ = [program.values[v].bytes for i in dots for v in program.ops[i].operands]
    whole, none = find_slack(program, 1), find_slack(program)
    for i in dots:
        assert BLOCKS not in whole.operands[i] and whole.results[i] != BLOCKS
    assert whole.results[added] != BLOCKS == none.results[added]
    assert none.results[dots[0]] == BLOCKS
    assert find_slack(program, max(bytes_) + 1) == none


def test_movements_into_and_out_of_a_loop() -> None:
    """An entry of a stack is moved in its trip, early; a stacked result leaves it, late."""
    program = trace(scanned_grad, STACK, X)
    slack = find_slack(program)
    inside = {op.tie.value: slack.results[op.index] for op in program.ops if op.tie and op.body}
    outside = {op.tie.value: slack.operands[op.index] for op in program.ops if op.tie and op.body}
    bodies = {slack.phase[op.index] for op in program.ops if op.region}
    assert inside["scan.xs"] in bodies and outside["scan.ys"][0] in bodies
    assert outside["scan.carry"] == (BLOCKS, BLOCKS)


def test_every_movement_has_a_word() -> None:
    """As many as there are operands, and phases that exist."""
    program = trace(sgd, [W, W], X)
    slack = find_slack(program)
    for op, hidden in zip(program.ops, slack.operands, strict=True):
        assert len(hidden) == sum(v != LITERAL for v in op.operands)
        assert all(BLOCKS <= phase < slack.phases for phase in (*hidden, slack.results[op.index]))
    assert slack.phases == 3  # forward, backward, update


def test_the_gradient_of_a_lookup_hides_behind_the_update() -> None:
    """It is made last, when no dot is left; the updates of other weights still run."""

    def step(table: Any, w: Any, tokens: Any) -> Any:
        grads = jax.grad(lambda table, w: jnp.sum((table[tokens] @ w) ** 2), argnums=(0, 1))
        return [p - 0.1 * g for p, g in zip((table, w), grads(table, w), strict=True)]

    program = trace(step, jnp.ones((16, 8)), W, jnp.zeros(4, int))
    slack = find_slack(program)
    (scatter,) = [op for op in program.ops if op.name == "scatter-add"]
    update = max(slack.phase)
    assert slack.phase[scatter.index] == update - 1
    assert slack.results[scatter.index] == update
    assert slack.operands[scatter.index][-1] == update  # nor is anything left that it keeps waiting
