"""What lowering does at each op, printed: small programs under decisions written as lists."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardwright.analysis.analysis import analyze_program
from shardwright.cost.devices import device
from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.lowering.actions import AS_IT_IS
from shardwright.lowering.apply import apply_steps
from shardwright.lowering.jit import jax_mesh
from shardwright.lowering.steps import Steps, make_steps
from shardwright.mesh import Mesh
from shardwright.program.tracing import trace
from tests.arrays import f32
from tests.spmd.lists import decided


def mlp(x: Any, up: Any, down: Any) -> Any:
    return jax.nn.relu(x @ up) @ down


def summed(xs: Any, w: Any) -> Any:
    return lax.scan(lambda c, x: (c + x @ w, None), jnp.zeros((64, 32)), xs)[0]


def branch(p: Any, x: Any, w: Any) -> Any:
    return lax.cond(p, lambda x: x @ w, lambda x: jnp.zeros((64, 64)), x)


def convolved(x: Any, w: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)


def transformed(x: Any) -> Any:
    return jnp.fft.fft(x) * jnp.arange(16)


def contracted(x: Any, w: Any) -> Any:
    return jnp.einsum("ijk,jkl->il", x, w)


def picked(x: Any, i: Any) -> Any:
    return x[:1], lax.dynamic_slice(x, (0, i), (4, 8))


MESH = {"a": 4, "b": 2}
I32 = jax.ShapeDtypeStruct((), jnp.int32)
BOOL = jax.ShapeDtypeStruct((), jnp.bool_)
BOTH_DOTS = [f32(64, 32), f32(32, 128), f32(128, 32)]

# function, arguments, labels of dims, one list per axis; what is done from the first op on.
ROWS: dict[str, tuple[Any, list[Any], dict[str, str], tuple[str, ...], str]] = {
    "gathered weights": (
        mlp, BOTH_DOTS, {"B": "x[0]", "F": "up[1]"}, ("B F",),
        """
        dot_general: constrain operand 1 to -,-; compute; store as a,-
        max: compute; store as a,-
        dot_general: constrain operand 1 to -,-; compute; store as a,-
        return: store as a,-
        """,
    ),
    "reduced after a loop": (
        summed, [f32(6, 64, 256), f32(256, 32)], {"K": "w[0]"}, ("K",),
        """
        broadcast_in_dim: rematerialize for each use
        scan.const: before the loop to a,-; store as a,-
        scan.init: constrain operand 0 to -,-; start sum, unreduced over a
        scan.xs: store as -,a
        dot_general: partial sums, unreduced over a
        add: pass partial sums
        scan.carry: reduce, store as -,-
        return: store as -,-
        """,
    ),
    "a branch that returns zeros": (
        branch, [BOOL, f32(64, 64), f32(64, 64)], {"B": "x[0]", "D": "w[0]"}, ("B D",),
        """
        convert_element_type: compute; store as scalar
        cond.operand: store as a,-; store result 1 as a,-
        cond.operand: store as a,-; store result 1 as a,-
        broadcast_in_dim: rematerialize for each use
        dot_general: constrain operand 1 to -,-; compute; store as a,-
        cond.result: constrain operand 0 to a,-; store as a,-
        return: store as a,-
        """,
    ),
    "exchanged rows": (
        convolved, [f32(4, 512, 512, 8), f32(3, 3, 8, 8)], {"H": "x[1]"}, ("H",),
        """
        conv_general_dilated: exchange 1+1 rows of dim 1 over a, convolve in shard_map; """
        """store as -,a,-,-
        return: store as -,a,-,-
        """,
    ),
    "on shards": (
        transformed, [f32(512, 16)], {"B": "x[0]"}, ("B",),
        """
        convert_element_type: compute; store as a,-
        fft: compute in shard_map; store as a,-
        iota: rematerialize for each use
        convert_element_type: rematerialize for each use
        broadcast_in_dim: rematerialize for each use
        mul: constrain operand 1 to -,-; compute; store as a,-
        return: store as a,-
        """,
    ),
    "entries": (
        picked, [f32(4, 512), I32], {"B": "x[0]"}, ("B",),
        """
        slice: pick entries of dims 0; store as -,-
        lt: compute; store as scalar
        add: compute; store as scalar
        select_n: compute; store as scalar
        dynamic_slice: clamp starts; compute; store as a,-
        return: store as -,-
        return: store as a,-
        """,
    ),
    "two axes at once": (
        contracted, [f32(64, 64, 64), f32(64, 64, 128)],
        {"J": "x[1]", "K": "x[2]", "L": "w[2]"}, ("J L", "K"),
        """
        dot_general: partial sums, unreduced over a+b; reduce, store as -,a
        return: store as -,a
        """,
    ),
}  # fmt: skip


def steps_of(name: str) -> Steps:
    fn, args, labels, lists, _ = ROWS[name]
    analysis = analyze_program(trace(fn, *args), labels)
    mesh = Mesh(dict(list(MESH.items())[: len(lists)]))
    return make_steps(CostModel(analysis, mesh, device("tpu-v5e")), decided(analysis, *lists))


@pytest.mark.parametrize("name", ROWS)
def test_what_is_done_at_each_op(name: str) -> None:
    lines = str(steps_of(name)).splitlines()
    done = [re.sub(r"^.* = ([\w.]+).*?: ", r"\1: ", line) for line in lines]
    assert done == [line.strip() for line in ROWS[name][-1].strip().splitlines()]


def test_steps_without_actions_only_compute() -> None:
    steps = steps_of("reduced after a loop")
    xs, w = jnp.ones((6, 64, 256)), jnp.ones((256, 32))
    nowhere = replace(steps, actions={}, inputs=((), ()), outputs=((),))
    (result,) = apply_steps(jax.make_jaxpr(summed)(xs, w), nowhere, None, [xs, w])
    assert (result == 6 * 256).all()


def test_an_op_that_is_planned_and_not_met_is_an_error() -> None:
    """Better no numbers than wrong ones."""
    steps = steps_of("gathered weights")
    more = replace(steps, actions=steps.actions | {(17, 4): AS_IT_IS})
    arrays = [jnp.ones(struct.shape) for struct in BOTH_DOTS]
    mesh = jax_mesh(Mesh({"a": 4}))
    assert apply_steps(jax.make_jaxpr(mlp)(*arrays), steps, mesh, arrays)
    with pytest.raises(ShardwrightError, match=r"1 planned ops were not met, .* at \(17, 4\)"):
        apply_steps(jax.make_jaxpr(mlp)(*arrays), more, mesh, arrays)
