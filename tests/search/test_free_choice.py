"""The bound where ops choose freely never exceeds what a state takes, nor a table what moves."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shardwright.cost.pair_table import PairTable, Patterns
from shardwright.cost.prices import DevicePrices
from shardwright.search.exact import MOST_CELLS
from shardwright.search.free_choice import FreeChoice
from shardwright.search.relaxation import OpTables
from shardwright.search.space import Space
from shardwright.spmd.decisions import decide
from shardwright.spmd.follow import Route, result_route
from shardwright.spmd.layout import REPLICATED
from tests.search.programs import HIDES_ALL, model_of
from tests.search.test_relaxation import random_states

FOUR = {"w": 2, "x": 2, "y": 2, "z": 2}
CASES = [
    ("mlp_grad", {"x": 2, "y": 4}, "tpu-v5e"),
    ("transformer_train", FOUR, "h100"),
    ("transformer_train", {"w": 2, "x": 4, "y": 1, "z": 2}, "tpu-v5p"),
    ("transformer_scan_train", FOUR, HIDES_ALL),  # sums that are reduced after their loop
    ("moe_train", FOUR, "h100"),
    ("resnet_train", FOUR, "tpu-v4"),
    ("llama_train", FOUR, HIDES_ALL),
]


def sum_of_stars(relaxed: FreeChoice, placements: np.ndarray) -> float:
    """Seconds of one state, its layouts placed like this, every op free to choose."""
    total = relaxed.constant_s
    for star in relaxed.stars:
        seconds = star.seconds
        for arm in star.arms:
            stored = tuple(placements[arm.layout].tolist())
            at = relaxed.ops.domains.placements[arm.layout].index(stored)
            seconds = seconds + arm.seconds[arm.of, at] + arm.moved[at]
        total += float(seconds.min())
    return total


@pytest.mark.parametrize("name, mesh, on", CASES)
def test_stars_never_exceed_what_a_state_takes(name: str, mesh: dict[str, int], on: str) -> None:
    """Before they agree and after it; and agreeing never lowers the bound."""
    model = model_of(name, mesh, on)
    space = Space(model)
    states = random_states(space, 40)
    decisions = [decide(s) for s in states]
    costs = model.evaluate(decisions)
    near = decisions[int(costs.step_s.argmin())]
    relaxed = FreeChoice(OpTables(space, 0, MOST_CELLS), near)
    placements, _ = model.place(decisions)
    before = np.array([sum_of_stars(relaxed, p) for p in placements])
    assert (before <= costs.step_s * (1 + 1e-9)).all()
    rising = [relaxed.bound_s]
    relaxed.agree(float("inf"), 20, rising.append)
    after = np.array([sum_of_stars(relaxed, p) for p in placements])
    assert after.max() <= before.max() * (1 + 1e-9)  # ops may choose otherwise, and the sum is less
    assert (after <= costs.step_s * (1 + 1e-9)).all()
    assert np.diff(rising).min() >= -1e-12 * rising[0]
    assert relaxed.bound_s <= after.min() * (1 + 1e-9)
    assert relaxed.bound_s > 0


@pytest.mark.parametrize("name", ["transformer_train", "llama_train", "resnet_train"])
@pytest.mark.parametrize(
    "mesh, on",
    [
        ({"w": 2, "x": 4, "y": 2}, "h100"), ({"x": 3, "y": 2, "z": 4}, HIDES_ALL),
        ({"x": 8, "y": 4}, "tpu-v5p"),
    ],
)  # fmt: skip
def test_tables_never_exceed_what_moves(name: str, mesh: dict[str, int], on: str) -> None:
    """Uneven shards, padded ones and minor atoms among them: random pairs of every slot."""
    model, rng = model_of(name, mesh, on), np.random.default_rng(0)
    prices, sizes = model.prices, model.mesh.sizes
    patterns, seen = Patterns(prices, False), set[object]()
    for op in model.classes.table:
        for slot in op.slots:
            layout = slot.layout
            if slot.geometry in seen or not layout.atoms or layout.rematerialised:
                continue
            seen.add(slot.geometry)
            every = product((REPLICATED, *range(len(layout.atoms))), repeat=len(sizes))
            able = [p for p in every if layout.can_store(p, sizes)]
            some = [able[i] for i in rng.permutation(len(able))[:24].tolist()]
            table = PairTable(layout, [(p, ()) for p in some], some, patterns, prices)
            for (i, have), (j, need) in product(enumerate(some), repeat=2):
                route, at = prices.routes.reshard(slot, have, need), table.cell[i, j]
                check(table, int(at), route, prices)


def check(table: PairTable, cell: int, route: Route, prices: DevicePrices) -> None:
    """A cell is at most what a route takes, whatever part of what may hide counts."""
    slack, hides = prices.slack_s(route.moves), prices.hideable_s(route.moves)
    assert table.exposed(None)[cell] <= route.seconds + 1e-12
    for weight in (0.0, 0.3, 1.0):
        assert table.exposed(weight)[cell] <= slack - (1 - weight) * hides + 1e-12


@pytest.mark.parametrize("on", ["h100", "tpu-v5p", HIDES_ALL])
def test_tables_of_sums_never_exceed_what_moves(on: str) -> None:
    model = model_of("transformer_train", {"w": 2, "x": 4, "y": 2}, on)
    relaxed = FreeChoice(OpTables(Space(model), 0, MOST_CELLS), decide(Space(model).root))
    prices, checked, rng = model.prices, 0, np.random.default_rng(0)
    for op in model.classes.table:
        slot, found = op.slots[-1], list(op.candidates.values())
        stored = relaxed.ops.domains.placements[slot.layout_index]
        for one in found:
            if one is None or not one.sum_axes[-1] or op.picks:
                continue
            made = [(one.produced[-1], one.sum_axes[-1])]
            table = PairTable(slot.layout, made, stored, Patterns(prices, op.at_once), prices)
            for j in rng.permutation(len(stored))[:6].tolist():
                route = result_route(op, len(op.results) - 1, one, stored[j], prices.routes)
                check(table, int(table.cell[0, j]), route, prices)
                checked += 1
            if checked % 50 == 0:
                break
    assert checked > 100
