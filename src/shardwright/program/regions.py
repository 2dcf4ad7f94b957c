"""Loops and branches: bodies become regions, tied to the values around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shardwright import _jax
from shardwright.program.ties import Tie
from shardwright.program.types import LITERAL
from shardwright.rules.rule import NOTHING, Rule

if TYPE_CHECKING:
    from shardwright.program.tracing import Walk

# A while loop does not say how often it runs; costs count it this many times.
ESTIMATED_TRIPS = 16

_NO_DIMS = Rule((), (), (), (), NOTHING, 0.0)
_SCALAR = Rule(((),), (), (), (), NOTHING, 0.0)


def _region_op(
    walk: Walk, eqn: Any, body: Sequence[int], branch_on: int | None = None
) -> list[int]:
    """Appends the loop or branch itself; its dims are joined by ties, not by a rule."""
    index = len(walk.ops)
    results = [walk.new_value(v.aval, index) for v in eqn.outvars]
    reads, rule = ([], _NO_DIMS) if branch_on is None else ([branch_on], _SCALAR)
    walk.append(eqn, eqn.primitive.name, reads, [], rule, body=tuple(body))
    for region in body:
        walk.regions[region].op = index
    return results


def _body_inputs(walk: Walk, jaxpr: Any) -> list[int]:
    inner, _ = _jax.open_jaxpr(jaxpr)
    return [walk.new_value(v.aval) for v in inner.invars]


def scan(walk: Walk, eqn: Any, operands: list[int]) -> list[int]:
    """consts and carries are one array inside and outside; xs and ys lose their leading dim."""
    jaxpr, consts, carries = eqn.params["jaxpr"], eqn.params["num_consts"], eqn.params["num_carry"]
    region = walk.enter("scan", eqn.params["length"])
    results = _region_op(walk, eqn, [region])
    inputs = _body_inputs(walk, jaxpr)
    for i, (outer, inner) in enumerate(zip(operands, inputs, strict=True)):
        tie = (
            Tie.SCAN_CONST if i < consts
            else Tie.SCAN_INIT if i < consts + carries else Tie.SCAN_XS
        )  # fmt: skip
        stacked = 0 if tie is Tie.SCAN_XS else -1
        walk.tie(eqn, tie, [outer], [inner], body=[region], stacked=stacked)
    outputs = walk.body(region, jaxpr, inputs)
    for i, (inner, outer) in enumerate(zip(outputs, results, strict=True)):
        if i < carries:
            both = [inner, inputs[consts + i]]
            walk.tie(eqn, Tie.SCAN_CARRY, both, [outer], body=[region], position=i)
        else:
            walk.tie(eqn, Tie.SCAN_YS, [inner], [outer], body=[region], stacked=1, position=i)
    return results


def while_loop(walk: Walk, eqn: Any, operands: list[int]) -> list[int]:
    """Carries are one array before, inside and after the loop."""
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    regions = [walk.enter("while_cond", ESTIMATED_TRIPS), walk.enter("while", ESTIMATED_TRIPS)]
    results = _region_op(walk, eqn, regions)
    cond_inputs, body_inputs = _body_inputs(walk, cond), _body_inputs(walk, body)
    carries = operands[n_cond + n_body :]
    for outer, inner in zip(operands[:n_cond], cond_inputs, strict=False):
        walk.tie(eqn, Tie.WHILE_CONST, [outer], [inner], body=regions[:1])
    for outer, inner in zip(operands[n_cond : n_cond + n_body], body_inputs, strict=False):
        walk.tie(eqn, Tie.WHILE_CONST, [outer], [inner], body=regions[1:])
    for outer, *both in zip(carries, cond_inputs[n_cond:], body_inputs[n_body:], strict=True):
        walk.tie(eqn, Tie.WHILE_INIT, [outer], both, body=regions)
    walk.body(regions[0], cond, cond_inputs)
    outputs = walk.body(regions[1], body, body_inputs)
    for i, carried in enumerate(zip(outputs, body_inputs[n_body:], strict=True)):
        walk.tie(eqn, Tie.WHILE_CARRY, carried, [results[i]], body=regions[1:], position=i)
    return results


def cond(walk: Walk, eqn: Any, operands: list[int]) -> list[int]:
    """Every branch sees the same operands and gives the same results."""
    branches = eqn.params["branches"]
    regions = [walk.enter("cond", 1) for _ in branches]
    results = _region_op(walk, eqn, regions, branch_on=operands[0])
    inputs = [_body_inputs(walk, branch) for branch in branches]
    for outer, *inner in zip(operands[1:], *inputs, strict=True):
        walk.tie(eqn, Tie.COND_OPERAND, [outer], inner, body=regions)
    outputs = [
        walk.body(region, branch, given)
        for region, branch, given in zip(regions, branches, inputs, strict=True)
    ]
    for i, given_back in enumerate(zip(*outputs, strict=True)):
        if any(v != LITERAL for v in given_back):
            walk.tie(eqn, Tie.COND_RESULT, given_back, [results[i]], body=regions, position=i)
    return results


REGION_OPS: dict[str, Callable[[Walk, Any, list[int]], list[int]]] = {
    "scan": scan, "while": while_loop, "cond": cond,
}  # fmt: skip
