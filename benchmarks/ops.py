"""Seconds of single ops: predicted beside what the TPU and GPU compilers estimate.

    python -m benchmarks.ops --compile    # needs the [tpu] and [cuda] extras; minutes
    python -m benchmarks.ops              # against the estimates in ops.json

TPU: `estimated_cycles`, at the device's clock. GPU: the compiler's analytical cost model, which it
writes down with xla_gpu_collect_cost_model_stats: no measurement, and nothing for what libraries
compute (convolutions). Many ops are compiled in one program, told apart by name scopes. A third of
the shapes (op_shapes.py) is held out by a hash of the name, and nothing is fitted to them.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks.op_shapes import KINDS, OPS, OpShape
from shardwright import _jax
from shardwright.analysis.analysis import analyze_program
from shardwright.cost.devices import device
from shardwright.cost.model import CostModel
from shardwright.mesh import Mesh
from shardwright.program.tracing import trace
from shardwright.referee.estimates import Estimate, cycles
from shardwright.referee.hlo import Computation, Instruction, Module, parse
from shardwright.referee.loops import runs
from shardwright.referee.targets import devices_of, parse_target
from shardwright.spmd.decisions import Decisions, empty

STORE = Path(__file__).with_name("ops.json")
TARGETS = {"tpu-v5e": "tpu:v5e:2x2", "h100": "cuda:h100:1x8"}
TOGETHER = 32  # ops in one program
OPTIONS = {"cuda": {"xla_gpu_autotune_level": 0, "xla_gpu_collect_cost_model_stats": True}}


def predicted_s(op: OpShape, name: str) -> float:
    """What our model says of an op on one device."""
    analysis = analyze_program(trace(op.fn, *op.args))
    model = CostModel(analysis, Mesh({"x": 1}), device(name))
    return model.cost(Decisions(empty(1))).compute_s


def estimated_s(ops: Sequence[OpShape], name: str) -> list[float]:
    """What a compiler estimates for each op, all of them compiled as one program."""
    target = parse_target(TARGETS[name])

    def together(args: list[Any]) -> list[Any]:
        out = []
        for i, (op, given) in enumerate(zip(ops, args, strict=True)):
            with jax.named_scope(f"op_{i}_"):
                out.append(op.fn(*given))
        return out

    one = jax.sharding.SingleDeviceSharding(devices_of(target, (1,)).ravel()[0])
    lowered = jax.jit(together, in_shardings=one, out_shardings=one).lower([op.args for op in ops])
    text = _jax.compile_afresh(lowered, OPTIONS.get(target.platform, {})).as_text()
    estimate = cycles(device(name).clock_hz) if target.platform == "tpu" else _analytical
    found = [0.0] * len(ops)
    for number, seconds in _instructions(parse(text), estimate):
        found[number] += seconds
    return found


def _instructions(module: Module, estimate: Estimate) -> Iterator[tuple[int, float]]:
    """(number of the op, seconds) of every instruction that says whose it is."""

    def weight(computation: Computation, row: Instruction) -> int:
        return int(estimate(module, computation, row) * 1e15)

    for run in runs(module, weight, enter=lambda row: row.opcode != "fusion"):
        row = run.instruction
        scope = re.search(r"op_(\d+)_", row.attribute("metadata") or "")
        if scope:
            yield int(scope[1]), run.times * estimate(module, run.computation, row)


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
    parser.add_argument("--compile", action="store_true", help="ask the compilers again")
    parser.add_argument("--device", action="append", choices=list(TARGETS))
    parser.add_argument("--rows", action="store_true", help="every shape, the worst first")
    given = parser.parse_args(argv)
    stored: dict[str, dict[str, float]] = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name in given.device or TARGETS:
        for start in range(0, len(OPS), TOGETHER) if given.compile else ():
            ops = OPS[start : start + TOGETHER]
            found = zip(ops, estimated_s(ops, name), strict=True)
            stored = json.loads(STORE.read_text()) if STORE.exists() else {}
            stored.setdefault(name, {}).update({op.name: round(s, 9) for op, s in found})
            STORE.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
            print(f"{name}: {start + len(ops)} of {len(OPS)}", flush=True)
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
