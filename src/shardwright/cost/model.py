"""The cost of a state, folded: a sum over classes, each memoised on the claims that touch it.

A state gives every layout a placement. The placements of an op class's slots are its key; the
choice of how to compute it, and what that costs, is worked out once per key. Evaluating a
state is then a few array expressions and one dictionary look-up per class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.analysis.analysis import Analysis
from shardwright.cost.cost import Cost
from shardwright.cost.devices import Device
from shardwright.cost.fusion import find_fusions
from shardwright.cost.liveness import find_lifetimes, live_counts, peak_points
from shardwright.cost.prices import DevicePrices
from shardwright.cost.roofline import stream_s
from shardwright.spmd.weights import Together, summed_once, weigh
from shardwright.mesh import Mesh
from shardwright.spmd.decisions import State
from shardwright.spmd.follow import Choice, choose
from shardwright.spmd.ir import Ir, build_ir
from shardwright.spmd.layout import WHOLE, Layouts, Placement
from shardwright.spmd.opclass import OpClass, fold_ops

_SEED = 20260401  # of the multipliers that turn placements into keys


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a batch of states, as arrays."""

    compute_s: np.ndarray  # [B]
    link_s: np.ndarray  # [B]
    peak_bytes: np.ndarray  # [B]
    overlap: float

    @property
    def step_s(self) -> np.ndarray:
        hidden = self.overlap * np.minimum(self.compute_s, self.link_s)
        return self.compute_s + self.link_s - hidden

    def __getitem__(self, i: int) -> Cost:
        return Cost(
            compute_s=float(self.compute_s[i]), link_s=float(self.link_s[i]),
            peak_bytes=int(self.peak_bytes[i]), overlap=self.overlap,
        )  # fmt: skip


class CostModel:
    """What any state of one program costs on one mesh of one device."""

    def __init__(
        self, analysis: Analysis, mesh: Mesh, device: Device, *, overlap: float = 0.0
    ) -> None:
        program = analysis.program
        self.analysis, self.mesh, self.device, self.overlap = analysis, mesh, device, overlap
        self.prices = DevicePrices(mesh, device)
        self.layouts = Layouts(analysis, mesh.sizes)
        self.classes = fold_ops(analysis, self.layouts)
        self.fusion = find_fusions(program)
        self.weights = weigh(program, self.classes, self.layouts.of_value)
        self.lifetimes = find_lifetimes(program, self.fusion)
        live = live_counts(
            self.lifetimes, self.layouts.of_value, len(self.layouts.table), len(program.ops)
        )
        can_move = [not c.rule.fusible for c in self.classes.table]
        self.points = peak_points(live, self.classes.of_op, can_move)
        self._traffic_s = self._traffic()
        self._memo = _Memo(self.classes.table)
        self._shared = _TogetherMemo([t.members for t in self.weights.shared])
        self._sums = _TogetherMemo([t.members for t in self.weights.sums])
        self.overrides: dict[int, Placement] = {}  # layout -> placement, from refinement

    def _traffic(self) -> np.ndarray:
        """[layouts] seconds per byte that fused work moves through memory."""
        program, per_layout = self.analysis.program, np.zeros(len(self.layouts.table))
        runs = np.array([
            self.weights.region[program.ops[v.op].region if v.op >= 0 else 0] for v in program.values
        ])  # fmt: skip
        np.add.at(per_layout, self.layouts.of_value, self.fusion.traffic * runs)
        return per_layout * stream_s(self.device, 1.0)

    def evaluate(self, states: Sequence[State]) -> Costs:
        """The costs of these states."""
        placements, local_bytes = self.place(states)
        rows = self._rows(placements)  # [B, C]
        memo = self._memo
        compute = memo.compute_s[rows].sum(1) + local_bytes @ self._traffic_s
        link = memo.link_s[rows].sum(1)
        for together, cache, price in (
            (self.weights.shared, self._shared, self._shared_s),
            (self.weights.sums, self._sums, self._sum_s),
        ):
            if together:
                link = link + cache.seconds(rows, together, memo, price)
        copies = np.where(
            self.points.temp_class >= 0, memo.temp_bytes[rows[:, self.points.temp_class]], 0.0
        )
        peak = (local_bytes @ self.points.live.T + copies).max(1)
        return Costs(compute, link, peak, self.overlap)

    def cost(self, state: State) -> Cost:
        """The cost of one state."""
        return self.evaluate([state])[0]

    def place(self, states: Sequence[State]) -> tuple[np.ndarray, np.ndarray]:
        """(placements [B, S, A], local bytes [B, S]), overrides applied."""
        placements, local_bytes = self.layouts.place(states)
        for layout, placement in self.overrides.items():
            placements[:, layout] = placement
            local_bytes[:, layout] = self.layouts.table[layout].local_bytes(
                placement, self.mesh.sizes
            )
        return placements, local_bytes

    def _rows(self, placements: np.ndarray) -> np.ndarray:
        """[B, C] the memo row of every class in every state; new ones are worked out."""
        keys = self._memo.keys(placements)
        known = self._memo.row_of
        rows = np.array([known.get(k, -1) for k in keys.ravel().tolist()], np.int64)
        rows = rows.reshape(keys.shape)
        for b, c in np.argwhere(rows < 0).tolist():
            key = int(keys[b, c])
            row = known.get(key)
            if row is None:
                row = self._add_row(key, self.classes.table[c], placements[b])
            rows[b, c] = row
        return rows

    def _add_row(self, key: int, op: OpClass, placements: np.ndarray) -> int:
        stored = [tuple(placements[i].tolist()) for i in op.key_layouts]
        choice = choose(op, stored, self.prices)
        w = self.weights
        link = float(np.dot(w.operands[op.index], choice.operand_s))
        link += float(np.dot(w.results[op.index], choice.result_s))
        weight = float(w.compute[op.index])
        link += weight * choice.exchange_s
        return self._memo.add(key, choice, weight * choice.compute_s, link)

    def _shared_s(self, together: Together, choices: list[Choice]) -> float:
        """One value, several uses: every different way it is needed is moved to once."""
        moved: dict[Placement, float] = {}
        for (_, slot), choice in zip(together.members, choices, strict=True):
            moved[choice.needs[slot]] = choice.operand_s[slot]
        return together.weight * sum(moved.values())

    def _sum_s(self, together: Together, choices: list[Choice]) -> float:
        """Several partial sums added up: equal reductions happen once, after the additions."""
        parts = choices[:1] if summed_once(choices) else choices
        return together.weight * sum(choice.result_s[0] for choice in parts)

    def choices(self, state: State) -> list[Choice]:
        """How every op class is computed in one state."""
        placements, _ = self.place([state])
        return [self._memo.choices[r] for r in self._rows(placements)[0].tolist()]

    def stored(self, state: State) -> list[Placement]:
        """How every layout is stored in one state."""
        placements, _ = self.place([state])
        return [tuple(p) for p in placements[0].tolist()]


