"""Best responses are exact: judged by evaluating states one by one."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.search import search
from shardwright.search.best_response import Responses
from shardwright.search.blocks import Spent
from shardwright.search.mcts import tree_search
from shardwright.search.objective import Budget, Objective
from shardwright.search.refine import applied, neighbours
from shardwright.search.space import Space
from shardwright.spmd.decisions import State
from shardwright.spmd.layout import REPLICATED
from tests.search.programs import model_of

CASES = [
    ("mlp_grad", {"x": 2}),
    ("mlp_grad", {"x": 2, "y": 4}),
    ("attention_grad", {"x": 8, "y": 2}),  # what y can split depends on what x took
    ("mlp_grad", {"x": 2, "y": 2, "z": 2}),
    ("transformer_train", {"x": 2, "y": 4}),
    ("moe_forward", {"x": 2, "y": 4}),
]


def responses_of(name: str, mesh: dict[str, int], memory: int | None = None) -> Responses:
    space = Space(model_of(name, mesh))
    return Responses(space, Objective(space.model, memory))


def random_states(space: Space, count: int) -> list[State]:
    rng = np.random.default_rng(0)
    states = []
    for _ in range(count):
        state = space.root
        for _ in range(int(rng.integers(7))):
            if legal := space.legal(state):
                state = space.after(state, int(rng.choice(legal)))
        states.append(state)
    return list(dict.fromkeys(states))


def around(space: Space, state: State, axis: int) -> list[State]:
    """The states one change of one list away."""
    states = [applied(space, state, change) for change in neighbours(space, state, axis)[0]]
    return [one for one in states if one is not None]


@pytest.mark.parametrize("name, mesh", CASES)
def test_seconds_are_those_of_the_states(name: str, mesh: dict[str, int]) -> None:
    responses = responses_of(name, mesh)
    model, rng = responses.space.model, np.random.default_rng(0)
    for axis in range(len(mesh)):
        chosen = tuple(int(rng.integers(len(a))) for a in responses.axes)
        seconds = responses.seconds(axis, chosen)
        picked = rng.integers(len(seconds), size=12).tolist()
        states = [responses.state((*chosen[:axis], n, *chosen[axis + 1 :])) for n in picked]
        costs = model.evaluate(responses.space.decisions(states))
        np.testing.assert_allclose(seconds[picked], costs.step_s, rtol=1e-9)


@pytest.mark.parametrize("name, mesh", CASES)
def test_a_state_is_found_by_its_placements(name: str, mesh: dict[str, int]) -> None:
    responses = responses_of(name, mesh)
    space = responses.space
    for state in random_states(space, 20):
        chosen = responses.chosen(state)
        assert chosen is not None
        same = responses.state(chosen)
        before, after = (space.model.place(space.decisions([s]))[0] for s in (state, same))
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name, mesh", CASES)
def test_nothing_one_axis_away_is_faster(name: str, mesh: dict[str, int]) -> None:
    """After a descent, no change of the list of one axis brings anything."""
    responses = responses_of(name, mesh)
    start = responses.chosen(responses.space.root)
    assert start is not None
    value, chosen = responses.descend(start, range(len(mesh)))
    state = responses.state(chosen)
    near = [near for axis in range(len(mesh)) for near in around(responses.space, state, axis)]
    assert near and (responses.objective(near) >= value * (1 - 1e-9)).all()


def test_extensions_split_all_that_is_split_already() -> None:
    responses = responses_of("transformer_train", {"x": 2, "y": 4})
    table = responses.axes[0].table
    for number in range(0, len(table), 97):
        split = table[number] != REPLICATED
        extended = responses.extensions(0, number)
        assert number in extended
        assert (table[extended][:, split] == table[number, split]).all()
        assert len(extended) < len(table) or not split.any()


def test_responses_fit_memory_where_something_does() -> None:
    """With half the bytes of the fastest state, a descent from the root ends in one that fits."""
    free = responses_of("transformer_train", {"x": 2, "y": 4})
    root = free.chosen(free.space.root)
    assert root is not None
    _, fastest = free.descend(root, [0, 1])
    peak = free.space.model.cost(free.objective.decisions(free.state(fastest))).peak_bytes
    tight = responses_of("transformer_train", {"x": 2, "y": 4}, memory=int(peak * 0.9))
    _, chosen = tight.descend(root, [0, 1])
    cost = tight.space.model.cost(tight.objective.decisions(tight.state(chosen)))
    assert cost.peak_bytes <= peak * 0.9


def test_lists_longer_than_the_longest_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A space of too many lists is searched all the same, and nothing is lost by it here."""
    model = model_of("small_batch", {"x": 2, "y": 4})
    whole = search(model, exact=False).cost.step_s
    monkeypatch.setattr("shardwright.search.best_response.MOST_PLACEMENTS", 40)
    responses = Responses(Space(model), Objective(model, None))
    assert all(len(axis) <= 40 and not axis.complete for axis in responses.axes)
    assert search(model, exact=False).cost.step_s <= whole * 1.01


def test_axes_that_split_alike() -> None:
    """The best plan of a graph network has one list on both axes; no single response finds it."""
    responses = responses_of("gnn_2r", {"x": 4, "y": 4})
    root = responses.chosen(responses.space.root)
    assert root is not None
    value, _ = responses.descend(root, [0, 1])
    responses.evaluate_alike(4000)
    best = responses.objective.best
    assert best is not None and best[0] == best[1]
    assert responses.objective.best_s < 0.99 * value


def test_work_is_counted() -> None:
    space = Space(model_of("transformer_train", {"x": 2, "y": 4}))
    responses = Responses(space, Objective(space.model, None), cells=100)
    with pytest.raises(Spent):
        tree_search(responses, Budget())


def one_change_away(space: Space, state: State, axis: int) -> set[State]:
    """All of them, entry by entry."""
    entries, fixed = state[axis], len(space.root[axis])
    options = list(space.entries[axis])
    lists = [(*entries[:i], e, *entries[i:]) for e in options
             for i in range(fixed, len(entries) + 1)]  # fmt: skip
    for i in range(fixed, len(entries)):
        rest = entries[:i] + entries[i + 1 :]
        lists += [rest, *[(*rest[:j], entries[i], *rest[j:]) for j in range(fixed, len(entries))]]
        lists += [(*entries[:i], e, *entries[i + 1 :]) for e in options]
    able = [one for one in lists if space.allows(axis, one)]
    return {(*state[:axis], one, *state[axis + 1 :]) for one in able}


@pytest.mark.parametrize("name, mesh", CASES)
def test_neighbours_are_all_that_one_change_leads_to(name: str, mesh: dict[str, int]) -> None:
    """Up to states that split all alike; each is of the space that the certificate speaks for."""
    space = Space(model_of(name, mesh))
    model, objective = space.model, Objective(space.model, None)

    def placed(state: State) -> bytes:
        return bytes(model.place(space.decisions([state]))[0].tobytes())

    for state in random_states(space, 10):
        for axis in space.axes:
            changes, atoms = neighbours(space, state, axis)
            found = around(space, state, axis)
            assert len(found) == len(changes) and all(map(space.contains, found))
            wanted = {placed(one) for one in one_change_away(space, state, axis)}
            assert {*map(placed, found), placed(state)} == wanted | {placed(state)}
            if found:
                seconds = objective.around_s(state, axis, atoms)
                costs = model.evaluate(space.decisions(found))
                np.testing.assert_allclose(seconds, costs.step_s, rtol=1e-9)
