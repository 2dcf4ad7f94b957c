"""Loops and branches: which operand becomes which input of which body, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from shardwright.program.ties import Kind, Tie

# A while loop does not say how often it runs; costs count it this many times.
ESTIMATED_TRIPS = 16


class Body(NamedTuple):
    """A body of a loop or branch."""

    kind: Kind
    jaxpr: Any
    trips: int
    consts: int | None = None  # leading inputs that are the same in every round; None: no rounds


class Port(NamedTuple):
    """An input or output of a body."""

    body: int
    number: int


class Entry(NamedTuple):
    """An operand and the inputs that it becomes, one of each body that gets it."""

    tie: Tie
    operand: int
    inputs: tuple[Port, ...]


class Exit(NamedTuple):
    """A result and the outputs that become it, one of each body that may give it."""

    tie: Tie
    result: int
    outputs: tuple[Port, ...]
    next_round: tuple[Port, ...] = ()  # inputs that get it in the next round, of the body first


class Borders(NamedTuple):
    """All that enters and leaves the bodies of a loop or branch."""

    bodies: tuple[Body, ...]
    entries: tuple[Entry, ...]
    exits: tuple[Exit, ...]
    branches_on: int | None = None  # the operand that says which body runs
    parameters: tuple[str, ...] = ()  # of the equation, that hold the bodies; one: all of them

    def with_bodies(self, jaxprs: Sequence[Any]) -> dict[str, Any]:
        """The equation's parameters for other bodies."""
        if self.branches_on is not None:
            return {self.parameters[0]: tuple(jaxprs)}
        return dict(zip(self.parameters, jaxprs, strict=True))


def _scan(eqn: Any) -> Borders:
    """consts and carries are one array inside and outside; xs and ys lose their leading dim."""
    consts, carries = eqn.params["num_consts"], eqn.params["num_carry"]
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
    bodies = (
        Body("while_cond", eqn.params["cond_jaxpr"], ESTIMATED_TRIPS),
        Body("while", eqn.params["body_jaxpr"], ESTIMATED_TRIPS, count),
    )
    return Borders(bodies, tuple(entries), tuple(exits), parameters=("cond_jaxpr", "body_jaxpr"))


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


BORDERS: dict[str, Callable[[Any], Borders]] = {"scan": _scan, "while": _while, "cond": _cond}
