"""A plan as plain data: what is saved, compared, and shown."""

from __future__ import annotations

import json
from typing import Any

from shardwright.analysis.analysis import Analysis
from shardwright.cost.breakdown import Breakdown, peak_breakdown
from shardwright.cost.model import CostModel, model_collectives
from shardwright.lowering.steps import Spec, border_specs
from shardwright.mesh import Mesh
from shardwright.program.fingerprint import argument_types, fingerprint, result_types
from shardwright.program.types import Program
from shardwright.search.roles import group_roles
from shardwright.spmd.decisions import State
from shardwright.spmd.ir import Collective

VERSION = 1  # of the plan file


def build_record(
    fn_name: str, model: CostModel, state: State, *, found: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """The plan as plain data."""
    program, analysis = model.analysis.program, model.analysis
    (inputs, outputs), cost = border_specs(model, state), model.cost(state)
    roles = group_roles(analysis)
    paths = [program.values[v].path or "" for v in program.inputs]
    record = {
        "version": VERSION,
        "program": fn_name,
        "fingerprint": fingerprint(program),
        "ops": len(program.ops),
        "call": {
            "arguments": list(program.signature.arguments),
            "static": list(program.signature.static_argnums),
            "donated": list(program.signature.donated_argnums),
        },
        "arguments": argument_types(program),
        "numbers": [p for p, weak in zip(paths, program.signature.weak, strict=True) if weak],
        "results": result_types(program),
        "mesh": model.mesh.to_dict(),
        "device": model.device.to_dict(),
        "options": options,
        "decisions": _from_state(model.mesh, analysis, state),
        "overrides": {str(k): list(p) for k, p in sorted(model.overrides.items())},
        "specs": {p: [list(d) for d in s] for p, s in zip(paths, inputs, strict=True)},
        "result_specs": {
            p: [list(d) for d in s]
            for p, s in zip(program.output_paths, outputs, strict=True)
        },
        "cost": {
            "compute_s": cost.compute_s, "link_s": cost.link_s, "peak_bytes": cost.peak_bytes,
            "overlap": cost.overlap,
        },
        "collectives": _merge(model_collectives(model, state)),
        "memory": _memory(peak_breakdown(model, state), model),
        "groups": [
            {
                "label": g.label, "role": roles[g.index], "sizes": list(g.sizes[:4]),
                "dims": list(g.dims[:12]), "colors": len(g.colors),
                "argument_bytes": g.argument_bytes, "activation_bytes": g.activation_bytes,
                "bits": len(g.conflict_sets),
            }
            for g in analysis.groups
        ],
        "opaque": dict(sorted(program.opaque.items())),
        "replicated": _large_replicated(program, inputs),
        **found,
    }  # fmt: skip
    plain: dict[str, Any] = json.loads(json.dumps(record))  # just what a saved plan holds
    return plain


def _merge(rows: list[Collective]) -> list[dict[str, Any]]:
    """Equal collectives of repeated layers as one row, most seconds first."""
    merged: dict[tuple[Any, ...], Collective] = {}
    for c in rows:
        key = (c.kind, c.axes, c.bytes, c.source, c.cause)
        known = merged.get(key)
        count = c.count + (known.count if known else 0)
        first = known or c
        merged[key] = Collective(
            c.kind, c.axes, c.bytes, count, c.seconds, c.source, c.cause, first.op
        )
    ordered = sorted(merged.values(), key=lambda c: (-c.count * c.seconds, c.op, c.kind, c.cause))
    return [
        {
            "kind": c.kind, "axes": list(c.axes), "bytes": int(c.bytes), "count": c.count,
            "seconds": c.seconds, "source": c.source, "cause": c.cause, "op": c.op,
        }
        for c in ordered
    ]  # fmt: skip


def _memory(breakdown: Breakdown, model: CostModel) -> dict[str, Any]:
    return {
        "peak_bytes": breakdown.peak_bytes,
        "limit_bytes": model.device.usable_bytes,
        "at": breakdown.at,
        "by_kind": breakdown.by_kind,
        "buffers": [
            {"kind": b.kind, "where": b.where, "shape": b.shape, "count": b.count, "bytes": b.bytes}
            for b in breakdown.buffers[:24]
        ],
    }


def _large_replicated(program: Program, inputs: list[Spec]) -> list[dict[str, Any]]:
    """Arguments kept whole on every device, at least a thousandth of all argument bytes."""
    total = sum(program.values[v].bytes for v in program.inputs)
    whole = [
        program.values[v]
        for v, spec in zip(program.inputs, inputs, strict=True)
        if not any(spec) and program.values[v].bytes * 1000 >= max(total, 1)
    ]
    whole.sort(key=lambda v: (-v.bytes, v.path or ""))
    return [{"path": v.path or "", "bytes": v.bytes} for v in whole[:32]]


def _from_state(mesh: Mesh, analysis: Analysis, state: State) -> dict[str, list[dict[str, Any]]]:
    labels = [g.label for g in analysis.all_groups]
    return {
        name: [{"group": labels[e.group], "bits": e.bits, "scope": e.scope} for e in entries]
        for name, entries in zip(mesh.names, state, strict=True)
    }
