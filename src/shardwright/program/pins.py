"""Shardings in the user's code: what they say of the Program's values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from shardwright.program.types import UserPin

# Primitives that only say how a value is split: the parameter, and what the user wrote.
PINS = {
    "sharding_constraint": ("sharding", "with_sharding_constraint"),
    "reshard": ("dst_sharding", "reshard"),
}
OUT_SHARDINGS = ("out_sharding", "sharding")  # parameters of any other op under explicit axes


def user_pins(eqn: Any, results: Sequence[int], *, transposed: bool) -> Iterator[UserPin]:
    """What an equation says of how its result is split; a backward pass only repeats it."""
    name = eqn.primitive.name
    if name in PINS:
        parameter, by = PINS[name]
        yield UserPin(results[0], eqn.params[parameter], by)
    elif not transposed:
        for parameter in OUT_SHARDINGS:
            sharding = eqn.params.get(parameter)
            if isinstance(sharding, jax.sharding.NamedSharding):
                yield UserPin(results[0], sharding, "out_sharding")
