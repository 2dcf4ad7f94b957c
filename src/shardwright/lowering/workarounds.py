"""What XLA gets wrong or does badly under a sharding, and what is computed instead.

tests/lowering/test_workarounds.py has a program for each that shows what XLA does.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shardwright import _jax
from shardwright.lowering.specs import Spec
from shardwright.program.types import Op
from shardwright.spmd.ir import Partitioned


class Workaround(NamedTuple):
    """Something that XLA does, and what a plan does about it."""

    seen_in: str  # the version of jaxlib; of libtpu where only the TPU compiler does it
    what: str
    instead: str
    primitives: tuple[str, ...] = ()  # those that it is about, where it is about some


# Each has a test under its name that fails when XLA no longer needs it.
WORKAROUNDS = {
    "merged starts": Workaround(
        "jaxlib 0.10.2",
        "merges a slice with the one that takes a device's shard of its result and clamps the sum"
        " of both starts: a start beyond the end reads other entries than without a mesh; a gather"
        " of which each device has one slice is such a slice too",
        "ClampStarts", ("dynamic_slice", "dynamic_update_slice", "gather"),
    ),
    "entry held alone": Workaround(
        "jaxlib 0.10.2",
        "makes a program that its own verifier refuses where a dim of which every device holds one"
        " entry is sliced to one entry, and gathered for another use",
        "PickEntries", ("slice",),
    ),
    "entry of another device": Workaround(
        "jaxlib 0.10.2",
        "sends an entry that is sliced from a split dim to the first device, before it sums what"
        " all of them have",
        "PickEntries", ("slice",),
    ),
    "stride of one entry": Workaround(
        "jaxlib 0.10.2",
        "makes a program that its own verifier refuses where a split dim is sliced to one entry by"
        " a stride that leads out of it",
        "PickEntries", ("slice",),
    ),
    "gathers what is in place": Workaround(
        "jaxlib 0.10.2", "gathers operands although every shard can be computed where it is",
        "OnShards", ("fft", "top_k", "triangular_solve"),
    ),
    "convolutions": Workaround(
        "jaxlib 0.10.2",
        "computes wrong numbers when positions and output channels are both split, and gathers"
        " images whose groups of channels are split",
        "Convolve", ("conv_general_dilated",),
    ),
    "reduces axis by axis": Workaround(
        "jaxlib 0.10.2", "reduces a dot over two axes in two all-reduces", "PartialSums"
    ),
    "reduces in every trip": Workaround(
        "jaxlib 0.10.2", "reduces in every trip what a loop only adds up", "PartialSums, StartSum"
    ),
    "one gather for both passes": Workaround(
        "jaxlib 0.10.2",
        "merges a gather of the backward pass with that of the forward pass, and keeps the copy",
        "a barrier before what is sent again: Mover.constrained",
    ),
    "gathers before the loop": Workaround(
        "jaxlib 0.10.2",
        "on CPUs gathers once, before a loop, what every trip needs, and keeps the copy; and"
        " computes there what is the same in every trip, with what it moves",
        "a barrier with a value of the trip: Mover.constrained, StayInLoop",
    ),
    "scattered dim must lead": Workaround(
        "libtpu 0.0.51",
        "on TPUs reduces the whole where the dim that is cut does not lead and its shards are no"
        " multiple of 256",
        "scattered",
    ),
    "uneven entries": Workaround(
        "jaxlib 0.10.2",
        "aborts where gathers and scatters are split along a batch that the devices do not divide",
        "`even` factors in the rules of gathers and scatters",
    ),
}  # fmt: skip


def needs_clamp(op: Op) -> bool:
    """Whether an op reads or writes slices whose starts XLA may merge with others.

    A slice of one entry is not cut further, and `fill` masks those that have no room.
    """
    if op.name == "gather":
        indexed = op.eqn.params["dimension_numbers"].start_index_map
        clamps = op.eqn.params["mode"] != jax.lax.GatherScatterMode.FILL_OR_DROP
        return clamps and any(op.eqn.params["slice_sizes"][d] > 1 for d in indexed)
    return op.name in WORKAROUNDS["merged starts"].primitives


def clamped_starts(eqn: Any, args: list[Any]) -> list[Any]:
    """The operands of a dynamic (update) slice or gather, with starts that leave room for it."""
    if eqn.primitive.name == "gather":
        indexed = eqn.params["dimension_numbers"].start_index_map
        room = [eqn.invars[0].aval.shape[d] - eqn.params["slice_sizes"][d] for d in indexed]
        return [args[0], _clamp(args[1], room)]
    first = 1 if eqn.primitive.name == "dynamic_slice" else 2
    whole = eqn.invars[0].aval.shape
    part = eqn.outvars[0].aval.shape if first == 1 else eqn.invars[1].aval.shape
    starts = [_clamp(start, n - m) for start, n, m in zip(args[first:], whole, part, strict=True)]
    return [*args[:first], *starts]


def _clamp(start: Any, most: int | list[int]) -> Any:
    """Starts from 0 to the most; a list has one for each entry of the last dim."""
    dtype = jnp.result_type(start)
    last = np.minimum(most, jnp.iinfo(dtype).max)
    return jnp.clip(start, jnp.array(0, dtype), jnp.array(last, dtype))


def picked_dims(given: Partitioned, op: Op, spec: Spec) -> tuple[tuple[int, int], ...]:
    """(dim, shards) of a slice's operand, for the split dims of which it takes one entry."""
    array = given.program.values[op.operands[0]]
    if _jax.is_extended(array.dtype):
        return ()
    start, limit = op.eqn.params["start_indices"], op.eqn.params["limit_indices"]
    sizes = dict(given.axes)
    shards = [prod(sizes[a] for a in axes) for axes in spec]
    return tuple(
        (d, n) for d, n in enumerate(shards)
        if n > 1 == limit[d] - start[d] and array.shape[d] % n == 0
    )  # fmt: skip


