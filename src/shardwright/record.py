"""A plan as plain data: what is saved, compared, and shown."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from shardwright._version import __version__
from shardwright.analysis.analysis import Analysis
from shardwright.analysis.labels import any_index
from shardwright.cost.breakdown import Breakdown, peak_breakdown
from shardwright.cost.model import CostModel, model_collectives, partitioned
from shardwright.errors import ShardwrightError
from shardwright.lowering.specs import Spec, border_specs
from shardwright.mesh import Mesh
from shardwright.plan_schema import check_record
from shardwright.program.fingerprint import argument_types, fingerprint, result_types
from shardwright.program.types import Program
from shardwright.search.roles import group_roles
from shardwright.spmd.decisions import Decisions, State
from shardwright.spmd.ir import Collective
from shardwright.spmd.layout import Placement

# Of the plan file. 2 says how the function is called, which to_python() needs, and who wrote it.
VERSION = 2

MOST_BYTES = 2**28  # of a plan file; one of ten thousand arguments takes a few megabytes
ASK = "a file written by plan.save()"


def build_record(
    fn_name: str, model: CostModel, decisions: Decisions, *,
    found: dict[str, Any], options: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The plan as plain data."""
    program, analysis = model.analysis.program, model.analysis
    (specs, result_specs), cost = spec_records(model, decisions), model.cost(decisions)
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
        "decisions": _from_state(model.mesh, analysis, decisions.lists),
        "overrides": override_records(model, decisions),
        "specs": specs,
        "result_specs": result_specs,
        "cost": {
            "compute_s": cost.compute_s, "link_s": cost.link_s, "peak_bytes": cost.peak_bytes,
            "overlap": cost.overlap,
        },
        "collectives": _merge(model_collectives(model, decisions)),
        "memory": _memory(peak_breakdown(model, decisions), model),
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
        "replicated": _large_replicated(program, border_specs(model, decisions)[0]),
        **found,
    }  # fmt: skip
    record["notes"] = [*model.prices.network.notes(), *found["notes"]]
    plain: dict[str, Any] = json.loads(json.dumps(record))  # just what a saved plan holds
    return plain


def override_records(model: CostModel, decisions: Decisions) -> list[dict[str, Any]]:
    """Layouts stored in another way than the lists say, each by its first value."""
    program, of_value = model.analysis.program, model.layouts.of_value
    stored = partitioned(model, decisions)
    out = []
    for layout, placement in decisions.overrides:
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


def spec_records(model: CostModel, decisions: Decisions) -> tuple[dict[str, Any], dict[str, Any]]:
    """({argument path: axes per dim}, {result path: axes per dim})"""
    program, (inputs, outputs) = model.analysis.program, border_specs(model, decisions)
    paths = [program.values[v].path or "" for v in program.inputs]
    return (
        {p: [list(d) for d in s] for p, s in zip(paths, inputs, strict=True)},
        {p: [list(d) for d in s] for p, s in zip(program.output_paths, outputs, strict=True)},
    )


def write_record(record: dict[str, Any], path: str | Path) -> None:
    """Writes a plan's file: whole, or not at all, and nothing that could not be read again."""
    wrong = check_record(record)
    if wrong is not None:
        raise ShardwrightError(
            f"cannot write a plan to {path}: {wrong}", try_="other names in the program or the mesh"
        )
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():  # /dev/stdout
            target.write_text(text, encoding="utf-8")
        else:
            _replace(target, text)
    except (OSError, TypeError, ValueError) as error:
        raise ShardwrightError(
            f"cannot write a plan to {path}: {getattr(error, 'strerror', None) or error}",
            try_="a file in a folder that exists",
        ) from None


def _replace(target: Path, text: str) -> None:
    """Writes a file beside the target, then puts it in its place."""
    beside = target.with_name(f".plan-{uuid.uuid4().hex}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def read_record(path: str | Path) -> dict[str, Any]:
    """The plan in a file, of this version or an older one, as this version would have it."""
    try:
        with Path(path).open("rb") as file:
            record = _parse(file.read(MOST_BYTES + 1))
    except RecursionError:
        raise ShardwrightError(
            f"cannot read a plan from {path}: nested too deeply", try_=ASK
        ) from None
    except (OSError, TypeError, ValueError) as error:
        raise ShardwrightError(f"cannot read a plan from {path}: {error}", try_=ASK) from None
    version = record.get("version") if isinstance(record, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version < 1000:
        raise ShardwrightError(f"{path} is not a plan", try_=ASK)
    if version > VERSION:
        writer = record.get("shardwright")
        by = f" {writer}" if isinstance(writer, str) and writer.isprintable() else ""
        raise ShardwrightError(
            f"{path} was written by a newer Shardwright{by} (plan version {version}, this one"
            f" reads up to {VERSION})",
            try_="pip install -U shardwright",
        )
    if version < 2 and record.get("overrides"):  # by numbers that mean other layouts now
        raise ShardwrightError(
            f"{path} was written by an older Shardwright, whose layouts had other numbers",
            try_="plan again",
        )
    if version < 2:  # it has neither; bind() knows the call again
        record |= {"overrides": [], "call": record.get("call"), "notes": record.get("notes", [])}
    try:
        wrong = check_record(record)
    except ShardwrightError as error:  # of the mesh or the device
        wrong = error.what
    if wrong is not None:
        raise ShardwrightError(f"{path} is damaged: {wrong}", try_="a file as plan.save() wrote it")
    return record


def _parse(data: bytes) -> Any:
    if len(data) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES:,} bytes")
    return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two fields with one name a reader would see one and a run the other."""
    out = dict(pairs)
    if len(out) < len(pairs):
        raise ValueError("an object has the same field twice")
    return out


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")


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
