"""Plans for 64 to 8,192 chips, predicted only: `python -m benchmarks.peers.large [--again]`.

About four million tokens a step whatever the number of chips, as in training: the fewer tokens a
chip has, the more its links matter. Rows go to results/large.json one after the other: a run that
was interrupted goes on. Nothing is compiled; docs/fidelity.md says how far predictions are off.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import shardwright as sw
from shardwright.report.pattern import pattern
from shardwright.report.rates import mfu
from shardwright.zoo import sorted_moe, transformer
from shardwright.zoo.example import Example

ROWS = Path(__file__).parent / "results" / "large.json"
CHIPS = (2048, 8192, 512, 64)  # in the order in which rows are filled in
DEVICES = ("tpu-v5p", "tpu-v6e", "tpu-7x", "h100", "gb200")
MODELS = ("Llama 70B", "Llama 405B", "DeepSeek-V2 Lite")
TP = 8  # of the strategy FSDP + TP


def model(name: str) -> Example:
    """A train step of about four million tokens."""
    if name == "DeepSeek-V2 Lite":
        config = replace(sorted_moe.PRESETS["deepseek_16b"], batch=1024)
        return sorted_moe.train(config, "step")
    preset, batch, seq = ("llama_70b", 1024, 4096) if "70B" in name else ("llama_405b", 512, 8192)
    config = replace(transformer.PRESETS[preset], scan=True, batch=batch, seq=seq)
    return transformer.train(config, "step")


def planned(example: Example, device: str, mesh: Any, tactics: Any = None) -> sw.Plan:
    """The plan of a step, of which only what is predicted is used."""
    return sw.partition(
        example.fn, *example.args, mesh=mesh, device=device, tactics=tactics, cache=False,
        donate_argnums=example.donate_argnums,
    )  # fmt: skip


def figures(plan: sw.Plan) -> dict[str, Any]:
    """What a row says of one plan."""
    cost = plan.cost
    return {
        "mesh": dict(plan.mesh.shape), "strategy": pattern(plan.record), "step_s": cost.step_s,
        "peak_bytes": cost.peak_bytes, "mfu": mfu(plan.record), "link_s": cost.link_s,
        "exposed_s": cost.exposed_s, "certificate": plan.certificate.kind,
    }  # fmt: skip


def row(name: str, device: str, chips: int) -> dict[str, Any]:
    """What is planned for one model on so many chips, beside the named strategies."""
    example, start = model(name), time.process_time()
    try:
        found = figures(planned(example, device, chips))
    except sw.ShardwrightError as error:
        return {"error": str(error).splitlines()[0]}
    found["planning_cpu_s"] = time.process_time() - start
    schedules = {
        "FSDP": ({"data": chips}, [sw.FSDP("data")]),
        "FSDP + TP": (
            {"data": chips // TP, "model": TP},
            [sw.FSDP("data"), sw.Megatron("model"), sw.SequenceParallel("model")],
        ),
    }
    for strategy, (mesh, tactics) in schedules.items():
        try:
            found[strategy] = figures(planned(example, device, mesh, tactics))
        except sw.ShardwrightError as error:
            found[strategy] = {"error": str(error).splitlines()[0]}
    return found


def main() -> None:
    """Fills in the rows that are missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--again", action="store_true", help="also rows that are there")
    again = parser.parse_args().again
    rows = json.loads(ROWS.read_text()) if ROWS.exists() and not again else {}
    for key in [f"{m}, {d}, {n}" for n in CHIPS for d in DEVICES for m in MODELS]:
        if key not in rows:
            name, device, chips = key.split(", ")
            rows[key] = row(name, device, int(chips))
            ROWS.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
            print(key, rows[key].get("step_s", rows[key]), flush=True)


if __name__ == "__main__":
    main()
