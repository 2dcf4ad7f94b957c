"""docs/sweep.md from the rows of a sweep, and what in them nobody has explained."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from itertools import groupby
from typing import Any

from shardwright.report.words import human_bytes
from tests.sweep.programs import names as listed
from tests.sweep.reasons import NOT_INSTALLED, REASONS

Row = dict[str, Any]


def problems(rows: Sequence[Row], *, whole: bool) -> list[str]:
    """Deviations without a reason, opaque ops without one, and reasons that nothing needs."""
    wrong = [row for row in rows if "error" in row or not row["ok"]]
    unexplained = [f"no reason: {row['name']} {row['mesh']}" for row in wrong
                   if row["name"] not in REASONS]  # fmt: skip
    silent = [
        f"opaque without a reason: {name} in {row['name']} {row['mesh']}"
        for row in rows for name, why, _ in row.get("opaque", ()) if not why
    ]  # fmt: skip
    unused = sorted(set(REASONS) - {row["name"] for row in wrong}) if whole else []
    return [*unexplained, *silent, *(f"reason not needed: {name}" for name in unused)]


def page(rows: Sequence[Row]) -> str:
    """The page: what ran, a table per library, every opaque op and deviation with its reason."""
    parts = [_table(rows), _opaque(rows), _reasons(rows), _missing()]
    return "\n".join([HEAD.format(**_counts(rows)), *parts, ""])


HEAD = """# Sweep over other people's libraries

`make sweep` builds an environment of its own and takes {listed} programs of libraries that we did
not write. It plans each on two meshes of eight devices (4x2 and 2x2x2), compiles and runs the plan
on host devices, and compares results with the unsharded function's and collectives with the
predicted ones. This page has the {programs} programs of {libraries} libraries that it was run on
last{rest}.

- {good} of {all} (program, mesh) pairs: planned, same numbers, bytes on links as predicted (at
  most 10% apart).
- {explained} pairs are not; the table of deviations says why. {opaque} kinds of op are opaque, with
  their reasons.

The device is an H100 without latencies, because a real one would keep programs this small whole.
*Optimal* says that the search ended with a proof, *split* counts the arguments that are split,
*moved* is the larger of predicted and compiled bytes on links per device and step, *apart* compares
them by kind and axes, *worst* is the largest error of a result relative to its array; one above
0.2% is accepted only where a change of one unit in the last place of the arguments moves the
unsharded result by at least a tenth of that. Where the two meshes differ, both are given.
"""


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    good = [row for row in rows if row.get("ok")]
    names = {row["name"] for row in rows}
    return {
        "rest": "" if len(names) == len(listed()) else "; the others were not run then",
        "listed": len(listed()), "programs": len(names),
        "libraries": len({name.split(":")[0] for name in names}),
        "good": len(good), "all": len(rows), "explained": len(rows) - len(good),
        "opaque": len({name for row in rows for name, *_ in row.get("opaque", ())}),
    }  # fmt: skip


COLUMNS = ("program", "ops", "optimal", "split", "moved", "apart", "worst", "")


def _table(rows: Sequence[Row]) -> str:
    lines = []
    for library, group in groupby(rows, lambda row: row["name"].split(":")[0]):
        found = list(group)
        lines += [f"\n## {library} {_version(library)}\n", "| " + " | ".join(COLUMNS) + " |"]
        lines.append("|---" * len(COLUMNS) + "|")
        for name, both in groupby(found, lambda row: row["name"]):
            lines.append("| " + " | ".join(_cells(name.split(":")[1], list(both))) + " |")
    return "\n".join(lines)


def _cells(name: str, rows: Sequence[Row]) -> list[str]:
    """One program; where its two meshes differ, both."""
    good = [row for row in rows if "error" not in row]
    state = sorted({
        row["error"].split(":")[0] if "error" in row else "verified" if row["ok"] else "deviates"
        for row in rows
    })  # fmt: skip

    def both(value: Any) -> str:
        texts = [value(row) for row in good]
        return texts[0] if len(set(texts)) == 1 else " / ".join(texts)

    return [
        name, both(lambda r: str(r["ops"])),
        both(lambda r: "yes" if r["certificate"] == "optimal" else "no"),
        both(lambda r: f"{r['split']} of {r['arguments']}"),
        both(lambda r: human_bytes(max(r["moved"], r["compiled"]))),
        both(lambda r: f"{r['apart']:.1%}"), both(lambda r: f"{r['worst']:.0e}"), ", ".join(state),
    ]  # fmt: skip


def _opaque(rows: Sequence[Row]) -> str:
    found: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for name, why, _ in row.get("opaque", ()):
            found.setdefault((name, why), set()).add(row["name"])
    lines = [
        f"| `{name}` | {why} | {', '.join(sorted(where))} |"
        for (name, why), where in sorted(found.items())
    ]
    return "\n".join(["\n## Opaque ops\n", "| op | reason | in |", "|---|---|---|", *lines])


def _reasons(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if "error" in row or not row["ok"]:
            said = row.get("error") or "; ".join(row["deviations"]) or f"worst {row['worst']:.0e}"
            said = " ".join(said.replace("|", "\\|").split())
            where = f"{row['name']} {row['mesh']}".strip()
            lines.append(f"| {where} | {said} | {REASONS.get(row['name'], '')} |")
    return "\n".join(
        ["\n## Deviations\n", "| where | what | why |", "|---|---|---|", *dict.fromkeys(lines)]
    )


def _missing() -> str:
    lines = [f"| {library} | {why} |" for library, why in sorted(NOT_INSTALLED.items())]
    return "\n".join(["\n## Not installed\n", "| library | why |", "|---|---|", *lines])


PACKAGES = {
    "haiku": "dm-haiku", "e3nn": "e3nn-jax", "keras_hub": "keras-hub", "tunix": "google-tunix",
}  # fmt: skip


def _version(library: str) -> str:
    try:
        return metadata.version(PACKAGES.get(library, library.replace("_", "-")))
    except metadata.PackageNotFoundError:
        return "(not installed)"
