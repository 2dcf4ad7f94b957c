"""A plan as plain data: what is saved, compared, and shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from shardwright._version import __version__
from shardwright.analysis.analysis import Analysis
from shardwright.analysis.labels import any_index
from shardwright.cost.breakdown import Breakdown, peak_breakdown
from shardwright.cost.model import CostModel, model_collectives, partitioned
from shardwright.errors import ShardwrightError
from shardwright.lowering.steps import Spec, border_specs
from shardwright.mesh import Mesh
from shardwright.program.fingerprint import argument_types, fingerprint, result_types
from shardwright.program.types import Program
from shardwright.search.roles import group_roles
from shardwright.spmd.decisions import State
from shardwright.spmd.ir import Collective
from shardwright.spmd.layout import Placement

# Of the plan file. 2 says how the function is called, which to_python() needs, and who wrote it.
VERSION = 2

# What a plan cannot be read without.
NEEDED = (
    "program", "fingerprint", "ops", "arguments", "results", "mesh", "device", "options",
    "decisions", "overrides", "specs", "result_specs", "cost", "collectives", "memory", "groups",
    "certificate", "baselines", "search", "meshes", "opaque", "replicated",
)  # fmt: skip
ASK = "a file written by plan.save()"


def build_record(
    fn_name: str, model: CostModel, state: State, *, found: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """The plan as plain data."""
    program, analysis = model.analysis.program, model.analysis
    (specs, result_specs), cost = spec_records(model, state), model.cost(state)
    roles = group_roles(analysis)
    paths = [program.values[v].path or "" for v in program.inputs]
    record = {
        "version": VERSION,
        "shardwright": __version__,
        "program": fn_name,
        "fingerprint": fingerprint(program),
        "ops": len(program.ops),
        "call": call_record(program),
        "arguments": argument_types(program),
        "numbers": [p for p, weak in zip(paths, program.signature.weak, strict=True) if weak],
        "results": result_types(program),
        "mesh": model.mesh.to_dict(),
        "device": model.device.to_dict(),
        "options": options,
        "decisions": _from_state(model.mesh, analysis, state),
        "overrides": override_records(model, state),
        "specs": specs,
        "result_specs": result_specs,
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
        "replicated": _large_replicated(program, border_specs(model, state)[0]),
        **found,
    }  # fmt: skip
    plain: dict[str, Any] = json.loads(json.dumps(record))  # just what a saved plan holds
    return plain


def override_records(model: CostModel, state: State) -> list[dict[str, Any]]:
    """Layouts stored in another way than the lists say, each by its first value."""
    program, of_value = model.analysis.program, model.layouts.of_value
    pinned = [layout.pinned for layout in model.layouts.table]
    stored = partitioned(model, state)
    out = []
    for layout, placement in model.overrides.items():
        if placement == pinned[layout]:
            continue  # what the user wrote is read from the program again
        values = np.flatnonzero(of_value == layout).tolist()
        out.append({
            "value": values[0], "placement": list(placement), "stored": stored.shape(values[0]),
            "values": len(values), "what": sorted({_names(program, v) for v in values})[:8],
        })  # fmt: skip
    return sorted(out, key=lambda row: row["value"])


def _names(program: Program, value: int) -> str:
    """An argument, a copy of one, or the op and line that make a value; equal for all layers."""
    path = program.values[program.origin(value)].path
    if path is not None:
        path = any_index(path)
        return path if program.values[value].path is not None else f"a copy of {path}"
    op = program.values[value].op
    return f"{program.ops[op].name} at {program.where(value)}" if op >= 0 else "a constant"


def read_overrides(record: dict[str, Any], model: CostModel) -> dict[int, Placement]:
    """{layout: placement} of a plan's overrides, in a model of its program."""
    rows = record["overrides"]
    return {int(model.layouts.of_value[row["value"]]): tuple(row["placement"]) for row in rows}


def call_record(program: Program) -> dict[str, list[Any]]:
    """How the function is called."""
    return {
        "arguments": list(program.signature.arguments),
        "static": list(program.signature.static_argnums),
        "donated": list(program.signature.donated_argnums),
    }


def spec_records(model: CostModel, state: State) -> tuple[dict[str, Any], dict[str, Any]]:
    """({argument path: axes per dim}, {result path: axes per dim})"""
    program, (inputs, outputs) = model.analysis.program, border_specs(model, state)
    paths = [program.values[v].path or "" for v in program.inputs]
    return (
        {p: [list(d) for d in s] for p, s in zip(paths, inputs, strict=True)},
        {p: [list(d) for d in s] for p, s in zip(program.output_paths, outputs, strict=True)},
    )


def write_record(record: dict[str, Any], path: str | Path) -> None:
    """Writes a plan's file: whole, or not at all."""
    text, target = json.dumps(record, indent=1) + "\n", Path(path).resolve()
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.exists() and not target.is_file():  # /dev/stdout
            target.write_text(text, encoding="utf-8")
        else:
            beside.write_text(text, encoding="utf-8")
            beside.replace(target)
    except OSError as error:
        raise ShardwrightError(
            f"cannot write a plan to {path}: {error.strerror}",
            try_="a file in a folder that exists",
        ) from None
    finally:
        if beside.is_file():
            beside.unlink()


def read_record(path: str | Path) -> dict[str, Any]:
    """The plan in a file, of this version or an older one, as this version would have it."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, TypeError, ValueError) as error:
        raise ShardwrightError(f"cannot read a plan from {path}: {error}", try_=ASK) from None
    version = record.get("version") if isinstance(record, dict) else None
    if not isinstance(version, int) or version < 1:
        raise ShardwrightError(f"{path} is not a plan", try_=ASK)
    if version > VERSION:
        writer = f" {record['shardwright']}" if "shardwright" in record else ""
        raise ShardwrightError(
            f"{path} was written by a newer Shardwright{writer} (plan version {version}, this one"
            f" reads up to {VERSION})",
            try_="pip install -U shardwright",
        )
    missing = [key for key in NEEDED if key not in record]
    if missing:
        raise ShardwrightError(f"{path} is not a plan: it has no {missing[0]!r}", try_=ASK)
    if version < 2 and record["overrides"]:  # by numbers that mean other layouts now
        raise ShardwrightError(
            f"{path} was written by an older Shardwright, whose layouts had other numbers",
            try_="plan again",
        )
    record["overrides"] = record["overrides"] or []
    record.setdefault("call", None)  # version 1 has neither; bind() knows the call again
    record.setdefault("notes", [])
    return record


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
