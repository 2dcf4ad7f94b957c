"""Elementwise ops: every operand dim meets the result dim at its place."""

from __future__ import annotations

import numpy as np
from jax import dtypes

from shardwright.rules.registry import register
from shardwright.rules.rule import NOTHING, VECTOR, OpShape, Rule, einsum

# The result is a sum over partial sums of the operands named here.
_LINEAR = {
    "add": (0, 1), "sub": (0, 1), "add_any": (0, 1), "neg": (0,), "real": (0,), "imag": (0,),
    "conj": (0,), "complex": (0, 1), "mul": (0, 1),
}  # fmt: skip

_SUMS = ("add", "sub", "add_any")

# Operations per point: one instruction, a short polynomial, a long one, an iteration.
_WORK = {
    1.0: """abs add add_any and ceil clamp clz complex conj eq eq_to floor ge gt imag is_finite le
        le_to lt lt_to max min mul mulhi ne neg nextafter not or population_count real round
        select_n shift_left shift_right_arithmetic shift_right_logical sign square sub xor""",
    4.0: "div integer_pow rem rsqrt sqrt",
    10.0: """acos acosh asin asinh atan atan2 atanh cbrt cos cosh erf erf_inv erfc exp exp2 expm1
        log log1p logistic pow sin sinh tan tanh""",
    40.0: "bessel_i0e bessel_i1e digamma lgamma polygamma zeta",
    400.0: "igamma igamma_grad_a igammac regularized_incomplete_beta",
}
_WORK_OF = {name: work for work, names in _WORK.items() for name in names.split()}


def elementwise(
    op: OpShape, *, unit: str = VECTOR, work: float, linear: tuple[int, ...] = ()
) -> Rule:
    """The rule of an op that maps its operands point by point; scalars and 1s broadcast."""
    (result,) = {r.shape for r in op.results}
    labels = list(range(len(result)))
    operands = [labels if len(t.shape) == len(result) else [] for t in op.operands]
    return einsum(
        op, operands, [labels] * len(op.results), unit=unit, work=work, fusible=True, linear=linear,
        additive=op.name in _SUMS,
    )  # fmt: skip


@register(*_WORK_OF)
def _elementwise(op: OpShape) -> Rule:
    linear = _LINEAR.get(op.name, ())
    if op.name == "select_n":
        linear = tuple(range(1, len(op.operands)))
    elif op.name == "div" and dtypes.issubdtype(op.results[0].dtype, np.inexact):
        linear = (0,)
    return elementwise(op, work=_WORK_OF[op.name], linear=linear)


@register("convert_element_type", "reduce_precision")
def _convert(op: OpShape) -> Rule:
    # Rounding to an integer does not commute with a sum; rounding to fewer bits does, as far
    # as a compiler that moves an all-reduce past it is concerned.
    rounds = dtypes.issubdtype(op.operands[0].dtype, np.inexact) and not dtypes.issubdtype(
        op.results[0].dtype, np.inexact
    )
    to_bool = op.results[0].dtype == np.bool_
    return elementwise(op, unit=NOTHING, work=0.0, linear=() if rounds or to_bool else (0,))
