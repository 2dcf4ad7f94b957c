"""The factor graph: the same seconds whichever way it is read, and cells that are told apart."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import shardwright.cost.cells as addresses
from shardwright.search.space import Space
from shardwright.spmd.decisions import decide, decide_all
from shardwright.spmd.layout import REPLICATED
from tests.search.programs import HIDES_ALL, model_of
from tests.search.test_best_response import random_states

CASES = [
    ("mlp_grad", {"x": 2, "y": 4}),
    ("transformer_scan_train", {"x": 2, "y": 4}),
    ("moe_forward", {"x": 2, "y": 2, "z": 2}),
]


@pytest.mark.parametrize("name, mesh", CASES)
def test_factors_add_up_to_a_step(name: str, mesh: dict[str, int]) -> None:
    model = model_of(name, mesh)
    decisions = decide_all(random_states(Space(model), 20), {})
    placements, _ = model.place(decisions)
    total = np.zeros(len(decisions))
    for f, factor in enumerate(model.graph.factors):
        seen = placements[:, list(factor.scope)]
        total += model.graph.seconds(f, model.graph.cells.of_factor(f, seen), seen)[0]
    costs = model.evaluate(decisions)
    np.testing.assert_allclose(total, costs.compute_s + costs.link_s, rtol=1e-9)


@pytest.mark.parametrize("name, mesh", CASES)
def test_addresses_tell_cells_apart(name: str, mesh: dict[str, int]) -> None:
    """Two cells have one address only if they are of one factor and stored alike."""
    model = model_of(name, mesh)
    placements, _ = model.place(decide_all(random_states(Space(model), 60), {}))
    address: dict[object, tuple[int, bytes]] = {}
    for f, factor in enumerate(model.graph.factors):
        seen = placements[:, list(factor.scope)]
        for cell, at in zip(model.graph.cells.of_factor(f, seen), seen, strict=True):
            assert address.setdefault(cell, (f, at.tobytes())) == (f, at.tobytes())


@pytest.mark.parametrize("name, mesh", CASES)
def test_tables_too_large_for_numbers(
    name: str, mesh: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same seconds where no number can address the cells."""
    model = model_of(name, mesh)
    decisions = decide_all(random_states(Space(model), 20), {})
    expected = model.evaluate(decisions)
    monkeypatch.setattr(addresses, "MOST_CELLS", 1000)
    wide = model_of(name, mesh)
    assert wide.graph.cells.wide
    np.testing.assert_array_equal(wide.evaluate(decisions).step_s, expected.step_s)
    np.testing.assert_array_equal(wide.evaluate(decisions).peak_bytes, expected.peak_bytes)


@pytest.mark.parametrize("name, mesh", CASES)
@pytest.mark.parametrize("overlap", [None, 0.5])
def test_one_layout_stored_in_another_way(
    name: str, mesh: dict[str, int], overlap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking up what sees it gives the seconds of the whole step, also in wide tables."""
    monkeypatch.setattr(addresses, "MOST_CELLS", 1 << 30)
    model = model_of(name, mesh, HIDES_ALL, overlap)
    sizes, whole = model.mesh.sizes, (REPLICATED,) * len(mesh)
    changes = [
        (i, placement)
        for i, layout in enumerate(model.layouts.table)
        for placement in [whole, *[(j, *whole[1:]) for j in range(len(layout.atoms))]]
        if layout.pinned is None and layout.can_store(placement, sizes)
    ]
    for state in random_states(Space(model), 3):
        now = decide(state)
        found = model.changed_s(*model.place([now]), changes, worth=0.0)
        whole_steps = model.evaluate([now.override({i: p}) for i, p in changes]).step_s
        np.testing.assert_allclose(found, whole_steps, rtol=1e-9)
        worthy = model.changed_s(*model.place([now]), changes, worth=0.1)
        saved = whole_steps < model.cost(now).step_s * (1 - 0.1)
        np.testing.assert_allclose(worthy[saved], whole_steps[saved], rtol=1e-9)


def test_it_prints_a_line_for_each_factor() -> None:
    graph = model_of("mlp_grad", {"x": 2}).graph
    head, *lines = str(graph).splitlines()
    assert head.endswith(f"{len(graph.factors)} factors") and len(lines) == len(graph.factors)
    assert any("shared transfer for 2 uses" in line for line in lines)


def test_threads_share_a_model() -> None:
    model = model_of("transformer_train", {"x": 2, "y": 4})
    decisions = decide_all(random_states(Space(model), 60), {})
    expected = model_of("transformer_train", {"x": 2, "y": 4}).evaluate(decisions).step_s
    found: dict[int, np.ndarray] = {}

    def evaluate(i: int) -> None:
        found[i] = model.evaluate(decisions[i:] + decisions[:i]).step_s

    threads = [threading.Thread(target=evaluate, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, seconds in found.items():
        np.testing.assert_array_equal(np.roll(seconds, i), expected)
