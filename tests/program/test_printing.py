# ruff: noqa: E501
"""The printed Program, whole, for small functions: one line per op, bodies indented.

To add one, print the program, read every line, paste it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardwright import zoo
from shardwright.program import trace
from tests.arrays import f32

Array = jax.Array


def mlp(x: Array, w1: Array, w2: Array) -> Array:
    return jax.nn.relu(x @ w1) @ w2


def layers(x: Array, ws: Array) -> Any:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), x.sum()), x, ws)


def halve(x: Array) -> Array:
    return lax.while_loop(lambda c: jnp.max(c) > 1, lambda c: c / 2, x)


def finite_or_zero(x: Array) -> Array:
    return lax.cond(jnp.isfinite(x).all(), lambda x: x, jnp.zeros_like, x)


def sgd(w: Array, x: Array) -> tuple[Array, Array]:
    loss, grad = jax.value_and_grad(jax.checkpoint(lambda w: jnp.sum((x @ w) ** 2)))(w)
    return w - 0.1 * grad, loss


def heads(x: Array) -> Array:
    return x.reshape(2, 4, 8).transpose(1, 0, 2)


@pytest.mark.parametrize(
    "fn, args, options, text",
    [
        (
            mlp, (f32(8, 4), f32(4, 16), f32(16, 2)), {},
            """\
program mlp(x: %0:f32[8,4], w1: %1:f32[4,16], w2: %2:f32[16,2]) -> (%6)
  %3:f32[8,16] = dot_general %0 %1   ([i,j],[j,k])->([i,k]) {i=8,j=4,k=16} reduction={j}
  %4:f32[8,16] = max %3 literal   ([i,j],[])->([i,j]) {i=8,j=16}
  %5:f32[8,2] = dot_general %4 %2   ([i,j],[j,k])->([i,k]) {i=8,j=16,k=2} reduction={j}
  %6:f32[8,2] = return %5   ([i,j])->([i,j]) {i=8,j=2}""",
        ),
        (
            heads, (f32(2, 32),), {},
            """\
program heads(x: %0:f32[2,32]) -> (%3)
  %1:f32[2,4,8] = reshape %0   ([i,jk])->([i,j,k]) {i=2,j=4,k=8}
  %2:f32[4,2,8] = transpose %1   ([i,j,k])->([j,i,k]) {i=2,j=4,k=8}
  %3:f32[4,2,8] = return %2   ([i,j,k])->([i,j,k]) {i=4,j=2,k=8}""",
        ),
        (
            layers, (f32(8, 4), f32(3, 4, 4)), {},
            """\
program layers(x: %0:f32[8,4], ws: %1:f32[3,4,4]) -> (%9, %10)
  scan   {scan x3}
  %4:f32[8,4] = scan.init %0   ([i,j])->([i,j]) {i=8,j=4}
  %5:f32[4,4] = scan.xs %1   ([i,j,k])->([j,k]) {i=3,j=4,k=4} need_replication={i}
    %6:f32[8,4] = dot_general %4 %5   ([i,j],[j,k])->([i,k]) {i=8,j=4,k=4} reduction={j}
    %7:f32[8,4] = tanh %6   ([i,j])->([i,j]) {i=8,j=4}
    %8:f32[] = reduce_sum %4   ([i,j])->([]) {i=8,j=4} reduction={i,j}
  %2:f32[8,4] = scan.carry %7 %4   ([i,j],[i,j])->([i,j]) {i=8,j=4}
  %3:f32[3] = scan.ys %8   ([])->([i]) {i=3} need_replication={i}
  %9:f32[8,4] = return %2   ([i,j])->([i,j]) {i=8,j=4}
  %10:f32[3] = return %3   ([i])->([i]) {i=3}""",
        ),
        (
            halve, (f32(8),), {},
            """\
program halve(x: %0:f32[8]) -> (%7)
  while   {while_cond x16, while x16}
  %2:f32[8], %3:f32[8] = while.init %0   ([i])->([i],[i]) {i=8}
    %4:f32[] = reduce_max %2   ([i])->([]) {i=8} reduction_max={i}
    %5:bool[] = gt %4 literal   ([],[])->([])
    %6:f32[8] = div %3 literal   ([i],[])->([i]) {i=8}
  %1:f32[8] = while.carry %6 %3   ([i],[i])->([i]) {i=8}
  %7:f32[8] = return %1   ([i])->([i]) {i=8}""",
        ),
        (
            finite_or_zero, (f32(8),), {},
            """\
program finite_or_zero(x: %0:f32[8]) -> (%8)
  %1:bool[8] = is_finite %0   ([i])->([i]) {i=8}
  %2:bool[] = reduce_and %1   ([i])->([]) {i=8} reduction_and={i}
  %3:i32[] = convert_element_type %2   ([])->([])
  cond %3   {cond x1, cond x1}
  %5:f32[8], %6:f32[8] = cond.operand %0   ([i])->([i],[i]) {i=8}
    %7:f32[8] = broadcast_in_dim literal   ([])->([i]) {i=8}
  %4:f32[8] = cond.result %7 %6   ([i],[i])->([i]) {i=8}
  %8:f32[8] = return %4   ([i])->([i]) {i=8}""",
        ),
        (
            sgd, (f32(4, 2), f32(8, 4)), {"donate_argnums": 0},
            """\
program sgd(w: %0:f32[4,2] donated, x: %1:f32[8,4]) -> (%13, %14)
  %2:f32[8,2] = dot_general %1 %0   ([i,j],[j,k])->([i,k]) {i=8,j=4,k=2} reduction={j}
  %3:f32[8,2] = integer_pow %2   ([i,j])->([i,j]) {i=8,j=2}
  %4:f32[] = reduce_sum %3   ([i,j])->([]) {i=8,j=2} reduction={i,j}
  %5:f32[8,2] = dot_general %1 %0   ([i,j],[j,k])->([i,k]) {i=8,j=4,k=2} reduction={j} remat backward
  %6:f32[8,2] = mul literal %5   ([],[i,j])->([i,j]) {i=8,j=2} remat backward
  %7:f32[8,2] = broadcast_in_dim literal   ([])->([i,j]) {i=8,j=2} remat backward
  %8:f32[8,2] = mul %7 %6   ([i,j],[i,j])->([i,j]) {i=8,j=2} remat backward
  %9:f32[2,4] = dot_general %8 %1   ([i,j],[i,k])->([j,k]) {i=8,j=2,k=4} reduction={i} remat backward
  %10:f32[4,2] = transpose %9   ([i,j])->([j,i]) {i=2,j=4} remat backward
  %11:f32[4,2] = mul literal %10   ([],[i,j])->([i,j]) {i=4,j=2}
  %12:f32[4,2] = sub %0 %11   ([i,j],[i,j])->([i,j]) {i=4,j=2}
  %13:f32[4,2] = return %12   ([i,j])->([i,j]) {i=4,j=2}
  %14:f32[] = return %4   ([])->([])""",
        ),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)  # fmt: skip
def test_text(fn: Any, args: Any, options: Any, text: str) -> None:
    assert str(trace(fn, *args, **options)) == text


@pytest.mark.parametrize("name", ["transformer_scan_train", "moe_forward", "unet_forward"])
def test_text_is_the_same_in_two_traces(name: str) -> None:
    example = zoo.programs("tiny")[name]
    first, second = (str(trace(example.fn, *example.args)) for _ in range(2))
    assert first == second
