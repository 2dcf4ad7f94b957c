"""The relaxation never exceeds what a state takes, and another solver agrees with the proofs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, csr_array

from shardwright.search.axis_placements import find_axis_placements
from shardwright.search.blocks import Work, find_blocks
from shardwright.search.exact import Limits, certify
from shardwright.search.objective import Budget, Objective
from shardwright.search.relaxation import OpTables, Relaxation
from shardwright.search.space import Space
from shardwright.spmd.decisions import State, append, decide
from tests.search.programs import HIDES_ALL, model_of

CASES = [
    ("mlp_grad", {"x": 2, "y": 4}),
    ("attention_grad", {"x": 8, "y": 2}),
    ("transformer_train", {"x": 2, "y": 4}),
    ("transformer_scan_train", {"x": 4, "y": 2}),  # sums that are reduced after their loop
    ("moe_train", {"x": 2, "y": 4}),
    ("resnet_train", {"x": 2, "y": 2}),  # more placements than are enumerated
    ("mlp_grad", {"x": 2, "y": 2, "z": 2}),
]


def random_states(space: Space, count: int) -> list[State]:
    """States of up to four appends for each axis."""
    rng, out = np.random.default_rng(0), []
    for _ in range(count):
        state = space.root
        for _ in range(int(rng.integers(1, 4 * len(space.axes) + 1))):
            legal = space.legal(state)
            if legal:
                state = append(state, *space.actions[int(rng.choice(legal))])
        out.append(state)
    return out


def sum_of_tables(relaxed: Relaxation, placements: np.ndarray) -> float:
    """Seconds of one state, its layouts placed like this."""
    total = relaxed.constant_s
    for star in relaxed.stars:
        numbers = [relaxed.domains.number(i, tuple(placements[i].tolist())) for i in star.scope]
        (at,) = np.flatnonzero((star.cells == numbers).all(1)).tolist()
        total += float(star.seconds[at])
    return total


@pytest.mark.parametrize("name, mesh", CASES)
def test_tables_never_exceed_what_a_state_takes(name: str, mesh: dict[str, int]) -> None:
    """Before they agree and after it; and agreeing never lowers the bound."""
    model = model_of(name, mesh)
    space = Space(model)
    states = random_states(space, 40)
    costs = model.evaluate([decide(s) for s in states])
    near = states[int(costs.step_s.argmin())]
    relaxed = Relaxation(OpTables(space, 1e9, 1_000_000), decide(near))
    placements, _ = model.place([decide(s) for s in states])
    start, rng = relaxed.weights, np.random.default_rng(1)
    relaxed.weigh(rng.random(len(start)))  # whatever the weights are
    total = np.array([sum_of_tables(relaxed, p) for p in placements])
    assert (total <= costs.step_s * (1 + 1e-9)).all()
    relaxed.weigh(start)
    before = [sum_of_tables(relaxed, p) for p in placements]
    first = relaxed.bound_s
    rising: list[float] = []
    relaxed.agree(float("inf"), 20, rising.append)
    after = [sum_of_tables(relaxed, p) for p in placements]
    assert after == pytest.approx(before, rel=1e-9)
    assert (np.array(before) <= costs.step_s * (1 + 1e-9)).all()
    assert np.diff([first, *rising]).min() >= -1e-12 * first
    assert relaxed.bound_s <= min(before) * (1 + 1e-9)


@pytest.mark.parametrize(
    "name, mesh", [CASES[0], CASES[1], ("mlp_forward", {"x": 2, "y": 2, "z": 2})]
)
def test_an_independent_solver_finds_the_proven_optimum(name: str, mesh: dict[str, int]) -> None:
    """HiGHS on the factor graph: one placement for each axis, one cell for each block.

    What hides in a phase is one more variable: at most its compute, at most its hideable links.
    """
    model = model_of(name, mesh, HIDES_ALL)
    space = Space(model)
    axes = find_axis_placements(space, 100_000)
    blocks = find_blocks(model.graph, axes, Work())
    cost: list[float] = []
    rows: list[tuple[int, int, float]] = []  # (constraint, variable, coefficient)
    right: list[float] = []
    hidden: list[tuple[int, int, float]] = []  # (column, variable, coefficient)
    first = []  # the variable of the first placement of each axis
    for axis in axes:
        first.append(len(cost))
        rows += [(len(right), len(cost) + n, 1.0) for n in range(len(axis))]
        cost += [0.0] * len(axis)
        right.append(1.0)
    for block in blocks:
        cells = list(product(*[range(len(e)) for e in block.example]))
        at = len(cost)
        parts = [block.last(c[:-1], np.array(c[-1:])) for c in cells]
        cost += [float(p.seconds[0]) for p in parts]
        hidden += [
            (c, at + i, -1e6 * float(p.columns[0, j]))
            for i, p in enumerate(parts) for j, c in enumerate(block.columns)
        ]  # fmt: skip
        for a, kinds in enumerate(block.kind):
            for k in range(len(block.example[a])):
                rows += [(len(right), at + i, 1.0) for i, c in enumerate(cells) if c[a] == k]
                placed = np.flatnonzero(kinds == k).tolist()
                rows += [(len(right), first[a] + n, -1.0) for n in placed]
                right.append(0.0)
    columns = model.graph.hiding.columns
    hidden += [(c, len(cost) + c // 2, 1.0) for c in range(columns)]  # in microseconds
    cost += [-1e-6] * (columns // 2)  # seconds

    def matrix(entries: list[tuple[int, int, float]], count: int) -> csr_array:
        row, variable, value = zip(*entries, strict=True)
        return coo_array((value, (row, variable)), shape=(count, len(cost))).tocsr()

    whole = np.arange(len(cost)) < first[-1] + len(axes[-1])
    most = np.where(np.arange(len(cost)) < len(cost) - columns // 2, 1.0, np.inf)
    solved = milp(
        np.array(cost) * 1e6, integrality=whole, bounds=Bounds(0, most),
        constraints=[
            LinearConstraint(matrix(rows, len(right)), right, right),
            LinearConstraint(matrix(hidden, columns), -np.inf, 0.0),
        ],
        options={"mip_rel_gap": 1e-9},
    )  # fmt: skip
    objective = Objective(model, None)
    objective([space.root])
    certificate, _ = certify(space, objective, Budget(), Limits(cells=10**9, nodes=10**9))
    assert certificate.kind == "optimal"
    assert objective.best_s == pytest.approx(solved.fun / 1e6, rel=1e-6)
