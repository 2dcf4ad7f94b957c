"""Actions performed: one function for each kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from shardwright import _jax
from shardwright.lowering import actions as do
from shardwright.lowering.actions import Action, Unreduced
from shardwright.lowering.convolution import convolve
from shardwright.lowering.cudnn import CUDNN_ATTENTION, attention_on_shards
from shardwright.lowering.kernels import run_on_shards
from shardwright.lowering.movement import Mover
from shardwright.lowering.own_rows import keep_own_rows
from shardwright.lowering.partial import add_up, in_first_part, over_leading, split_dims
from shardwright.lowering.ragged import multiply
from shardwright.lowering.shards import after, on_shards, shard_shape, summed
from shardwright.lowering.slots import Recipe, Slot, all_invariant
from shardwright.lowering.workarounds import clamped_starts, sliced


@dataclass(slots=True)
class Site:
    """An op, or one side of a tie, while its actions are performed."""

    eqn: Any
    transposed: bool
    operands: list[Slot]
    results: list[Slot] = field(default_factory=list)

    @property
    def arrays(self) -> list[Any]:
        """The operands as arrays."""
        return [s.array for s in self.operands]


def perform(actions: Sequence[Action], site: Site, mover: Mover) -> None:
    """Performs all actions at a site, in order."""
    for action in actions:
        _PERFORM[type(action)](action, site, mover)


def _constrain(action: do.Constrain, site: Site, mover: Mover) -> None:
    slot = site.operands[action.operand]
    array = mover.constrained(slot, action, transposed=site.transposed)
    stays = action.sends and mover.in_loop
    site.operands[action.operand] = Slot(array, invariant=slot.invariant and not stays)


def _before_loop(action: do.BeforeLoop, site: Site, mover: Mover) -> None:
    (slot,) = site.operands
    site.operands = [Slot(mover.lead(slot.array, action.way))]


def _start_sum(action: do.StartSum, site: Site, mover: Mover) -> None:
    (slot,) = site.operands
    parts = in_first_part(slot.array, action.of.sizes)
    site.operands = [Slot(mover.lead(parts, (action.of.spec,)), unreduced=action.of)]


def _stay_in_loop(action: do.StayInLoop, site: Site, mover: Mover) -> None:
    if mover.in_loop and all_invariant(site.operands):
        site.operands = mover.kept_in_loop(site.operands)


def _clamp_starts(action: do.ClampStarts, site: Site, mover: Mover) -> None:
    arrays = clamped_starts(site.eqn, site.arrays)
    site.operands = [s._replace(array=a) for s, a in zip(site.operands, arrays, strict=True)]


def _compute(action: do.Compute, site: Site, mover: Mover) -> None:
    site.results = [Slot(a) for a in _jax.bind(site.eqn, site.arrays)]


def _rematerialize(action: do.Rematerialize, site: Site, mover: Mover) -> None:
    def make(arrays: Sequence[Any]) -> Any:
        return _jax.bind(site.eqn, list(arrays))[0]

    recipe = Recipe(make, site.operands, action.dims)
    site.results = [Slot(make(site.arrays), recipe=recipe)]


def _fill(action: do.Fill, site: Site, mover: Mover) -> None:
    type_ = site.eqn.outvars[0].aval
    equal = _jax.bind(site.eqn, site.arrays)[0] if action.reduces else site.arrays[0]
    number = equal[(0,) * equal.ndim]

    def make(numbers: Sequence[Any]) -> Any:
        return jnp.full(type_.shape, numbers[0], type_.dtype)

    site.results = [Slot(make([number]), recipe=Recipe(make, [Slot(number)], ((),)))]


def _pick_entries(action: do.PickEntries, site: Site, mover: Mover) -> None:
    site.results = [Slot(a) for a in sliced(site.eqn, site.arrays[0], action.dims)]


def _on_shards(action: do.OnShards, site: Site, mover: Mover) -> None:
    """Computes an op on the shards of each device, under shard_map."""
    shapes = [
        shard_shape(v.aval.shape, spec, mover.mesh)
        for v, spec in zip(site.eqn.outvars, action.results, strict=True)
    ]

    none: tuple[Any, ...] = ((),) * len(action.results)
    sums, scatter = action.sums or none, action.scatter or none

    def local(*shards: Any) -> list[Any]:
        if site.eqn.primitive.name in CUDNN_ATTENTION:
            results = attention_on_shards(site.eqn, shards, action.operands)
        elif _jax.library_call(site.eqn):
            results = [_jax.call_library(site.eqn.params, shards)]
        elif site.eqn.primitive.name == "pallas_call":
            specs = [*action.operands, *action.results]
            results = run_on_shards(site.eqn, shards, specs, shapes)
        else:
            results = _jax.bind(site.eqn, list(shards))
        return [summed(*one) for one in zip(results, sums, scatter, strict=True)]

    made = [after(spec, s) for spec, s in zip(action.results, scatter, strict=True)]
    whole = on_shards(local, mover.mesh, action.operands, made)
    site.results = [Slot(a) for a in whole(*site.arrays)]


def _convolve(action: do.Convolve, site: Site, mover: Mover) -> None:
    site.results = [Slot(convolve(site.eqn, site.arrays, action, mover.mesh))]


def _ragged_dot(action: do.RaggedDot, site: Site, mover: Mover) -> None:
    site.results = [Slot(multiply(site.eqn, site.arrays, action, mover.mesh))]


def _own_rows(action: do.OwnRows, site: Site, mover: Mover) -> None:
    site.results = [Slot(a) for a in keep_own_rows(site.eqn, site.arrays, action, mover.mesh)]


def _partial_sums(action: do.PartialSums, site: Site, mover: Mover) -> None:
    """Computes the partial sums of each device, along new leading dims."""
    sizes, axes = action.result.sizes, action.result.axes
    arrays = [
        split_dims(a, sizes, dims, _lead_leading(axes, dims, mover.mesh))
        for a, dims in zip(site.arrays, action.dims, strict=True)
    ]
    leading = [[d is not None for d in dims] for dims in action.dims]
    if action.onto:
        arrays[0] = in_first_part(arrays[0], sizes)
        leading[0] = [True] * len(axes)
    site.results = [_over_leading(site.eqn, leading, arrays, action.result, mover)]


def _pass_sums(action: do.PassSums, site: Site, mover: Mover) -> None:
    unreduced = next(s.unreduced for s in site.operands if s.unreduced).in_order(action.order)
    leading = [[s.unreduced is not None] * len(unreduced.axes) for s in site.operands]
    site.results = [_over_leading(site.eqn, leading, site.arrays, unreduced, mover)]


def _over_leading(
    eqn: Any, leading: list[list[bool]], arrays: list[Any], result: Unreduced, mover: Mover
) -> Slot:
    """The op on each of the partial sums."""
    (array,) = over_leading(lambda *xs: _jax.bind(eqn, list(xs)), leading, arrays)
    return Slot(mover.lead(array, (result.spec,)), unreduced=result)


def _lead_leading(
    axes: Sequence[str], dims: Sequence[int | None], mesh: Any
) -> Callable[[Any], Any]:
    """Constrains the leading dims of a split operand to their axes, and leaves the rest open."""
    split = [a for a, d in zip(axes, dims, strict=True) if d is not None]

    def constrain(array: Any) -> Any:
        open_dims = [PartitionSpec.UNCONSTRAINED] * (array.ndim - len(split))
        sharding = NamedSharding(mesh, PartitionSpec(*split, *open_dims))
        return jax.lax.with_sharding_constraint(array, sharding)

    return constrain


def _reduce(action: do.Reduce, site: Site, mover: Mover) -> None:
    """Adds up partial sums, and stores the sum."""
    ((array, _, unreduced, *_),) = site.results
    assert unreduced is not None
    merged = array.reshape(math.prod(unreduced.sizes), *array.shape[len(unreduced.axes) :])
    merged = mover.lead(merged, ((unreduced.axes, *unreduced.way[0]),))
    way = tuple(dict.fromkeys((*unreduced.way, action.store)))
    if unreduced.scatter:
        reduced = mover.lead(_scatter(merged, unreduced, mover.mesh), way[1:])
    else:
        reduced = mover.lead(add_up(merged), way)
    site.results = [Slot(reduced, stored=action.store)]


def _scatter(merged: Any, unreduced: Unreduced, mesh: Any) -> Any:
    """The sum over the leading dim, each device keeping its part of other dims."""
    produced, scatter = unreduced.way[0], unreduced.scatter

    def local(part: Any) -> Any:
        return summed(part[0], [unreduced.axes], scatter)

    return on_shards(local, mesh, [(unreduced.axes, *produced)], after(produced, scatter))(merged)


def _store(action: do.Store, site: Site, mover: Mover) -> None:
    array = site.results[action.result].array
    site.results[action.result] = Slot(mover.lead(array, action.way), stored=action.way[-1])


_PERFORM: dict[type, Callable[[Any, Site, Mover], None]] = {
    do.Constrain: _constrain, do.BeforeLoop: _before_loop, do.StartSum: _start_sum,
    do.StayInLoop: _stay_in_loop, do.ClampStarts: _clamp_starts, do.Compute: _compute,
    do.Rematerialize: _rematerialize,
    do.Fill: _fill,
    do.PickEntries: _pick_entries, do.OnShards: _on_shards, do.Convolve: _convolve,
    do.RaggedDot: _ragged_dot, do.OwnRows: _own_rows,
    do.PartialSums: _partial_sums, do.PassSums: _pass_sums, do.Reduce: _reduce, do.Store: _store,
}  # fmt: skip
