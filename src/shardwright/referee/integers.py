"""What the integer arguments of a program are for: indices, and of what; trips of a loop.

One forward pass over the jaxpr follows each integer argument through integers and booleans; an
integer that becomes a float is data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from shardwright import _jax
from shardwright.program.interpret import OUTSIDE, Place, enter
from shardwright.program.regions import Borders, Port
from shardwright.program.ties import Tie

Labels = frozenset[int]  # the arguments that a value is computed from
NONE: Labels = frozenset()


@dataclass(slots=True)
class Use:
    """What one integer argument does."""

    limits: set[int] = field(default_factory=set)  # how many positions there are to index
    promised: str = ""  # the line that says it is in range (mode="promise_in_bounds")
    counts_trips: bool = False  # it decides how long a while loop runs


def integer_uses(closed: Any) -> list[Use]:
    """The Use of each argument of a closed jaxpr; empty for what is no integer."""
    given = [frozenset({i}) for i in range(len(closed.jaxpr.invars))]
    follow = _Follow([Use() for _ in given])
    enter(follow, closed, _integers(closed.jaxpr.invars, given), OUTSIDE)
    return follow.uses


class _Follow:
    """The handlers of the walk that follow labels, and note what each argument is used for."""

    def __init__(self, uses: list[Use]) -> None:
        self.uses = uses

    def literal(self, value: Any) -> Labels:
        """No labels: a literal comes of no argument."""
        return NONE

    def constants(self, arrays: Sequence[Any]) -> list[Labels]:
        """No labels: constants come of no argument."""
        return [NONE] * len(arrays)

    def op(self, eqn: Any, operands: list[Labels], place: Place) -> list[Labels]:
        """Every result has the labels of all operands, unless a jaxpr inside says more."""
        for labels, limit in INDEXED.get(eqn.primitive.name, lambda *_: [])(eqn, operands):
            for i in labels if limit > 1 else NONE:  # one position is no choice
                self.uses[i].limits.add(limit)
                if eqn.params.get("mode") == jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS:
                    self.uses[i].promised = self.uses[i].promised or _line(eqn)
        for inner in eqn.params.values():
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                body, _ = _jax.open_jaxpr(inner)
                if len(body.invars) == len(operands) and len(body.outvars) == len(eqn.outvars):
                    return enter(self, inner, operands, place)
        return _integers(eqn.outvars, [frozenset().union(*operands)] * len(eqn.outvars))

    def call(self, eqn: Any, called: Any, operands: list[Labels], place: Place) -> list[Labels]:
        """The labels of the results of a call, by following its body."""
        return enter(self, called, operands, place)

    def region(
        self, eqn: Any, borders: Borders, operands: list[Labels], place: Place
    ) -> list[Labels]:
        """The labels of the results once another trip of a loop adds none."""
        inputs = {port: operands[e.operand] for e in borders.entries for port in e.inputs}
        outputs: dict[Port, Labels] = {}
        before: dict[Port, Labels] | None = None
        while inputs != before:
            before = dict(inputs)
            for b, body in enumerate(borders.bodies):
                given = [inputs[Port(b, i)] for i in range(len(body.jaxpr.in_avals))]
                for i, labels in enumerate(enter(self, body.jaxpr, given, place)):
                    outputs[Port(b, i)] = labels
            for leaves in borders.exits:
                for port in leaves.next_trip:
                    inputs[port] |= outputs[leaves.outputs[0]]
        branches_on = NONE if borders.branches_on is None else operands[borders.branches_on]
        for i in branches_on:
            self.uses[i].limits.add(len(borders.bodies))
        for i in outputs[Port(0, 0)] if borders.bodies[0].kind == "while_cond" else NONE:
            self.uses[i].counts_trips = True
        results = []
        for leaves in borders.exits:
            no_trip = leaves.next_trip if leaves.tie is Tie.WHILE_CARRY else ()
            from_bodies = (outputs[port] for port in leaves.outputs)
            results.append(branches_on.union(*from_bodies, *(inputs[port] for port in no_trip)))
        return _integers(eqn.outvars, results)


def _integers(variables: Sequence[Any], labels: Sequence[Labels]) -> list[Labels]:
    """The labels of integers and booleans; none of others."""
    rows = zip(variables, labels, strict=True)
    return [given if _is_integer(v.aval) else NONE for v, given in rows]


def _dynamic_slice(eqn: Any, into: list[Labels]) -> list[tuple[Labels, int]]:
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    return [(into[1 + d], shape[d] - sizes[d] + 1) for d in range(len(shape))]


def _dynamic_update_slice(eqn: Any, into: list[Labels]) -> list[tuple[Labels, int]]:
    shape, sizes = (v.aval.shape for v in eqn.invars[:2])
    return [(into[2 + d], shape[d] - sizes[d] + 1) for d in range(len(shape))]


def _gather(eqn: Any, into: list[Labels]) -> list[tuple[Labels, int]]:
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    indexed = eqn.params["dimension_numbers"].start_index_map
    return [(into[1], shape[d] - sizes[d] + 1) for d in indexed]


def _scatter(eqn: Any, into: list[Labels]) -> list[tuple[Labels, int]]:
    shape, numbers = eqn.invars[0].aval.shape, eqn.params["dimension_numbers"]
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = dict.fromkeys(single, 1)
    kept = [d for d in range(len(shape)) if d not in single]
    update = eqn.invars[2].aval.shape
    window |= {d: update[w] for d, w in zip(kept, numbers.update_window_dims, strict=True)}
    return [(into[1], shape[d] - window[d] + 1) for d in numbers.scatter_dims_to_operand_dims]


# (labels of an index, how many positions it may have) of each primitive that indexes.
INDEXED = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub"),
        _scatter,
    ),
}


def _is_integer(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and (jax.dtypes.issubdtype(dtype, np.integer) or dtype == np.bool_)


def _line(eqn: Any) -> str:
    return str(next(_jax.frames(eqn.source_info), "the program"))
