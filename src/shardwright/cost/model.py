"""The cost of decisions, folded: a sum over classes, each memoised on the claims that touch it.

A state gives every layout a placement. The placements of an op class's slots are its key; the
choice of how to compute it, and what that costs, is worked out once per key. Evaluating a
state is then a few array expressions and one dictionary look-up per class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.analysis.analysis import Analysis
from shardwright.cost.cost import Cost
from shardwright.cost.devices import Device
from shardwright.cost.fusion import find_fusions
from shardwright.cost.liveness import find_lasting, find_lifetimes, live_counts, peak_points
from shardwright.cost.prices import DevicePrices
from shardwright.cost.roofline import stream_s
from shardwright.cost.schedule import breadth_first, program_order
from shardwright.mesh import Mesh
from shardwright.program.types import TOP
from shardwright.spmd.decisions import Decisions, Placement
from shardwright.spmd.follow import Choice, choose
from shardwright.spmd.ir import Collective, Ir, Partitioned, build_ir, find_collectives
from shardwright.spmd.layout import WHOLE, Layouts
from shardwright.spmd.opclass import OpClass, fold_ops
from shardwright.spmd.sums import find_rounds, reduced_once
from shardwright.spmd.weights import Together, weigh

_SEED = 20260401  # of the multipliers that turn placements into keys
_NEW = -1  # neither a row nor a number of seconds


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a batch of states, as arrays."""

    compute_s: np.ndarray  # [B]
    link_s: np.ndarray  # [B]
    peak_bytes: np.ndarray  # [B]
    overlap: float
    parts: np.ndarray  # [B, parts] seconds; their sum is compute_s + link_s

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
        self, analysis: Analysis, mesh: Mesh, device: Device, *, overlap: float = 0.0,
        pinned: Mapping[int, Sequence[Sequence[int]]] | None = None,
    ) -> None:  # fmt: skip
        program = analysis.program
        self.analysis, self.mesh, self.device, self.overlap = analysis, mesh, device, overlap
        self.pinned = dict(pinned or {})  # value -> axes per dim, whatever the lists say
        self.prices = DevicePrices(mesh, device)
        self.layouts = Layouts(analysis, mesh.sizes, pinned)
        self.classes = fold_ops(analysis, self.layouts, find_rounds(program))
        self.fusion = find_fusions(program, device)
        self.weights = weigh(program, self.classes, self.layouts.of_value)
        self.schedule = (
            breadth_first(program, self.fusion) if device.breadth_first else program_order(program)
        )
        self.lifetimes = find_lifetimes(program, self.fusion, self.schedule, device)
        live = live_counts(
            self.lifetimes, self.layouts.of_value, len(self.layouts.table), len(program.ops)
        )
        self.lasting = find_lasting(program, self.classes.of_op, self.fusion, self.schedule, device)
        self.points = peak_points(live, self.classes, self.lasting, self.schedule)
        self._traffic_s = self._traffic()
        self._choices: dict[tuple[int, tuple[Placement, ...]], Choice] = {}
        self._memo = _Memo(self.classes.table)
        self._shared = _TogetherMemo(self.weights.shared, self._memo)
        self._sums = _TogetherMemo(self.weights.sums, self._memo)
        self._temp_at = self._memo.columns(self.points.temp_class)
        self._enters = frozenset(self.lasting.ties)
        self._lasting_at = self._memo.columns(self.lasting.ties, self.lasting.operands)
        self._live = np.ascontiguousarray(self.points.live.T)
        together = (*self.weights.shared, *self.weights.sums)
        self.parts: list[tuple[int, ...]] = [  # the layouts that each summand of a step sees
            *self._memo.layouts, *[t.layouts(self.classes.table) for t in together],
            *[(i,) for i in range(len(self.layouts.table))],
        ]  # fmt: skip
        self.pins: dict[int, Placement] = {  # layout -> placement, whatever is decided
            i: layout.pinned for i, layout in enumerate(self.layouts.table)
            if layout.pinned is not None
        }  # fmt: skip

    def _traffic(self) -> np.ndarray:
        """[layouts] seconds per byte that fused work moves through memory."""
        program, per_layout = self.analysis.program, np.zeros(len(self.layouts.table))
        home = [program.ops[v.op].region if v.op >= 0 else TOP for v in program.values]
        runs = np.array([self.weights.region[r] for r in home])
        np.add.at(per_layout, self.layouts.of_value, self.fusion.traffic * runs)
        return per_layout * stream_s(self.device, 1.0)

    def evaluate(self, decisions: Sequence[Decisions]) -> Costs:
        """The costs of these decisions."""
        return self.costs(*self.place(decisions))

    def costs(self, placements: np.ndarray, local_bytes: np.ndarray) -> Costs:
        """The costs of states that were placed (see `place`)."""
        rows = self._rows(placements)  # [B, bundles]
        memo = self._memo
        compute, link = memo.compute_s[rows], memo.link_s[rows]  # [B, bundles]
        shared = self._shared.seconds(rows, memo, self._shared_s)  # [B, groups]
        sums = self._sums.seconds(rows, memo, self._sum_s)
        traffic = local_bytes * self._traffic_s  # [B, S]
        peak = self._point_bytes(rows, local_bytes).max(1)
        return Costs(
            compute.sum(1) + traffic.sum(1), link.sum(1) + shared.sum(1) + sums.sum(1), peak,
            self.overlap, np.concatenate([compute + link, shared, sums, traffic], axis=1),
        )  # fmt: skip

    def _point_bytes(self, rows: np.ndarray, local_bytes: np.ndarray) -> np.ndarray:
        """[B, points] the bytes that exist at each point: buffers, and copies that are moved."""
        unit = self.device.buffer_bytes
        memo, live = self._memo, (np.ceil(local_bytes / unit) * unit) @ self._live
        if memo.bundles:  # there is something to compute
            live += np.where(self.points.temp_class >= 0, memo.temps(rows, self._temp_at), 0.0)
            if self.points.lasting.shape[1]:
                live += memo.temps(rows, self._lasting_at) @ self.points.lasting.T
        return live

    def peak(self, decisions: Decisions) -> tuple[int, int]:
        """(time of the peak, bytes that exist then)."""
        placements, local_bytes = self.place([decisions])
        live = self._point_bytes(self._rows(placements), local_bytes)[0]
        best = int(live.argmax())
        return int(self.points.times[best]), int(live[best])

    def cost(self, decisions: Decisions) -> Cost:
        """The cost of one set of decisions."""
        return self.evaluate([decisions])[0]

    def place(self, decisions: Sequence[Decisions]) -> tuple[np.ndarray, np.ndarray]:
        """(placements [B, S, A], local bytes [B, S]): as the lists say, then overrides and pins."""
        lists = list(dict.fromkeys([d.lists for d in decisions]))
        placements, local_bytes = self.layouts.place(lists)
        if len(lists) < len(decisions):  # many overrides of one list
            number = {state: i for i, state in enumerate(lists)}
            rows = [number[d.lists] for d in decisions]
            placements, local_bytes = placements[rows], local_bytes[rows]
        for overrides, group in _by_overrides(decisions).items():
            for layout, placement in overrides:
                placements[group, layout] = placement
                local_bytes[group, layout] = self._local_bytes(layout, placement)
        for layout, placement in self.pins.items():
            placements[:, layout] = placement
            local_bytes[:, layout] = self._local_bytes(layout, placement)
        return placements, local_bytes

    def _local_bytes(self, layout: int, placement: Placement) -> int:
        return self.layouts.table[layout].local_bytes(placement, self.mesh.sizes)

    def _rows(self, placements: np.ndarray) -> np.ndarray:
        """[B, bundles] the memo row of every bundle in every state; new ones are worked out."""
        keys, known = self._memo.keys(placements), self._memo.row_of
        rows = known.find(keys, np.int64)
        for b, n in np.argwhere(rows == _NEW).tolist():
            key = int(keys[b, n])
            row = known[key]
            rows[b, n] = self._add_row(key, n, placements[b]) if row == _NEW else row
        return rows

    def _add_row(self, key: int, bundle: int, placements: np.ndarray) -> int:
        """Works out all classes that see these layouts placed like this."""
        w, compute, link, choices = self.weights, 0.0, 0.0, []
        members = self._memo.bundles[bundle]
        seen = dict.fromkeys(members[0].key_layouts)
        placed = {i: tuple(p) for i, p in zip(seen, placements[list(seen)].tolist(), strict=True)}
        for op in members:
            choice = self.choose(op, tuple([placed[i] for i in op.key_layouts]))
            choices.append(choice)
            compute += float(w.compute[op.index]) * choice.compute_s
            link += float(w.exchanges[op.index]) * choice.exchange_s
            for weight, seconds in zip(w.operands[op.index], choice.operand_s, strict=True):
                link += weight * seconds
            for weight, seconds in zip(w.results[op.index], choice.result_s, strict=True):
                link += weight * seconds
        copies = [self._copies(op, c, placed) for op, c in zip(members, choices, strict=True)]
        copies += [size for choice in choices for size in choice.copied_bytes]
        return self._memo.add(key, choices, copies, compute, link)

    def _copies(self, op: OpClass, choice: Choice, placed: Mapping[int, Placement]) -> int:
        """Bytes that exist besides operands and results while an op, or what a tie enters, runs."""
        if op.index not in self._enters:
            return choice.temp_bytes
        if not (any(choice.operand_moves) or any(choice.result_moves)):
            return 0
        sizes = [self.prices.routes.bytes(slot, placed[slot.layout_index]) for slot in op.results]
        return sum(map(self.prices.buffer_bytes, sizes))

    def choose(self, op: OpClass, stored: tuple[Placement, ...]) -> Choice:
        """How a class is computed when its layouts are stored like this, worked out once."""
        key = (op.index, stored)
        known = self._choices.get(key)
        if known is None:
            known = self._choices[key] = choose(op, stored, self.prices)
        return known

    def _shared_s(self, together: Together, choices: list[Choice]) -> float:
        """One value, several uses: every different way it is needed is moved to once."""
        moved: dict[Placement, float] = {}
        for (_, slot), choice in zip(together.members, choices, strict=True):
            moved[choice.needs[slot]] = choice.operand_s[slot]
        return together.weight * sum(moved.values())

    def _sum_s(self, together: Together, choices: list[Choice]) -> float:
        """Several partial sums added up: equal reductions happen once, after the additions."""
        count = len(together.orders)
        ops = [self.classes.table[c] for c, _ in together.members[:count]]
        leaves, witnesses = choices[:count], choices[count:]
        itemsize = self.layouts.table[together.layout].itemsize
        parts = list(zip(ops, leaves, together.orders, strict=True))
        once = reduced_once(parts, witnesses, itemsize, self.prices)
        if once is None:
            return together.weight * sum(choice.result_s[0] for choice in leaves)
        weight = together.after if once.after_loop else together.weight
        return weight * sum(map(self.prices.move_s, once.moves))

    def choices(self, decisions: Decisions) -> list[Choice]:
        """How every op class is computed."""
        placements, _ = self.place([decisions])
        rows, memo = self._rows(placements)[0], self._memo
        return [memo.choices[rows[b]][i] for b, i in memo.place_of]

    def stored(self, decisions: Decisions) -> list[Placement]:
        """How every layout is stored."""
        placements, _ = self.place([decisions])
        return [tuple(p) for p in placements[0].tolist()]


