"""Stages 1 and 2 against jax.make_jaxpr: an unrolled transformer train step, several depths.

    python -m benchmarks.trace_and_analysis [--depths 8 20 80] [--repeats 3]

Every stage of every depth is timed in one run, the stages of one repeat side by side, in CPU
seconds (all are single-threaded), so that what else the machine does matters little; the best of
the repeats counts. Ratios are what is promised:

- building the Program from the closed jaxpr takes at most 0.6 of jax.make_jaxpr;
- the analysis takes at most as long as jax.make_jaxpr;
- both grow linearly: from 8 layers to 80 at most 11 times.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from shardwright.analysis import analyze_program
from shardwright.program.arguments import sign
from shardwright.program.build import build
from shardwright.program.tracing import trace_jaxpr
from shardwright.zoo import transformer

DEPTHS = (8, 20, 80)
MOST_BUILD = 0.6  # of make_jaxpr
MOST_ANALYSIS = 1.0  # of make_jaxpr
MOST_GROWTH = 1.1  # per layer, from the smallest depth to the largest


@dataclass(frozen=True, slots=True)
class Times:
    """CPU seconds of each stage at one depth."""

    layers: int
    ops: int
    make_jaxpr_s: float
    build_s: float
    analysis_s: float

    @property
    def build_ratio(self) -> float:
        return self.build_s / self.make_jaxpr_s

    @property
    def analysis_ratio(self) -> float:
        return self.analysis_s / self.make_jaxpr_s

    def __str__(self) -> str:
        return (
            f"{self.layers:6d} {self.ops:10,d} {self.make_jaxpr_s:11.2f}"
            f" {self.build_s:8.2f} {self.build_ratio:6.2f}"
            f" {self.analysis_s:10.2f} {self.analysis_ratio:6.2f}"
        )


def _timed(stage: Callable[[], Any]) -> tuple[float, Any]:
    """(CPU seconds, result) of one stage."""
    gc.collect()
    start = time.process_time()
    result = stage()
    return time.process_time() - start, result


def measure(layers: int, repeats: int) -> Times:
    """The times of one depth."""
    runs = [_measure_once(layers) for _ in range(repeats)]
    return Times(layers, runs[0][0], *(min(run[i] for run in runs) for i in (1, 2, 3)))


def _measure_once(layers: int) -> tuple[int, float, float, float]:
    """(ops, seconds of make_jaxpr, of build, of the analysis) of a function made anew.

    JAX has not traced this function before, but has traced the parts of jax.numpy that it calls:
    make_jaxpr is as fast as it can be.
    """
    example = transformer.train(transformer.Config(layers=layers))
    args = example.args
    jaxpr_s, _ = _timed(lambda: jax.make_jaxpr(example.fn)(*args))
    signature = sign(example.fn, args, {}, donate_argnums=0)
    closed = trace_jaxpr(example.fn, signature, signature.leaves(args, {}))
    build_s, program = _timed(lambda: build(closed, signature))
    analysis_s, _ = _timed(lambda: analyze_program(program))
    return len(program.ops), jaxpr_s, build_s, analysis_s


def promises(times: Sequence[Times]) -> list[str]:
    """One line per promise with what was measured."""
    small, large = times[0], times[-1]
    more = large.layers / small.layers
    lines = []
    for what, got, most in (
        (f"build / make_jaxpr, {large.layers} layers", large.build_ratio, MOST_BUILD),
        (f"analysis / make_jaxpr, {large.layers} layers", large.analysis_ratio, MOST_ANALYSIS),
        (f"build, {large.layers} layers / {small.layers}", large.build_s / small.build_s,
         MOST_GROWTH * more),
        (f"analysis, {large.layers} layers / {small.layers}", large.analysis_s / small.analysis_s,
         MOST_GROWTH * more),
    ):  # fmt: skip
        lines.append(f"{'ok  ' if got <= most else 'MISS'} {what}: {got:.2f} (at most {most:.2f})")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every depth and prints the table; returns 1 when a promise is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    measure(2, 1)  # imports and first uses
    print("layers        ops  make_jaxpr    build  ratio   analysis  ratio")
    times = []
    for layers in options.depths:
        times.append(measure(layers, options.repeats))
        print(times[-1], flush=True)
    lines = promises(times)
    print("\n".join(lines))
    return int(any(line.startswith("MISS") for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
