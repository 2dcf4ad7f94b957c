"""Monte Carlo tree search over appends: select, expand, rollout, backup.

A node is a set of states with equal placements (a transposition): states reached in different
orders, or mirrored over symmetric axes, are one node. Every state is a complete answer, so STOP
is an action of every node: its value is the node's own objective. Expansion evaluates all
children in one batch; how much each improves on its parent is the prior that orders them, and
progressive widening looks at the best first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import permutations

import numpy as np

from shardwright.search.completions import appends, change, drawn, follow
from shardwright.search.objective import OVER_MEMORY_S, Budget, Objective
from shardwright.search.space import Space
from shardwright.spmd.decisions import UPDATES, State

NOT_EXPANDED = -1
EXPLORE = 0.6  # weight of the prior against what was found below an action
GREED = 0.5  # how much of an action's worth is the best found below it; the rest is the mean
WIDEN, WIDEN_POWER = 4.0, 0.5  # actions looked at: WIDEN * visits ** WIDEN_POWER
ROLLOUTS = 4  # completions drawn in each simulation
EARLY, GUIDED = 0.1, 16.0  # after this part of the budget, so many guided completions for each
LATE = 3  # entries before the tree looks at updates
FROM_ROOT = 0.9  # guided completions that leave the path as well
ELITE, ELITE_BIAS = 12, 0.15  # kinds of good states that guide completions; how often the best
LARGEST = 12  # layouts by which kinds are told apart
# So many simulations in a row that found so few new states: the end of a small space.
EXHAUSTED, FEW = 5, 8
MOST_CHANGES = 20  # of a guided completion, until it is one not seen before
TEMPERATURE = 0.05  # of the prior, in units of log seconds


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


def mcts(
    space: Space,
    objective: Objective,
    budget: Budget,
    *,
    seed: int = 0,
    seeds: Sequence[State] = (),
) -> list[State]:
    """The best states found, best first, each of its kind.

    `seeds` are states of known strategies: macro-moves, places to start from besides the root.
    Stops at the budget, or when `budget.patience` evaluations brought nothing. Ctrl-C ends the
    search; the objective keeps the best so far.
    """
    rng = np.random.default_rng(seed)
    tree = Tree(len(space.actions), _kinds(space, objective))
    scale = _Scale(float(space.model.cost(space.root).step_s))
    first, limit = objective.evaluations, objective.evaluations + budget.evaluations
    root = tree.add(space.root, space.keys([space.root])[0], scale(objective([space.root]))[0])
    macros = _plant(tree, space, objective, scale, seeds)
    best_s, best_at = objective.best_s, objective.evaluations
    idle = 0
    while objective.evaluations < limit and not budget.expired() and idle < EXHAUSTED:
        before = objective.evaluations
        start = macros[int(rng.integers(len(macros)))] if macros and rng.random() < 0.3 else root
        path, leaf = select(tree, start)
        found = tree.score[leaf]
        if not tree.expanded[leaf]:
            expand(tree, space, objective, scale, leaf)
        late = objective.evaluations > first + budget.evaluations * EARLY or idle > 0
        share = GUIDED if late else 0.0
        room = max(limit - objective.evaluations, 0)
        found = min(found, rollout(tree, space, objective, scale, leaf, rng, share, room))
        backup(tree, path, float(found))
        idle = 0 if objective.evaluations > before + FEW else idle + 1
        if objective.best_s < best_s:
            objective(mirrors(space, objective.best))
            best_s, best_at = objective.best_s, objective.evaluations
        elif objective.evaluations - max(best_at, first) > budget.patience:
            break
    assert objective.best is not None
    return list(dict.fromkeys([objective.best, *[s for _, s in sorted(tree.elite.values())]]))


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


class _Scale:
    """Objectives as scores: log seconds; over memory lies above every sensible time."""

    def __init__(self, whole_s: float) -> None:
        self._base = math.log(max(whole_s, 1e-12)) + 1.0

    def __call__(self, values: np.ndarray) -> np.ndarray:
        over = values >= OVER_MEMORY_S
        excess = np.where(over, values / OVER_MEMORY_S, 1.0)
        return np.where(
            over,
            self._base + np.log(excess),
            np.log(np.maximum(np.where(over, 1.0, values), 1e-12)),
        )


def _plant(
    tree: Tree, space: Space, objective: Objective, scale: _Scale, seeds: Sequence[State]
) -> list[int]:
    """Nodes for the states of known strategies: places to start from."""
    if not seeds:
        return []
    scores = scale(objective(seeds))
    nodes = {}
    for state, key, score in zip(seeds, space.keys(seeds), scores.tolist(), strict=True):
        node = tree.node_of.get(key)
        nodes[tree.add(state, key, score) if node is None else node] = score
    return sorted(nodes, key=lambda n: (nodes[n], n))[:8]


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


def expand(tree: Tree, space: Space, objective: Objective, scale: _Scale, node: int) -> None:
    """Gives a node its children: all legal appends that change something, evaluated at once."""
    state = tree.states[node]
    legal = [a for a in space.legal(state) if not _too_early(space, state, a)]
    children = [space.after(state, a) for a in legal]
    keys = space.keys([state, *children])
    known: dict[bytes, State] = {}  # one representative per node is evaluated
    for key, child in zip(keys[1:], children, strict=True):
        if key != keys[0] and key not in tree.node_of:
            known.setdefault(key, child)
    if known:
        for (key, child), score in zip(
            known.items(), scale(objective(list(known.values()))).tolist(), strict=True
        ):
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


def rollout(
    tree: Tree, space: Space, objective: Objective, scale: _Scale, node: int,
    rng: np.random.Generator, guided: float, most: int,
) -> float:  # fmt: skip
    """The best score of a few completions of a node, at most so many, and of its children.

    Some are drawn from the prior. The others (`guided`, for each drawn one) go on as one of the
    best states known does, with changes: what helped elsewhere often helps here too. Those find
    good states but say little about the node, so they are not backed up.
    """
    actions = np.flatnonzero(tree.prior[node][: tree.stop] > 0)
    found = float(tree.score[tree.child[node, actions]].min(initial=tree.score[node]))
    ends: list[State] = []
    for _ in range(ROLLOUTS):
        wanted = drawn(tree.prior[node][actions] + 0.02, actions, rng)
        ends.append(follow(space, tree.states[node], wanted))
    random = set(ends)
    for _ in range(int(ROLLOUTS * guided) if tree.elite else 0):
        start = space.root if rng.random() < FROM_ROOT else tree.states[node]
        wanted = appends(space, tree.guide(rng))
        for _ in range(MOST_CHANGES):
            change(space, wanted, rng)
            end = follow(space, start, wanted)
            if not objective.knows(end):
                break
        ends.append(end)
    fresh = [e for e in dict.fromkeys(ends) if not objective.knows(e)][:most]
    if not fresh:
        return found
    scores = scale(objective(fresh))
    tree.remember(zip(scores.tolist(), fresh, strict=True))
    return min(
        found, *[s for s, e in zip(scores.tolist(), fresh, strict=True) if e in random], found
    )


def backup(tree: Tree, path: Sequence[tuple[int, int]], score: float) -> None:
    """Carries a score from the leaf up to the root."""
    for node, action in reversed(path):
        tree.visits[node, action] += 1
        tree.total[node, action] += score
        tree.low[node, action] = min(tree.low[node, action], score)
