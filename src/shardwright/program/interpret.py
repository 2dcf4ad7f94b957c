"""The one walk over a jaxpr, for everything that reads programs: tracing and lowering.

Equations come in order. A call is handed over with what it calls, a loop or branch with its
borders, and what JAX itself opens when it lowers a program is opened here; all the rest are ops.
Each equation has a key that is the same whenever the same function is traced: the way to it
through the equations around it. What a value is (a number of a Program, an array) is up to the
handlers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from shardwright import _jax
from shardwright._jax import lowerings
from shardwright.program.exported import opened_export
from shardwright.program.regions import BORDERS, Borders, find_borders
from shardwright.program.ties import Tie
from shardwright.rules.registry import CALLS, USER_RULES

T = TypeVar("T")

# Of an equation: its number, after those of the calls around it and of the loops, each with the
# number of the body. Of a tie: its loop's, what it joins, and the operand or result.
Key = tuple[int | Tie, ...]

REMAT = "remat2"
# Calls with derivatives or batching of their own, which expect the arguments and results they had.
CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vmap_call")
# Equations whose results are their operands, with other types: ops to a compiler, not to a plan.
RETYPED = ("pvary",)


def op_name(eqn: Any) -> str:
    """What an equation that is an op computes: a primitive, or a function of a library."""
    return _jax.library_call(eqn) or str(eqn.primitive.name)


class Place(NamedTuple):
    """Where an equation stands."""

    key: Key = ()
    transposed: bool = False  # in a backward pass: names inside a call or loop start afresh
    caller: Any = None  # the equation in the user's code that called JAX's own code

    def within(self, eqn: Any, by_jax: bool) -> Place:
        """The place as what the equation calls sees it; what JAX wrote is its caller's."""
        return self._replace(caller=eqn) if by_jax and self.caller is None else self

    def body(self, number: int) -> Place:
        """Inside a body of the loop or branch that stands here."""
        return self._replace(key=(*self.key, number))

    def tie(self, tie: Tie, number: int) -> Key:
        """The key of a tie of the loop or branch that stands here."""
        return (*self.key, tie, number)


OUTSIDE = Place()


class Handlers(Protocol[T]):
    """What to do with each kind of equation; all return one value per result."""

    def literal(self, number: Any) -> T: ...

    def constants(self, arrays: Sequence[Any]) -> list[T]: ...

    def op(self, eqn: Any, operands: list[T], place: Place) -> list[T]: ...

    def call(self, eqn: Any, called: Any, operands: list[T], place: Place) -> list[T]:
        """A call, or what it calls in its place: see `enter`."""
        ...

    def region(self, eqn: Any, borders: Borders, operands: list[T], place: Place) -> list[T]:
        """A loop or branch."""
        ...


def interpret(
    handlers: Handlers[T], jaxpr: Any, inputs: Sequence[T], around: Place = OUTSIDE
) -> list[T]:
    """The results of a jaxpr whose constants and arguments are `inputs`."""
    env: dict[Any, T] = dict(zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True))
    literal, is_literal = handlers.literal, _jax.Literal
    key, backward, caller = around
    for number, eqn in enumerate(jaxpr.eqns):
        operands = [literal(v.val) if type(v) is is_literal else env[v] for v in eqn.invars]
        name = eqn.primitive.name
        transposed = backward or _jax.is_transposed(eqn.source_info.name_stack)
        place = Place((*key, number), transposed, caller)
        if _jax.library_call(eqn):
            results = handlers.op(eqn, operands, place)
        elif name in CALLS and CALLS[name] in eqn.params:
            called = eqn.params[CALLS[name]]
            by_jax = _jax.written_by_jax(_jax.open_jaxpr(called)[0])
            results = handlers.call(eqn, called, operands, place.within(eqn, by_jax))
        elif name not in USER_RULES and (opened := _opened(eqn)) is not None:
            results = enter(handlers, opened, operands, place.within(eqn, True))
        elif name in BORDERS:
            results = handlers.region(eqn, find_borders(eqn, jaxpr), operands, place)
        elif name == "custom_linear_solve":
            results = enter(handlers, *_solve(eqn, operands), place)
        else:
            results = handlers.op(eqn, operands, place)
        env.update(zip(eqn.outvars, results, strict=True))
    return [literal(v.val) if type(v) is is_literal else env[v] for v in jaxpr.outvars]


def enter(handlers: Handlers[T], called: Any, operands: Sequence[T], place: Place) -> list[T]:
    """The results of a jaxpr, open or closed, in the place of an equation."""
    jaxpr, consts = _jax.open_jaxpr(called)
    return interpret(handlers, jaxpr, [*handlers.constants(consts), *operands], place)


def _opened(eqn: Any) -> Any:
    """The jaxpr that stands for an equation, where that is no op, call or region itself."""
    exported = eqn.primitive.name == "call_exported"
    return opened_export(eqn) if exported else lowerings.opened(eqn)


def _solve(eqn: Any, operands: list[T]) -> tuple[Any, list[T]]:
    """What a custom_linear_solve computes, and on what: its other functions are derivatives."""
    lengths = eqn.params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    own = operands[start : start + lengths.solve]
    right = operands[start + lengths.solve + lengths.transpose_solve :]
    return eqn.params["jaxprs"].solve, [*own, *right]
