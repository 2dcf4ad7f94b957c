"""Published choices of what to rematerialise, among all choices as compare() ranks them.

    python -m benchmarks.published_remat          # one row per model, hardware and policy
    python -m benchmarks.published_remat --all    # every row of measured.csv that names a policy

For each published step the same model is compared under every policy, on the published mesh with
the memory that the device has; with the published strategy, or, where the policy does not fit
under our replay of it, with a plan that is searched (MaxText also splits the residual stream over
tensor ranks, which no named tactic does). The published policy must fit, and the best one must be
predicted to be at least as fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import shardwright as sw
from benchmarks.measured import Row, device_of, mesh_of, model_of, read_rows
from benchmarks.measured_models import KEEPS, Config, train_step
from shardwright.report.words import columns, human_bytes, human_seconds

# The policies that rows of measured.csv name.
COMPARED = ("none", "full", "minimal", "minimal_flash", "projections", "every second dot")


def name_of(model: Config) -> str:
    """What the policy of a model is called."""
    return next(name for name, remat in KEEPS.items() if remat == model.keeps)


def compared(row: Row, *, free: bool = False) -> sw.Comparison:
    """All policies for the model of a row, on its mesh: with its strategy, or as searched."""
    mesh, tactics = mesh_of(row)

    def make(keeps: str) -> Any:
        example = train_step(replace(model_of(row), keeps=KEEPS[keeps]), row.model)
        return example.fn, example.args

    return sw.compare(
        make, grid={"keeps": list(COMPARED)}, mesh=mesh, device=device_of(row),
        tactics=None if free else tactics, donate_argnums=0,
    )  # fmt: skip


def judge(row: Row) -> tuple[bool, tuple[str, ...]]:
    """(whether the published choice fits and the best is as fast, a row of the table)."""
    found, published, how = compared(row), f"keeps={name_of(model_of(row))}", "fits"
    mine = next(r for r in found.rows if r.variant == published)
    if not mine.fits:
        found, how = compared(row, free=True), "fits as searched"
        mine = next(r for r in found.rows if r.variant == published)
    fits, peak = mine.fits, mine.cost.peak_bytes if mine.cost else 0
    best = found.rows[found.record.best] if found.record.best is not None else None
    faster = best is not None and (mine.item_s is None or (best.item_s or 0.0) <= mine.item_s)
    return fits and faster, (
        f"{row.model}, {row['chips']} x {row.device}", published.removeprefix("keeps="),
        f"{human_bytes(peak)} of {human_bytes(mine.limit_bytes)}" if peak else mine.why,
        how if fits else "DOES NOT FIT", human_seconds(row.measured_s),
        human_seconds(mine.cost.step_s) if mine.cost else "-",
        f"{best.variant.removeprefix('keeps=')} {human_seconds(best.cost.step_s)}"
        if best is not None and best.cost is not None else "-",
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 when a published choice does not fit, or nothing is as fast."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every row, not one per choice")
    parser.add_argument("--only", default="", help="a part of the names of rows")
    given = parser.parse_args(argv)
    rows = [
        r for r in read_rows() if r["remat"] not in ("", "recipe default") and given.only in r.name
    ]
    if not given.all:
        rows = list({(r.model, r.device, r["remat"]): r for r in reversed(rows)}.values())[::-1]
    head = ("model", "published", "memory", "", "measured", "predicted", "best predicted")
    table, good = [head], 0
    for row in rows:
        ok, cells = judge(row)
        good += ok
        table.append(cells)
        print("  ".join(cells), flush=True)
    print(columns(table, right=(4, 5), indent=0))
    print(f"{good} of {len(rows)} published choices fit and are no faster than the best predicted")
    return int(good < len(rows))


if __name__ == "__main__":
    raise SystemExit(main())
