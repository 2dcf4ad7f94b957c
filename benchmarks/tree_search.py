"""How often tree search alone, from the empty state, comes within 1% of the proven optimum.

    python -m benchmarks.tree_search [--seeds 20] [--evaluations 600] [--cases known|unseen]

No strategies, no local search, no proof helps it. The optimum is that of exact search with twice
its default work; where no proof ends, the best that any seed, the proof or a whole search found is
taken, and the row says so. The cases are those of tests/search/tree_cases.py: UNSEEN was written
down before the search was.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is loaded

from shardwright.search import search
from shardwright.search.best_response import Responses
from shardwright.search.exact import Certificate, Limits, certify
from shardwright.search.mcts import tree_search
from shardwright.search.objective import Budget, Objective
from shardwright.search.space import Space
from tests.search.programs import model_of
from tests.search.tree_cases import KNOWN, UNSEEN, Case

NEAR = 1.01  # of the optimum
LEAST = 0.9  # of the seeds: 18 of 20


def measure(case: Case, seeds: int, evaluations: int) -> bool:
    """Prints one row; whether enough seeds came near the optimum."""
    model = model_of(*case)
    space, memory = Space(model), model.device.usable_bytes
    known = Objective(model, memory)
    reached: list[float] = []
    start = time.process_time()
    for seed in range(seeds):
        objective = Objective(model, memory)
        budget = Budget(evaluations=evaluations, patience=evaluations)
        tree_search(Responses(space, objective), budget, seed=seed)
        assert objective.best is not None
        reached.append(objective.best_s)
        known([objective.best])
    seconds = (time.process_time() - start) / seeds
    best, proof = optimum(space, known)
    near = sum(value <= best * NEAR for value in reached)
    print(
        f"{case[0]:18} {'x'.join(map(str, case[1].values())):7} {case[2]:8}"
        f" {near:3} of {seeds}, worst {max(reached) / best:.3f}, {seconds:5.2f} s a run,"
        f" {best * 1e3:9.4g} ms {proof}",
        flush=True,
    )
    return near >= LEAST * seeds


def optimum(space: Space, known: Objective) -> tuple[float, Certificate]:
    """(seconds of the best state, how good it provably is), from the best known so far."""
    certificate, _ = certify(space, known, Budget(), Limits().scaled(2))
    if certificate.against(known.best_s).kind != "optimal":
        whole = search(space.model).plain
        known([whole] if whole is not None else [])
    return known.best_s, certificate.against(known.best_s)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 when a case is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--evaluations", type=int, default=600)
    parser.add_argument("--cases", choices=("known", "unseen"), help="both when left out")
    args = parser.parse_args(argv)
    tables = {"known": KNOWN, "unseen": UNSEEN}
    met = True
    for name, cases in tables.items():
        if args.cases in (None, name):
            print(name)
            for case in cases:
                met &= measure(case, args.seeds, args.evaluations)
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
