"""Judges programs of libraries that are not ours: python -m tests.sweep.run [NAME ...]

Each program has a child process with a time limit: a crash or a hang is a row too. The exit code is
1 when something is wrong that tests/sweep/reasons.py has no reason for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests.fuzz.run import ENVIRONMENT
from tests.sweep.page import page, problems
from tests.sweep.programs import names

LIMIT_S = 1200.0  # of one program on all meshes; two minutes on an idle machine
MESHES = ("4x2", "2x2x2")

Row = dict[str, Any]


def judge(name: str, limit_s: float = LIMIT_S) -> list[Row]:
    """One row per mesh; what a child did not say because it died or hung is a row as well."""
    command = [sys.executable, "-m", "tests.sweep.worker", name, *MESHES]
    environment = {**os.environ, **ENVIRONMENT, "SHARDWRIGHT_CACHE": "", "KERAS_BACKEND": "jax"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit_s
        )
        out, ended = done.stdout, f"died with code {done.returncode}: {done.stderr[-300:]}"
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        ended = f"not done after {limit_s:.0f} s"
    rows = [json.loads(line) for line in out.splitlines() if line.startswith('{"name"')]
    if rows and not rows[0]["mesh"]:
        return rows
    said = {row["mesh"] for row in rows}
    return rows + [
        {"name": name, "mesh": mesh, "error": ended} for mesh in MESHES if mesh not in said
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs or libraries; all when none")
    parser.add_argument("--write", type=Path, help="where the table goes")
    parser.add_argument("--rows", type=Path, help="a file of rows: those there are not run again")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one program")
    asked = parser.parse_args()
    chosen = [
        name for name in names()
        if not asked.names or name in asked.names or name.split(":")[0] in asked.names
    ]  # fmt: skip
    rows: list[Row] = []
    if asked.rows and asked.rows.exists():
        rows = [json.loads(line) for line in asked.rows.read_text().splitlines()]
    known = {row["name"] for row in rows}
    with ThreadPoolExecutor(asked.jobs) as pool:
        left = [name for name in chosen if name not in known]
        for found in pool.map(partial(judge, limit_s=asked.limit), left):
            rows += found
            for row in found:
                print(_line(row), flush=True)
            if asked.rows:
                with asked.rows.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in found)
    rows = [row for row in rows if row["name"] in chosen]
    if asked.write:
        asked.write.write_text(page(rows))
    wrong = problems(rows, whole=not asked.names)
    print("\n".join(wrong))
    return 1 if wrong else 0


def _line(row: Row) -> str:
    if "error" in row:
        return f"{row['name']:34} {row['mesh']:6} {row['error']}"
    opaque = " ".join(f"{name}x{count}" for name, _, count in row["opaque"])
    return (
        f"{row['name']:34} {row['mesh']:6} {'ok' if row['ok'] else 'NO':3} {row['seconds']:5.1f} s"
        f" {row['ops']:5} ops {row['split']}/{row['arguments']} split"
        f" {row['apart']:.1%} apart, worst {row['worst']:.1e} {opaque}"
        f" {'; '.join(row['deviations'])}"
    )


if __name__ == "__main__":
    sys.exit(main())
