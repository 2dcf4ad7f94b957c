"""What was decided, and how it was found -> the record of a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright import _jax
from shardwright._version import __version__
from shardwright.analysis.labels import any_index
from shardwright.cost.breakdown import KINDS, peak_breakdown, value_kinds
from shardwright.cost.model import CostModel, model_collectives, partitioned
from shardwright.cost.timeline import Timeline, find_timeline
from shardwright.lowering.specs import Shardings, Spec, border_specs
from shardwright.program.fingerprint import argument_types, fingerprint, result_types
from shardwright.program.types import NO_OP, Program, format_type
from shardwright.record.notes import find_notes
from shardwright.record.types import (
    ArgumentKind,
    ArrayRow,
    Asked,
    Call,
    Claim,
    GroupRow,
    Improvement,
    MeshRow,
    Override,
    PlanRecord,
    Replicated,
    SearchRow,
)  # fmt: skip
from shardwright.rules.rule import MATRIX
from shardwright.search import Found
from shardwright.search.meshes import Shape
from shardwright.search.roles import find_roles, group_roles
from shardwright.search.tactics import Context, query_bits
from shardwright.spmd.decisions import Decisions
from shardwright.spmd.ir import Collective
from shardwright.spmd.weights import region_weights

# Rows that a record keeps: enough for every view, whatever the size of the program.
BUFFERS, SIZES, DIMS, NAMES, LARGEST = 24, 4, 12, 8, 32
SPANS, ARRAYS, LOOKED_AT = 300, 40, 2000  # of the timeline; intermediates, of the largest values
LARGE = 1e-3  # of all argument bytes: smaller arguments are not listed as replicated


def build_record(
    model: CostModel, found: Found, *,
    asked: Asked, shapes: Sequence[Shape] = (), unshared: Sequence[tuple[int, int]] = (),
) -> PlanRecord:  # fmt: skip
    """The record of what a search found; `shapes` are the mesh shapes that were compared."""
    program, analysis, decisions = model.analysis.program, model.analysis, found.decisions
    specs, result_specs = specs_of(model, decisions)
    breakdown, roles = peak_breakdown(model, decisions), group_roles(analysis)
    context = Context(model, find_roles(analysis))
    labels = [g.label for g in analysis.all_groups]
    collectives, timeline = over_time(model, decisions)
    return PlanRecord(
        shardwright=__version__, program=program.name, fingerprint=fingerprint(program),
        ops=len(program.ops), matrix_flops=matrix_flops(program), call=call_of(program),
        arguments=argument_types(program), kinds=kinds_of(model),
        weakly_typed=tuple(
            path for path, weak in zip(specs, program.signature.weak, strict=True) if weak
        ),
        results=result_types(program), mesh=model.mesh, device=model.device, asked=asked,
        unshared=tuple(unshared), pinned={v: tuple(map(tuple, d)) for v, d in model.pinned.items()},
        decisions={
            axis: tuple(Claim(labels[e.group], e.bits, e.scope) for e in entries)
            for axis, entries in zip(model.mesh.names, decisions.lists, strict=True)
        },
        overrides=overrides_of(model, decisions), specs=specs, result_specs=result_specs,
        cost=found.cost, collectives=collectives,
        memory=replace(breakdown, buffers=breakdown.buffers[:BUFFERS]),
        timeline=timeline, arrays=_large_arrays(model, decisions),
        groups=tuple(
            GroupRow(
                g.label, roles[g.index], g.sizes[:SIZES], g.dims[:DIMS], len(g.colors),
                g.argument_bytes, g.activation_bytes, len(g.conflict_sets),
                query_bits(context, g.index) if roles[g.index] == "sequence" else -1,
            )
            for g in analysis.groups
        ),
        opaque=dict(sorted(program.opaque.items())),
        replicated=_large_replicated(program, list(specs.values())),
        certificate=found.certificate, baselines=found.baselines,
        search=SearchRow(
            found.evaluations, found.how, found.interrupted, found.timed_out, found.pins_in_code,
            tuple(Improvement(*row) for row in found.history),
        ),
        meshes=tuple(_mesh_row(shape) for shape in shapes),
        notes=tuple(find_notes(model, found, result_specs)),
    )  # fmt: skip


def call_of(program: Program) -> Call:
    """How the function is called."""
    signature = program.signature
    return Call(signature.arguments, signature.static_argnums, signature.donated_argnums)


def specs_of(model: CostModel, decisions: Decisions) -> tuple[dict[str, Spec], dict[str, Spec]]:
    """({argument path: axes per dim}, {result path: axes per dim})"""
    program, (inputs, outputs) = model.analysis.program, border_specs(model, decisions)
    paths = [program.values[v].path or "" for v in program.inputs]
    return (
        dict(zip(paths, inputs, strict=True)),
        dict(zip(program.output_paths, outputs, strict=True)),
    )


def overrides_of(model: CostModel, decisions: Decisions) -> tuple[Override, ...]:
    """Layouts that are stored otherwise than the lists say, each by its first value."""
    program, of_value = model.analysis.program, model.layouts.of_value
    stored, rows = partitioned(model, decisions), []
    for layout, placement in decisions.overrides:
        values = np.flatnonzero(of_value == layout).tolist()
        names = sorted({_name(program, v) for v in values})[:NAMES]
        row = Override(values[0], placement, stored.shape(values[0]), len(values), tuple(names))
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: row.value))


def _name(program: Program, value: int) -> str:
    """An argument, a copy of one, or the op and line that make a value; equal for all layers."""
    path = program.values[program.origin(value)].path
    if path is not None:
        path = any_index(path)
        return path if program.values[value].path is not None else f"a copy of {path}"
    op = program.values[value].op
    return f"{program.ops[op].name} at {program.where(value)}" if op >= 0 else "a constant"


def kinds_of(model: CostModel) -> dict[str, ArgumentKind]:
    """{argument path: what it is to the program}"""
    program, weights = model.analysis.program, set(find_roles(model.analysis).weights)
    state = KINDS.index("optimiser state")
    memory = value_kinds(model)
    return {
        program.values[v].path or "": "optimiser state" if memory[v] == state
        else "parameters" if v in weights else "inputs"
        for v in program.inputs
    }  # fmt: skip


def matrix_flops(program: Program) -> float:
    """FLOPs of one step in dots and convolutions, over all devices.

    Those that jax.checkpoint computes again are left out: MFU counts what the model asks for.
    """
    weights = region_weights(program)
    return sum(
        weights[op.region] * op.rule.work * math.prod(op.rule.sizes)
        for op in program.ops
        if op.rule.unit == MATRIX and not _jax.is_recomputed(op.eqn.source_info.name_stack)
    )


def over_time(
    model: CostModel, decisions: Decisions, most: int = SPANS
) -> tuple[tuple[Collective, ...], Timeline]:
    """(the collectives of a step, layers merged; the step over time, in up to `most` spans)"""
    moved = model_collectives(model, decisions)
    rows = _merged(moved)
    number = {_key(c): i for i, c in enumerate(rows)}
    return rows, find_timeline(model, decisions, [(c, number[_key(c)]) for c in moved], most)


def _large_arrays(model: CostModel, decisions: Decisions) -> tuple[ArrayRow, ...]:
    """The largest intermediates that are in memory; those of one line that are alike are one."""
    program, shardings = model.analysis.program, Shardings(model, decisions)
    made = [v for v in program.values if v.op != NO_OP and model.lifetimes.first[v.index] >= 0]
    counts: dict[tuple[str, str, str, Spec], int] = {}
    for v in sorted(made, key=lambda v: (-v.bytes, v.index))[:LOOKED_AT]:
        op, spec = program.ops[v.op], shardings.stored(v.index)
        key = (program.where(v.index), op.name, format_type(v.type), spec)
        if key in counts or len(counts) < ARRAYS:
            counts[key] = counts.get(key, 0) + 1
    return tuple(ArrayRow(*key, count) for key, count in counts.items())


def _key(c: Collective) -> tuple[object, ...]:
    """What collectives of repeated layers have in common."""
    return c.kind, c.axes, c.bytes, c.source, c.cause


def _merged(rows: Sequence[Collective]) -> tuple[Collective, ...]:
    """Equal collectives of repeated layers as one row, most seconds first."""
    merged: dict[tuple[object, ...], Collective] = {}
    for c in rows:
        key = _key(c)
        known = merged.get(key)
        if known:
            count = known.count + c.count
            hidden_s = (known.count * known.hidden_s + c.count * c.hidden_s) / (count or 1.0)
            c = replace(known, count=count, hidden_s=hidden_s)
        merged[key] = c
    order = sorted(merged.values(), key=lambda c: (-c.count * c.seconds, c.op, c.kind, c.cause))
    return tuple(order)


def _large_replicated(program: Program, specs: Sequence[Spec]) -> tuple[Replicated, ...]:
    """Arguments that every device holds all of and that matter, largest first."""
    inputs = [program.values[v] for v in program.inputs]
    total = sum(v.bytes for v in inputs)
    rows = [
        Replicated(v.path or "", v.bytes)
        for v, spec in zip(inputs, specs, strict=True)
        if not any(spec) and v.bytes >= LARGE * max(total, 1)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.path))[:LARGEST])


def _mesh_row(shape: Shape) -> MeshRow:
    cost = shape.cost
    return MeshRow(
        shape.mesh.shape, shape.searched, shape.why, cost.step_s if cost else None,
        cost.peak_bytes if cost else None,
    )  # fmt: skip
