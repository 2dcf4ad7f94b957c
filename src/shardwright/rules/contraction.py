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


@register("ragged_dot_general")
def _ragged_dot_general(op: OpShape) -> Rule:
    """Rows come in groups: each device knows which of its rows are of which group.

    Groups stay whole: which rows they have is data. So do rows that are a batch dim, and all of
    them with a group offset.
    """
    numbers = op.params["ragged_dot_dimension_numbers"]
    (lc, rc), (lb, rb) = numbers.dot_dimension_numbers
    lhs, rhs = op.dims(0), op.dims(1)
    groups = list(numbers.rhs_group_dimensions)
    (ragged,) = numbers.lhs_ragged_dimensions
    for left, right in zip((*lc, *lb), (*rc, *rb), strict=True):
        rhs[right] = lhs[left]
    for d in groups:
        rhs[d] = "group"
    out: list[Any] = [lhs[d] for d in lb]
    if ragged in (*lc, *lb):  # every group has a result of its own
        out = ["group"] * (ragged in lc) + out
    out += [lhs[d] for d in range(len(lhs)) if d not in (*lc, *lb)]
    out += [rhs[d] for d in range(len(rhs)) if d not in (*rc, *rb, *groups)]
    sizes = op.operands[2].shape
    group_sizes: list[Any] = [*(lhs[d] for d in lb), "group"][-len(sizes) :]
    more = [op.dims(n) for n in range(3, len(op.operands))]
    whole = ["group", *(label for labels in more for label in labels)]
    whole += [lhs[ragged]] if more or ragged in lb else []
    reduce = [lhs[d] for d in lc if lhs[d] not in whole]
    # The groups divide the rows among them: a point is not computed once per group.
    work = 2.0 / max(1, sizes[-1])
    return einsum(
        op, [lhs, rhs, group_sizes, *more], [out],
        reduce=reduce, replicate=whole, unit=MATRIX, work=work,
        precision=precision_of(op.params.get("precision")),
    )  # fmt: skip
