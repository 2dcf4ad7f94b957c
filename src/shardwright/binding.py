"""A plan's record tied to a program: the same arguments, the same ops, the same meaning."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from shardwright import _jax
from shardwright.analysis.analysis import Analysis, analyze_program
from shardwright.analysis.unshare import unshare_all
from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError, first_of
from shardwright.lowering.steps import Steps, make_steps
from shardwright.program.arguments import Signature, sign
from shardwright.program.fingerprint import argument_types, fingerprint
from shardwright.program.types import Program, format_type
from shardwright.record.build import overrides_of, specs_of
from shardwright.record.types import Claim, PlanRecord
from shardwright.spmd.decisions import Decisions, Entry, State, decide


@dataclass(frozen=True)
class Bound:
    """A plan's program: what is needed to run or print it."""

    fn: Callable[..., Any]
    program: Program
    model: CostModel
    decisions: Decisions

    @functools.cached_property
    def steps(self) -> Steps:
        """What lowering does at each op, made when it is first needed."""
        return make_steps(self.model, self.decisions)


def bind_record(record: PlanRecord, fn: Callable[..., Any], program: Program) -> Bound:
    """What a plan decided, in a model of a function's program; raises when that is another one."""
    _check_ops(record, program)
    analysis = analyze_program(program, record.asked.labels or None)
    analysis = unshare_all(analysis, record.unshared)
    model = CostModel(
        analysis, record.mesh, record.device, overlap=record.cost.overlap, pinned=record.pinned
    )
    return Bound(fn, program, model, _decisions(record, model))


def sign_as_asked(
    record: PlanRecord, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Signature:
    """The signature of a call, with the options that a plan was asked for with."""
    asked, mesh = record.asked, record.mesh
    return sign(
        fn, args, kwargs, asked.static_argnums, asked.donate_argnums,
        _jax.abstract_mesh(mesh.sizes, mesh.names), asked.tie,
    )  # fmt: skip


def call_types(signature: Signature, leaves: Sequence[Any]) -> dict[str, str]:
    """{path: type} of the leaves of a call."""
    types = [format_type(jax.typeof(x)) for x in leaves]
    return dict(zip(signature.paths, types, strict=True))


def check_arguments(record: PlanRecord, name: str, now: Mapping[str, str]) -> None:
    """Raises unless a call has the planned arguments, {path: type}."""
    planned = record.arguments
    changes = [
        f"{p}: was {planned[p]}, is {now[p]}" for p in planned if p in now and planned[p] != now[p]
    ]
    changes += [f"{p}: {planned[p]} is gone" for p in planned if p not in now]
    changes += [f"{p}: {now[p]} is new" for p in now if p not in planned]
    if changes:
        raise _another_program(name, changes)


def _check_ops(record: PlanRecord, program: Program) -> None:
    """Raises unless a program has the planned ops; its arguments have been checked."""
    if fingerprint(program) == record.fingerprint:
        return
    words, was_weak = ("an array", "a Python number"), record.weakly_typed
    changes = [
        f"{path}: was {words[path in was_weak]}, is {words[weak]}: another dtype may result"
        for path, weak in zip(argument_types(program), program.signature.weak, strict=True)
        if weak != (path in was_weak)
    ]
    planned_ops, ops = record.ops, len(program.ops)
    if not changes and planned_ops == ops:
        changes = [f"the computation: {ops} ops as before, but not the same ones"]
    elif not changes:
        changes = [f"the computation: was {planned_ops} ops, is {ops}"]
    raise _another_program(program.name, changes)


def _decisions(record: PlanRecord, model: CostModel) -> Decisions:
    """What was decided, in a model of the program; it must mean what it meant when written."""
    lists = _to_state(record.decisions, model.analysis)
    decisions, now = Decisions(lists), None
    try:
        layouts = model.layouts.of_value
        overrides = {int(layouts[row.value]): row.placement for row in record.overrides}
        decisions = decide(lists, overrides)
        now = (overrides_of(model, decisions), *specs_of(model, decisions))
    except (IndexError, KeyError, TypeError):  # an override of something that is not there
        pass
    if now != (record.overrides, record.specs, record.result_specs):
        raise ShardwrightError(
            "the decisions of this plan mean another sharding here than when it was made",
            by=f"Shardwright {record.shardwright}",
            try_="plan again, or use the Shardwright that wrote it",
        )
    return decisions


def _to_state(decisions: Mapping[str, Sequence[Claim]], analysis: Analysis) -> State:
    """The lists of a plan, by the groups of an analysis."""
    index = {g.label: g.index for g in analysis.all_groups}
    unknown = [c.group for claims in decisions.values() for c in claims if c.group not in index]
    if unknown:
        raise ShardwrightError(
            f"the plan decides about {unknown[0]!r}, which this program does not have",
            try_=", ".join(list(index)[:12]),
        )
    return tuple(
        tuple(Entry(index[c.group], c.bits, c.scope) for c in claims)
        for claims in decisions.values()
    )


def _another_program(name: str, changes: list[str]) -> ShardwrightError:
    return ShardwrightError(
        f"this plan was made for another program than {name}",
        changed=first_of(changes),
        try_="partition() again, or pass the function and shapes it was made for",
    )