class _Memo:
    """Choices by key, with their weighted seconds in arrays that grow."""

    def __init__(self, classes: Sequence[OpClass]) -> None:
        rng = np.random.default_rng(_SEED)
        self._layouts = np.array([i for c in classes for i in c.key_layouts], np.int64)
        widths = np.array([len(c.key_layouts) for c in classes], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(widths)[:-1]]) if len(widths) else widths
        self._factors = rng.integers(1, 1 << 63, len(self._layouts), np.uint64) | np.uint64(1)
        self._salt = rng.integers(1, 1 << 63, len(classes), np.uint64)
        self.row_of: dict[int, int] = {}
        self.choices: list[Choice] = []
        self.compute_s, self.link_s, self.temp_bytes = np.zeros(64), np.zeros(64), np.zeros(64)

    def keys(self, placements: np.ndarray) -> np.ndarray:
        """[B, C] a 64-bit key of the placements that each class sees."""
        radix = np.uint64(64) ** np.arange(placements.shape[2], dtype=np.uint64)
        codes = ((placements - WHOLE).astype(np.uint64) * radix).sum(2, dtype=np.uint64) + np.uint64(1)
        products = codes[:, self._layouts] * self._factors
        return np.add.reduceat(products, self._starts, axis=1) ^ self._salt

    def add(self, key: int, choice: Choice, compute_s: float, link_s: float) -> int:
        row = self.row_of[key] = len(self.choices)
        self.choices.append(choice)
        if row >= len(self.compute_s):
            for name in ("compute_s", "link_s", "temp_bytes"):
                setattr(self, name, np.concatenate([getattr(self, name), np.zeros(row)]))
        self.compute_s[row], self.link_s[row] = compute_s, link_s
        self.temp_bytes[row] = choice.temp_bytes
        return row


class _TogetherMemo:
    """Seconds of movements counted together, by the memo rows of their members."""

    def __init__(self, members: Sequence[Sequence[tuple[int, int]]]) -> None:
        rng = np.random.default_rng(_SEED + 1)
        self._classes = np.array([c for ms in members for c, _ in ms], np.int64)
        widths = np.array([len(ms) for ms in members], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(widths)[:-1]]) if len(widths) else widths
        self._factors = rng.integers(1, 1 << 63, len(self._classes), np.uint64) | np.uint64(1)
        self._salt = rng.integers(1, 1 << 63, len(members), np.uint64)
        self._known: dict[int, float] = {}

    def seconds(self, rows: np.ndarray, together: Sequence[Together], memo: _Memo, price) -> np.ndarray:  # type: ignore[no-untyped-def]
        """[B] the total over all groups."""
        seen = rows[:, self._classes].astype(np.uint64) + np.uint64(1)
        keys = np.add.reduceat(seen * self._factors, self._starts, axis=1) ^ self._salt
        known = self._known
        out = np.array([known.get(k, np.nan) for k in keys.ravel().tolist()]).reshape(keys.shape)
        for b, t in np.argwhere(np.isnan(out)).tolist():
            key = int(keys[b, t])
            if key not in known:
                group = together[t]
                known[key] = price(group, [memo.choices[rows[b, c]] for c, _ in group.members])
            out[b, t] = known[key]
        return out.sum(1)


def model_ir(model: CostModel, state: State) -> Ir:
    """The partitioning IR of one state."""
    return build_ir(
        model.analysis.program, model.layouts, model.classes, model.stored(state),
        model.choices(state), model.prices, model.mesh.axes,
    )  # fmt: skip
