"""What was decided, and how it was found -> the record of a plan."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardwright import _jax
from shardwright._version import __version__
from shardwright.analysis.labels import any_index
from shardwright.cost.breakdown import peak_breakdown
from shardwright.cost.model import CostModel, model_collectives, partitioned
from shardwright.cost.timeline import KINDS, Timeline, find_timeline, value_kinds
from shardwright.lowering.specs import Shardings, Spec, border_specs
from shardwright.program.fingerprint import argument_types, fingerprint, result_types
from shardwright.program.pins import ARGUMENT, HOST_MEMORY
from shardwright.program.types import LITERAL, NO_OP, Program, format_type
from shardwright.record.opaque import opaque_notes, shared_kernel_notes
from shardwright.record.sorted_rows import sorted_rows_notes
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
from shardwright.spmd.ir import Collective, reduction_of
from shardwright.spmd.layout import REPLICATED
from shardwright.spmd.sums import find_sums
from shardwright.spmd.weights import region_weights
from shardwright.units import human_bytes

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
    moved = model_collectives(model, decisions)
    collectives = _merged(moved)
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
        timeline=timeline_of(model, decisions, moved, collectives),
        arrays=_large_arrays(model, decisions),
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
        notes=(
            *model.prices.network.notes(), *found.notes, *_state_notes(model, result_specs),
            *_loop_notes(model, decisions), *_logical_notes(program),
            *opaque_notes(program, model.mesh), *_memory_notes(program),
            *shared_kernel_notes(program, model.mesh),
            *(sorted_rows_notes(program) if model.mesh.size > 1 else ()),
        ),
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


def timeline_of(
    model: CostModel, decisions: Decisions, moved: Sequence[Collective],
    rows: Sequence[Collective], most: int = SPANS,
) -> Timeline:  # fmt: skip
    """The step over time; `rows` are the collectives as the record has them, layers merged."""
    number = {_key(c): i for i, c in enumerate(rows)}
    return find_timeline(model, decisions, [(c, number[_key(c)]) for c in moved], most)


def with_finer_timeline(
    record: PlanRecord, model: CostModel, decisions: Decisions, most: int
) -> PlanRecord:
    """A record whose timeline has up to `most` spans, for a plan whose program is at hand."""
    moved = model_collectives(model, decisions)
    rows = _merged(moved)
    line = timeline_of(model, decisions, moved, rows, most)
    return replace(record, collectives=rows, timeline=line)


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


def _state_notes(model: CostModel, result_specs: dict[str, Spec]) -> list[str]:
    """What is stored like an argument because it is that argument of the next step, undonated."""
    program, specs = model.analysis.program, list(result_specs.values())
    undonated = program.updates.keys() - program.aliases.keys()
    if not undonated or not program.signature.tie:
        return []
    size = sum(
        program.values[program.outputs[i]].bytes
        // math.prod(model.mesh.shape[axis] for on in specs[i] for axis in on)
        for i in undonated
    )
    paths = [program.values[program.updates[i]].path or "" for i in sorted(undonated)]
    heads = list(dict.fromkeys(re.split(r"[.\[]", path)[0] for path in paths))
    names = [a for a in program.signature.arguments if a in heads]
    numbers = ", ".join(str(program.signature.arguments.index(name)) for name in names)
    return [
        f"results are stored like the arguments they become in the next step: {', '.join(heads)}"
        " (tie=False lets them differ)",
        f"{', '.join(heads)} and the results like them are in memory at once, {human_bytes(size)}"
        f" per device: donate_argnums=({numbers}) saves that if the old ones are not needed",
    ]


def _loop_notes(model: CostModel, decisions: Decisions) -> Iterator[str]:
    """Where sums over the trips of a loop are reduced: after it, or in every trip."""
    program, given = model.analysis.program, partitioned(model, decisions)
    loops: dict[int, list[int | None]] = {}  # {region: bytes that each would take more; None: none}
    for one in find_sums(program):
        partial = given.choices[int(given.classes.of_op[one.leaves[0].op])].partial
        if one.hoist is None or not partial:
            continue
        reduced, more = reduction_of(given, one), None
        if reduced is None or not reduced.after_loop:
            number = int(model.layouts.of_value[one.hoist.value])
            layout, now = model.layouts.table[number], given.stored[number]
            unsplit = tuple([REPLICATED if a in partial else j for a, j in enumerate(now)])
            sizes = [layout.local_bytes(at, model.mesh.sizes) for at in (unsplit, now)]
            more = sizes[0] - sizes[1]
        loops.setdefault(program.ops[one.hoist.loop.carry].body[0], []).append(more)
    for region, sums in loops.items():
        loop, late = program.regions[region], [more for more in sums if more is not None]
        where = f"the {loop.trips} trips of the loop at {program.ops[loop.op].source}"
        if len(late) < len(sums):
            yield f"{len(sums) - len(late)} sums over {where} are reduced once, after it"
        if late:
            yield (
                f"{len(late)} sums over {where} are reduced in every trip; to reduce them once"
                f" would take {human_bytes(sum(late))} more per device"
            )


def _logical_notes(program: Program) -> list[str]:
    """Axes that Flax's boxes name, and that neither a rule nor the mesh gives a meaning."""
    signature = program.signature
    unknown = [
        name for name in signature.named
        if name not in dict(signature.rules) and name not in signature.planned.axis_names
    ]  # fmt: skip
    if not unknown:
        return []
    return [
        f"arguments name the axes {', '.join(unknown)}, for which there is no rule: not followed"
        " (plan under flax.linen.logical_axis_rules(rules))"
    ]


def _memory_notes(program: Program) -> list[str]:
    """Arguments and results that the user has in the host's memory, and the plan has not."""
    given = [
        program.values[pin.value].path or "" for pin in program.pins
        if pin.by == ARGUMENT and pin.sharding.memory_kind == HOST_MEMORY
    ]  # fmt: skip
    rows = zip(program.output_paths, program.outputs, strict=True)
    given += [path for path, v in rows if v != LITERAL and program.values[v].type.host]
    return [
        f"{', '.join(given)}: in the host's memory in your program, on the devices in this plan"
        " (jax.device_put before and after the step keeps them there)"
    ] if given else []  # fmt: skip


def _mesh_row(shape: Shape) -> MeshRow:
    cost = shape.cost
    return MeshRow(
        shape.mesh.shape, shape.searched, shape.why, cost.step_s if cost else None,
        cost.peak_bytes if cost else None,
    )  # fmt: skip
