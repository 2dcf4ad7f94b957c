"""Exact search against brute force: the certificate is honest."""

from __future__ import annotations

import functools
from itertools import permutations, product

import numpy as np
import pytest

from shardwright.cost.devices import Device
from shardwright.cost.hiding import hidden_s
from shardwright.search.axis_placements import find_axis_placements
from shardwright.search.blocks import Work, find_blocks
from shardwright.search.bounds import least_factor_s
from shardwright.search.exact import Limits, certify
from shardwright.search.objective import OVER_MEMORY_S, Budget, Objective
from shardwright.search.space import Space
from shardwright.spmd.decisions import decide, decide_all
from tests.search.programs import HIDES_ALL, model_of

# Small enough to evaluate every combination of axis placements.
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
def every_state(
    name: str, axes: tuple[tuple[str, int], ...], on: str | Device = "tpu-v5e"
) -> tuple[np.ndarray, np.ndarray]:
    """(step seconds, peak bytes) of every combination of axis placements."""
    model = model_of(name, dict(axes), on)
    axes_placed = find_axis_placements(Space(model), 100_000)
    states = list(product(*[map(a.list_of, range(len(a))) for a in axes_placed]))
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
def test_axis_placements_are_what_lists_mean(name: str, mesh: dict[str, int]) -> None:
    """An axis placement says how its list splits every layout, in each situation before it."""
    model = model_of(name, mesh)
    axes = find_axis_placements(Space(model), 100_000)
    rng = np.random.default_rng(0)
    for _ in range(40):
        picked = [int(rng.integers(len(a))) for a in axes]
        state = tuple(a.list_of(n) for a, n in zip(axes, picked, strict=True))
        placements, _ = model.place([decide(state)])
        for layout in range(len(model.layouts.table)):
            earlier: tuple[int, ...] = ()
            for a, n in zip(axes, picked, strict=True):
                earlier = (*earlier, int(a.table[n, a.column[layout][earlier]]))
            assert earlier == tuple(placements[0, layout].tolist())


def test_every_list_leads_to_an_axis_placement() -> None:
    """Against all lists of three entries, written out: none is lost to a hash."""
    model = model_of("mlp_grad", {"x": 4})
    space = Space(model)
    (axis,) = find_axis_placements(space, 100_000)
    entries = [a.entry for a in space.actions]
    lists = [c for n in range(4) for c in permutations(entries, n) if space.allows(0, c)]
    placements, _ = model.place(decide_all([(c,) for c in lists], {}))
    known = {model.place([decide((axis.list_of(n),))])[0].tobytes() for n in range(len(axis))}
    assert {p[None].tobytes() for p in placements} <= known


@pytest.mark.parametrize("on", ["tpu-v5e", HIDES_ALL], ids=["v5e", "hides"])
@pytest.mark.parametrize("name, mesh", SMALL)
def test_blocks_add_up_to_a_state(name: str, mesh: dict[str, int], on: str | Device) -> None:
    """What hides is worked out from the sums of their columns."""
    model = model_of(name, mesh, on)
    axes = find_axis_placements(Space(model), 100_000)
    blocks = find_blocks(model.graph, axes, Work())
    rng = np.random.default_rng(1)
    for _ in range(20):
        chosen = [int(rng.integers(len(a))) for a in axes]
        state = tuple(a.list_of(n) for a, n in zip(axes, chosen, strict=True))
        total, columns = 0.0, np.zeros(model.graph.hiding.columns)
        for block in blocks:
            kinds = block.kinds(chosen)
            parts = block.last(kinds[:-1], np.array(kinds[-1:]))
            total += float(parts.seconds[0])
            columns[block.columns] += parts.columns[0]
        step_s = model.cost(decide(state)).step_s
        assert total - hidden_s(columns) == pytest.approx(step_s, rel=1e-9)


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
    certificate, _ = certify(space, objective, Budget(), Limits(cells=10**9, nodes=10**9))
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
    [Limits(placements=2), Limits(cells=40), Limits(nodes=1), Limits(evaluations=1)],
    ids=["placements", "cells", "nodes", "evaluations"],
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
    assert least_factor_s(model).sum() <= expected * (1 + 1e-9)


@pytest.mark.parametrize("name, mesh", [SMALL[1], SMALL[2], SMALL[4]])
def test_what_hides_is_proven_too(name: str, mesh: dict[str, int]) -> None:
    """Seconds are no sum over blocks; in some states links are the longer, in others compute."""
    model = model_of(name, mesh, HIDES_ALL)
    step_s, _ = every_state(name, tuple(mesh.items()), HIDES_ALL)
    space, objective = Space(model), Objective(model, None)
    objective([space.root])
    certificate, _ = certify(space, objective, Budget(), Limits(cells=10**9, nodes=10**9))
    assert certificate.kind == "optimal"
    assert objective.best_s == pytest.approx(step_s.min(), rel=1e-9)
    for limits in (Limits(placements=2), Limits(cells=40), Limits(nodes=1)):
        objective = Objective(model, None)
        objective([space.root])
        certificate, _ = certify(space, objective, Budget(), limits)
        assert 0 < certificate.lower_bound_s <= step_s.min() * (1 + 1e-9)
