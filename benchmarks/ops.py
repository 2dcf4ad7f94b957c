"""Seconds of single ops: predicted beside what the TPU and GPU compilers estimate.

    python -m benchmarks.ops --compile    # needs the [tpu] and [cuda] extras; minutes
    python -m benchmarks.ops              # against the estimates in ops.json

TPU: `estimated_cycles`, at the device's clock. GPU: the compiler's analytical cost model, which it
writes down with xla_gpu_collect_cost_model_stats: no measurement, nothing for what libraries
compute (convolutions), and no launches, so ours are left out there too. Each op is compiled alone,
in a process that ends when one takes too long: that op has no figure. A third of the shapes
(op_shapes.py) is held out by a hash of the name, and nothing is fitted to them.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import jax

from benchmarks.op_shapes import KINDS, OPS, OpShape
from shardwright.analysis.analysis import analyze_program
from shardwright.cost.devices import device
from shardwright.cost.model import CostModel
from shardwright.mesh import Mesh
from shardwright.program.tracing import trace
from shardwright.referee.estimates import cycles
from shardwright.referee.hlo import Computation, Instruction, Module, parse
from shardwright.referee.loops import runs
from shardwright.referee.topologies import devices_of, parse_target
from shardwright.spmd.decisions import Decisions, empty

STORE = Path(__file__).with_name("ops.json")
TARGETS = {"tpu-v5e": "tpu:v5e:2x2", "tpu-v5p": "tpu:v5p:2x2x1", "h100": "cuda:h100:1x8"}
LIMIT_S = 90  # of compiling one op
OPTIONS = {"cuda": {"xla_gpu_autotune_level": 0, "xla_gpu_collect_cost_model_stats": True}}


def predicted_s(op: OpShape, name: str) -> float:
    """What our model says of an op on one device; no launches where the compiler counts none."""
    analysis = analyze_program(trace(op.fn, *op.args))
    judged = device(name)
    if parse_target(TARGETS[name]).platform == "cuda":
        judged = replace(judged, op_overhead_s=0.0)
    model = CostModel(analysis, Mesh({"x": 1}), judged)
    return model.cost(Decisions(empty(1))).compute_s


def estimated_s(op: OpShape, name: str) -> float:
    """What a compiler estimates for an op, compiled alone."""
    target = parse_target(TARGETS[name])
    one = jax.sharding.SingleDeviceSharding(devices_of(target, Mesh({"all": 1})).ravel()[0])
    options = OPTIONS.get(target.platform)
    jitted = jax.jit(op.fn, in_shardings=one, out_shardings=one, compiler_options=options)
    module = parse(jitted.lower(*op.args).compile().as_text())
    estimate = cycles(device(name).clock_hz) if target.platform == "tpu" else _analytical

    def weight(computation: Computation, row: Instruction) -> int:
        return int(estimate(module, computation, row) * 1e15)

    found = runs(module, weight, enter=lambda row: row.opcode != "fusion")
    return sum(run.times * estimate(module, run.computation, run.instruction) for run in found)


def compile_from(start: int, name: str) -> None:
    """Prints the estimate of every op from `start` on; the process ends when one takes too long."""
    for op in OPS[start:]:
        signal.alarm(LIMIT_S)
        print(json.dumps(round(estimated_s(op, name), 9)), flush=True)


def estimates_of(start: int, name: str) -> Iterator[tuple[OpShape, float]]:
    """(op, its estimate) from `start` on, without those that take too long to compile."""
    while start < len(OPS):
        command = [sys.executable, "-m", "benchmarks.ops", "--from", str(start), "--device", name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            for line in child.stdout or ():
                yield OPS[start], float(line)
                start += 1
        if start < len(OPS):
            print(f"no estimate: {OPS[start].name}", flush=True)
            start += 1


def _analytical(module: Module, computation: Computation, row: Instruction) -> float:
    """The GPU compiler's own estimate."""
    found = re.search(r'"exec_time_us":"?([\d.e+-]+)', row.attributes)
    return float(found[1]) * 1e-6 if found else 0.0


def table(name: str, estimates: dict[str, float]) -> str:
    """Median errors and the share within a quarter, by kind, fitted and held out."""
    lines = [
        f"| {name} | shapes | median error | within 25 % | held out: median | within 25 % |",
        "|---|---|---|---|---|---|",
    ]
    for kind in (*KINDS, "all"):
        cells = [kind]
        every = [op for op in OPS if kind in (op.kind, "all") and estimates.get(op.name)]
        cells.append(str(len(every)))
        for held_out in (False, True):
            errors = [
                abs(predicted_s(op, name) / estimates[op.name] - 1)
                for op in every if op.held_out == held_out
            ]  # fmt: skip
            near = sum(error <= 0.25 for error in errors) / max(1, len(errors))
            cells += [f"{statistics.median(errors):.0%}" if errors else "-", f"{near:.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def section() -> str:
    """The part of docs/fidelity.md on single ops, from what is stored."""
    stored = json.loads(STORE.read_text(encoding="utf-8"))
    return "\n\n".join(table(name, estimates) for name, estimates in stored.items())


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="ask about what has no figure")
    parser.add_argument("--device", action="append", choices=list(TARGETS))
    parser.add_argument("--rows", action="store_true", help="every shape, the worst first")
    parser.add_argument("--from", dest="first", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.first is not None:
        compile_from(given.first, given.device[0])
        return 0
    stored: dict[str, dict[str, float]] = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name in given.device or TARGETS:
        known = stored.setdefault(name, {})
        start = next((i for i, op in enumerate(OPS) if op.name not in known), len(OPS))
        for op, seconds in estimates_of(start, name) if given.compile else ():
            known[op.name] = seconds
            STORE.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        print(table(name, stored.get(name, {})))
        if given.rows:
            _print_rows(name, stored[name])
    return 0


def _print_rows(name: str, estimates: dict[str, float]) -> None:
    rows = [
        (predicted_s(op, name) / estimates[op.name], op)
        for op in OPS if estimates.get(op.name) and not op.held_out
    ]  # fmt: skip
    for ratio, op in sorted(rows, key=lambda row: -abs(row[0] - 1)):
        print(f"{ratio:7.2f}  {estimates[op.name] * 1e6:10.1f} us  {op.name}")


if __name__ == "__main__":
    raise SystemExit(main())
