"""What follows from a plan's record: ranks, shares and totals that several pages show."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.cost.cost import Cost
from shardwright.report.words import human_bytes, listed, short_path, short_source

Record = Mapping[str, Any]

_INDEX = re.compile(r"(?<=\[)\d+(?=\]\[')|(?<=\[)\d+(?=\]\.)")  # layers[3]['w1'], opt[0].mu

SAME = 1e-6  # relative: costs closer than this are one cost


@dataclass(frozen=True, slots=True)
class Baseline:
    """One named tactic that applies; others with the same cost are behind it."""

    name: str
    cost: Cost
    fits: bool
    also: tuple[str, ...] = ()  # other names of the same cost


@dataclass(frozen=True, slots=True)
class Movement:
    """All collectives of one kind over the same axes."""

    kind: str
    axes: tuple[str, ...]
    count: float  # times per step
    bytes: float  # per step and device
    seconds: float  # per step


def cost_of(record: Record) -> Cost:
    """The predicted cost of the plan."""
    return Cost(**record["cost"])


def limit_bytes(record: Record) -> int:
    """The memory the plan had to fit in: what the user gave, or what the device has."""
    given = record["search"].get("memory")
    return int(given if given is not None else record["memory"]["limit_bytes"])


def mesh_sizes(record: Record) -> dict[str, int]:
    """{axis: size}"""
    return dict(record["mesh"]["axes"])


def device_count(record: Record) -> int:
    """How many devices the mesh has."""
    return math.prod(mesh_sizes(record).values())


def mesh_text(record: Record) -> str:
    """data=16 x model=4"""
    return _mesh_text(mesh_sizes(record))


def _mesh_text(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{name}={size}" for name, size in sizes.items())


def mesh_shapes(record: Record) -> list[dict[str, Any]]:
    """The mesh shapes that were compared, fastest first; nothing when the user gave the shape.

    Each has `name`, `step_s` and `peak_bytes` (None when it does not fit), `chosen` and `note`.
    """
    if len(record["meshes"]) < 2:
        return []
    rows = []
    for row in record["meshes"]:
        chosen = row["mesh"] == mesh_sizes(record)
        note = "chosen" if chosen else row["why"] or ("" if row["searched"] else "screened only")
        rows.append({**row, "name": _mesh_text(row["mesh"]), "chosen": chosen, "note": note})
    return sorted(rows, key=lambda r: (r["step_s"] is None, r["step_s"] or 0.0, not r["chosen"]))


def entry_notes(entry: Mapping[str, Any], *, resolved: bool) -> list[str]:
    """What is special about one claim of an axis; `resolved`: its group has a resolution."""
    notes = ["moments and gradients only"] if entry["scope"] else []
    return notes + ([f"resolution {entry['bits']}"] if resolved else [])


def bound(record: Record) -> str:
    """What the step waits for most: "compute-bound" or "link-bound"."""
    cost = cost_of(record)
    return "compute-bound" if cost.compute_s >= cost.link_s else "link-bound"


def constraints(record: Record) -> str:
    """Who limits what the search may do, in words; empty when nobody does."""
    given = ["your tactics"] if record["options"].get("tactics") else []
    if record["search"].get("pins_in_code"):
        given.append("the shardings in your code")
    return " and ".join(given)


def are_pinned(record: Record) -> bool:
    """Whether pins bind the search, and with it the named tactics that are priced beside it."""
    binding = ("Pin(", "Replicate(", "Limit(")
    asked = any(tactic.startswith(binding) for tactic in record["options"].get("tactics", ()))
    return asked or bool(record["search"].get("pins_in_code"))


def ranked_baselines(record: Record) -> list[Baseline]:
    """The named tactics that apply, fastest first; equal costs are one row, shortest name first."""
    limit = limit_bytes(record)
    by_cost: dict[tuple[float, float, int], list[str]] = {}
    for name, row in record["baselines"].items():
        if not isinstance(row, str):
            cost = Cost(**row)
            key = (float(f"{cost.compute_s:.6g}"), float(f"{cost.link_s:.6g}"), cost.peak_bytes)
            by_cost.setdefault(key, []).append(name)
    rows = []
    for names in by_cost.values():
        first, *also = sorted(names, key=lambda n: (n.count("+"), len(n), n))
        cost = Cost(**record["baselines"][first])
        rows.append(Baseline(first, cost, cost.peak_bytes <= limit, tuple(also)))
    return sorted(rows, key=lambda b: (b.cost.step_s, b.cost.peak_bytes, b.name))


def first_baselines(record: Record, most: int) -> list[Baseline]:
    """The fastest baselines; the fastest that fits is among them."""
    rows = ranked_baselines(record)
    shown = rows[:most]
    first_fit = next((b for b in rows if b.fits), None)
    if first_fit is not None and first_fit not in shown:
        shown[-1] = first_fit
    return shown


def inapplicable(record: Record) -> dict[str, list[str]]:
    """{why a tactic does not apply: the tactics}; of a composition, why its part does not."""
    out: dict[str, list[str]] = {}
    for name, row in record["baselines"].items():
        if isinstance(row, str):
            out.setdefault(row.rpartition("): ")[2], []).append(name)
    return out


def same_cost(a: Cost, b: Cost) -> bool:
    """Whether two costs are equal but for rounding: the plans then do the same."""
    pairs = ((a.compute_s, b.compute_s), (a.link_s, b.link_s), (a.peak_bytes, b.peak_bytes))
    return all(abs(x - y) <= SAME * max(abs(x), abs(y)) for x, y in pairs)


def matching_baseline(record: Record) -> Baseline | None:
    """The named tactic that costs exactly what the plan costs, if any."""
    cost = cost_of(record)
    return next((b for b in ranked_baselines(record) if same_cost(b.cost, cost)), None)


def next_best(record: Record) -> Baseline | None:
    """The fastest named tactic that fits and is not the plan itself."""
    cost = cost_of(record)
    return next(
        (b for b in ranked_baselines(record) if b.fits and not same_cost(b.cost, cost)), None
    )


def lines_that_move(record: Record) -> list[dict[str, Any]]:
    """The collectives with those of repeated layers as one row, most seconds first.

    Each has `kind`, `axes`, `bytes` (once), `count`, `total_s`, `source` and `cause`.
    """
    out: dict[tuple[Any, ...], dict[str, Any]] = {}
    for c in record["collectives"]:
        cause = _INDEX.sub("*", c["cause"].replace(" is needed by ", " for "))
        source = short_source(c["source"])
        key = (c["kind"], tuple(c["axes"]), c["bytes"], source, cause)
        row = out.setdefault(
            key, {**c, "source": source, "cause": cause, "count": 0.0, "total_s": 0.0}
        )
        row["count"] += c["count"]
        row["total_s"] += c["count"] * c["seconds"]
    return sorted(out.values(), key=lambda r: -r["total_s"])


def movements(record: Record) -> list[Movement]:
    """Totals per kind and axes, most seconds first."""
    out: dict[tuple[str, tuple[str, ...]], Movement] = {}
    for c in record["collectives"]:
        key = (c["kind"], tuple(c["axes"]))
        known = out.get(key, Movement(*key, 0.0, 0.0, 0.0))
        out[key] = Movement(
            *key, known.count + c["count"], known.bytes + c["count"] * c["bytes"],
            known.seconds + c["count"] * c["seconds"],
        )  # fmt: skip
    return sorted(out.values(), key=lambda m: (-m.seconds, m.kind, m.axes))


def notes(record: Record) -> list[str]:
    """What was assumed about the links, what could not be followed, what ended the search."""
    return list(record.get("notes", ()))


def warnings(record: Record) -> list[str]:
    """What the user should know before trusting the plan."""
    out = []
    if record["opaque"]:
        names = [f"{name} x{count}" for name, count in record["opaque"].items()]
        out.append(
            f"no rule for {listed(names, 4)}: computed whole on every device;"
            " see shardwright.rule"
        )  # fmt: skip
    if record["replicated"]:
        alike: dict[str, int] = {}
        for r in record["replicated"]:
            path = short_path(_INDEX.sub("*", r["path"]))
            alike[path] = alike.get(path, 0) + r["bytes"]
        rows = [f"{path} ({human_bytes(size)})" for path, size in alike.items()]
        out.append(f"whole on every device: {listed(rows, 3)}")
    if record["search"]["interrupted"]:
        out.append("the search was interrupted: this is the best found so far")
    cost, limit = cost_of(record), limit_bytes(record)
    if limit < cost.peak_bytes:
        out.append(f"over memory: {human_bytes(cost.peak_bytes)} of {human_bytes(limit)}")
    return out
