"""Rows that travel to the device of their group, are multiplied there, and come back.

Each device has rows of all groups, in order, and some groups. How many rows go where is data:
every device has room for all of them. Rows of a group arrive behind each other, those of the first
device first, so that nothing is sorted again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Tickets(NamedTuple):
    """From where to where rows go, as `jax.lax.ragged_all_to_all` is told.

    Entry i * m + j is of the j-th of m parts that go to, or come from, the device i.
    """

    from_: jax.Array  # the first row of each part that goes
    sent: jax.Array  # rows of each
    to: jax.Array  # where on the other device its first row goes
    come: jax.Array  # rows of each part that comes


def multiply_there(
    multiply: Callable[..., Any], operands: Sequence[Any], row_dims: Sequence[int | None],
    sizes: Any, axis: str,
) -> Any:  # fmt: skip
    """What `multiply(*operands, sizes)` gives of each device's groups; rows of it come back.

    `row_dims`: where operands, then the result, have rows; None: they have this device's groups.
    The rows are in order, `sizes` of them in each of all groups.
    """
    *dims, result_dim = row_dims
    devices = jax.lax.axis_size(axis)
    there, back, here = _tickets(sizes, axis, devices)
    several = list(zip(operands, dims, strict=True))
    (count, *_) = (x.shape[d] for x, d in several if d is not None)
    came = [
        x if d is None else _send(x, d, there, devices * count, axis) for x, d in several
    ]  # fmt: skip
    out = multiply(*came, here)
    return out if result_dim is None else _send(out, result_dim, back, count, axis)


def _tickets(sizes: Any, axis: str, devices: int) -> tuple[Tickets, Tickets, Any]:
    """The way there, the way back, and how many rows are then of each group here."""
    sizes = sizes.astype(jnp.int32)
    every = jax.lax.all_gather(sizes, axis)  # [from, groups]
    mine = jax.lax.axis_index(axis)

    def of_mine(numbers: Any) -> Any:
        """[from * groups here] of numbers [from, groups]."""
        return numbers.reshape(devices, devices, -1)[:, mine].reshape(-1)

    starts = _before(every, 1)  # [from, groups] on the device where rows are from
    arrive = _before(every, 0) + _before(every.sum(0).reshape(devices, -1), 1).reshape(-1)
    there = Tickets(starts[mine], sizes, arrive[mine], of_mine(every))
    back = Tickets(of_mine(arrive), of_mine(every), of_mine(starts), sizes)
    return there, back, of_mine(every).reshape(devices, -1).sum(0)


def _before(numbers: Any, dim: int) -> Any:
    """The sums of all entries before each."""
    return jnp.cumsum(numbers, dim, dtype=numbers.dtype) - numbers


def _send(x: Any, dim: int, tickets: Tickets, count: int, axis: str) -> Any:
    """The rows that come, among `count` of which the others are zero."""
    x = jnp.moveaxis(x, dim, 0)
    buffer = jax.lax.empty((count, *x.shape[1:]), x.dtype)  # zeros cost more than the rows

    def send(x: Any, buffer: Any, *tickets: Any) -> Any:
        return jax.lax.ragged_all_to_all(x, buffer, *tickets, axis_name=axis)

    def by_hand(x: Any, buffer: Any, *tickets: Any) -> Any:
        return _by_hand(x, buffer, Tickets(*tickets), axis)

    out = jax.lax.platform_dependent(x, buffer, *tickets, cpu=by_hand, default=send)
    came = jnp.arange(count) < jnp.sum(tickets.come)  # one behind the other, from the first on
    out = jnp.where(came.reshape(-1, *[1] * (out.ndim - 1)), out, 0)
    return jnp.moveaxis(out, 0, dim)


def _by_hand(x: Any, buffer: Any, tickets: Tickets, axis: str) -> Any:
    """A ragged all-to-all of other collectives: XLA:CPU has none.

    Rows are gathered, or sums of what all devices put in place are scattered: whichever is less.
    """
    devices, rows = jax.lax.axis_size(axis), jnp.arange(len(x))[:, None]
    within = (rows >= tickets.from_) & (rows < tickets.from_ + tickets.sent)  # [rows, parts]
    part, goes = jnp.argmax(within, 1), jnp.any(within, 1)
    device = jnp.where(goes, part // (len(tickets.sent) // devices), devices)
    place = tickets.to[part] + rows[:, 0] - tickets.from_[part]
    if len(buffer) > len(x):
        x, device, place = (jax.lax.all_gather(a, axis, tiled=True) for a in (x, device, place))
        place = jnp.where(device == jax.lax.axis_index(axis), place, len(buffer))
        return buffer.at[place].set(x, mode="drop")
    out = jnp.zeros((devices, *buffer.shape), buffer.dtype)
    out = out.at[device, place].set(x, mode="drop")
    return jax.lax.psum_scatter(out, axis, scatter_dimension=0)
