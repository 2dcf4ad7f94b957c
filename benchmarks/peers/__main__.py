"""Runs the peers case by case: `python -m benchmarks.peers [--case NAME] [--way NAME] [--again]`.

What has a row in benchmarks/peers/results/CASE.json is not run again unless `--again`: a run that
was interrupted goes on where it stopped. `benchmarks.peers.report` writes docs/peers.md from them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES, ROOT
from benchmarks.peers.environments import python_of, versions_of
from benchmarks.peers.judged import compiled_elsewhere, judge
from benchmarks.peers.ways import AUTO, AUTO_SPECS, PARALLAX, ways

RESULTS = Path(__file__).parent / "results"
LIMIT_S = 720  # of one way: planning and compilation
PEERS = {AUTO: "auto_sharding", PARALLAX: "parallax"}  # and their environments


def child(python: Path | str, module: str, *args: str) -> str | None:
    """Runs a module of ours under an interpreter; None, or why nothing came of it."""
    paths = [str(ROOT), str(ROOT / "src")] if str(python) == sys.executable else [str(ROOT)]
    # JAX has set here where this environment's TPU compiler is: not for a child to inherit.
    own = {name: value for name, value in os.environ.items() if "TPU" not in name}
    env = own | {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
    command = [str(python), "-m", f"benchmarks.peers.{module}", *args]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=env, timeout=LIMIT_S, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return f"not done in {LIMIT_S // 60} minutes"
    return None if done.returncode == 0 else _why(done.stderr)


def _why(stderr: str) -> str:
    """The line of a traceback that says what went wrong."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "EXHAUSTED" in line]
    return (told or lines or ["it was killed"])[-1][:300]


def run_auto(name: str, folder: Path) -> dict[str, Any]:
    """The row of XLA's auto_sharding: its own compiled program, judged as all others."""
    failed = child(python_of("auto_sharding"), "auto_sharding", name, str(folder))
    if failed is not None:
        return {"out_of_memory" if "EXHAUSTED" in failed else "error": failed}
    reply = json.loads((folder / "reply.json").read_text())
    program = (folder / "program.hlo").read_text()
    found = judge(CASES[name], compiled_elsewhere(CASES[name], program, reply["memory"]))
    chosen = {"inputs": reply["inputs"], "outputs": reply["outputs"]}
    return {
        **found, "planning_and_compiling_s": reply["seconds"],
        "planning_and_compiling_cpu_s": reply["cpu_s"], "specs": chosen,
    }  # fmt: skip


def run_parallax(name: str, folder: Path) -> dict[str, Any]:
    """The row of google-parallax: the shardings it names, under plain jax.jit."""
    failed = child(python_of("parallax"), "parallax", name, str(folder))
    if failed is not None:
        return {"error": failed}
    reply = json.loads((folder / "reply.json").read_text())
    chosen = {"inputs": reply["inputs"], "outputs": reply["outputs"]}
    found = run_current(name, PARALLAX, folder, chosen)
    return {"planning_s": reply["seconds"], **found, "specs": chosen}


def run_current(name: str, way: str, folder: Path, specs: Any = None) -> dict[str, Any]:
    """The row of a way that the current JAX compiles, with specs that a peer chose if given."""
    asked, reply = {"case": name, "way": way, "specs": specs}, folder / "current.json"
    failed = child(sys.executable, "current", json.dumps(asked), str(reply))
    return {"error": failed} if failed is not None else json.loads(reply.read_text())


def run_way(name: str, way: str, known: dict[str, Any]) -> dict[str, Any]:
    """The row of one way of one case."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if way in PEERS:
            run = run_auto if way == AUTO else run_parallax
            return run(name, folder) | {"versions": versions_of(python_of(PEERS[way]))}
        if way == AUTO_SPECS:
            specs = known.get(AUTO, {}).get("specs")
            if specs is None:
                return {"error": "nothing was chosen"}
            return run_current(name, way, folder, specs)
        return run_current(name, way, folder)


def read(name: str) -> dict[str, Any]:
    """The rows that a case has."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"ways": {}}


def main() -> None:
    """Fills in the rows that are missing, then writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--way", action="append")
    parser.add_argument("--again", action="store_true", help="also rows that are there")
    asked = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    for name in asked.case or CASES:
        case = CASES[name]
        for way in ways(case.kind, case.target.split(":")[0]):
            known = read(name)["ways"]
            if (way in known and not asked.again) or (asked.way and way not in asked.way):
                continue
            start = time.perf_counter()
            row = run_way(name, way, known)
            found = read(name)
            found["ways"][way], found["versions"] = row, versions_of(sys.executable)
            text = json.dumps(found, indent=1, sort_keys=True)
            (RESULTS / f"{name}.json").write_text(text + "\n")
            step = f"{row['step_s'] * 1e3:.2f} ms" if "step_s" in row else str(row)[:200]
            print(f"{name}, {way}: {step} ({time.perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
