"""Linear algebra: leading batch dims pass, matrices need replication."""

from __future__ import annotations

import math
from typing import Any

from shardwright.rules.registry import register
from shardwright.rules.rule import MATRIX, OpShape, Rule, einsum, with_work

# Primitive -> (dims of one matrix in operand 0, operations per n^3, as LAPACK counts them).
_DECOMPOSITIONS = {
    "cholesky": (2, 1 / 3), "cholesky_update": (2, 0.0), "eig": (2, 25.0), "eigh": (2, 9.0),
    "geqrf": (2, 4 / 3), "geqp3": (2, 4 / 3), "qr": (2, 4 / 3), "householder_product": (2, 4 / 3),
    "ormqr": (2, 2.0), "hessenberg": (2, 10 / 3), "lu": (2, 2 / 3), "schur": (2, 25.0),
    "svd": (2, 20.0), "tridiagonal": (2, 4 / 3), "lu_pivots_to_permutation": (1, 0.0),
    "tridiagonal_solve": (1, 0.0),
}  # fmt: skip


@register(*_DECOMPOSITIONS)
def _decomposition(op: OpShape) -> Rule:
    """Batch dims pass through; the dims of the matrices need replication."""
    core, cubes = _DECOMPOSITIONS[op.name]
    shape = op.operands[0].shape
    batch = len(shape) - core
    replicated: list[Any] = []

    def labels(slot: int, rank: int) -> list[Any]:
        own = [("core", slot, d) for d in range(batch, rank)]
        replicated.extend(own)
        return [*range(batch), *own]

    operands = [labels(n, len(t.shape)) for n, t in enumerate(op.operands)]
    results = [labels(-1 - n, len(t.shape)) for n, t in enumerate(op.results)]
    n, matrices = float(shape[-1]), math.prod(shape[:batch])
    operations = cubes * n**3 if cubes else 10 * n**core
    return with_work(einsum(op, operands, results, replicate=replicated), matrices * operations)


@register("triangular_solve")
def _triangular_solve(op: OpShape) -> Rule:
    """Columns of the right-hand side are solved independently."""
    batch = list(range(len(op.operands[0].shape) - 2))
    solved = ["solved", "column"] if op.params["left_side"] else ["column", "solved"]
    return einsum(
        op, [[*batch, "row", "solved"], [*batch, *solved]], [[*batch, *solved]],
        replicate=["row", "solved"], unit=MATRIX, work=1.0, even=[*batch, "column"],
    )  # fmt: skip


@register("symmetric_product")
def _symmetric_product(op: OpShape) -> Rule:
    """alpha A A^T + beta C: the rows of A meet both dims of the result: need-replication."""
    batch = list(range(len(op.operands[0].shape) - 2))
    square = [*batch, "row", "column"]
    rule = einsum(
        op, [[*batch, "a", "k"], square], [square], reduce=["k"], replicate=["a"], unit=MATRIX
    )
    return with_work(rule, 2 * math.prod(op.results[0].shape) * op.operands[0].shape[-1])
