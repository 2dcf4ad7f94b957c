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
from benchmarks.measured_models import KEEPS, Config, train_step
from benchmarks.measured_report import page, plot, table
from shardwright.cost.cost import Cost
from shardwright.cost.devices import device

HERE = Path(__file__).resolve().parent
NO_LIMIT = 10**15  # bytes: what was measured did fit, with offloading in some rows
# Asynchronous tensor parallelism splits dots so that activations move beside them, as weights do.
ASYNC_TP = 0.8
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
        return "h100-96" if "96 GB" in self["hardware"] else self["hardware"].split(" (")[0]

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
    """The model as its codebase has it; what the row says in brackets comes before the family."""
    number = {name: int(row[name]) for name in ("layers", "d_model", "d_ff", "vocab", "seq")}
    heads, said = int(row["n_heads"]), row["model"].lower()
    family: dict[str, Any] = next(
        (style for name, style in FAMILIES.items() if row.model.startswith(name)), GATED
    )
    head_dim = re.search(r"head_dim (\d+)", said)
    experts = re.search(r"(\d+) experts, top (\d+)", said)
    style = {
        "d_head": int(head_dim[1]) if head_dim else number["d_model"] // heads,
        "experts": int(experts[1]) if experts else 0,
        "top_k": int(experts[2]) if experts else 0,
        **family,
    }
    return Config(
        **number,
        **style,
        heads=heads,
        kv_heads=int(row["n_kv_heads"]),
        batch=int(row["global_batch"]),
        keeps=_keeps(row["remat"]),
        reduce_f32="DEFAULT" in row["precision"]
        or any(name in row["source"] for name in ("torchtitan", "Megatron")),
        eager="llm-foundry" in row["source"]
        or "Megatron" in row["source"]
        or "eager" in row["precision"],
        one_hot="maxtext" in row["source"].lower(),
        **_kernel(row),
    )


# What the table of rows does not say of a model.
GATED = {"tied": False, "gated": True}
PLAIN = {"tied": True, "gated": False, "rotary": False, "fused_qkv": True}
FAMILIES: dict[str, dict[str, Any]] = {
    "mpt": PLAIN,  # its ALiBi is inside the kernel
    "gpt3": PLAIN,
    "maxtext": {"tied": True, "gated": False, "parallel": True},
    "gpt-oss": GATED | {"d_head": 64},
    "gemma": {"tied": True, "gated": True},
}


def _kernel(row: Row) -> dict[str, Any]:
    """Which kernel computes attention: MaxText's defaults of 2023, or those of the recipes."""
    if not row.device.startswith("tpu"):
        return {}
    tuned = "tpu-recipes" in row["source"]
    return {
        "splash_block": min(2048 if tuned else 512, int(row["seq"])),
        "fused_backward": tuned,
    }


def _keeps(remat: str) -> str:
    """What a layer keeps, as a key of KEEPS."""
    if remat.startswith("custom") or "offload" in remat:
        return "projections"
    named = {"selective, per op": "every second dot", "recipe default": "none", "": "none"}
    found = named.get(remat, remat.split(" (")[0])
    if found not in KEEPS:
        raise ValueError(f"no policy of rematerialisation is called {remat!r}")
    return found


def mesh_of(row: Row) -> tuple[sw.Mesh, list[Any]]:
    """The published mesh, and its strategy as tactics."""
    axes = row.axes
    if "expert" in axes and "fsdp" not in axes:  # Megatron: experts are spread over data ranks
        replicas = axes.pop("data", int(row["chips"])) // axes["expert"]
        axes = {"data": replicas} | axes
    unknown = axes.keys() - TACTICS.keys()
    if unknown:
        raise ValueError(f"{row.name}: no tactic for {', '.join(unknown)}")
    axes = {name: axes[name] for name in TACTICS if axes.get(name, 1) > 1}  # major to minor
    tactics = [tactic(name) for name in axes for tactic in TACTICS[name]]
    if "tensor" in axes and "torchtitan" in row["source"]:
        tactics.append(sw.SequenceParallel("tensor"))
    return sw.Mesh(axes, dcn=tuple(name for name in axes if name.startswith("dcn_"))), tactics


# The published parallelisms, major to minor.
TACTICS: dict[str, tuple[Any, ...]] = {
    "dcn_data": (sw.DataParallel,),
    "dcn_fsdp": (sw.FSDP,),
    "data": (sw.DataParallel,),
    "fsdp": (sw.FSDP,),
    "context": (sw.ContextParallel,),
    "expert": (sw.ExpertParallel,),
    "tensor": (sw.Megatron,),
}


def device_of(row: Row) -> sw.Device:
    """The published device; MaxText's flags make gathers on v5p and v6e run beside compute."""
    known = device(row.device)
    if row.device in ("tpu-v5p", "tpu-v6e"):
        return sw.Device.like(known, name=known.name, hides=device("tpu-v5e").hides)
    return known


def replay(row: Row) -> Replay:
    """What is predicted for a published step."""
    example = train_step(model_of(row), row.model)
    mesh, tactics = mesh_of(row)
    plan = sw.partition(
        example.fn, *example.args, mesh=mesh, device=device_of(row), tactics=tactics,
        memory=NO_LIMIT, donate_argnums=example.donate_argnums,
        **({"overlap": ASYNC_TP} if "async TP" in row["mesh"] else {}),
    )  # fmt: skip
    return Replay(row, plan.cost)


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
    parser.add_argument("--write", action="store_true", help="docs/fidelity.md and its plot")
    given = parser.parse_args(argv)
    rows = [row for row in read_rows(Path(given.rows)) if given.only in row.name]
    replays, failed = [], []
    for row in rows:
        try:
            replays.append(replay(row))
        except (sw.ShardwrightError, ValueError) as error:
            failed.append(f"not replayed: {row.name}: {error}")
    print(table(replays), *failed, sep="\n")
    found = summary(replays)
    for name, value in found.items():
        print(f"{name} {value:.3f} (bar {BARS[name]:g})")
    if given.write:
        docs = HERE.parent / "docs"
        (docs / "fidelity.md").write_text(page(replays, found, BARS), encoding="utf-8")
        (docs / "pictures" / "measured.svg").write_text(plot(replays), encoding="utf-8")
    return int(bool(failed) or any(value > BARS[name] for name, value in found.items()))


if __name__ == "__main__":
    raise SystemExit(main())
