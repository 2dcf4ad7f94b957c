"""Evaluations per second of the folded cost model, against the walk over every op.

    python -m benchmarks.evaluate [--states 4096] [--batch 256] [--repeats 3]

A transformer train step with unrolled layers on a mesh of two axes; random states (up to four
groups per axis, any resolution, any scope); each evaluation gives time and peak memory. Seconds are
CPU seconds of the process: what one core does, on a busy machine too.

- cold: the first evaluation of every state, the model's memo empty at the start;
- warm: the same states again: every class has been seen, as late in a search;
- fresh: new states on a warm memo, as in the middle of a search;
- walk: op by op (tests/cost/walk.py), the same states, in the same run.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is loaded

import numpy as np

from shardwright.analysis.analysis import Analysis, analyze_program
from shardwright.cost.devices import device
from shardwright.cost.model import CostModel
from shardwright.mesh import Mesh
from shardwright.program.tracing import trace
from shardwright.spmd.decisions import EVERYTHING, UPDATES, Decisions, Entry
from shardwright.zoo import transformer
from tests.cost.walk import Walk

DEPTHS = (8, 32, 64)
MESH = {"data": 8, "model": 8}
DEVICE = "tpu-v5e"
LEAST_PER_S = 10_000  # at 32 layers
LEAST_RATIO = 100  # to the walk
LEAST_DEPTH_RATIO = 0.7  # 64 layers against 8
WALKED = 8  # states that the walk is timed on


@dataclass(frozen=True, slots=True)
class Speed:
    """Evaluations per second at one depth."""

    layers: int
    ops: int
    classes: int
    cold_per_s: float
    warm_per_s: float
    fresh_per_s: float
    walk_per_s: float

    @property
    def ratio(self) -> float:
        return self.warm_per_s / self.walk_per_s

    def __str__(self) -> str:
        return (
            f"{self.layers:3d} layers {self.ops:6d} ops {self.classes:5d} classes"
            f"  cold {self.cold_per_s:8,.0f}/s  fresh {self.fresh_per_s:8,.0f}/s"
            f"  warm {self.warm_per_s:8,.0f}/s  walk {self.walk_per_s:6.2f}/s"
            f"  warm/walk {self.ratio:8,.0f} x"
        )


def random_states(analysis: Analysis, count: int, axes: int, seed: int) -> list[Decisions]:
    """Up to four groups per axis in random order."""
    rng = np.random.default_rng(seed)
    groups = [g.index for g in analysis.groups]

    def one() -> tuple[Entry, ...]:
        chosen = rng.permutation(groups)[: rng.integers(0, 5)].tolist()
        return tuple(
            Entry(g, int(rng.integers(0, 2)), UPDATES if rng.random() < 0.1 else EVERYTHING)
            for g in chosen
        )

    return [Decisions(tuple(one() for _ in range(axes))) for _ in range(count)]


def evaluate_all(model: CostModel, states: Sequence[Decisions], batch: int) -> float:
    """CPU seconds to evaluate these states in batches."""
    start = time.process_time()
    for i in range(0, len(states), batch):
        model.evaluate(states[i : i + batch])
    return time.process_time() - start


def measure(layers: int, states: int, batch: int, repeats: int) -> Speed:
    """The speeds at one depth."""
    config = replace(transformer.PRESETS["gpt_2l"], layers=layers)
    example = transformer.train(config)
    program = trace(example.fn, *example.args, donate_argnums=example.donate_argnums)
    analysis = analyze_program(program)
    model = CostModel(analysis, Mesh(MESH), device(DEVICE))
    drawn = random_states(analysis, states, len(MESH), seed=0)
    cold = evaluate_all(model, drawn, batch)
    warm = min(evaluate_all(model, drawn, batch) for _ in range(repeats))
    fresh = evaluate_all(model, random_states(analysis, states, len(MESH), seed=1), batch)
    walk = Walk(model)
    start = time.process_time()
    walked = [walk.cost(state) for state in drawn[:WALKED]]
    walk_s = time.process_time() - start
    folded = model.evaluate(drawn[:WALKED])
    for i, cost in enumerate(walked):
        assert np.isclose(folded[i].step_s, cost.step_s, rtol=1e-9, atol=0.0)
        assert folded[i].peak_bytes == cost.peak_bytes
    return Speed(
        layers, len(program.ops), len(model.classes.table), states / cold, states / warm,
        states / fresh, WALKED / walk_s,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the speeds; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=4096, help="states per depth")
    parser.add_argument("--batch", type=int, default=256, help="states per call")
    parser.add_argument("--repeats", type=int, default=3, help="of the warm run; the best counts")
    args = parser.parse_args(argv)
    speeds = {}
    for layers in DEPTHS:
        speeds[layers] = measure(layers, args.states, args.batch, args.repeats)
        print(speeds[layers], flush=True)
    deep = speeds[DEPTHS[-1]].warm_per_s / speeds[DEPTHS[0]].warm_per_s
    targets = [
        (f"warm evaluations/s at 32 layers >= {LEAST_PER_S:,}",
         speeds[32].warm_per_s, speeds[32].warm_per_s >= LEAST_PER_S),
        (f"fresh evaluations/s at 32 layers >= {LEAST_PER_S:,}",
         speeds[32].fresh_per_s, speeds[32].fresh_per_s >= LEAST_PER_S),
        (f"times the walk at 32 layers >= {LEAST_RATIO}",
         speeds[32].ratio, speeds[32].ratio >= LEAST_RATIO),
        (f"{DEPTHS[-1]} layers against {DEPTHS[0]} >= {LEAST_DEPTH_RATIO}",
         deep, deep >= LEAST_DEPTH_RATIO),
    ]  # fmt: skip
    for what, value, met in targets:
        print(f"{'met   ' if met else 'MISSED'}  {what}: {value:,.2f}")
    return 0 if all(met for _, _, met in targets) else 1


if __name__ == "__main__":
    raise SystemExit(main())
