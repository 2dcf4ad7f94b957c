"""The large-scale part of docs/peers.md, from results/large.json."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.peers.large import ROWS
from benchmarks.peers.plots import lines


def _rows() -> dict[tuple[str, str, int], dict[str, Any]]:
    found = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    keys = {key: key.split(", ") for key in found}
    return {(m, d, int(n)): found[key] for key, (m, d, n) in keys.items()}


def large_table() -> str:
    """One line per model, device and number of chips."""
    lines_ = [
        "| model | chips | mesh | strategy | step | MFU | exposed | memory | FSDP alone "
        "| FSDP + TP of 8 | planned in |", "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for (model, device, chips), row in sorted(_rows().items()):
        start = f"| {model} | {chips} {device} "
        if "step_s" not in row:
            lines_.append(f"{start}| {row['error']} | | | | | | | | |")
            continue
        mesh = "x".join(str(n) for n in row["mesh"].values())
        lines_.append(
            f"{start}| {mesh} | {row['strategy']} | {row['step_s']:.2f} s | {row['mfu']:.0%} "
            f"| {row['exposed_s'] / row['step_s']:.0%} | {row['peak_bytes'] / 1e9:.1f} GB "
            f"| {_against(row['FSDP'])} | {_against(row['FSDP + TP'])} "
            f"| {row['planning_cpu_s']:.0f} s |"
        )
    return "\n".join(lines_)


def _against(row: dict[str, Any]) -> str:
    return f"{row['step_s']:.2f} s" if "step_s" in row else _short(row["error"])


def _short(error: str) -> str:
    return "does not fit" if "fits" in error else "does not apply"


def scaling_plot(model: str = "Llama 70B") -> str:
    """MFU over chips for each device: what was planned (solid), FSDP alone (dashed)."""
    series: dict[str, dict[float, float]] = {}
    for (name, device, chips), row in sorted(_rows().items()):
        if name == model and "step_s" in row:
            series.setdefault(device, {})[chips] = row["mfu"]
            if "step_s" in row["FSDP"]:
                series.setdefault(f"{device} (FSDP)", {})[chips] = row["FSDP"]["mfu"]
    return lines(series, f"chips; MFU of {model}, 4.2M tokens a step; dashed: FSDP alone")
