"""Plans, compiles and runs one program on every mesh; one line of JSON for each, and one before.

python -m tests.sweep.worker NAME [MESH ...]; it may die or hang in between: run.py watches it.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections import Counter
from typing import Any

import jax

import shardwright as sw
from shardwright.report.words import human_bytes
from tests.plans.runs import DEVICES, MESHES
from tests.sweep.programs import find

SEARCH_S = 1.0  # of work: enough for a plan worth judging, not for every proof


def sweep(name: str, meshes: list[str]) -> None:
    """Prints what happened on each mesh."""
    started = time.monotonic()
    try:
        fn, args = find(name)
    except Exception as error:  # not ours: the library, or how the program is written
        say(name=name, mesh="", error=f"cannot be built: {first_line(error)}", trace=trace())
        return
    built_s = time.monotonic() - started
    for mesh in meshes:
        started = time.monotonic()
        try:
            found = judge(fn, args, MESHES[mesh])
        except Exception as error:
            refused = isinstance(error, sw.ShardwrightError)
            kind = "refused" if refused else "crashed"
            found = {"error": f"{kind}: {first_line(error)}", "trace": trace()}
        seconds = time.monotonic() - started
        say(name=name, mesh=mesh, built_s=built_s, seconds=seconds, **found)


def judge(fn: Any, args: tuple[Any, ...], mesh: dict[str, int]) -> dict[str, Any]:
    """Plan, collectives and numbers of one program on one mesh."""
    started = time.monotonic()
    plan = sw.partition(fn, *args, mesh=mesh, device=DEVICES["balanced"], seconds=SEARCH_S)
    planned_s = time.monotonic() - started
    program = plan._require("the sweep").program
    opaque = Counter((op.name, op.rule.why or "") for op in program.ops if op.rule.opaque)
    own = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args))
    verdict = plan.verify(run=True, args=None if own else args)
    rows = [row for row in verdict.traffic.rows if row.missing_bytes + row.extra_bytes > 1]
    return {
        "ops": len(program.ops), "planned_s": planned_s,
        "split": sum(any(spec) for spec in plan.specs().values()), "arguments": len(plan.specs()),
        "certificate": plan.certificate.kind,
        "opaque": [[name, why, count] for (name, why), count in sorted(opaque.items())],
        "moved": verdict.predicted_bytes, "compiled": verdict.compiled_bytes,
        "apart": verdict.link_error, "worst": verdict.largest_error,
        "agree": verdict.numbers_agree, "remats": verdict.rematerialisations,
        "deviations": [
            f"{row.kind} {'+'.join(row.axes or ('?',))}:"
            f" {human_bytes(row.missing_bytes)} not found,"
            f" {human_bytes(row.extra_bytes)} not predicted"
            for row in rows
        ] if not verdict.ok else [],
        "ok": verdict.ok,
    }  # fmt: skip


def first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines() or [""]
    name = type(error).__name__
    return text[0][:200] if name == "ShardwrightError" else f"{name}: {text[0][:200]}"


def trace() -> str:
    return traceback.format_exc()[-3000:]


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sweep(sys.argv[1], sys.argv[2:])
