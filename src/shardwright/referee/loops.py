"""How often each instruction of a compiled program runs in one step."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from shardwright.program.regions import ESTIMATED_TRIPS
from shardwright.referee.hlo import Computation, Instruction, Module

_KNOWN_TRIPS = re.compile(r'"known_trip_count":\s*\{\s*"n":\s*"?(\d+)')
_TRANSPARENT = {"copy", "bitcast", "convert", "reshape", "copy-done", "copy-start", "opt-barrier"}


class Run(NamedTuple):
    """An instruction and how often one step runs it."""

    computation: Computation
    instruction: Instruction
    times: int
    known: bool  # False below a while loop whose trip count the program does not know
    caller: Instruction | None = None  # what runs its computation; None in the entry


def runs(
    module: Module, wanted: Callable[[Computation, Instruction], bool], *,
    enter: Callable[[Instruction], bool] = lambda row: True,
) -> list[Run]:  # fmt: skip
    """Every wanted instruction, from the entry through loops, all branches and calls.

    `enter` says which calls to look into.
    """
    memo: dict[str, list[Run]] = {}

    def below(name: str) -> list[Run]:
        """The runs in a computation and in all that it calls, for one run of it; memoised."""
        if name not in memo:
            memo[name] = []  # a computation never calls itself; stay finite if the text says so
            computation = module.computation(name)
            found: list[Run] = []
            for row in computation.instructions.values():
                if wanted(computation, row):
                    found.append(Run(computation, row, 1, True))
                for branches, times, known in calls(module, computation, row) if enter(row) else ():
                    found += [
                        Run(
                            run.computation, run.instruction, run.times * times,
                            run.known and known, run.caller or row,
                        )
                        for run in chain(*map(below, branches))
                    ]  # fmt: skip
            memo[name] = found
        return memo[name]

    return below(module.entry)


def calls(
    module: Module, computation: Computation, row: Instruction
) -> list[tuple[tuple[str, ...], int, bool]]:
    """(alternative callees, times, whether times is known) of one instruction."""
    if row.opcode == "while":
        trips = trip_count(module, computation, row)
        times = ESTIMATED_TRIPS if trips is None else trips
        return [(row.callees(part), times, trips is not None) for part in ("condition", "body")]
    if row.opcode == "conditional":
        branches = row.callees("branch_computations") or (
            row.callees("true_computation") + row.callees("false_computation")
        )
        return [(branches, 1, True)]
    if row.opcode.removesuffix("-start") in _CALLERS:  # TPU offload prints `call-start`
        callees = [name for kind in _CALL_ATTRIBUTES for name in row.callees(kind)]
        return [((name,), 1, True) for name in callees]
    return []


_CALLERS = ("fusion", "call", "async", "custom-call")
_CALL_ATTRIBUTES = ("calls", "to_apply", "called_computations")


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """The trips of a while loop: what XLA noted, or what its condition compares; else None."""
    if noted := _KNOWN_TRIPS.search(loop.attributes):
        return int(noted[1])
    (condition_name,), (body_name,) = loop.callees("condition"), loop.callees("body")
    condition, body = module.computations[condition_name], module.computations[body_name]
    scope = _Scope(condition, {0: (_Scope(computation), loop.operands[0])})
    scope, test = _inside_fusion(module, scope, condition.root)
    if test.opcode != "compare" or len(test.operands) != 2:
        return None
    direction = test.attribute("direction")
    counter, limit = test.operands
    index = _carry_index(scope, counter)
    if index is None:  # the constant may be written first
        index, counter, limit = _carry_index(scope, limit), limit, counter
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction or "", direction)
    first, last = _value(scope, counter), _value(scope, limit)
    if index is None or first is None or last is None:
        return None
    step = _step(module, body, index)
    span = last - first + {"LE": 1, "GE": -1}.get(direction or "", 0)
    return max(0, -(-span // step)) if step else None


@dataclass
class _Scope:
    """A computation and what its parameters stand for outside it."""

    computation: Computation
    bound: dict[int, tuple[_Scope, str]] = field(default_factory=dict)


def _inside_fusion(module: Module, scope: _Scope, row: Instruction) -> tuple[_Scope, Instruction]:
    """The root that computes a value, looking into fusions and calls."""
    while row.opcode in ("fusion", "call", *_TRANSPARENT):
        if row.opcode in _TRANSPARENT:
            row = scope.computation.instructions[row.operands[0]]
            continue
        callee = module.computations[(row.callees("calls") + row.callees("to_apply"))[0]]
        bound = {position: (scope, name) for position, name in enumerate(row.operands)}
        scope, row = _Scope(callee, bound), callee.root
    return scope, row


def _source(scope: _Scope, name: str) -> tuple[_Scope, Instruction, int | None]:
    """Where a scalar comes from: (scope, row, tuple index) after copies, tuples and parameters."""
    index: int | None = None
    while True:
        row = scope.computation.instructions.get(name)
        if row is None:
            return scope, Instruction(name, "", "unknown", (), "", "", False), index
        if row.opcode in _TRANSPARENT and row.operands:
            name = row.operands[0]
        elif row.opcode == "get-tuple-element" and index is None:
            index, name = int(row.attribute("index") or 0), row.operands[0]
        elif row.opcode == "tuple" and index is not None:
            name, index = row.operands[index], None
        elif row.opcode == "parameter" and int(row.arguments) in scope.bound:
            scope, name = scope.bound[int(row.arguments)]
        else:
            return scope, row, index


def _value(scope: _Scope, name: str) -> int | None:
    """The integer a scalar holds when the loop starts, when the text says it."""
    _, row, _ = _source(scope, name)
    is_integer = row.opcode == "constant" and re.fullmatch(r"-?\d+", row.arguments)
    return int(row.arguments) if is_integer else None


def _carry_index(scope: _Scope, name: str) -> int | None:
    """Which element of the loop's carry a scalar of the condition is, if it is one."""
    while True:
        row = scope.computation.instructions[name]
        if row.opcode in _TRANSPARENT:
            name = row.operands[0]
        elif row.opcode == "get-tuple-element":
            return int(row.attribute("index") or 0)
        elif row.opcode == "parameter" and int(row.arguments) in scope.bound:
            scope, name = scope.bound[int(row.arguments)]
        else:
            return None


def _step(module: Module, body: Computation, index: int) -> int | None:
    """What one trip adds to the counter, 1 unless the body says otherwise; None: what it computes.

    A loop that decodes several tokens at a time adds as many as it accepted.
    """
    if body.root.opcode != "tuple":
        return 1
    row = body.instructions[body.root.operands[index]]
    scope, row = _inside_fusion(module, _Scope(body), row)
    if row.opcode not in ("add", "subtract"):
        return 1
    steps = [step for name in row.operands if (step := _value(scope, name)) is not None]
    computed = {_source(scope, name)[1].opcode for name in row.operands} - {"constant", "parameter"}
    if computed:
        return None
    return 1 if len(steps) != 1 else steps[0] if row.opcode == "add" else -steps[0]
