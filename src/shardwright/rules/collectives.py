"""Collectives in the body of a shard_map: what they move over which of its axes."""

from __future__ import annotations

from typing import Any

from shardwright.rules.registry import register
from shardwright.rules.rule import NOTHING, Collective, OpShape, Rule, einsum


@register("axis_index")
def _axis_index(op: OpShape) -> Rule:
    return einsum(op, [], [[]], unit=NOTHING, work=0.0)


@register("psum_invariant")
def named_reduction(op: OpShape) -> Rule:
    """psum, pmax and pmin over mesh axes: each operand is reduced."""
    dims = [op.dims(n) for n in range(len(op.operands))]
    axes = _axes(op.params["axes"])
    every = [Collective("all-reduce", axes, n) for n in range(len(dims))]
    return einsum(op, dims, dims, unit=NOTHING, work=0.0, collectives=every)


_SENT_AS_IT_IS = {"ppermute": "collective-permute", "pbroadcast": "collective-broadcast"}


@register(*_SENT_AS_IT_IS)
def _sent(op: OpShape) -> Rule:
    dims = op.dims(0)
    sent = Collective(_SENT_AS_IT_IS[op.name], _axes(op.params["axis_name"]), 0)
    return einsum(op, [dims], [dims], unit=NOTHING, work=0.0, collectives=[sent])


# How XLA spells each, and its larger side: the operand, or the result.
_RESIZED = {
    "all_gather": ("all-gather", -1), "all_gather_invariant": ("all-gather", -1),
    "reduce_scatter": ("reduce-scatter", 0), "all_to_all": ("all-to-all", 0),
}  # fmt: skip


@register(*_RESIZED)
def _resized(op: OpShape) -> Rule:
    """A collective that cuts or joins a dim.

    XLA gathers its operand over the axes that stay automatic, whichever dim they split (0.10.2).
    """
    before, after = op.dims(0), op.result_dims()
    kind, slot = _RESIZED[op.name]
    moved = Collective(kind, _axes(op.params["axis_name"]), slot)
    return einsum(
        op, [before], [after], replicate=[*before, *after], unit=NOTHING, work=0.0,
        collectives=[moved],
    )  # fmt: skip


@register("ragged_all_to_all")
def _ragged_all_to_all(op: OpShape) -> Rule:
    """Rows [rows, ...] into a buffer; as many as the smaller of the two holds are priced as sent.

    How many are sent is data. The larger of the two has room for the worst case.
    """
    rows, buffer, *numbers = (op.dims(n) for n in range(len(op.operands)))
    whole = [label for dims in (rows, buffer, *numbers) for label in dims]
    slot = 0 if op.operands[0].shape[0] <= op.results[0].shape[0] else -1
    sent = Collective("ragged-all-to-all", _axes(op.params["axis_name"]), slot)
    return einsum(
        op, [rows, buffer, *numbers], [buffer], replicate=whole, unit=NOTHING, work=0.0,
        collectives=[sent],
    )  # fmt: skip


def _axes(named: Any) -> tuple[str, ...]:
    """The axes of a parameter that is one name or several."""
    return tuple(named) if isinstance(named, tuple | list) else (named,)
