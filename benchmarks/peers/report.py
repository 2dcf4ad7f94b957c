"""docs/peers.md and its pictures, from the rows in results: `python -m benchmarks.peers.report`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES, ROOT
from benchmarks.peers.causes import CAUSES
from benchmarks.peers.large_report import large_table, scaling_plot
from benchmarks.peers.plots import bars
from benchmarks.peers.ways import AUTO, AUTO_SPECS, EXPERTS_OF, OURS, SPECS, USERS_OF, ways

HERE = Path(__file__).parent
RESULTS = HERE / "results"
EXPERTS = {expert for experts in EXPERTS_OF.values() for expert in experts}
MARK = "<!-- the table of benchmarks.peers.report -->"
UNKNOWN = "The cause is not known yet."
LOST = 1.01  # judged slower than the best of the others by more than this: a loss
Rows = Mapping[str, Mapping[str, Any]]  # way -> row


def cases_with_rows() -> dict[str, Rows]:
    """The rows of every case in which our plan was judged, in the order of the cases."""
    found = {}
    for name in CASES:
        path = RESULTS / f"{name}.json"
        ways = json.loads(path.read_text())["ways"] if path.exists() else {}
        if "step_s" in ways.get(OURS, {}):
            found[name] = ways
    return found


def best_other(rows: Rows) -> tuple[str, Mapping[str, Any]] | None:
    """The fastest way that is not ours and that fits."""
    others = [(way, row) for way, row in rows.items() if way != OURS and "step_s" in row]
    return min(others, key=lambda pair: pair[1]["step_s"], default=None)


def judged_others(name: str, rows: Rows) -> str:
    """3 of 10: the ways that were run so far, of those that the case has."""
    case = CASES[name]
    return f"{len(rows) - 1} of {len(ways(case.kind, case.target.split(':')[0])) - 1}"


def has_expert(rows: Rows) -> bool:
    """Whether an expert's layout was judged."""
    return any("step_s" in rows.get(expert, {}) for expert in EXPERTS)


def speedup(rows: Rows, *others: str) -> float | None:
    """The fastest of these others over ours; None where none was judged."""
    steps = [rows[way]["step_s"] for way in others if "step_s" in rows.get(way, {})]
    return min(steps) / rows[OURS]["step_s"] if steps else None


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:.1f} ms"


def where(name: str) -> str:
    """16 tpu-v5e as 4x4"""
    mesh = CASES[name].mesh
    shape = "x".join(map(str, mesh.values()))
    return f"{math.prod(mesh.values())} {CASES[name].device} as {shape}"


def planning(row: Mapping[str, Any]) -> str:
    """CPU seconds of planning; of auto_sharding, which plans while it compiles, of both."""
    if "planning_and_compiling_cpu_s" in row:
        return f"{row['planning_and_compiling_cpu_s']:.0f} s *"
    return f"{row['planning_cpu_s']:.1f} s" if "planning_cpu_s" in row else ""


