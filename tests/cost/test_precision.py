"""The precision of a dot: what the rule says, and what devices make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import shardwright as sw
from shardwright.analysis.analysis import analyze_program
from shardwright.cost.devices import device
from shardwright.cost.model import CostModel
from shardwright.mesh import Mesh
from shardwright.program.fingerprint import fingerprint, first_change
from shardwright.program.tracing import trace_call
from shardwright.program.types import Program
from shardwright.spmd.decisions import Decisions, empty

P, PRESET = lax.Precision, lax.DotAlgorithmPreset
BY_HAND = lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, jnp.float32, 1, 1, 6, False)
V5E, H100 = device("tpu-v5e"), device("h100")


def traced(fn: Callable[..., Any], *shapes: tuple[Any, tuple[int, ...]]) -> Program:
    args = tuple(jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in shapes)
    return trace_call(fn, args, {}, (), (), Mesh({"data": 1}))


def dot(precision: Any, size: int = 8, dtype: Any = jnp.float32) -> Program:
    square = (dtype, (size, size))
    return traced(lambda a, b: lax.dot(a, b, precision=precision), square, square)


def rule_of(program: Program) -> str:
    (op,) = [op for op in program.ops if op.rule.unit == "matrix"]
    return str(op.rule)


@pytest.mark.parametrize(
    "precision, said",
    [
        (None, ""),
        ("default", ""),
        ("high", " precision=high"),
        ("highest", " precision=highest"),
        ("tensorfloat32", " precision=high"),
        ((P.DEFAULT, P.HIGHEST), " precision=highest"),
        ((P.HIGH, P.DEFAULT), " precision=high"),
        (PRESET.DEFAULT, ""),
        (PRESET.TF32_TF32_F32, " precision=TF32_TF32_F32"),
        ("BF16_BF16_F32_X3", " precision=BF16_BF16_F32_X3"),
        (BY_HAND, " precision=BF16_BF16_F32_X6"),
    ],
)
def test_rules_say_how_exact(precision: Any, said: str) -> None:
    sizes = "([i,j],[j,k])->([i,k]) {i=8,j=8,k=8} reduction={j}"
    assert rule_of(dot(precision)) == sizes + said


def test_the_setting_counts_where_the_call_says_nothing() -> None:
    with jax.default_matmul_precision("highest"):
        assert rule_of(dot(None)).endswith(" precision=highest")
        assert rule_of(dot("high")).endswith(" precision=high")


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_convolutions_and_ragged_dots(precision: str) -> None:
    rows, groups = (jnp.float32, (8, 16)), (jnp.int32, (4,))
    ragged = traced(
        lambda x, w, n: lax.ragged_dot(x, w, n, precision=precision),
        rows, (jnp.float32, (4, 16, 8)), groups,
    )  # fmt: skip
    image, kernel = (jnp.float32, (2, 4, 8, 8)), (jnp.float32, (4, 4, 3, 3))
    conv = traced(lambda x, k: lax.conv(x, k, (1, 1), "SAME", precision=precision), image, kernel)
    for program in (ragged, conv):
        assert rule_of(program).endswith(f" precision={precision}")


def compute_s(program: Program, name: str) -> float:
    """Seconds of the program on one device."""
    model = CostModel(analyze_program(program), Mesh({"data": 1}), device(name))
    return model.cost(Decisions(empty(1))).compute_s


# Passes of the matrix unit relative to one at the rate of bf16. v5e: the compiler's cycles for
# 4096^3 are 1.02, 3.08, 5.90, 3.08, 5.90, 1.00, 1.00, 0.50, 1.00 times those of bf16.
PASSES = [
    ("tpu-v5e", "default", "f32", "f32", 1),
    ("tpu-v5e", "high", "f32", "f32", 3),
    ("tpu-v5e", "highest", "f32", "f32", 6),
    ("tpu-v5e", "BF16_BF16_F32_X3", "f32", "f32", 3),
    ("tpu-v5e", "BF16_BF16_F32_X6", "f32", "f32", 6),
    ("tpu-v5e", "highest", "bf16", "bf16", 1),  # nothing to be more exact about
    ("tpu-v5e", "default", "bf16", "f32", 1),
    ("tpu-v5e", "default", "s8", "s8", 1.97 / 3.94),
    ("tpu-v5e", "default", "s8", "bf16", 1),  # computed in the wider of the two
    ("h100", "default", "f32", "f32", 9.89 / 4.95),
    ("h100", "highest", "f32", "f32", 9.89 / 0.67),
    ("h100", "TF32_TF32_F32", "f32", "f32", 9.89 / 4.95),
    ("h100", "TF32_TF32_F32_X3", "f32", "f32", 3 * 9.89 / 4.95),
    ("h100", "BF16_BF16_F32_X9", "f32", "f32", 9),
    ("h100", "F32_F32_F32", "f32", "f32", 9.89 / 0.67),
    ("h100", "ANY_F8_ANY_F8_F32_FAST_ACCUM", "f8", "f8", 9.89 / 19.79),
    ("h100", "default", "f8", "bf16", 1),
]
DTYPES: dict[str, Any] = {
    "f32": jnp.float32, "bf16": jnp.bfloat16, "s8": jnp.int8, "f8": jnp.float8_e4m3fn,
}  # fmt: skip


@pytest.mark.parametrize("name, precision, lhs, rhs, passes", PASSES)
def test_passes(name: str, precision: str, lhs: str, rhs: str, passes: float) -> None:
    contract = (((1,), (0,)), ((), ()))

    def product(how: str | None) -> Callable[..., Any]:
        return lambda a, b: lax.dot_general(
            a, b, contract, precision=how, preferred_element_type=jnp.float32
        )

    n, overhead = 8192, device(name).op_overhead_s
    sizes = (n, n)
    one = compute_s(traced(product(None), (jnp.bfloat16, sizes), (jnp.bfloat16, sizes)), name)
    this = compute_s(traced(product(precision), (DTYPES[lhs], sizes), (DTYPES[rhs], sizes)), name)
    assert (this - overhead) / (one - overhead) == pytest.approx(passes, rel=0.02)


def test_dots_that_differ_in_precision_do_not_share_a_class() -> None:
    square = (jnp.float32, (4096, 4096))

    def both(one: str, other: str) -> Program:
        return traced(
            lambda a, b: (lax.dot(a, b, precision=one), lax.dot(a, b, precision=other)),
            square, square,
        )  # fmt: skip

    seconds = {
        pair: compute_s(both(*pair), "tpu-v5e")
        for pair in [("default", "default"), ("default", "highest"), ("highest", "highest")]
    }
    low, mixed, high = seconds.values()
    assert mixed == pytest.approx((low + high) / 2)
    assert high > 5 * low


def test_what_a_plan_is_for_does_not_depend_on_precision() -> None:
    fast, exact = dot(None), dot("highest")
    assert fingerprint(fast) == fingerprint(exact)
    assert first_change(fast, exact) is None


def test_plans_of_exact_programs_say_so_in_seconds() -> None:
    x = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
    plans = [
        sw.partition(
            lambda a, b, p=p: lax.dot(a, b, precision=p), x, x, mesh={"data": 4}, seconds=0.1
        )
        for p in ("default", "highest")
    ]
    fast, exact = (plan.cost.compute_s for plan in plans)
    assert exact / fast == pytest.approx(1.97e14 / 3.3e13, rel=0.02)