def takes_one_by_stride(op: Op) -> bool:
    """Whether a slice takes one entry of a dim, and names a stride for it."""
    shape, strides = op.eqn.outvars[0].aval.shape, op.eqn.params["strides"] or ()
    return any(n == 1 < stride for n, stride in zip(shape, strides, strict=False))


def sliced(eqn: Any, array: Any, picked: tuple[tuple[int, int], ...]) -> list[Any]:
    """The result of a slice; of an entry of a split dim, the sum with zeros of other devices."""
    start, limit = list(eqn.params["start_indices"]), list(eqn.params["limit_indices"])
    strides = list(eqn.params["strides"] or [1] * len(start))
    for d, n in enumerate(eqn.outvars[0].aval.shape):
        if n == 1:
            limit[d], strides[d] = start[d] + 1, 1
    places = {d: (shards, start[d]) for d, shards in picked}
    for d in places:
        start[d], limit[d] = 0, array.shape[d]
    (cut,) = _jax.bind(
        eqn, [array], start_indices=tuple(start), limit_indices=tuple(limit), strides=tuple(strides)
    )
    return [_picked(cut, places) if places else cut]


def _picked(array: Any, places: dict[int, tuple[int, int]]) -> Any:
    """One entry of each of these dims, {dim: (shards, place)}.

    Each device takes the one of its own that stands where that stands; all but one are zero. As
    float8_e8m0fnu has no zero, the narrowest floats are added as the integers of their bits.
    """
    holders = {}
    for dim, (shards, place) in places.items():
        local = array.shape[dim] // shards
        holders[dim], own = divmod(place, local)
        cut = array.reshape(*array.shape[:dim], shards, local, *array.shape[dim + 1 :])
        array = jax.lax.index_in_dim(cut, own, dim + 1, keepdims=False)
    dtype = array.dtype
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits <= 8:
        array = jax.lax.bitcast_convert_type(array, f"uint{jnp.finfo(dtype).bits}")
    zero = jnp.zeros((), array.dtype)
    for dim, holder in holders.items():
        here = jax.lax.broadcasted_iota(jnp.int32, array.shape, dim) == holder
        array = jnp.where(here, array, zero)
    add = jax.lax.bitwise_or if array.dtype == bool else jax.lax.add
    summed = jax.lax.reduce(array, zero, add, tuple(places))
    if summed.dtype != dtype:
        summed = jax.lax.bitcast_convert_type(summed, dtype)
    return jnp.expand_dims(summed, tuple(places))


def scattered(term: Any, axes: tuple[str, ...], dim: int) -> Any:
    """A device's shard of the sum of the terms over axes, cut along a dim, which leads."""
    leading = jnp.moveaxis(term, dim, 0)
    cut = jax.lax.psum_scatter(leading, axes, scatter_dimension=0, tiled=True)
    return jnp.moveaxis(cut, 0, dim)
