"""Step times that others published, replayed: predicted beside measured.

    python -m benchmarks.measured             # the table, worst rows first
    python -m benchmarks.measured --write     # and docs/fidelity.md with its plot

Each row of measured.csv is a train step on real TPUs or GPUs, with its source. The model is written
as its codebase has it (measured_models.py), the mesh and the strategy are the published ones.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shardwright as sw
from benchmarks.measured_models import Config, train_step
from shardwright.cost.cost import Cost

HERE = Path(__file__).resolve().parent
NO_LIMIT = 10**15  # bytes: what was measured did fit, with offloading in some rows
BARS = {"median": 0.08, "p90": 0.20, "worst": 1.5}


@dataclass(frozen=True, slots=True)
class Row:
    """One published step: what ran, on what, and how long it took."""

    fields: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.fields[name]

    @property
    def model(self) -> str:
        return self["model"].split(" (")[0]

    @property
    def name(self) -> str:
        return f"{self.model}, {self['chips']} x {self.device}, {self['mesh']}, {self['precision']}"

    @property
    def device(self) -> str:
        """The name of the device in devices.toml."""
        return "h100-96" if "96 GB" in self["hardware"] else self["hardware"]

    @property
    def measured_s(self) -> float:
        return float(self["step_s"])

    @property
    def axes(self) -> dict[str, int]:
        """The published parallelisms and their sizes: {"dcn_data": 2, "fsdp": 256}."""
        return {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", self["mesh"])}


@dataclass(frozen=True, slots=True)
class Replay:
    """A row and what was predicted for it."""

    row: Row
    cost: Cost

    @property
    def ratio(self) -> float:
        return self.cost.step_s / self.row.measured_s

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)


def read_rows(path: Path = HERE / "measured.csv") -> list[Row]:
    with path.open(encoding="utf-8") as file:
        return [Row(fields) for fields in csv.DictReader(file)]


def model_of(row: Row) -> Config:
    """The model as its codebase has it."""
    number = {name: int(row[name]) for name in ("layers", "d_model", "d_ff", "vocab", "seq")}
    heads, kv_heads = int(row["n_heads"]), int(row["n_kv_heads"])
    family = next(f for f in FAMILIES if row.model.startswith(f))
    return Config(
        **number,
        heads=heads,
        kv_heads=kv_heads,
        batch=int(row["global_batch"]),
        keeps=_keeps(row["remat"]),
        reduce_f32="DEFAULT" in row["precision"] or "torchtitan" in row["source"],
        **_kernel(row),
        **{"d_head": number["d_model"] // heads, **FAMILIES[family]},
    )


# What the table of rows does not say of a model.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tied": False, "gated": True},
    "mistral": {"tied": False, "gated": True},
    "mpt": {"tied": True, "gated": False, "rotary": False},  # ALiBi: inside the kernel
    "gpt3": {"tied": True, "gated": False, "rotary": False},
    "maxtext": {"tied": True, "gated": False, "parallel": True, "d_head": 256},
    "gpt-oss": {"tied": False, "gated": True, "d_head": 64, "experts": 128, "top_k": 4},
}


def _kernel(row: Row) -> dict[str, Any]:
    """Which kernel computes attention: MaxText's defaults of 2023, or those of the v6e recipes."""
    if not row.device.startswith("tpu"):
        return {}
    tuned = "tpu-recipes" in row["source"]
    return {"splash_block": 2048 if tuned else 512, "fused_backward": tuned}


def _keeps(remat: str) -> str:
    if remat.startswith("custom"):
        return "projections"
    return {"selective, per op": "every second dot", "recipe default": "none"}.get(remat, remat)


def mesh_of(row: Row) -> tuple[sw.Mesh, list[Any]]:
    """The published mesh, and its strategy as tactics."""
    axes = row.axes
    tactics: list[Any] = []
    if "expert" in axes:
        replicas = axes["data"] // axes["expert"]
        sizes = {"data": replicas, "expert": axes["expert"]}
        tactics = [sw.ExpertParallel("expert")]
        return sw.Mesh(sizes), tactics + [sw.DataParallel("data")] * (replicas > 1)
    if "dcn_data" in axes:
        tactics.append(sw.DataParallel("dcn_data"))
    tactics.append(sw.FSDP("fsdp"))
    if "tensor" in axes:
        tactics.append(sw.Megatron("tensor"))
        if "torchtitan" in row["source"]:
            tactics.append(sw.SequenceParallel("tensor"))
    return sw.Mesh(axes, dcn=("dcn_data",) if "dcn_data" in axes else ()), tactics


def replay(row: Row) -> Replay:
    """What is predicted for a published step."""
    example = train_step(model_of(row), row.model)
    mesh, tactics = mesh_of(row)
    plan = sw.partition(
        example.fn, *example.args, mesh=mesh, device=row.device, tactics=tactics,
        memory=NO_LIMIT, donate_argnums=example.donate_argnums,
    )  # fmt: skip
    return Replay(row, plan.cost)


def table(replays: Sequence[Replay]) -> str:
    """One line per row, the worst first."""
    lines = [
        "| published step | measured | predicted | ratio | compute | links |",
        "|---|---|---|---|---|---|",
    ]
    for one in sorted(replays, key=lambda one: -abs(math.log(one.ratio))):
        cost = one.cost
        lines.append(
            f"| {one.row.name} | {one.row.measured_s:.3f} s | {cost.step_s:.3f} s "
            f"| {one.ratio:.2f} | {cost.compute_s:.3f} s | {cost.link_s:.3f} s |"
        )
    return "\n".join(lines)


def summary(replays: Sequence[Replay]) -> dict[str, float]:
    """Median and 90th percentile of the absolute error, and the worst ratio."""
    errors = sorted(one.error for one in replays)
    return {
        "median": statistics.median(errors),
        "p90": errors[math.ceil(0.9 * len(errors)) - 1],
        "worst": max(math.exp(abs(math.log(one.ratio))) for one in replays),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=str(HERE / "measured.csv"), help="another table of rows")
    parser.add_argument("--only", default="", help="a part of the names of rows")
    given = parser.parse_args(argv)
    rows = [row for row in read_rows(Path(given.rows)) if given.only in row.name]
    replays = [replay(row) for row in rows]
    print(table(replays))
    found = summary(replays)
    for name, value in found.items():
        print(f"{name} {value:.3f} (bar {BARS[name]:g})")
    return int(any(value > BARS[name] for name, value in found.items()))


if __name__ == "__main__":
    raise SystemExit(main())
