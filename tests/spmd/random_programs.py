"""Small random JAX functions: a list of steps over a pool of matrices, made to shrink well.

A step is (what, first, second): `what` picks from STEPS, the numbers pick matrices of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

from shardwright.spmd.decisions import EVERYTHING, UPDATES, Entry, State

Array = jax.Array
Step = tuple[int, int, int]
ROWS, COLUMNS, HIDDEN = 8, 16, 30  # no axis of 4 divides the hidden dim

MESHES = [{"x": 4}, {"x": 2, "y": 4}, {"x": 2, "y": 2, "z": 4}, {"x": 2, "y": 2, "z": 2, "w": 2}]


def _dot(a: Array, b: Array, w: dict[str, Array]) -> Array:
    """Through a hidden layer: partial sums when the hidden dim is split."""
    return a @ w["up"] @ w["down"]


def _two_dots(a: Array, b: Array, w: dict[str, Array]) -> Array:
    """Partial sums that meet in an addition."""
    return jnp.tanh(a @ w["up"]) @ w["down"] + jnp.sin(b @ w["up"]) @ w["down"]


def _square(a: Array, b: Array, w: dict[str, Array]) -> Array:
    """A conflict: scores whose two dims are one color."""
    return jax.nn.softmax(a @ b.T) @ b


def _residual(a: Array, b: Array, w: dict[str, Array]) -> Array:
    """A square weight on the residual stream: another conflict."""
    return a + b @ w["square"]


def _norm(a: Array, b: Array, w: dict[str, Array]) -> Array:
    return a * jax.lax.rsqrt(jnp.mean(a * a, axis=-1, keepdims=True) + 1.0) * w["gain"] - b


def _heads(a: Array, b: Array, w: dict[str, Array]) -> Array:
    """A compound dim: columns as (4, 4)."""
    split = a.reshape(ROWS, 4, COLUMNS // 4)
    return (split * split.sum(axis=1, keepdims=True)).reshape(ROWS, COLUMNS) + b


def _merge(a: Array, b: Array, w: dict[str, Array]) -> Array:
    """Rows and columns merged into one dim and taken apart again."""
    return (a.reshape(-1) * 2.0 + b.reshape(-1)).reshape(ROWS, COLUMNS)


def _lookup(a: Array, b: Array, w: dict[str, Array]) -> Array:
    index = jnp.argmax(b, axis=1) % ROWS
    return a[index] + b


def _tied(a: Array, b: Array, w: dict[str, Array]) -> Array:
    """A weight used twice: the parts of its gradient meet transposed, one of them in bfloat16."""
    narrow, table = jnp.tanh(b @ w["up"]).astype(jnp.bfloat16), w["up"].astype(jnp.bfloat16)
    return a + jnp.einsum("rh,ch->rc", narrow, table).astype(jnp.float32)


def _turn(a: Array, b: Array, w: dict[str, Array]) -> Array:
    """Neighbour exchanges."""
    return jnp.concatenate([a[1:], b[:1]], axis=0) + a[::-1]


def _sort(a: Array, b: Array, w: dict[str, Array]) -> Array:
    """A dim that cannot be split."""
    return jnp.sort(a, axis=1) + jnp.cumsum(b, axis=0)


def _scan(a: Array, b: Array, w: dict[str, Array]) -> Array:
    def body(carry: Array, layer: tuple[Array, Array]) -> tuple[Array, Array]:
        up, down = layer
        carry = carry + jnp.tanh(carry @ up) @ down + b
        return carry, carry.sum(axis=0)

    last, sums = jax.lax.scan(body, a, (w["ups"], w["downs"]))
    return last * sums.mean(axis=0)


def _cond(a: Array, b: Array, w: dict[str, Array]) -> Array:
    return jax.lax.cond(
        b.sum() > 0, lambda x: x @ w["up"] @ w["down"], lambda x: x * w["gain"] + b, a
    )


def _while(a: Array, b: Array, w: dict[str, Array]) -> Array:
    def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
        i, x = state
        return i + 1, jnp.tanh(x @ w["square"]) + a

    return jax.lax.while_loop(lambda state: state[0] < 3, body, (jnp.int32(0), b))[1]


def _remat(a: Array, b: Array, w: dict[str, Array]) -> Array:
    return jax.checkpoint(lambda x, y: _two_dots(x, jnp.tanh(y @ w["square"]), w))(a, b)


STEPS: list[Callable[[Array, Array, dict[str, Array]], Array]] = [
    _dot, _two_dots, _square, _residual, _norm, _heads, _merge, _lookup, _tied, _turn, _sort, _scan,
    _cond, _remat, _while,
]  # fmt: skip
FORWARD_ONLY = (_while,)  # has no derivative


def weight_shapes() -> dict[str, Any]:
    """The parameters every program may use."""
    f32 = jnp.float32
    shapes = {
        "up": (COLUMNS, HIDDEN), "down": (HIDDEN, COLUMNS), "square": (COLUMNS, COLUMNS),
        "gain": (COLUMNS,), "ups": (3, COLUMNS, HIDDEN), "downs": (3, HIDDEN, COLUMNS),
    }  # fmt: skip
    return {name: jax.ShapeDtypeStruct(shape, f32) for name, shape in shapes.items()}


def build(steps: Sequence[Step], *, train: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """(function, arguments): a forward pass, or a train step with momentum."""

    def forward(weights: dict[str, Array], x: Array, y: Array) -> Array:
        pool = [x, y]
        for what, first, second in steps:
            step = STEPS[what % len(STEPS)]
            if train and step in FORWARD_ONLY:
                continue
            pool.append(step(pool[first % len(pool)], pool[second % len(pool)], weights))
        return pool[-1] + pool[len(pool) // 2]

    def step(state: Any, x: Array, y: Array) -> Any:
        weights, momentum = state
        grads = jax.grad(lambda w: jnp.mean(forward(w, x, y) ** 2))(weights)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum), momentum

    data = [jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32)] * 2
    weights = weight_shapes()
    return (step, ((weights, weights), *data)) if train else (forward, (weights, *data))


steps = st.lists(
    st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 5), st.integers(0, 5)),
    min_size=1, max_size=5,
)  # fmt: skip


@st.composite
def states(draw: st.DrawFn, groups: Sequence[int], axes: int) -> State:
    """Random lists: each axis a few groups in some order, with resolutions and scopes."""
    entry = st.builds(
        Entry, st.sampled_from(groups), st.integers(0, 3),
        st.sampled_from([EVERYTHING, EVERYTHING, EVERYTHING, UPDATES]),
    )  # fmt: skip
    one = st.lists(entry, max_size=4, unique_by=lambda e: e.group).map(tuple)
    return tuple(draw(one) for _ in range(axes))
