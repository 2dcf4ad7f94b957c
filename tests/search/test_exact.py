"""Exact search against brute force: the certificate is honest."""

from __future__ import annotations

import functools
from itertools import product

import numpy as np
import pytest

from shardwright.search.bounds import least_step_s
from shardwright.search.columns import find_columns
from shardwright.search.exact import Limits, certify
from shardwright.search.objective import OVER_MEMORY_S, Budget, Objective
from shardwright.search.space import Space
from shardwright.search.terms import Pricer, find_blocks, find_terms
from shardwright.spmd.decisions import decide, decide_all
from tests.search.programs import model_of

# Small enough to evaluate every pair of columns.
SMALL = [
    ("mlp_forward", {"x": 2, "y": 4}),
    ("mlp_grad", {"x": 2, "y": 4}),
    ("mlp_grad", {"x": 8}),
    ("attention_forward", {"x": 4, "y": 2}),
    ("attention_grad", {"x": 8, "y": 2}),  # sizes run out: later axes see other situations
    ("transformer_decode", {"x": 4}),
    ("mlp_forward", {"x": 2, "y": 2, "z": 2}),
]


@functools.cache
def every_state(name: str, axes: tuple[tuple[str, int], ...]) -> tuple[np.ndarray, np.ndarray]:
    """(step seconds, peak bytes) of every combination of columns."""
    model = model_of(name, dict(axes))
    states = list(
        product(*[map(c.list_of, range(len(c))) for c in find_columns(Space(model), 100_000)])
    )
    costs = [
        model.evaluate(decide_all(states[at : at + 512], {})) for at in range(0, len(states), 512)
    ]
    return np.concatenate([c.step_s for c in costs]), np.concatenate([c.peak_bytes for c in costs])


def brute_force(name: str, mesh: dict[str, int], memory: float | None) -> tuple[float, int]:
    """(the best objective, number of states)."""
    step_s, peak_bytes = every_state(name, tuple(mesh.items()))
    fits = peak_bytes <= (np.inf if memory is None else memory)
    return float(np.where(fits, step_s, OVER_MEMORY_S).min()), len(step_s)


@pytest.mark.parametrize("name, mesh", SMALL)
def test_columns_are_what_lists_mean(name: str, mesh: dict[str, int]) -> None:
    """A column says how its list stores every layout, in each situation earlier axes leave."""
    model = model_of(name, mesh)
    columns = find_columns(Space(model), 100_000)
    rng = np.random.default_rng(0)
    for _ in range(40):
        picked = [int(rng.integers(len(c))) for c in columns]
        state = tuple(c.list_of(j) for c, j in zip(columns, picked, strict=True))
        placements, _ = model.place([decide(state)])
        for layout in range(len(model.layouts.table)):
            earlier: tuple[int, ...] = ()
            for c, j in zip(columns, picked, strict=True):
                earlier = (*earlier, int(c.table[j, c.variant[layout][earlier]]))
            assert earlier == tuple(placements[0, layout].tolist())


@pytest.mark.parametrize("name, mesh", SMALL)
def test_blocks_add_up_to_the_model(name: str, mesh: dict[str, int]) -> None:
    model = model_of(name, mesh)
    columns = find_columns(Space(model), 100_000)
    blocks = find_blocks(find_terms(Pricer(model)), columns)
    rng = np.random.default_rng(1)
    states = [tuple(c.list_of(int(rng.integers(len(c)))) for c in columns) for _ in range(20)]
    placements, _ = model.place(decide_all(states, {}))
    for state, placed in zip(states, placements, strict=True):
        total = sum(
            block.exact(tuple(tuple(row) for row in placed[list(block.layouts)].T.tolist()))
            for block in blocks
        )
        cost = model.cost(decide(state))
        assert total == pytest.approx(cost.compute_s + cost.link_s, rel=1e-9)


@pytest.mark.parametrize("share", [None, 1.0, 0.8])
@pytest.mark.parametrize("name, mesh", SMALL)
def test_proven_optimum_is_the_brute_force_optimum(
    name: str, mesh: dict[str, int], share: float | None
) -> None:
    """With no memory limit, with just enough for the fastest state, and with less than that."""
    model = model_of(name, mesh)
    space = Space(model)
    memory = None
    if share is not None:
        step_s, peak_bytes = every_state(name, tuple(mesh.items()))
        memory = int(share * peak_bytes[np.argmin(step_s)])
    expected, states = brute_force(name, mesh, memory)
    objective = Objective(model, memory)
    objective([space.root])
    certificate, _ = certify(space, objective, Budget(), Limits(choices=10**9, nodes=10**9))
    if expected >= OVER_MEMORY_S:
        assert objective.best_s >= OVER_MEMORY_S
        return
    assert certificate.kind == "optimal"
    assert objective.best_s == pytest.approx(expected, rel=1e-9)
    assert certificate.lower_bound_s == pytest.approx(expected, rel=1e-9)
    assert certificate.covered == states


@pytest.mark.parametrize("name, mesh", SMALL)
@pytest.mark.parametrize(
    "limits",
    [Limits(columns=2), Limits(choices=40), Limits(nodes=1), Limits(evaluations=1)],
    ids=["columns", "choices", "nodes", "evaluations"],
)
def test_a_proof_cut_short_gives_a_true_lower_bound(
    name: str, mesh: dict[str, int], limits: Limits
) -> None:
    model = model_of(name, mesh)
    space = Space(model)
    expected, _ = brute_force(name, mesh, None)
    objective = Objective(model, None)
    objective([space.root])
    certificate, _ = certify(space, objective, Budget(), limits)
    assert 0 < certificate.lower_bound_s <= expected * (1 + 1e-9)
    assert objective.best_s <= certificate.lower_bound_s * (1 + certificate.gap) * (1 + 1e-9)
    assert least_step_s(model) <= expected * (1 + 1e-9)