def summary(cases: Mapping[str, Rows]) -> str:
    """One line per case: ours beside auto_sharding and the best of all others."""
    lines = [
        "| program | on | XLA auto_sharding | best of the others | judged | Shardwright "
        "| against the best | planned in |", "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, rows in cases.items():
        auto, best = rows.get(AUTO, {}), best_other(rows)
        told = f"{best[0]}: {ms(best[1]['step_s'])}" if best else "none was judged"
        cells = [
            CASES[name].title, where(name),
            ms(auto["step_s"]) if "step_s" in auto else auto.get("error", "")[:40], told,
            judged_others(name, rows), ms(rows[OURS]["step_s"]),
            f"{speedup(rows, best[0]):.2f}x" if best else "", planning(rows[OURS]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def headline(cases: Mapping[str, Rows]) -> str:
    """The README's table: every case in which another way was judged, in the order of the cases."""
    lines = [
        "| one step, as the compiler schedules it | XLA auto_sharding "
        "| specs on the arguments alone | an expert's layout | Shardwright | planned in |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, rows in cases.items():
        kind = CASES[name].kind
        users = [expert + SPECS for expert in USERS_OF[kind]]
        others = [_fastest(rows, ways) for ways in ([AUTO], users, EXPERTS_OF[kind])]
        if any(others):
            ours = rows[OURS]
            cells = [f"{CASES[name].title}, {where(name)}", *others, ms(ours["step_s"])]
            lines.append(f"| {' | '.join([*cells, planning(ours)])} |")
    return "\n".join(lines)


def _fastest(rows: Rows, of: Iterable[str]) -> str:
    """FSDP: 12.6 ms; nothing where none of these ways was judged."""
    steps = {way: rows[way]["step_s"] for way in of if "step_s" in rows.get(way, {})}
    if not steps:
        return ""
    best = min(steps, key=lambda way: steps[way])
    return ms(steps[best]) if best == AUTO else f"{best.removesuffix(SPECS)}: {ms(steps[best])}"


def with_headline(readme: str) -> str:
    """The README with the table of these rows between its two marks."""
    before, rest = readme.split(MARK, 1)
    _, after = rest.split(MARK, 1)
    return f"{before}{MARK}\n{headline(cases_with_rows())}\n{MARK}{after}"


def lost(cases: Mapping[str, Rows]) -> list[str]:
    """The cases in which another way is judged faster than ours, or fits alone."""
    found = []
    for name, rows in cases.items():
        best = best_other(rows)
        if best and rows[OURS]["step_s"] > LOST * best[1]["step_s"]:
            found.append(name)
    return found


def losses(cases: Mapping[str, Rows]) -> str:
    """Each lost case with its cause."""
    lines = []
    for name in lost(cases):
        way, row = best_other(cases[name]) or ("", {})
        ours = cases[name][OURS]
        behind = ours["step_s"] / row["step_s"] - 1
        lines.append(
            f"- *{CASES[name].title}, {where(name)}*: {way} {ms(row['step_s'])}, ours "
            f"{ms(ours['step_s'])} ({behind:.1%} slower). {CAUSES.get(name, UNKNOWN)}"
        )
    return "\n".join(lines) or "None of the cases that were run."


def all_rows(cases: Mapping[str, Rows]) -> str:
    """One table per case, the fastest way first."""
    parts = []
    for name, rows in cases.items():
        lines = [
            f"### {CASES[name].title}, {where(name)}\n",
            "| way | step as scheduled | serial | compute | links | exposed | sent | peak "
            "| predicted step | planned in |", "|---|---|---|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        ordered = sorted(rows.items(), key=lambda pair: pair[1].get("step_s", math.inf))
        parts.append("\n".join([*lines, *(_line(way, row) for way, row in ordered)]))
    return "\n\n".join(parts)


def _line(way: str, row: Mapping[str, Any]) -> str:
    if "step_s" not in row:
        why = "out of memory" if "out_of_memory" in row else row.get("error", "").split("\n")[0]
        return f"| {way} | {_plain(why)} | | | | | | | | |"
    predicted = row.get("predicted")
    return (
        f"| {way} | {ms(row['step_s'])} | {ms(row['serial_s'])} | {ms(row['compute_s'])} "
        f"| {ms(row['link_s'])} | {row['exposed_s'] / row['step_s']:.0%} "
        f"| {row['sent_bytes'] / 1e6:.0f} MB | {row['peak_bytes'] / 1e9:.2f} GB "
        f"| {ms(predicted['step_s']) if predicted else ''} | {planning(row)} |"
    )


def _plain(text: str) -> str:
    """A compiler's words as one short cell."""
    short = text if len(text) <= 60 else f"{text[:57]}..."
    return "".join("\\" + c if c in "|[]<>" else c for c in short)


def page() -> str:
    """docs/peers.md."""
    cases = cases_with_rows()
    over_auto = [r for rows in cases.values() if (r := speedup(rows, AUTO, AUTO_SPECS))]
    over_best = [
        best[1]["step_s"] / rows[OURS]["step_s"]
        for rows in cases.values() if has_expert(rows) and (best := best_other(rows))
    ]  # fmt: skip
    versions = json.loads((RESULTS / f"{next(iter(cases))}.json").read_text())["versions"]
    return (HERE / "peers.md.in").read_text(encoding="utf-8").format(
        cases=len(cases), with_auto=len(over_auto), over_auto=geometric_mean(over_auto),
        over_best=geometric_mean(over_best), lost=len(lost(cases)), with_best=len(over_best),
        summary=summary(cases), losses=losses(cases), rows=all_rows(cases), large=large_table(),
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
    )  # fmt: skip


def speedup_plot() -> str:
    """An SVG: ours against auto_sharding and against the best of the others, a pair per case."""
    found = {}
    for name, rows in cases_with_rows().items():
        best = best_other(rows)
        found[name] = (
            speedup(rows, AUTO, AUTO_SPECS), speedup(rows, best[0]) if best else None,
        )  # fmt: skip
    return bars(found, ("against XLA auto_sharding", "against the best of all others"))


def main() -> None:
    """Writes the page and its pictures."""
    docs = ROOT / "docs"
    readme = ROOT / "README.md"
    readme.write_text(with_headline(readme.read_text(encoding="utf-8")), encoding="utf-8")
    (docs / "peers.md").write_text(page(), encoding="utf-8")
    (docs / "pictures" / "peers.svg").write_text(speedup_plot(), encoding="utf-8")
    (docs / "pictures" / "scaling.svg").write_text(scaling_plot(), encoding="utf-8")


if __name__ == "__main__":
    main()
