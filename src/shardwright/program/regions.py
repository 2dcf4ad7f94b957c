"""Loops, branches, shard_maps: which operand becomes which input of a body, and what comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.program.source import user_frame
from shardwright.program.ties import Kind, Tie

# Most while loops do not say how often they run; costs count those this many times (a
# guess, so that a loop's body outweighs what is outside; docs/limits.md says so).
ESTIMATED_TRIPS = 16


class Body(NamedTuple):
    """A body of a loop or branch."""

    kind: Kind
    jaxpr: Any
    trips: int
    consts: int | None = None  # leading inputs that are the same in every trip; None: no trips
    manual: tuple[str, ...] = ()  # of a shard_map: the mesh axes that are its own
    mesh: tuple[tuple[str, int], ...] = ()  # of a shard_map: all axes, with their sizes
    partial: bool = False  # of a shard_map: other axes stay automatic


class Port(NamedTuple):
    """An input or output of a body."""

    body: int
    number: int


class Split(NamedTuple):
    """What a spec of a shard_map says of one array."""

    dims: tuple[tuple[str, ...], ...]  # the axes that split each, major to minor
    manual: tuple[str, ...]  # all axes of the shard_map: it says so of no others
    partial: bool  # other axes of its mesh stay automatic, and split what is inside too


class Entry(NamedTuple):
    """An operand and the inputs that it becomes, one of each body that gets it."""

    tie: Tie
    operand: int
    inputs: tuple[Port, ...]
    split: Split | None = None


class Exit(NamedTuple):
    """A result and the outputs that become it, one of each body that may give it."""

    tie: Tie
    result: int
    outputs: tuple[Port, ...]
    next_trip: tuple[Port, ...] = ()  # inputs that get it in the next trip, of the body first
    split: Split | None = None


class Borders(NamedTuple):
    """All that enters and leaves the bodies of a loop or branch."""

    bodies: tuple[Body, ...]
    entries: tuple[Entry, ...]
    exits: tuple[Exit, ...]
    branches_on: int | None = None  # the operand that says which body runs
    parameters: tuple[str, ...] = ()  # of the equation, that hold the bodies; one: all of them
    changed: tuple[tuple[str, Any], ...] = ()  # other parameters of the equation

    def with_bodies(self, jaxprs: Sequence[Any]) -> dict[str, Any]:
        """The equation's parameters for other bodies."""
        if self.branches_on is not None:
            return {self.parameters[0]: tuple(jaxprs)}
        return {**dict(zip(self.parameters, jaxprs, strict=True)), **dict(self.changed)}


def _scan(eqn: Any) -> Borders:
    """consts and carries are one array inside and outside; xs and ys lose their leading dim."""
    consts, carries = _jax.scan_counts(eqn)
    stacks = len(eqn.invars) - consts - carries
    kinds = [Tie.SCAN_CONST] * consts + [Tie.SCAN_INIT] * carries + [Tie.SCAN_XS] * stacks
    entries = (Entry(tie, i, (Port(0, i),)) for i, tie in enumerate(kinds))
    exits = (
        Exit(Tie.SCAN_CARRY, i, (Port(0, i),), (Port(0, consts + i),)) if i < carries
        else Exit(Tie.SCAN_YS, i, (Port(0, i),))
        for i in range(len(eqn.outvars))
    )  # fmt: skip
    body = Body("scan", eqn.params["jaxpr"], eqn.params["length"], consts)
    return Borders((body,), tuple(entries), tuple(exits), parameters=("jaxpr",))


def _while(eqn: Any) -> Borders:
    """Carries are one array before, inside and after the loop."""
    first, count = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    carries = range(len(eqn.outvars))
    entries = chain(
        (Entry(Tie.WHILE_CONST, i, (Port(0, i),)) for i in range(first)),
        (Entry(Tie.WHILE_CONST, first + i, (Port(1, i),)) for i in range(count)),
        (
            Entry(Tie.WHILE_INIT, first + count + i, (Port(0, first + i), Port(1, count + i)))
            for i in carries
        ),
    )
    exits = (
        Exit(Tie.WHILE_CARRY, i, (Port(1, i),), (Port(1, count + i), Port(0, first + i)))
        for i in carries
    )
    trips = _counted_trips(eqn)
    bodies = (
        Body("while_cond", eqn.params["cond_jaxpr"], trips),
        Body("while", eqn.params["body_jaxpr"], trips, count),
    )
    return Borders(bodies, tuple(entries), tuple(exits), parameters=("cond_jaxpr", "body_jaxpr"))


