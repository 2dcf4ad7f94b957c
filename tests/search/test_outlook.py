"""The outlook: exact about what was seen, hopeful about the rest."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shardwright.search.mcts import mcts
from shardwright.search.objective import Budget, Objective
from shardwright.search.outlook import Outlook
from shardwright.search.proposals import recombine, respond
from shardwright.search.space import Space
from shardwright.spmd.decisions import State
from tests.search.programs import model_of


def random_states(space: Space, count: int) -> list[State]:
    rng = np.random.default_rng(0)
    states = []
    for _ in range(count):
        state = space.root
        for _ in range(int(rng.integers(6))):
            if legal := space.legal(state):
                state = space.after(state, int(rng.choice(legal)))
        states.append(state)
    return list(dict.fromkeys(states))


def taught(name: str, mesh: dict[str, int], count: int) -> tuple[Space, Objective, Outlook]:
    """An outlook that has seen so many random states."""
    space = Space(model_of(name, mesh))
    objective = Objective(space.model, None)
    outlook = Outlook(space, objective.memory)
    objective.watch = outlook.learn
    objective(random_states(space, count))
    return space, objective, outlook


@pytest.mark.parametrize("name", ["mlp_grad", "transformer_train", "moe_forward", "gnn_forward"])
def test_the_parts_of_a_step_add_up_to_it(name: str) -> None:
    space = Space(model_of(name, {"x": 2, "y": 4}))
    costs = space.model.evaluate(space.decisions(random_states(space, 50)))
    np.testing.assert_allclose(costs.parts.sum(1), costs.compute_s + costs.link_s, rtol=1e-9)
    assert costs.parts.shape[1] == len(space.model.parts)


@pytest.mark.parametrize("hopeful", [True, False])
@pytest.mark.parametrize("mesh", [{"x": 2}, {"x": 2, "y": 2}, {"x": 2, "y": 2, "z": 2}])
def test_what_was_seen_is_promised_as_it_was(mesh: dict[str, int], hopeful: bool) -> None:
    space, objective, outlook = taught("mlp_grad", mesh, 200)
    states = random_states(space, 200)
    for state, choice in zip(states, outlook.choices(states), strict=True):
        assert choice is not None
        for axis in range(len(mesh)):
            promised = outlook.promises(choice, axis, hopeful=hopeful)[choice[axis]]
            assert promised == pytest.approx(objective([state])[0])


def test_prospects_and_hopes_are_below_what_was_seen() -> None:
    """All parts of a seen state were seen with its columns, at its price or cheaper."""
    space, objective, outlook = taught("transformer_train", {"x": 2, "y": 4}, 300)
    states = random_states(space, 300)
    for state, choice in zip(states, outlook.choices(states), strict=True):
        assert choice is not None
        seconds = objective([state])[0] * (1 + 1e-9)
        for axis in range(2):
            assert outlook.prospects(axis)[choice[axis]] <= seconds
            hoped = outlook.promises(choice, axis, hopeful=True)
            assert (hoped <= outlook.promises(choice, axis, hopeful=False) * (1 + 1e-9)).all()


def test_an_outlook_that_saw_everything_knows_the_best_response() -> None:
    """On two axes of a small program, against all states evaluated one by one."""
    space, objective, outlook = taught("mlp_grad", {"x": 2, "y": 2}, 1)
    lists = [[outlook.with_column(space.root, a, c)[a] for c in range(len(outlook.axes[a].columns))]
             for a in range(2)]  # fmt: skip
    states = list(product(*lists))
    values = objective(states).reshape(len(lists[0]), len(lists[1]))
    for first in range(0, len(lists[0]), 7):
        best = outlook.best_columns((first, 0), 1, 4, hopeful=False)
        assert values[first, best[0]] == pytest.approx(values[first].min())


def test_proposals_are_new() -> None:
    space, objective, outlook = taught("transformer_train", {"x": 2, "y": 4}, 300)
    rng = np.random.default_rng(0)
    state = random_states(space, 300)[-1]
    answers = respond(outlook, objective, state, 1, 8)
    assert len(answers) == 8 and all(s[0] == state[0] for s in answers)
    for s in [*answers, *recombine(outlook, objective, rng, 8)]:
        assert space.contains(s)
    assert objective.unseen(answers) == answers


def test_lists_longer_than_the_longest_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A space of too many lists is searched all the same."""
    monkeypatch.setattr("shardwright.search.outlook.MOST_COLUMNS", 40)
    model = model_of("small_batch", {"x": 2, "y": 4})
    space, objective = Space(model), Objective(model, None)
    mcts(space, objective, Budget(evaluations=1000, patience=1000))
    assert objective.evaluations >= 990
    outlook = Outlook(space, objective.memory)
    assert all(len(view.columns) <= 40 for view in outlook.axes)
    assert objective.best is not None
    assert outlook.choices([objective.best]) == [None]
    assert objective.best_s < 0.5 * objective([space.root])[0]