class _Known(dict[int, float]):
    """What is known by key; _NEW for what is not."""

    def __missing__(self, key: int) -> float:
        return _NEW

    def find(self, keys: np.ndarray, dtype: type) -> np.ndarray:
        """The entries of many keys at once."""
        wanted = keys.ravel().tolist()
        found: np.ndarray = np.fromiter(map(self.__getitem__, wanted), dtype, len(wanted))
        return found.reshape(keys.shape)


class _Memo:
    """Choices by key, with their weighted seconds in arrays that grow.

    Classes that see the same layouts have the same key: they form a bundle with one row.
    """

    def __init__(self, classes: Sequence[OpClass]) -> None:
        by_layouts: dict[tuple[int, ...], list[OpClass]] = {}
        for c in classes:
            by_layouts.setdefault(tuple(sorted(set(c.key_layouts))), []).append(c)
        self.layouts, self.bundles = list(by_layouts), list(by_layouts.values())
        self.place_of = [(0, 0)] * len(classes)  # class -> (bundle, place in it)
        self._operands_of = [0] * len(classes)  # class -> column of its first operand's copies
        width = 1
        for b, members in enumerate(self.bundles):
            column = len(members)
            for i, c in enumerate(members):
                self.place_of[c.index], self._operands_of[c.index] = (b, i), column
                column += len(c.operands)
            width = max(width, column)
        rng = np.random.default_rng(_SEED)
        self._layouts, self._starts = _ragged(list(by_layouts))
        self._factors = rng.integers(1, 1 << 63, len(self._layouts), np.uint64) | np.uint64(1)
        self._salt = rng.integers(1, 1 << 63, len(self.bundles), np.uint64)
        self._none = np.array([not m[0].key_layouts for m in self.bundles], bool)
        self.row_of = _Known()
        self.choices: list[list[Choice]] = []
        self.compute_s, self.link_s = np.zeros(256), np.zeros(256)
        self.temp_bytes = np.zeros((256, width))

    def keys(self, placements: np.ndarray) -> np.ndarray:
        """[B, bundles] a 64-bit key of the placements that each bundle sees."""
        radix = np.uint64(64) ** np.arange(placements.shape[2], dtype=np.uint64)
        codes = ((placements - WHOLE).astype(np.uint64) * radix).sum(2, dtype=np.uint64)
        products = (codes + np.uint64(1))[:, self._layouts] * self._factors
        keys = np.add.reduceat(products, self._starts, axis=1)
        keys[:, self._none] = 0
        return keys ^ self._salt

    def columns(
        self, classes: Iterable[int], operands: Iterable[tuple[int, int]] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the temporaries of these classes and operands stand; of NO_CLASS anywhere."""
        places = [self.place_of[c] if c >= 0 else (0, 0) for c in classes]
        places += [(self.place_of[c][0], self._operands_of[c] + slot) for c, slot in operands]
        return (
            np.array([b for b, _ in places], np.int64), np.array([i for _, i in places], np.int64)
        )  # fmt: skip

    def temps(self, rows: np.ndarray, at: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """[B, columns] bytes of temporaries."""
        return self.temp_bytes[rows[:, at[0]], at[1]]

    def add(
        self, key: int, choices: list[Choice], temps: Sequence[int], compute_s: float, link_s: float
    ) -> int:
        row = self.row_of[key] = len(self.choices)
        self.choices.append(choices)
        if row >= len(self.compute_s):
            self.compute_s = np.concatenate([self.compute_s, np.zeros(row)])
            self.link_s = np.concatenate([self.link_s, np.zeros(row)])
            more = np.zeros((row, self.temp_bytes.shape[1]))
            self.temp_bytes = np.concatenate([self.temp_bytes, more])
        self.compute_s[row], self.link_s[row] = compute_s, link_s
        self.temp_bytes[row, : len(temps)] = temps
        return row


class _TogetherMemo:
    """Seconds of movements counted together, by the memo rows of their members."""

    def __init__(self, groups: Sequence[Together], memo: _Memo) -> None:
        self.groups = groups
        self._places = [[memo.place_of[c] for c, _ in g.members] for g in groups]
        bundles = [tuple(dict.fromkeys(b for b, _ in places)) for places in self._places]
        rng = np.random.default_rng(_SEED + 1)
        self._bundles, self._starts = _ragged(bundles)
        self._factors = rng.integers(1, 1 << 63, len(self._bundles), np.uint64) | np.uint64(1)
        self._salt = rng.integers(1, 1 << 63, len(groups), np.uint64)
        self._known = _Known()

    def seconds(
        self, rows: np.ndarray, memo: _Memo, price: Callable[[Together, list[Choice]], float]
    ) -> np.ndarray:
        """[B, groups]"""
        if not self.groups:
            return np.zeros((len(rows), 0))
        seen = rows[:, self._bundles].astype(np.uint64) + np.uint64(1)
        keys = np.add.reduceat(seen * self._factors, self._starts, axis=1) ^ self._salt
        out = self._known.find(keys, np.float64)
        for b, g in np.argwhere(out == _NEW).tolist():
            key = int(keys[b, g])
            if key not in self._known:
                choices = [memo.choices[rows[b, n]][i] for n, i in self._places[g]]
                self._known[key] = price(self.groups[g], choices)
            out[b, g] = self._known[key]
        return out


def _ragged(lists: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(all elements, where each list starts), for np.add.reduceat."""
    widths = np.array([len(x) for x in lists], np.int64)
    flat = np.array([i for x in lists for i in x], np.int64)
    starts = np.concatenate([[0], np.cumsum(widths)[:-1]]) if len(widths) else widths
    return flat, np.minimum(starts, max(len(flat) - 1, 0))


def _by_overrides(
    decisions: Sequence[Decisions],
) -> dict[tuple[tuple[int, Placement], ...], list[int]]:
    """{overrides: the places of the decisions that have them}"""
    out: dict[tuple[tuple[int, Placement], ...], list[int]] = {}
    for i, d in enumerate(decisions):
        if d.overrides:
            out.setdefault(d.overrides, []).append(i)
    return out


def partitioned(model: CostModel, decisions: Decisions) -> Partitioned:
    """The program as decided, as the IR wants it."""
    return Partitioned(
        model.analysis.program, model.layouts, model.classes, model.stored(decisions),
        model.choices(decisions), model.prices, model.mesh.axes,
    )  # fmt: skip


def model_ir(model: CostModel, decisions: Decisions) -> Ir:
    """The partitioning IR of a program as decided."""
    return build_ir(partitioned(model, decisions))


def model_collectives(model: CostModel, decisions: Decisions) -> list[Collective]:
    """The collectives of a program as decided, in program order."""
    return find_collectives(partitioned(model, decisions))
