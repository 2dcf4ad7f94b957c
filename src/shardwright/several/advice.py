"""plan.advice(): what would save memory or time, and what it would cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from shardwright.binding import Bound
from shardwright.cost.residuals import Residual, find_residuals
from shardwright.options import Options, asked_again, read_options
from shardwright.plan import Plan
from shardwright.record.comparison import AdviceRecord, Row
from shardwright.record.plain import encode
from shardwright.search.objective import Progress
from shardwright.search.roles import find_roles
from shardwright.several.compare import count, make_rows, plan_cases
from shardwright.several.variants import Case, Variant, make_case

LINES = 8  # of residuals that are told
NOW, BATCH, MESH, DEVICES = "this plan", "twice the batch", "another mesh", "twice the devices"


@dataclass(frozen=True)
class Advice:
    """What would save memory or time, with its price."""

    record: AdviceRecord

    @property
    def residuals(self) -> tuple[Residual, ...]:
        """What could be recomputed or offloaded: policies, then lines, most bytes first."""
        return self.record.residuals

    @property
    def instead(self) -> tuple[Row, ...]:
        """A larger batch, another mesh, more devices: rows as those of compare()."""
        return self.record.instead

    def __str__(self) -> str:
        from shardwright.report.advice import format_advice

        return format_advice(self.record)

    def to_html(self) -> str:
        """The advice as one self-contained page."""
        from shardwright.report.advice import advice_html

        return advice_html(self.record)

    def to_dict(self) -> dict[str, Any]:
        """The advice as plain data, for JSON."""
        return encode(self.record)


def advise(
    plan: Plan, bound: Bound, *, seconds: float, processes: int | None,
    progress: Callable[[Progress], None] | None = None,
) -> Advice:  # fmt: skip
    """The advice on a plan that is bound to its program."""
    record, model = plan.record, bound.model
    cases = _cases(plan, bound, seconds)
    per, items = count([_case_of(plan, bound), *cases], None)
    rows = make_rows(cases, plan_cases(cases, None, processes, progress), items[1:])
    now = Row(
        variant=NOW, mesh=str(plan.mesh), devices=plan.mesh.size, device=plan.device.name,
        cost=plan.cost, limit_bytes=record.limit_bytes, items=items[0], searched=True,
    )  # fmt: skip
    notes = ("other meshes and batches are planned without your tactics",)
    return Advice(AdviceRecord(
        program=record.program, per=per, now=now, memory=record.memory,
        residuals=tuple(find_residuals(model, bound.decisions, LINES)), instead=rows,
        notes=notes if record.asked.tactics else (),
    ))  # fmt: skip


def _options(plan: Plan, **changes: Any) -> Options:
    """The options of a plan, without its tactics; layers share decisions."""
    return read_options(**asked_again(plan.record) | {"unshare": False} | changes)


def _call(bound: Bound, factor: int = 1) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of shapes as the plan has them, with so many times the examples."""
    program, roles = bound.program, find_roles(bound.model.analysis)
    leaves = []
    for v in program.inputs:
        value = program.values[v]
        batch = [dim for group, dim in roles.groups_of[v] if group in roles.batch]
        shape = list(value.shape)
        if batch and v not in roles.weights:
            shape[min(batch)] *= factor
        leaves.append(jax.ShapeDtypeStruct(tuple(shape), value.dtype))
    return program.signature.call(leaves)


def _case_of(plan: Plan, bound: Bound) -> Case:
    """The plan itself as a case."""
    args, kwargs = _call(bound)
    variant = Variant(NOW, bound.fn, args, kwargs)
    return Case(variant, _options(plan), str(plan.mesh), (plan.mesh,), bound.model.analysis)


def _cases(plan: Plan, bound: Bound, seconds: float) -> list[Case]:
    """What could be done instead."""
    size, free, same = plan.mesh.size, dict.fromkeys(plan.mesh.names), _call(bound)
    asked: list[tuple[str, Any, dict[str, Any]]] = [(BATCH, _call(bound, factor=2), {})]
    if not (plan.mesh.dcn or plan.mesh.links or plan.mesh.wrap):  # which say what the axes are
        other: Any = free if len(free) > 1 else size
        asked += [
            (MESH, same, {"mesh": other, "devices": size}),
            (DEVICES, same, {"mesh": free, "devices": 2 * size}),
        ]
    cases = []
    for name, (args, kwargs), changes in asked:
        variant = Variant(name, bound.fn, args, kwargs)
        options = _options(plan, seconds=seconds, **changes)
        shown = f"{options.devices} devices" if changes else str(plan.mesh)
        program = bound.program if changes else None  # which is another one for another batch
        cases.append(make_case(variant, shown, options, program, {}))
    return cases
