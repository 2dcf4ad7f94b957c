"""Dots: contracted dims are reductions, batch and free dims pass."""

from __future__ import annotations

from typing import Any

from shardwright.rules.precision import precision_of
from shardwright.rules.registry import register
from shardwright.rules.rule import MATRIX, Expanded, OpShape, Rule, einsum


def _dot(op: OpShape, dimension_numbers: Any) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Labels of lhs, rhs and result, and the contracted ones."""
    (lc, rc), (lb, rb) = dimension_numbers
    lhs, rhs = op.dims(0), op.dims(1)
    for left, right in zip((*lc, *lb), (*rc, *rb), strict=True):
        rhs[right] = lhs[left]  # contracted and batch dims are one factor
    out = [lhs[d] for d in lb]
    out += [lhs[d] for d in range(len(lhs)) if d not in (*lc, *lb)]
    out += [rhs[d] for d in range(len(rhs)) if d not in (*rc, *rb)]
    return lhs, rhs, out, [lhs[d] for d in lc]


@register("dot_general")
def _dot_general(op: OpShape) -> Rule:
    lhs, rhs, out, contracted = _dot(op, op.params["dimension_numbers"])
    return einsum(
        op, [lhs, rhs], [out], reduce=contracted, unit=MATRIX, work=2.0,
        precision=precision_of(op.params.get("precision")), expanded=_expanded(op),
    )  # fmt: skip


def _expanded(op: OpShape) -> Expanded:
    """A copy of what libraries do not multiply as it is: [batch, m, k] by [batch, k, n].

    A matrix is multiplied either way round.
    """
    contracted, batch = op.params["dimension_numbers"]
    copied = []
    for n, (inner, outer) in enumerate(zip(contracted, batch, strict=True)):
        shape = op.operands[n].shape
        free = [d for d in range(len(shape)) if d not in (*inner, *outer)]
        order = [*outer, *free, *inner] if n == 0 else [*outer, *inner, *free]
        matrix = len(free) <= 1 and len(inner) <= 1 and list(outer) == list(range(len(outer)))
        real = [d for d in order if shape[d] > 1]
        if real != sorted(real) and not matrix:
            copied.append((n, 1.0))
    return Expanded(tuple(copied))


@register("scaled_dot")
def _scaled_dot(op: OpShape) -> Rule:
    """A dot of operands with scales; a block of the contracted dim shares one: (block, within)."""
    lhs, rhs, out, contracted = _dot(op, op.params["dimension_numbers"])
    sides = [lhs, rhs]
    blocks: dict[Any, list[Any]] = {}
    sizes: dict[Any, int] = {}
    scales: list[list[Any]] = []
    for n, scale in enumerate(op.operands[2:]):
        labels = list(sides[n])
        for d, count in enumerate(scale.shape):
            size = op.operands[n].shape[d]
            if count != size:
                block, within = (labels[d], "block"), (labels[d], "within")
                sizes[block], sizes[within] = count, size // count
                blocks[labels[d]] = [block, within]
                labels[d] = block
        scales.append(labels)
    operands = [[blocks.get(label, label) for label in side] for side in sides]
    reduce = [part for label in contracted for part in blocks.get(label, [label])]
    return einsum(
        op, [*operands, *scales], [out], reduce=reduce, sizes=sizes, unit=MATRIX, work=2.0
    )
