"""Judges the seeds it is given, one line of JSON before and after each: it may die in between."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import jax

from tests.fuzz.generator import generate
from tests.fuzz.judge import judge, make_plan

EVERY = 4  # one case in so many is also asked the slower questions
CLEARED = 25  # cases after which compiled programs are forgotten


def print_plans(seeds: Sequence[int]) -> None:
    """One line per seed: what was decided, to be compared with another process."""
    for seed in seeds:
        case = generate(seed)
        try:
            with case.settings():
                record = make_plan(case, case.function()).record
            text = repr((record.decisions, record.specs, record.overrides, record.cost))
        except Exception as error:  # the same one is asked of both
            text = type(error).__name__
        print(json.dumps({"seed": seed, "plan": text}), flush=True)


def main() -> None:
    if sys.argv[1] == "--plans":
        print_plans([int(seed) for seed in sys.argv[2:]])
        return
    for n, seed in enumerate(map(int, sys.argv[1:])):
        started = time.monotonic()
        case = generate(seed)
        print(json.dumps({"started": case.to_dict()}), flush=True)
        verdict = judge(case, files=seed % EVERY == 0)
        print(json.dumps({**verdict.to_dict(), "seconds": time.monotonic() - started}), flush=True)
        if n % CLEARED == CLEARED - 1:
            jax.clear_caches()


if __name__ == "__main__":
    main()
