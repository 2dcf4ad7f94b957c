"""Step times that others published, replayed: predicted beside measured.

    python -m benchmarks.measured             # the tables, worst rows first; 1 if a bar is missed
    python -m benchmarks.measured --write     # and docs/fidelity.md with its plots
    python -m benchmarks.measured --rows benchmarks/unmeasured.csv

Each row of measured.csv is a train step on real TPUs or GPUs, with its source. The model is written
as its codebase has it (measured_models.py), the mesh and the strategy are the published ones.
unmeasured.csv has rows as those sources might have them, without a time: they show that rows nobody
tuned on are read, and that what is predicted for them is plausible.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import shardwright as sw
from benchmarks.measured_models import KEEPS, Config, Remat, train_step
from benchmarks.measured_report import (
    all_pairs,
    ladder_table,
    link_plot,
    page,
    plausibility,
    step_plot,
    table,
)
from shardwright.cost.cost import Cost
from shardwright.cost.devices import device

HERE = Path(__file__).resolve().parent
NO_LIMIT = 10**15  # bytes: what was measured did fit, with offloading in some rows
BARS = {"median": 0.08, "p90": 0.20, "worst": 1.5}
PLAUSIBLE_MFU = (0.1, 0.75)  # of the rate of the dtype; published rows have 0.2 to 0.7


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
        if "96 GB" in self["hardware"]:
            return "h100-96"
        words = self["hardware"].split(" (")[0].lower().removeprefix("nvidia ").split()
        for count in range(len(words), 1, -1):
            with contextlib.suppress(sw.ShardwrightError):
                return device(" ".join(words[:count])).name
        return device(words[0]).name

    @property
    def measured_s(self) -> float:
        return float(self["step_s"] or math.nan)

    @property
    def axes(self) -> dict[str, int]:
        """The published parallelisms and their sizes: {"dcn_data": 2, "fsdp": 256}."""
        found = re.findall(r"(\w+)=(\d+)", self["mesh"].lower())
        return {ALSO_CALLED.get(name, name): int(size) for name, size in found}

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        if self["global_batch"]:
            return number(self["global_batch"])
        return round(float(self["per_device_batch"]) * number(self["chips"]))

    @property
    def stages(self) -> int:
        """Stages of the pipeline; 1: there is none."""
        return self.axes.get("pipeline", 1)

    @property
    def bubble(self) -> float:
        """Of the time in which a stage works, the part in which it waits for others: (p - 1) / m.

        m is the number of microbatches of one rank, times the parts that a stage is split into.
        """
        apart = re.search(r"(?:virtual|interleave)\w*[ =](\d+)", self["mesh"])
        size = re.search(r"microbatch (\d+)", self["mesh"])
        ranks = math.prod(n for name, n in self.axes.items() if name in BATCH_AXES)
        alone = self.batch / ranks / int(size[1] if size else 1)
        return (self.stages - 1) / (max(alone, 1.0) * int(apart[1] if apart else 1))


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

    @property
    def mfu(self) -> float:
        """FLOP that the model needs, of what the chips can do in the predicted seconds."""
        model, known = model_of(self.row), device(self.row.device)
        rate = known.matrix_flops_per_s(model.narrow or "bf16") * int(self.row["chips"])
        return model.flops / rate / self.cost.step_s


def number(text: str) -> int:
    """A count, which tables also write as 2.0."""
    return round(float(text))


def read_rows(path: Path = HERE / "measured.csv") -> list[Row]:
    with path.open(encoding="utf-8") as file:
        return [Row(fields) for fields in csv.DictReader(file)]


def model_of(row: Row) -> Config:
    """The model as its codebase has it; what the row says in brackets comes before the family."""
    numbers = {name: number(row[name]) for name in ("layers", "d_model", "d_ff", "vocab", "seq")}
    heads, said = number(row["n_heads"]), row["model"].lower()
    family: dict[str, Any] = next(
        (style for name, style in FAMILIES.items() if row.model.startswith(name)), GATED
    )
    head_dim = re.search(r"head_dim (\d+)", said)
    experts = re.search(r"(\d+) experts, top.?(\d+)", said)
    style = {
        "d_head": numbers["d_model"] // heads,
        "experts": int(experts[1]) if experts else 0,
        "top_k": int(experts[2]) if experts else 0,
        **family,
    }
    style |= {"d_head": int(head_dim[1])} if head_dim else {}
    style |= {"tied": True} if re.search(r"\btied\b", said) else {}
    return Config(
        **numbers,
        **style,
        heads=heads,
        kv_heads=number(row["n_kv_heads"] or row["n_heads"]),
        batch=row.batch,
        narrow=_narrow(row["precision"]),
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


def _narrow(precision: str) -> str:
    """The dtype in which layers multiply, as a key of NARROW; "" is bf16."""
    said = precision.lower()
    return "f8" if re.search(r"fp8|float8|\bf8", said) else "s8" if "int8" in said else ""


def _keeps(remat: str) -> Remat:
    """What a layer keeps: a named policy, or a list of what is offloaded to the host and saved."""
    said = remat.strip().lower()
    policy = ALSO_KEPT.get(said, said.split(" (")[0])
    policy = ALSO_KEPT.get(policy, policy)
    if policy in KEEPS:
        return KEEPS[policy]
    if not said.startswith("custom") and "offload" not in said:
        raise ValueError(f"no policy of rematerialisation is called {remat!r}")
    kept: dict[bool, list[str]] = {True: [], False: []}
    for part in said.split("," if "=" in said else ";"):  # what goes where, or a list for each
        if "remat" not in part:
            found = [names for called, names in CALLED.items() if re.search(called, part)]
            kept["offload" in part] += itertools.chain.from_iterable(found)
    return Remat(tuple(dict.fromkeys(kept[False])), tuple(dict.fromkeys(kept[True])))


# Other names of policies. Megatron's selective one recomputes what flash attention never writes.
ALSO_KEPT = {
    "selective, per op": "every second dot", "recipe default": "none", "": "none", "no": "none",
    "minimal_with_context": "minimal_flash", "proj": "minimal", "dots_saveable": "minimal",
    "selective": "none", "core attention": "none", "yes": "full", "true": "full",
}  # fmt: skip
# How rows name what a custom policy keeps.
CALLED = {
    "layer.input": ("input",), r"\bq\b|query|qkv": ("q",), r"\bk\b|key|qkv": ("k",),
    r"\bv\b|value|qkv": ("v",), "out_proj": ("out",), "context": ("context",),
    "mlpwi|w1": ("gate", "up"), "mlpwo|w2": ("down",),
}  # fmt: skip


def mesh_of(row: Row) -> tuple[sw.Mesh, list[Any]]:
    """The published mesh, and its strategy as tactics."""
    axes = row.axes
    stages = axes.pop("pipeline", 1)
    if "expert" in axes and "fsdp" not in axes:  # Megatron: experts are spread over data ranks
        ranks = axes.pop("data", number(row["chips"]) // stages)
        axes["expert"] = math.gcd(axes["expert"], ranks)
        axes = {"data": ranks // axes["expert"]} | axes
    unknown = axes.keys() - TACTICS.keys()
    if unknown:
        raise ValueError(f"{row.name}: no tactic for {', '.join(unknown)}")
    rest, odd = divmod(number(row["chips"]), math.prod(axes.values()) * stages)
    if odd or not rest:
        raise ValueError(f"{row.name}: the mesh does not have {row['chips']} chips")
    axes["data"] = axes.get("data", 1) * rest  # what is not said is data parallelism
    axes = {name: axes[name] for name in TACTICS if axes.get(name, 1) > 1}  # major to minor
    axes = axes or {"data": 1}
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


# Other names of parallelisms, and those over which a batch is split.
ALSO_CALLED = {
    "dp": "data", "ddp": "data", "replicate": "data", "dp_replicate": "data", "shard": "fsdp",
    "dp_shard": "fsdp", "fsdp_transpose": "fsdp", "tp": "tensor", "model": "tensor",
    "tensor_sequence": "tensor", "tensor_transpose": "tensor", "cp": "context",
    "sequence": "context", "ep": "expert", "pp": "pipeline", "dcn": "dcn_data",
}  # fmt: skip
BATCH_AXES = ("dcn_data", "dcn_fsdp", "data", "fsdp")


def device_of(row: Row) -> sw.Device:
    """The published device, and what the run makes it do.

    MaxText's flags make gathers on v5p and v6e run beside compute. Asynchronous tensor parallelism
    splits dots, so that activations move beside them, as weights do.
    """
    changes: dict[str, Any] = {}
    if row.device in ("tpu-v5p", "tpu-v6e"):
        changes["hides"] = device("tpu-v5e").hides
    if "async TP" in row["mesh"]:
        changes["splits_bytes"] = 1
    return sw.Device.like(row.device, name=row.device, **changes)


def replay(row: Row) -> Replay:
    """What is predicted for a published step; of a pipeline the stage that has the logits."""
    model = model_of(row)
    model = replace(model, layers=math.ceil(model.layers / row.stages))
    example = train_step(model, row.model)
    mesh, tactics = mesh_of(row)
    plan = sw.partition(
        example.fn, *example.args, mesh=mesh, device=device_of(row), tactics=tactics,
        memory=NO_LIMIT, donate_argnums=example.donate_argnums,
    )  # fmt: skip
    cost = plan.cost
    waits = 1 + row.bubble
    cost = replace(cost, compute_s=cost.compute_s * waits, link_s=cost.link_s * waits,
                   hidden_s=cost.hidden_s * waits)  # fmt: skip
    return Replay(row, cost)


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
    parser.add_argument("--write", action="store_true", help="docs/fidelity.md and its plots")
    given = parser.parse_args(argv)
    rows = [row for row in read_rows(Path(given.rows)) if given.only in row.name]
    replays, failed = [], []
    for row in rows:
        try:
            replays.append(replay(row))
        except (sw.ShardwrightError, ValueError) as error:
            failed.append(f"not replayed: {row.name}: {error}")
    unmeasured = [one for one in replays if math.isnan(one.row.measured_s)]
    if unmeasured:
        print(plausibility(unmeasured))
    print(*failed, sep="\n")
    low, high = PLAUSIBLE_MFU
    odd = [one for one in unmeasured if not low <= one.mfu <= high]
    for one in odd:
        print(f"implausible: {one.row.name}: MFU {one.mfu:.0%}")
    replays = [one for one in replays if not math.isnan(one.row.measured_s)]
    if not replays:
        return int(bool(failed or odd))
    print(table(replays))
    found = summary(replays)
    for name, value in found.items():
        print(f"{name} {value:.3f} (bar {BARS[name]:g})")
    right, pairs = all_pairs(replays)
    print(ladder_table(replays), f"pairs in order {right} of {pairs} (bar all)", sep="\n")
    if given.write:
        docs = HERE.parent / "docs"
        (docs / "fidelity.md").write_text(page(replays, found, BARS), encoding="utf-8")
        pictures = docs / "pictures"
        (pictures / "measured.svg").write_text(step_plot(replays), encoding="utf-8")
        (pictures / "measured_links.svg").write_text(link_plot(), encoding="utf-8")
    missed = right < pairs or any(value > BARS[name] for name, value in found.items())
    return int(bool(failed or odd) or missed)


if __name__ == "__main__":
    raise SystemExit(main())
