"""Shardings in the user's code and on the arguments: what they say of the Program's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from shardwright.program.ties import Tie
from shardwright.program.types import Program, UserPin

# Primitives that only say how a value is split: the parameter, and what the user wrote.
PINS = {
    "sharding_constraint": ("sharding", "with_sharding_constraint"),
    "reshard": ("dst_sharding", "reshard"),
}
ARGUMENT = "sharding"  # who says so of an argument
HOST_MEMORY = "pinned_host"  # as shardings have it
OUT_SHARDINGS = ("out_sharding", "sharding")  # parameters of any other op under explicit axes


def user_pins(eqn: Any, results: Sequence[int], *, transposed: bool) -> Sequence[UserPin]:
    """What an equation says of how its result is split; a backward pass only repeats it."""
    if eqn.primitive.name in PINS:
        parameter, by = PINS[eqn.primitive.name]
        return (UserPin(results[0], eqn.params[parameter], by),)
    if transposed:
        return ()
    shardings = [eqn.params[p] for p in OUT_SHARDINGS if p in eqn.params]
    named = [s for s in shardings if isinstance(s, jax.sharding.NamedSharding)]
    return [UserPin(results[0], sharding, "out_sharding") for sharding in named]


def shard_map_pins(program: Program) -> list[UserPin]:
    """The specs of arguments that only shard_maps read, and that all of them split alike.

    Replicated, each device would slice them, which costs no time and much memory.
    """
    pins, uses = [], program.uses()
    for value in program.inputs:
        readers = [program.ops[i] for i in uses[value]]
        if not readers or any(op.tie is not Tie.MANUAL_IN for op in readers):
            continue
        specs = {op.eqn.params["in_specs"][op.position] for op in readers}
        if len(specs) == 1:
            mesh = readers[0].eqn.params["mesh"]
            sharding = jax.sharding.NamedSharding(mesh, specs.pop())
            pins.append(UserPin(value, sharding, "shard_map"))
    return pins


def argument_pins(inputs: Sequence[int], leaves: Sequence[Any]) -> list[UserPin]:
    """What arrays that are split already, and shapes with a sharding, say of the inputs."""
    rows = zip(inputs, (getattr(leaf, "sharding", None) for leaf in leaves), strict=True)
    return [
        UserPin(value, sharding, ARGUMENT)
        for value, sharding in rows
        if isinstance(sharding, jax.sharding.NamedSharding)
        and (any(sharding.spec) or sharding.memory_kind == HOST_MEMORY)
    ]
