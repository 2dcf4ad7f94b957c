"""Monte Carlo tree search over appends: select, expand, rollout, backup.

A node is a set of states with equal placements (a transposition): states reached in different
orders, or mirrored over symmetric axes, are one node. Every state is a complete answer, so STOP
is an action of every node: its value is the node's own objective. Expansion evaluates all
children in one batch; how much each improves on its parent is the prior that orders them, and
progressive widening looks at the best first. Rollouts evaluate what promises most, given what all
states evaluated so far showed (outlook.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np

from shardwright.search.objective import OVER_MEMORY_S, Budget, Objective
from shardwright.search.outlook import Outlook
from shardwright.search.proposals import changed, recombine, respond
from shardwright.search.space import Space
from shardwright.search.tree import Tree, backup, select
from shardwright.spmd.decisions import UPDATES, State

LATE = 3  # entries before the tree looks at updates
# Evaluated in each rollout: responses of every axis, twice; recombinations; changed good states.
RESPONSES, RECOMBINED, CHANGED = 4, 2, 8
LARGEST = 12  # layouts by which kinds are told apart
# So many simulations in a row that found so few new states: the end of a small space.
EXHAUSTED, FEW = 5, 4
MACROS, FROM_MACRO = 8, 0.3  # known strategies to start from; how often that is done
TEMPERATURE = 0.05  # of the prior, in units of log seconds


class TreeSearch:
    """A search that can go on: the tree, how states score, what evaluated ones showed."""

    def __init__(
        self, space: Space, objective: Objective, *, seed: int = 0, seeds: Sequence[State] = ()
    ) -> None:
        """`seeds` are states of known strategies: places to start from besides the root."""
        self.space, self.objective = space, objective
        self.rng = np.random.default_rng(seed)
        self.outlook = Outlook(space, objective.memory)
        self.tree = Tree(len(space.actions), _kinds(space, objective))
        # Log seconds; over memory lies above every sensible time.
        (root,) = space.decisions([space.root])
        self._over = math.log(max(space.model.cost(root).step_s, 1e-12)) + 1.0
        self.root, *self.macros = self._plant([space.root, *seeds])

    def scores(self, states: Sequence[State]) -> list[float]:
        values = self.objective(states)
        excess = np.maximum(values / OVER_MEMORY_S, 1.0)
        seconds = np.log(np.maximum(values, 1e-12))
        scores: list[float] = np.where(
            values >= OVER_MEMORY_S, self._over + np.log(excess), seconds
        ).tolist()
        return scores

    def _plant(self, states: Sequence[State]) -> list[int]:
        """The node of the first state, then those of the best of the others."""
        tree, nodes = self.tree, dict[int, float]()
        scores = self.scores(states)
        self.outlook.learn(states, self.space.model.evaluate(self.space.decisions(states)).parts)
        for state, key, score in zip(states, self.space.keys(states), scores, strict=True):
            node = tree.node_of.get(key)
            nodes.setdefault(tree.add(state, key, score) if node is None else node, score)
        root, *others = nodes
        return [root, *sorted(others, key=lambda n: (nodes[n], n))[:MACROS]]

    def run(self, budget: Budget) -> None:
        """Goes on until the budget ends, or `budget.patience` evaluations brought nothing."""
        self.objective.watch = self.outlook.learn
        try:
            self._simulate(budget)
        finally:
            self.objective.watch = None

    def _simulate(self, budget: Budget) -> None:
        tree, objective, rng, macros = self.tree, self.objective, self.rng, self.macros
        best_s, best_at = objective.best_s, objective.evaluations
        limit = objective.evaluations + budget.evaluations
        idle = 0
        while objective.evaluations < limit and idle < EXHAUSTED:
            before = objective.evaluations
            from_macro = macros and rng.random() < FROM_MACRO
            start = macros[int(rng.integers(len(macros)))] if from_macro else self.root
            path, leaf = select(tree, start)
            if not tree.expanded[leaf]:
                expand(self, leaf)
            backup(tree, path, rollout(self, leaf, limit))
            idle = 0 if objective.evaluations > before + FEW else idle + 1
            if objective.best_s < best_s:
                objective(mirrors(self.space, objective.best))
                best_s, best_at = objective.best_s, objective.evaluations
            elif objective.evaluations - best_at > budget.patience:
                break

    def best(self) -> list[State]:
        """The best states found, best first, each of its kind."""
        assert self.objective.best is not None
        kinds = [state for _, state in sorted(self.tree.elite.values())]
        return list(dict.fromkeys([self.objective.best, *kinds]))


def mcts(space: Space, objective: Objective, budget: Budget, *, seed: int = 0) -> list[State]:
    """The best states that one run finds, best first, each of its kind."""
    search = TreeSearch(space, objective, seed=seed)
    search.run(budget)
    return search.best()


def mirrors(space: Space, state: State | None) -> list[State]:
    """The state with the lists of symmetric axes swapped.

    Nearly always they cost the same; the mesh order decides which of two axes on one dim is the
    major one, and that one cannot leave alone.
    """
    out = []
    for twins in space.twins if state is not None else ():
        for order in permutations(twins):
            swapped = list(state)  # type: ignore[arg-type]
            for to, source in zip(twins, order, strict=True):
                swapped[to] = state[source]  # type: ignore[index]
            if space.contains(tuple(swapped)):
                out.append(tuple(swapped))
    return out


def _kinds(space: Space, objective: Objective) -> Callable[[State], object]:
    """Tells what kind a state is: how it places the layouts with the most bytes in all.

    Good states of one kind differ in small things; other kinds are worth keeping beside them.
    """
    layouts = space.model.layouts
    held = np.bincount(layouts.of_value, minlength=len(layouts.table)).astype(float)
    held *= [layout.local_bytes((), ()) for layout in layouts.table]
    largest = np.argsort(-held, kind="stable")[:LARGEST]

    def kind(state: State) -> object:
        placed = np.frombuffer(objective.key(state), np.int8).reshape(-1, len(state))
        return tuple(sorted(column.tobytes() for column in placed[largest].T))

    return kind


def expand(search: TreeSearch, node: int) -> None:
    """Gives a node its children: all legal appends that change something, evaluated at once."""
    tree, space = search.tree, search.space
    state = tree.states[node]
    legal = [a for a in space.legal(state) if not _too_early(space, state, a)]
    children = [space.after(state, a) for a in legal]
    keys = space.keys([state, *children])
    known: dict[bytes, State] = {}  # one representative per node is evaluated
    for key, child in zip(keys[1:], children, strict=True):
        if key != keys[0] and key not in tree.node_of:
            known.setdefault(key, child)
    if known:
        scores = search.scores(list(known.values()))
        for (key, child), score in zip(known.items(), scores, strict=True):
            tree.add(child, key, score)
            tree.remember([(score, child)])
    gains = np.full(tree.stop + 1, np.nan)
    seen: set[int] = set()
    for action, key in zip(legal, keys[1:], strict=True):
        child_node = tree.node_of[key]
        if key == keys[0] or child_node in seen:  # changes nothing, or the same as another
            continue
        seen.add(child_node)
        tree.child[node, action] = child_node
        gains[action] = tree.score[node] - tree.score[child_node]
    gains[tree.stop] = 0.0
    ranked = np.where(np.isnan(gains), -np.inf, gains) / TEMPERATURE
    weights = np.exp(np.clip(ranked - ranked.max(), -8.0, 0.0)) * ~np.isnan(gains)
    tree.prior[node] = weights / weights.sum()
    tree.expanded[node] = True


def _too_early(space: Space, state: State, action: int) -> bool:
    """Entries for updates only come last in a list: the tree looks at them late."""
    late = space.actions[action].entry.scope == UPDATES
    return late and sum(map(len, state)) < LATE


def rollout(search: TreeSearch, node: int, limit: int) -> float:
    """The best score of a node, its children, and what axis after axis makes of it.

    A good state known is responded to likewise, and changed; what was seen is recombined. That
    finds good states but says nothing about the node, so it is not backed up.
    """
    tree, space, objective = search.tree, search.space, search.objective
    outlook, rng = search.outlook, search.rng

    def evaluate(states: Sequence[State]) -> list[tuple[float, State]]:
        fresh = [s for s in dict.fromkeys(states) if not objective.knows(s)]
        fresh = fresh[: max(limit - objective.evaluations, 0)]
        found = list(zip(search.scores(fresh), fresh, strict=True)) if fresh else []
        tree.remember(found)
        return found

    def descend(state: State) -> float:
        best = math.inf
        for axis in rng.permutation(len(outlook.axes)).tolist():
            found = evaluate(respond(outlook, objective, state, axis, RESPONSES))
            if found:
                score, state = min(found)
                best = min(best, score)
        return best

    actions = np.flatnonzero(tree.prior[node][: tree.stop] > 0)
    found = float(tree.score[tree.child[node, actions]].min(initial=tree.score[node]))
    found = min(found, descend(tree.states[node]))
    if tree.elite:
        descend(tree.guide(rng))
        for _ in range(RECOMBINED):
            evaluate(recombine(outlook, objective, rng, 1))
        guides = [tree.guide(rng) for _ in range(CHANGED)]
        evaluate([changed(space, objective, guide, rng) for guide in guides])
    return found
