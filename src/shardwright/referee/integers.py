"""What the integer arguments of a program are for: indices, and of what; rounds of a loop.

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

Labels = frozenset[int]  # the arguments that a value is computed from
NONE: Labels = frozenset()


@dataclass(slots=True)
class Use:
    """What one integer argument does."""

    limits: set[int] = field(default_factory=set)  # how many positions there are to index
    promised: str = ""  # the line that says it is in range (mode="promise_in_bounds")
    counts_rounds: bool = False  # it decides how long a while loop runs


def integer_uses(closed: Any) -> list[Use]:
    """The Use of each argument of a closed jaxpr; empty for what is no integer."""
    jaxpr = closed.jaxpr
    uses = [Use() for _ in jaxpr.invars]
    _follow(jaxpr, [frozenset({i}) for i in range(len(uses))], uses)
    return uses


def _follow(jaxpr: Any, given: Sequence[Labels], uses: list[Use]) -> list[Labels]:
    """The labels of the results, given those of the arguments; uses are noted on the way."""
    env: dict[Any, Labels] = {}

    def read(v: Any) -> Labels:
        return NONE if isinstance(v, _jax.Literal) else env.get(v, NONE)

    def write(v: Any, labels: Labels) -> None:
        if labels and _is_integer(v.aval):
            env[v] = labels

    for v, labels in zip(jaxpr.invars, given, strict=True):
        write(v, labels)
    for eqn in jaxpr.eqns:
        into = [read(v) for v in eqn.invars]
        if any(into):
            for v, labels in zip(eqn.outvars, _through(eqn, into, uses), strict=True):
                write(v, labels)
    return [read(v) for v in jaxpr.outvars]


def _through(eqn: Any, into: list[Labels], uses: list[Use]) -> list[Labels]:
    """The labels of an equation's results."""
    name, params = eqn.primitive.name, eqn.params
    if name in INDEXED:
        for labels, limit in INDEXED[name](eqn, into):
            for i in labels if limit > 1 else NONE:  # one position is no choice
                uses[i].limits.add(limit)
                if params.get("mode") == jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS:
                    uses[i].promised = uses[i].promised or _line(eqn)
    elif name == "while":
        split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        of_cond, of_body, carry = into[: split[0]], into[split[0] : split[1]], into[split[1] :]
        body, cond = (_jax.open_jaxpr(params[key])[0] for key in ("body_jaxpr", "cond_jaxpr"))
        carry = _round_and_round(body, of_body, carry, [], uses)
        for i in _follow(cond, [*of_cond, *carry], uses)[0]:
            uses[i].counts_rounds = True
        return carry
    elif name == "scan":
        first, rest = params["num_consts"], params["num_consts"] + params["num_carry"]
        body = _jax.open_jaxpr(params["jaxpr"])[0]
        carry = _round_and_round(body, into[:first], into[first:rest], into[rest:], uses)
        return _follow(body, [*into[:first], *carry, *into[rest:]], uses)
    elif name == "cond":
        for i in into[0]:
            uses[i].limits.add(len(params["branches"]))
        bodies = [_jax.open_jaxpr(branch)[0] for branch in params["branches"]]
        outs = [_follow(body, into[1:], uses) for body in bodies]
        return [frozenset().union(into[0], *labels) for labels in zip(*outs, strict=True)]
    for inner in params.values():
        if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
            body = _jax.open_jaxpr(inner)[0]
            if len(body.invars) == len(into) and len(body.outvars) == len(eqn.outvars):
                return _follow(body, into, uses)
    return [frozenset().union(*into)] * len(eqn.outvars)


def _round_and_round(
    body: Any, consts: list[Labels], carry: list[Labels], xs: list[Labels], uses: list[Use]
) -> list[Labels]:
    """The labels of a loop's carry once another round adds none."""
    while True:
        after = _follow(body, [*consts, *carry, *xs], uses)[: len(carry)]
        both = [a | b for a, b in zip(carry, after, strict=True)]
        if both == carry:
            return carry
        carry = both


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
