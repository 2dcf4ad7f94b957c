"""Peak memory of plans: predicted beside what the TPU and GPU compilers assign.

    python -m benchmarks.memory            # needs the [tpu] and [cuda] extras; minutes per new row
    python -m benchmarks.memory --stored   # against what was compiled before

The triples are in memory_cases.py. What a compiler assigned to a plan is kept in memory.json, so a
row is compiled again only when its plan has changed. A third of the rows is held out: their
figures are in the table, and nobody looks at their buffers while the model is tuned.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import shardwright as sw
from benchmarks.memory_cases import CASES, MODELS, PLANS, TARGETS, Case
from shardwright.referee.targets import OutOfMemory
from shardwright.referee.verify import compile_plan

STORE = Path(__file__).with_name("memory.json")
NO_LIMIT = 10**15  # bytes: a named tactic is judged whether or not it fits
BARS = {"median": 0.05, "worst": 0.15}
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Row:
    """One triple, judged."""

    name: str
    held_out: bool
    plan: str  # a fingerprint of the decisions
    predicted_bytes: int
    compiled_bytes: int
    usable_bytes: int
    fits: bool  # as the compiler says

    @property
    def error(self) -> float:
        """Predicted over compiled, less one."""
        return self.predicted_bytes / self.compiled_bytes - 1

    @property
    def false_fit(self) -> bool:
        """Whether it is predicted to fit and does not."""
        return self.predicted_bytes <= self.usable_bytes and not self.fits


def plan_of(case: Case) -> sw.Plan:
    """The plan of a triple."""
    example = MODELS[case.model]()
    tactics = PLANS[case.plan]
    return sw.partition(
        example.fn, *example.args, mesh=TARGETS[case.device][1], device=case.device,
        donate_argnums=example.donate_argnums, tactics=tactics, cache=False,
        memory=None if tactics is None else NO_LIMIT,
    )  # fmt: skip


def fingerprint(plan: sw.Plan) -> str:
    """Tells decisions apart."""
    return sha256(repr(plan._require("this benchmark").decisions).encode()).hexdigest()[:16]


def compiled(plan: sw.Plan, target: str) -> tuple[int, bool]:
    """(bytes that the compiler assigns, whether they fit)."""
    try:
        return compile_plan(plan, target).memory.peak_bytes, True
    except OutOfMemory as error:
        used = re.search(r"Used ([\d.]+)([KMG]?) of", str(error))
        if used is None:
            raise
        return int(float(used[1]) * _UNIT[used[2]]), False


def judge(case: Case, stored: Row | None, *, compile: bool) -> Row | None:
    """A row; of an unchanged plan with what was compiled before, else None without a compiler."""
    plan = plan_of(case)
    name = fingerprint(plan)
    if stored is not None and stored.plan == name:
        size, fits = stored.compiled_bytes, stored.fits
    elif compile:
        size, fits = compiled(plan, TARGETS[case.device][0])
    else:
        return None
    return Row(
        case.name, case.held_out, name, plan.cost.peak_bytes, size, plan.device.usable_bytes, fits
    )


def read() -> dict[str, Row]:
    """What was judged before, by name."""
    rows = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else []
    return {row["name"]: Row(**row) for row in rows}


def write(rows: dict[str, Row]) -> None:
    """Keeps what was judged, in the order of the triples."""
    kept = [asdict(rows[case.name]) for case in CASES if case.name in rows]
    STORE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def table(rows: Sequence[Row]) -> str:
    """One line per row, the worst first."""
    lines = ["| plan | predicted | compiled | error | held out |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: -abs(row.error)):
        note = "" if row.fits else ", does not fit"
        lines.append(
            f"| {row.name} | {row.predicted_bytes / 1e9:.2f} GB "
            f"| {row.compiled_bytes / 1e9:.2f} GB{note} | {row.error:+.1%} "
            f"| {'yes' if row.held_out else ''} |"
        )
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """The median and the worst of the absolute errors."""
    errors = [abs(row.error) for row in rows]
    return {"median": statistics.median(errors), "worst": max(errors)}


def section() -> str:
    """The part of docs/fidelity.md on memory, from what is stored."""
    rows = list(read().values())
    lines = ["| rows | median error | worst | bar |", "|---|---|---|---|"]
    for title, part in (
        ("fitted", [row for row in rows if not row.held_out]),
        ("held out", [row for row in rows if row.held_out]),
    ):
        found = summary(part)
        lines.append(
            f"| {len(part)} {title} | {found['median']:.1%} | {found['worst']:.0%} "
            f"| {BARS['median']:.0%} and {BARS['worst']:.0%} |"
        )
    false = sum(row.false_fit for row in rows)
    lines += ["", f"Predicted to fit where the compiler says it does not: {false} of {len(rows)}."]
    return "\n".join([*lines, "", table(rows)])


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table and keeps the rows; returns 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stored", action="store_true", help="compile nothing")
    parser.add_argument("--only", default="", help="a part of the names of rows")
    parser.add_argument("--fitted", action="store_true", help="leave out what is held out")
    given = parser.parse_args(argv)
    stored, rows = read(), []
    for case in CASES:
        known = case.name in stored or not given.stored
        if known and given.only in case.name and not (given.fitted and case.held_out):
            start = time.perf_counter()
            row = judge(case, stored.get(case.name), compile=not given.stored)
            if row is None:
                print(f"not compiled as it is planned now: {case.name}", flush=True)
                continue
            rows.append(row)
            write(read() | {row.name: row})  # another process may have added some
            print(f"{row.name}: {time.perf_counter() - start:.0f} s", flush=True)
    print(table(rows))
    for title, part in (
        ("fitted", [row for row in rows if not row.held_out]),
        ("held out", [row for row in rows if row.held_out]),
    ):
        for name, value in summary(part).items() if part else ():
            print(f"{title} {name} {value:.1%} (bar {BARS[name]:.0%})")
    false = sum(row.false_fit for row in rows)
    print(f"predicted to fit where the compiler says it does not: {false} of {len(rows)}")
    return int(false > 0 or any(v > BARS[name] for name, v in summary(rows).items()))


if __name__ == "__main__":
    raise SystemExit(main())
