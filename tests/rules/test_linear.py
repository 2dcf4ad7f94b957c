"""Partial sums pass through an op as its rule says: op(a + b) = op(a) + op(b), in numbers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.rules import lookup
from shardwright.rules.examples import EXAMPLES, Example
from tests.rules.isolated import isolate
from tests.rules.rule_referee import operands_of

# Products are linear in one operand at a time.
ONE_AT_A_TIME = ("mul",)


def inexact(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.inexact)


def is_linear(example: Example, through: tuple[int, ...]) -> bool:
    """Whether the sum over two parts of these operands is the sum of the two results."""
    isolated = isolate(example)
    whole = operands_of(example, isolated)
    fractions = np.random.default_rng(1)
    first, second = list(whole), list(whole)
    for n in through:
        part = jnp.asarray(fractions.uniform(-1, 1, whole[n].shape), whole[n].dtype)
        first[n], second[n] = part, (whole[n] - part).astype(whole[n].dtype)
    results = [isolated.bind(*operands) for operands in (whole, first, second)]
    return all(
        np.allclose(*(np.asarray(x, np.complex128) for x in (expected, left + right)), 1e-2, 1e-2)
        for expected, left, right in zip(*results, strict=True)
    )


def _claims() -> list[tuple[Example, tuple[int, ...]]]:
    out: list[tuple[Example, tuple[int, ...]]] = []
    for example in EXAMPLES:
        op = isolate(example).op
        linear = lookup(op).linear
        if not linear or not all(inexact(t) for t in op.results):
            continue
        if example.primitive in ONE_AT_A_TIME:
            out += [(example, (n,)) for n in linear]
        else:
            out.append((example, linear))
    return out


@pytest.mark.parametrize(
    "example, through", [pytest.param(*c, id=f"{c[0].title} {c[1]}") for c in _claims()]
)
def test_claims_are_true(example: Example, through: tuple[int, ...]) -> None:
    assert is_linear(example, through)


_CONTRACTION = "no compiler moves an all-reduce past a contraction; it may be of a smaller array"
_BY_CHANCE = "only the function of this example is linear"
# Linear ops that do not say so, and why a partial sum stops there.
SILENT = {
    "dot_general": _CONTRACTION,
    "ragged_dot_general": _CONTRACTION,
    "scaled_dot": _CONTRACTION,
    "conv_general_dilated": _CONTRACTION,
    "scatter-mul": "in its operand, but not in its updates",
    "reduce": _BY_CHANCE,
    "reduce_window": _BY_CHANCE,
    "device_put": "a move to another memory: sums are complete before it",
    "nextafter": "it is not; the tolerance is larger than the step",
}


@pytest.mark.slow
def test_no_claim_is_missing() -> None:
    silent = set()
    for example in EXAMPLES:
        op = isolate(example).op
        if lookup(op).linear or not op.operands or not op.results:
            continue
        numbers = inexact(op.operands[0]) and all(inexact(t) for t in op.results)
        if numbers and op.operands[0].shape and is_linear(example, (0,)):
            silent.add(example.primitive)
    assert silent == set(SILENT)
