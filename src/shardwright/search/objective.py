"""The objective: step seconds if the peak fits, else a penalty that outweighs any time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardwright.cost.model import CostModel, Costs
from shardwright.spmd.decisions import Decisions, Placement, State, decide, decide_all

SAME = 1e-12  # seconds that differ by less are equal
TIMED = 16  # states near another one that are timed, without their peaks, in one evaluation's time
# Over memory costs at least this; no step takes 30 years.
OVER_MEMORY_S = 1e9
STRATEGIES = "strategies"  # the first stage, which is cheap and always ends: there is an answer


class OutOfTime(Exception):
    """The wall-clock limit of a search is reached; its best so far stands."""


class Progress(NamedTuple):
    """Where a search stands."""

    stage: str
    evaluations: int
    best_s: float  # OVER_MEMORY_S and more: nothing fits yet
    seconds: float
    bound_s: float = 0.0  # no plan takes less, as far as it is proven
    trying: str = ""  # what is being looked at

    @property
    def per_s(self) -> float:
        """Plans priced per second."""
        return self.evaluations / self.seconds if self.seconds > 0 else 0.0


@dataclass
class Budget:
    """How much a search may do, in work and not in time: a seed gives one plan everywhere."""

    evaluations: int = 3000
    patience: int = 600  # evaluations without improvement after which a search ends
    cells: int = 60_000  # of the factor graph that best responses may look at


class Objective:
    """The objective of states, each evaluated once. One search owns one objective."""

    def __init__(
        self,
        model: CostModel,
        memory: int | None,
        progress: Callable[[Progress], None] | None = None,
        overrides: Mapping[int, Placement] | None = None,
        deadline: float | None = None,
    ) -> None:
        """`overrides` hold in every state; `deadline` is a time of `time.monotonic()`."""
        self.model, self.overrides = model, dict(overrides or {})
        self.memory = float("inf") if memory is None else float(memory)
        self.evaluations = 0
        self.stage = self.trying = ""
        self.best: State | None = None
        self.best_s = float("inf")
        self._best_bytes = float("inf")
        self.bound_s = 0.0  # what a proof has shown so far
        self.history: list[tuple[str, int, float]] = []  # (stage, evaluations, best seconds)
        self.smallest: tuple[float, State] | None = None  # the smallest peak seen
        self._by_state: dict[State, float] = {}
        self._key_of: dict[State, bytes] = {}
        self._by_key: dict[bytes, float] = {}  # by placements: many lists mean the same
        self._last: tuple[State, tuple[np.ndarray, np.ndarray]] | None = None
        self._progress, self._start, self.deadline = progress, time.monotonic(), deadline

    def begin(self, stage: str) -> None:
        """What follows is another stage of the search; what the last one was trying is over."""
        self.stage, self.trying = stage, ""

    def __call__(self, states: Sequence[State]) -> np.ndarray:
        """[B] objectives; new states are evaluated in one batch."""
        new = [s for s in dict.fromkeys(states) if s not in self._by_state]
        if new:
            self._evaluate(new)
        return np.array([self._by_state[s] for s in states])

    def decisions(self, state: State) -> Decisions:
        """A state with the overrides that hold here."""
        return decide(state, self.overrides)

    def penalised(self, costs: Costs) -> np.ndarray:
        """The objectives of these costs."""
        over = costs.peak_bytes > self.memory
        excess = np.where(over, costs.peak_bytes / self.memory, 1.0)
        return np.where(over, OVER_MEMORY_S * excess, costs.step_s)

    def given(self, overrides: Mapping[int, Placement]) -> Objective:
        """The objective when these layouts are stored in another way, with its own memory."""
        other = Objective(
            self.model, None, overrides={**overrides, **self.overrides}, deadline=self.deadline
        )
        other.memory = self.memory
        return other

    def ranked(self, count: int, among: Sequence[State] | None = None) -> list[State]:
        """The best states, best first, one for each way to place all values.

        Of these states, or of all that were evaluated so far.
        """
        if among is not None:
            self(among)
        first: dict[bytes, State] = {}
        states = self._by_state if among is None else among
        for state in sorted(states, key=self._by_state.__getitem__)[: 4 * count]:
            first.setdefault(self._key_of[state], state)
        return list(first.values())[:count]

    def stored(self, state: State, variants: Sequence[Mapping[int, Placement]]) -> Costs:
        """The costs of a state with some layouts stored in another way."""
        self.evaluations += len(variants)
        self.report()
        return self.model.costs(*self.model.override(*self._placed(state), variants))

    def changed_s(
        self, state: State, overrides: Mapping[int, Placement],
        changes: Sequence[tuple[int, Placement]], worth: float,
    ) -> np.ndarray:  # fmt: skip
        """[changes] seconds of a state with these overrides and one more, whether it fits or not.

        What cannot save this part of the step counts as saving nothing.
        """
        self.evaluations += len(changes)
        self.report()
        placed = self.model.override(*self._placed(state), [overrides])
        return self.model.changed_s(*placed, changes, worth)

    def around_s(self, state: State, axis: int, atoms: np.ndarray) -> np.ndarray:
        """[B] seconds of a state in which one axis splits `atoms` [B, layouts], fits or not."""
        self.evaluations += len(atoms) // TIMED
        self.report()
        return self.model.around_s(self.decisions(state), axis, atoms)

    def _placed(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """CostModel.place of a state, of the last one remembered."""
        if self._last is None or self._last[0] != state:
            self._last = state, self.model.place([self.decisions(state)])
        return self._last[1]

    def _evaluate(self, given: list[State]) -> None:
        """Works out new states; those whose placements are known cost nothing."""
        placements, local_bytes = self.model.place(decide_all(given, self.overrides))
        keys = [p.tobytes() for p in placements.astype(np.int8)]
        first: dict[bytes, int] = {}  # where each new key stands first
        for i, key in enumerate(keys):
            if key not in self._by_key:
                first.setdefault(key, i)
        if first:
            at = list(first.values())
            costs = self.model.costs(placements[at], local_bytes[at])
            self._take(list(first), [given[i] for i in at], costs)
        self._by_state.update((s, self._by_key[k]) for k, s in zip(keys, given, strict=True))
        self._key_of.update(zip(given, keys, strict=True))
        self.report()

    def _take(self, keys: list[bytes], states: list[State], costs: Costs) -> None:
        """Remembers the costs of new states."""
        values = self.penalised(costs)
        self.evaluations += len(states)
        self._by_key.update(zip(keys, values.tolist(), strict=True))
        low = int(np.argmin(costs.peak_bytes))
        if self.smallest is None or costs.peak_bytes[low] < self.smallest[0]:
            self.smallest = (float(costs.peak_bytes[low]), states[low])
        best = int(np.lexsort((costs.peak_bytes, values))[0])
        if self._is_better(float(values[best]), float(costs.peak_bytes[best])):
            self.best_s, self.best = float(values[best]), states[best]
            self._best_bytes = float(costs.peak_bytes[best])
            self.improved(self.best_s)

    def improved(self, step_s: float) -> None:
        """Remembers that something faster was found than anything before."""
        if step_s < min(OVER_MEMORY_S, self.history[-1][2] if self.history else OVER_MEMORY_S):
            self.history.append((self.stage, self.evaluations, step_s))

    def _is_better(self, value: float, peak_bytes: float) -> bool:
        """Faster; or as fast, with a lower peak."""
        if abs(value - self.best_s) <= SAME * value:
            return peak_bytes < self._best_bytes
        return value < self.best_s

    def report(self) -> None:
        """Tells the caller where the search stands, and ends it at the deadline."""
        now = time.monotonic()
        if self._progress is not None:
            seconds = now - self._start
            self._progress(Progress(
                self.stage, self.evaluations, self.best_s, seconds, self.bound_s, self.trying
            ))  # fmt: skip
        if self.deadline is not None and now > self.deadline and self.stage != STRATEGIES:
            raise OutOfTime
