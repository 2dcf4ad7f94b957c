"""Monte Carlo tree search over appends, UCT as in the textbook: select, expand, rollout, backup.

A node is a state and an action appends an entry to one of its lists; every state is a complete
answer. A rollout does not append at random: axis after axis takes its best response among the
placements that extend the node's own (best_response.py), until none changes. So the tree decides
which entries come first, and what follows from them is found exactly, axis by axis.
"""

from __future__ import annotations

import math

import numpy as np

from shardwright.search.best_response import Responses
from shardwright.search.objective import OVER_MEMORY_S, Budget
from shardwright.search.space import Space
from shardwright.spmd.decisions import State

NO_NODE = -1  # the parent of the root


class Tree:
    """The tree as arrays that grow."""

    def __init__(self, root: State) -> None:
        self.states: list[State] = [root]  # [N]
        self.parent: list[int] = [NO_NODE]  # [N]
        self.children: list[list[int]] = [[]]  # [N]
        self.untried: list[list[int] | None] = [None]  # [N] actions, best last; None: not yet known
        self.visits: list[int] = [0]  # [N]
        self.total: list[float] = [0.0]  # [N] sum of the log seconds found below

    def add(self, parent: int, state: State) -> int:
        """A new child."""
        node = len(self.states)
        self.states.append(state)
        self.parent.append(parent)
        self.children.append([])
        self.untried.append(None)
        self.visits.append(0)
        self.total.append(0.0)
        self.children[parent].append(node)
        return node


def tree_search(
    responses: Responses,
    budget: Budget,
    *,
    seed: int = 0,
    exploration: float = math.sqrt(2.0),
    widening: float = 2.0,
) -> None:
    """Improves the objective's best state, from the root of the space.

    `exploration` is UCB1's constant (Auer et al. 2002) for values in [0, 1]; a node that was
    visited n times has at most `widening` * sqrt(n) children (progressive widening, Coulom 2007).
    """
    rng = np.random.default_rng(seed)
    space, objective = responses.space, responses.objective
    tree = Tree(space.root)
    limit = objective.evaluations + budget.evaluations
    best_s, best_at = objective.best_s, objective.evaluations
    while objective.evaluations < limit:
        leaf = select(tree, exploration, widening)
        leaf = expand(tree, leaf, space, rng)
        score = rollout(responses, tree.states[leaf], rng)
        backup(tree, leaf, score)
        if tree.visits[0] > budget.evaluations:
            break
        if objective.best_s < best_s:
            best_s, best_at = objective.best_s, objective.evaluations
        elif objective.evaluations - best_at > budget.patience:
            break


def select(tree: Tree, exploration: float, widening: float) -> int:
    """The node to expand: down the children of highest upper confidence bound."""
    node = 0
    while True:
        children, untried = tree.children[node], tree.untried[node]
        wide = len(children) < widening * math.sqrt(tree.visits[node] + 1)
        if untried is None or (untried and wide) or not children:
            return node
        mean = np.array([tree.total[c] / tree.visits[c] for c in children])
        visits = np.array([tree.visits[c] for c in children])
        spread = max(float(mean.max() - mean.min()), 1e-9)
        value = (mean.max() - mean) / spread  # in [0, 1], 1 is fastest
        bonus = exploration * np.sqrt(math.log(tree.visits[node] + 1) / visits)
        node = children[int(np.argmax(value + bonus))]


def expand(tree: Tree, node: int, space: Space, rng: np.random.Generator) -> int:
    """A new child of the node; the node itself when it has none left, or was never looked at."""
    untried = tree.untried[node]
    if untried is None:
        legal = space.legal(tree.states[node])
        tree.untried[node] = rng.permutation(legal).tolist()
        return node
    if not untried:
        return node
    return tree.add(node, space.after(tree.states[node], untried.pop()))


def rollout(responses: Responses, state: State, rng: np.random.Generator) -> float:
    """Log seconds of what best responses make of a state."""
    start = responses.chosen(state)
    if start is None:
        return score(float(responses.objective([state])[0]))
    order = rng.permutation(responses.space.axes).tolist()
    value, chosen = responses.descend(start, order, extending=start)
    responses.descend(chosen, order)
    return score(value)


def score(value: float) -> float:
    """Log seconds; over memory lies above every sensible time."""
    if value >= OVER_MEMORY_S:
        return math.log(1e3) + math.log(value / OVER_MEMORY_S)
    return math.log(max(value, 1e-12))


def backup(tree: Tree, node: int, score: float) -> None:
    """Carries a score from the node up to the root."""
    while node != NO_NODE:
        tree.visits[node] += 1
        tree.total[node] += score
        node = tree.parent[node]
