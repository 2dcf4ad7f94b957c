"""Reductions: reduced dims are reduction factors, the others pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.rules.collectives import named_reduction
from shardwright.rules.registry import register
from shardwright.rules.rule import OpShape, Rule, einsum, opaque_rule

_KINDS: dict[str, str | None] = {
    "reduce_sum": "add", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "mul",
    "reduce_and": "and", "reduce_or": "or", "argmax": "argmax", "argmin": "argmin",
    "reduce_xor": None,  # no all-reduce of that kind
}  # fmt: skip
# Bodies of a reduction that are one primitive, and the kinds of that name.
_BODIES = ("add", "max", "min", "mul", "and", "or")


def _reduce(op: OpShape, axes: tuple[int, ...], kind: str | None, tensors: int = 1) -> Rule:
    """The rule of a reduction over `axes`; without a kind the axes need replication."""
    dims: list[Any] = list(range(len(op.operands[0].shape)))
    kept = [d for d in dims if d not in axes]
    operands = [dims] * tensors + [[]] * (len(op.operands) - tensors)  # then initial values
    if kind in ("and", "or") and op.operands[0].dtype != np.bool_:
        kind = None  # XLA:CPU and XLA:GPU have no bitwise all-reduce
    return einsum(
        op, operands, [kept] * len(op.results),
        reduce={} if kind is None else dict.fromkeys(axes, kind),
        replicate=axes if kind is None else (),
        linear=(0,) if op.name == "reduce_sum" else (),
        even=axes if kind in ("argmax", "argmin") else (),
    )  # fmt: skip


@register(*_KINDS)
def _reduction(op: OpShape) -> Rule:
    return _reduce(op, tuple(op.params["axes"]), _KINDS[op.name])


@register("psum", "pmax", "pmin")
def _named_reduction(op: OpShape) -> Rule:
    """Over mesh axes in a shard_map; vmap(axis_name=...) makes a dim of an axis: a plain one."""
    axes = op.params["axes"]
    if all(isinstance(a, str) for a in axes):
        return named_reduction(op)
    if not all(isinstance(a, int) for a in axes) or op.params.get("axis_index_groups"):
        return opaque_rule(op)
    kind = {"psum": "add", "pmax": "max", "pmin": "min"}[op.name]
    operands = [op.dims(i) for i in range(len(op.operands))]
    results = [[d for n, d in enumerate(dims) if n not in axes] for dims in operands]
    reduced = {dims[a]: kind for dims in operands for a in axes}
    linear = (0,) if op.name == "psum" and len(operands) == 1 else ()
    return einsum(op, operands, results, reduce=reduced, linear=linear)


@register("reduce")
def _general_reduce(op: OpShape) -> Rule:
    # Anything but one known operation is a reduction that no all-reduce performs.
    body = getattr(op.params["jaxpr"], "jaxpr", op.params["jaxpr"])
    tensors = len(op.operands) // 2
    kind = None
    if tensors == 1 and len(body.eqns) == 1:
        (eqn,) = body.eqns
        alone = eqn.outvars == body.outvars and set(eqn.invars) == set(body.invars)
        kind = eqn.primitive.name if alone and eqn.primitive.name in _BODIES else None
    return _reduce(op, tuple(op.params["dimensions"]), kind, tensors)
