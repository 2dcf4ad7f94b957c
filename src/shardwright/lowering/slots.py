"""What a value is while a plan is applied: an array, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shardwright.lowering.actions import Unreduced
from shardwright.lowering.specs import Spec


class Slot(NamedTuple):
    """An array in the walk."""

    array: Any
    literal: bool = False  # of the jaxpr
    unreduced: Unreduced | None = None  # leading dims that still have to be summed
    recipe: Recipe | None = None  # of a constant subgraph
    invariant: bool = False  # the same in every trip of the loop around it
    stored: Spec | None = None  # its sharding, where it is constrained to one


class Recipe(NamedTuple):
    """How to compute a constant subgraph again: any device can compute any shard of it."""

    make: Callable[[Sequence[Any]], Any]  # of the arrays of its operands
    operands: list[Slot]
    dims: tuple[tuple[int | None, ...], ...]  # [operands][dims] the result's dim


def all_invariant(operands: Sequence[Slot]) -> bool:
    """Whether what is computed from these is the same in every trip of the loop around."""
    return all(s.invariant or s.literal for s in operands)
