"""The tree of a search as arrays: what was found below every action, and which to try next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from shardwright.spmd.decisions import State

NOT_EXPANDED = -1
EXPLORE = 0.6  # weight of the prior against what was found below an action
GREED = 0.5  # how much of an action's worth is the best found below it; the rest is the mean
WIDEN, WIDEN_POWER = 4.0, 0.5  # actions looked at: WIDEN * visits ** WIDEN_POWER
ELITE, ELITE_BIAS = 12, 0.15  # kinds of good states that guide rollouts; how often the best


class Tree:
    """The tree as arrays; action A - 1 is STOP."""

    def __init__(self, actions: int, kind_of: Callable[[State], object]) -> None:
        self.stop = actions
        self.kind_of = kind_of
        self.states: list[State] = []
        self.node_of: dict[bytes, int] = {}
        size, width = 64, actions + 1
        self.child = np.full((size, width), NOT_EXPANDED, np.int32)  # [N, A]
        self.visits = np.zeros((size, width), np.int32)  # [N, A]
        self.total = np.zeros((size, width))  # [N, A] sum of scores found below
        self.low = np.full((size, width), np.inf)  # [N, A] best score found below
        self.prior = np.zeros((size, width))  # [N, A] 0: not legal
        self.score = np.full(size, np.inf)  # [N] own score
        self.expanded = np.zeros(size, bool)  # [N]
        self.elite: dict[object, tuple[float, State]] = {}  # best of each kind

    def remember(self, found: Iterable[tuple[float, State]]) -> None:
        """Keeps the best state of each kind."""
        for score, state in found:
            kind = self.kind_of(state)
            if kind not in self.elite or score < self.elite[kind][0]:
                self.elite[kind] = (score, state)

    def guide(self, rng: np.random.Generator) -> State:
        """One of the best states, better ones more often."""
        ranked = sorted(self.elite.values())[:ELITE]
        return ranked[min(int(rng.geometric(ELITE_BIAS)) - 1, len(ranked) - 1)][1]

    def add(self, state: State, key: bytes, score: float) -> int:
        node = self.node_of[key] = len(self.states)
        self.states.append(state)
        if node >= len(self.score):
            self._grow()
        self.score[node] = score
        return node

    def _grow(self) -> None:
        for name in ("child", "visits", "total", "low", "prior", "score", "expanded"):
            array = getattr(self, name)
            fill = {"child": NOT_EXPANDED, "low": np.inf, "score": np.inf}.get(name, 0)
            setattr(self, name, np.concatenate([array, np.full_like(array, fill)]))


def select(tree: Tree, root: int) -> tuple[list[tuple[int, int]], int]:
    """Walks down by UCT; ([(node, action)], the node to expand, or where STOP was chosen)."""
    path: list[tuple[int, int]] = []
    node = root
    while tree.expanded[node]:
        action = _best_action(tree, node)
        path.append((node, action))
        if action == tree.stop:
            break
        node = int(tree.child[node, action])
    return path, node


def _best_action(tree: Tree, node: int) -> int:
    prior, visits = tree.prior[node], tree.visits[node]
    legal = np.flatnonzero(prior > 0)
    total = int(visits.sum())
    width = max(2, math.ceil(WIDEN * (total + 1) ** WIDEN_POWER))
    if len(legal) > width:
        order = np.argsort(-prior[legal], kind="stable")
        legal = legal[order[:width]]
    n = visits[legal]
    own = tree.score[np.where(legal == tree.stop, node, tree.child[node, legal])]
    mean = np.where(n > 0, tree.total[node, legal] / np.maximum(n, 1), own)
    low = np.minimum(tree.low[node, legal], own)
    worth = GREED * low + (1 - GREED) * mean
    spread = max(float(worth.max() - worth.min()), 1e-9)
    value = (worth.max() - worth) / spread  # in [0, 1], 1 is best
    bonus = EXPLORE * np.sqrt(total + 1.0) * prior[legal] / (1.0 + n)
    bonus += 0.2 * np.sqrt(np.log(total + 2.0) / (1.0 + n))
    return int(legal[np.argmax(value + bonus)])


def backup(tree: Tree, path: Sequence[tuple[int, int]], score: float) -> None:
    """Carries a score from the leaf up to the root."""
    for node, action in reversed(path):
        tree.visits[node, action] += 1
        tree.total[node, action] += score
        tree.low[node, action] = min(tree.low[node, action], score)
