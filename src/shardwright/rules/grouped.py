"""Grouped dots: rows come in groups, each multiplied by its group's own weights.

- Rows may be split: each device knows which of its rows are of which group.
- Groups may be split: each device multiplies the rows of its groups; other rows are zero, and the
  results are summed. Where every group has a result of its own (the gradient of the weights)
  nothing is summed.
- One axis may split both: rows travel to the device of their group, and results back.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from shardwright import _jax
from shardwright.rules.precision import precision_of
from shardwright.rules.registry import LIBRARY_RULES, register
from shardwright.rules.rule import (
    AS_IT_IS,
    MATRIX,
    REPLICATE,
    Expanded,
    OpShape,
    Rule,
    einsum,
    with_work,
)

GROUPED_DOTS = ("ragged_dot_general", "megablox_gmm", "megablox_tgmm")


@register("ragged_dot_general")
def _ragged_dot_general(op: OpShape) -> Rule:
    """Rows that are a batch dim stay whole, and so does everything ragged with a group offset."""
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
    more = [op.dims(n) for n in range(2, len(op.operands))]  # group sizes, a group offset
    sizes = op.operands[2].shape
    if len(sizes) > 1:  # a row of sizes per batch entry
        more[0] = [*(lhs[d] for d in lb), "sizes"][-len(sizes) :]
    whole = [label for labels in more for label in labels if label not in lhs]
    if len(more) > 1 or ragged in lb:
        whole += [lhs[ragged], "group"]
    elif len(sizes) > 1:
        whole += ["group"]
    reduce = [lhs[d] for d in lc if lhs[d] not in whole]
    reduce += ["group"] * ("group" not in (*out, *whole))
    rule = einsum(
        op, [lhs, rhs, *more], [out], reduce=reduce, replicate=whole, unit=MATRIX,
        precision=precision_of(op.params.get("precision")),
        even=[*lhs, *rhs, "group"],  # it runs in a shard_map, which pads nothing
        expanded=_masked(op.operands[2].shape[-1], ragged in lc) if ragged not in lb else AS_IT_IS,
    )  # fmt: skip
    columns = [n for d, n in enumerate(op.operands[1].shape) if d not in (*rc, *rb, *groups)]
    rule = _with_rows(rule, prod(op.operands[0].shape) * prod(columns))
    return _travelling(rule, ragged, groups[0] if groups else None)


def _masked(groups: int, own_results: bool) -> Expanded:
    """What XLA:CPU multiplies: a copy of the rows for each group, without those of the others."""
    return Expanded(((0, groups), (1, groups if own_results else 1)))


@register("megablox_gmm", "megablox_tgmm", table=LIBRARY_RULES)
def _megablox(op: OpShape) -> Rule:
    """Rows are split in whole tiles only; groups are whole where an offset says which are here."""
    how = _jax.megablox_of(op.params)
    rows: Any = ["tile", "row"]
    reduce: list[Any]
    if op.name == "megablox_gmm":  # [rows, k] x [groups, k, n]
        weights = ["group", "n", "k"] if how.transposed else ["group", "k", "n"]
        slots, out, reduce = [[rows, "k"], weights], [rows, "n"], ["k", "group"]
        (count, _) = op.operands[0].shape
    else:  # [k, rows] x [rows, n]
        slots, out, reduce = [["k", rows], [rows, "n"]], ["group", "k", "n"], ["tile"]
        (_, count) = op.operands[0].shape
    here = op.operands[1].shape[0] if op.name == "megablox_gmm" else op.results[0].shape[0]
    offset: list[list[Any]] = [[]] * (len(op.operands) - 3)
    whole = ["sizes", "row", *["group"] * len(offset)]
    rule = einsum(
        op, [*slots, ["sizes"], *offset], [out], reduce=[x for x in reduce if x not in whole],
        replicate=whole,
        sizes={"tile": count // how.tiling[0], "row": how.tiling[0]},
        unit=MATRIX, even=["tile", "group", "k", "n"],
    )  # fmt: skip
    rows_here = here / op.operands[2].shape[0]  # as if groups were equally full
    rule = _with_rows(rule, prod(op.operands[0].shape) * op.results[0].shape[-1] * rows_here)
    forward = op.name == "megablox_gmm"
    return _travelling(rule, 0 if forward else 1, 0 if forward else None)


def _travelling(rule: Rule, ragged: int, groups: int | None) -> Rule:
    """The rule, with rows that may travel to their groups where both may be split.

    `groups`: their dim in the weights; None: they are the first dim of the result.
    """
    rows = rule.operands[0][ragged]
    of = rule.results[0][0] if groups is None else rule.operands[1][groups]
    if not rows or not of or REPLICATE in (rule.kinds[rows[0]], rule.kinds[of[0]]):
        return rule
    return replace(rule, travels=(rows[0], of[0]))


def _with_rows(rule: Rule, multiplications: float) -> Rule:
    """The rule with its FLOPs: groups divide the rows among them, no row is in several."""
    return replace(with_work(rule, 2.0 * multiplications), in_shards=True)