def _counted_trips(eqn: Any) -> int:
    """The trips of a loop that counts up from a literal to below a literal; else an estimate."""
    cond, _ = _jax.open_jaxpr(eqn.params["cond_jaxpr"])
    body, _ = _jax.open_jaxpr(eqn.params["body_jaxpr"])
    carries = cond.invars[eqn.params["cond_nconsts"] :]
    test = _maker(cond, cond.outvars[0])
    if test is None or test.primitive.name != "lt" or test.invars[0] not in carries:
        return ESTIMATED_TRIPS
    at = carries.index(test.invars[0]) - len(carries)
    add = _maker(body, body.outvars[at])
    if add is None or add.primitive.name != "add" or add.invars[0] is not body.invars[at]:
        return ESTIMATED_TRIPS
    numbers = [eqn.invars[at], test.invars[1], add.invars[1]]
    if any(type(n) is not _jax.Literal or np.result_type(n.val).kind not in "iu" for n in numbers):
        return ESTIMATED_TRIPS
    start, stop, step = (int(n.val) for n in numbers)
    return max(0, math.ceil((stop - start) / step)) if step > 0 else ESTIMATED_TRIPS


def _maker(jaxpr: Any, result: Any) -> Any:
    """The equation that computes a result; None: it is handed through. Some compute nothing."""
    return next((e for e in jaxpr.eqns if any(v is result for v in e.outvars)), None)


def _cond(eqn: Any) -> Borders:
    """Every branch sees the same operands and gives the same results."""
    branches = range(len(eqn.params["branches"]))
    entries = (
        Entry(Tie.COND_OPERAND, 1 + i, tuple(Port(b, i) for b in branches))
        for i in range(len(eqn.invars) - 1)
    )
    exits = (
        Exit(Tie.COND_RESULT, i, tuple(Port(b, i) for b in branches))
        for i in range(len(eqn.outvars))
    )
    bodies = tuple(Body("cond", branch, 1) for branch in eqn.params["branches"])
    return Borders(bodies, tuple(entries), tuple(exits), 0, ("branches",))


def _shard_map(eqn: Any) -> Borders:
    """The body sees one device's shard of each operand, and gives one of each result."""
    mapped = _jax.shard_map_of(eqn)
    manual = mapped.manual

    def split(spec: Any, aval: Any) -> Split:
        named = (*spec, *[None] * (len(aval.shape) - len(spec)))
        axes = [() if d is None else d if isinstance(d, tuple) else (d,) for d in named]
        dims = tuple(tuple(a for a in dim if a in manual) for dim in axes)
        every = list(chain(*axes))
        twice = next((axis for axis in every if every.count(axis) > 1), None)
        if twice is not None:
            raise ShardwrightError(
                f"a shard_map splits an array twice over {twice!r}: its spec is {spec}",
                at=user_frame(eqn.source_info),
                try_="a spec that names each axis once",
            )
        return Split(dims, manual, mapped.partial)

    entries = (
        Entry(Tie.MANUAL_IN, i, (Port(0, i),), split(spec, v.aval))
        for i, (spec, v) in enumerate(zip(mapped.in_specs, eqn.invars, strict=True))
    )
    exits = (
        Exit(Tie.MANUAL_OUT, i, (Port(0, i),), split=split(spec, v.aval))
        for i, (spec, v) in enumerate(zip(mapped.out_specs, eqn.outvars, strict=True))
    )
    body = Body("shard_map", mapped.body, 1, None, manual, mapped.mesh, mapped.partial)
    return Borders((body,), tuple(entries), tuple(exits))


BORDERS: dict[str, Callable[[Any], Borders]] = {
    "scan": _scan, "while": _while, "cond": _cond, "shard_map": _shard_map,
}  # fmt: skip


def find_borders(eqn: Any, around: Any) -> Borders:
    """The borders of a loop, branch or shard_map among the equations of a jaxpr.

    Where all trips of a scan compute the same, one counts: compilers hoist such a body, with what
    it moves. One that stacks nothing runs once.
    """
    borders = BORDERS[eqn.primitive.name](eqn)
    if eqn.primitive.name != "scan" or not _repeats(eqn, around):
        return borders
    once = borders.bodies[0]._replace(trips=1)
    ties = {end.tie for end in borders.entries} | {end.tie for end in borders.exits}
    runs_once = ties.isdisjoint((Tie.SCAN_XS, Tie.SCAN_YS)) and eqn.params["unroll"] == 1
    return borders._replace(bodies=(once,), changed=(("length", 1),) if runs_once else ())


def _repeats(eqn: Any, around: Any) -> bool:
    """Whether what is used of a scan needs nothing that differs between trips."""
    if eqn.effects or eqn.params["length"] < 2:
        return False
    consts, _ = _jax.scan_counts(eqn)
    read = {id(v) for e in around.eqns for v in e.invars} | {id(v) for v in around.outvars}
    used = [id(v) in read for v in eqn.outvars]
    return any(used) and not any(_jax.needed_inputs(eqn.params["jaxpr"], used)[consts:])
