"""What decisions cost: seconds from the factor graph, peak bytes from the points of the program.

Decisions give every layout a placement. Evaluating them is then a look-up for every factor and a
few array expressions, whatever the number of ops. A model is a value: nothing that is decided is
kept in it, and threads may share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.analysis.analysis import Analysis
from shardwright.cost.copies import find_lasting
from shardwright.cost.cost import Cost
from shardwright.cost.devices import Device
from shardwright.cost.factor_graph import FactorGraph
from shardwright.cost.fusion import find_fusions
from shardwright.cost.hiding import Hiding, hidden_s, unrolled_bytes
from shardwright.cost.liveness import find_lifetimes, live_counts, peak_points
from shardwright.cost.prices import DevicePrices
from shardwright.cost.roofline import stream_s
from shardwright.cost.schedule import schedule_for
from shardwright.mesh import Mesh
from shardwright.program.manual import find_shard_maps
from shardwright.program.types import TOP
from shardwright.rules.rule import HOST
from shardwright.spmd.decisions import Decisions, Placement
from shardwright.spmd.follow import Choice
from shardwright.spmd.ir import Collective, Ir, Partitioned, build_ir, find_collectives
from shardwright.spmd.layouts import Layouts
from shardwright.spmd.moves import ALL_GATHER, Move
from shardwright.spmd.opclass import NO_CLASS, fold_ops
from shardwright.spmd.slack import find_slack
from shardwright.spmd.sums import find_summed, find_sums, find_trips
from shardwright.spmd.weights import weigh


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a batch of states, as arrays."""

    compute_s: np.ndarray  # [B]
    link_s: np.ndarray  # [B]
    hidden_s: np.ndarray  # [B]
    host_s: np.ndarray  # [B]
    peak_bytes: np.ndarray  # [B]
    overlap: float | None

    @property
    def step_s(self) -> np.ndarray:
        """[B] seconds of a step."""
        return np.maximum(self.compute_s + (self.link_s - self.hidden_s), self.host_s)

    def only(self, i: int) -> Costs:
        """A batch of the i-th alone."""
        one = slice(i, i + 1)
        return Costs(
            self.compute_s[one], self.link_s[one], self.hidden_s[one], self.host_s[one],
            self.peak_bytes[one], self.overlap,
        )  # fmt: skip

    def __getitem__(self, i: int) -> Cost:
        return Cost(
            compute_s=float(self.compute_s[i]), link_s=float(self.link_s[i]),
            hidden_s=float(self.hidden_s[i]), host_s=float(self.host_s[i]),
            peak_bytes=int(self.peak_bytes[i]), overlap=self.overlap,
        )  # fmt: skip


class CostModel:
    """What any state of one program costs on one mesh of one device."""

    def __init__(
        self, analysis: Analysis, mesh: Mesh, device: Device, *, overlap: float | None = None,
        pinned: Mapping[int, Sequence[Sequence[int]]] | None = None,
    ) -> None:  # fmt: skip
        """`overlap`: of the shorter of compute and links the part that hides behind the longer.

        None: what hides follows from the program and the device (hiding.py).
        """
        program = analysis.program
        self.analysis, self.mesh, self.device, self.overlap = analysis, mesh, device, overlap
        self.pinned = dict(pinned or {})  # value -> axes per dim, whatever the lists say
        self.slack = waits = find_slack(program)
        if device.splits_bytes:  # parts of a dot are neither gathered ahead nor wait for each other
            self.slack = find_slack(program, device.splits_bytes)
        self.prices = DevicePrices(mesh, device, unrolled_bytes=unrolled_bytes(program, waits))
        self.sums = find_sums(program)
        self.layouts = Layouts(
            analysis, mesh.sizes, self.pinned, find_shard_maps(program, mesh),
            find_summed(program, self.sums),
        )  # fmt: skip
        self.classes = fold_ops(analysis, self.layouts, find_trips(program, self.sums))
        self.fusion = find_fusions(program, device)
        self.weights = weigh(program, self.sums, self.classes, self.layouts.of_value, self.slack)
        hides = overlap is None and bool(device.hides)
        self.schedule = schedule_for(device, program, self.fusion)
        self.lifetimes = find_lifetimes(program, self.fusion, self.schedule, device)
        live = live_counts(
            self.lifetimes, self.layouts.of_value, len(self.layouts.table), len(program.ops)
        )
        ahead = waits if hides and device.hides.get(ALL_GATHER) else None
        self.lasting = find_lasting(
            program, self.classes.of_op, self.fusion, self.schedule, device, ahead
        )
        self.points = peak_points(live, self.classes, self.lasting, self.schedule)
        self.graph = FactorGraph(
            self.layouts, self.classes, self.weights, self.prices,
            traffic_s=self._traffic(), entering=self.lasting.ties,
            hiding=Hiding(self.weights, hides=hides),
        )  # fmt: skip
        self._temp_at = self.graph.temp_columns(self.points.temp_class)
        self._lasting_at = self.graph.temp_columns(self.lasting.ties, self.lasting.operands)
        self._live = np.ascontiguousarray(self.points.live.T)
        self._host_s = self._host_copies()
        self._bytes: dict[tuple[int, Placement], int] = {}  # of a layout stored so, as they occur
        self.pins: dict[int, Placement] = {  # layout -> placement, whatever is decided
            i: layout.pinned for i, layout in enumerate(self.layouts.table)
            if layout.pinned is not None
        }  # fmt: skip

    def _traffic(self) -> np.ndarray:
        """[layouts, phases] seconds per byte that fused work moves through memory."""
        program = self.analysis.program
        per_layout = np.zeros((len(self.layouts.table), self.slack.phases))
        home = [program.ops[v.op].region if v.op >= 0 else TOP for v in program.values]
        runs = np.array([self.weights.region[r] for r in home])
        at = (self.layouts.of_value, np.array(self.slack.value_phase, np.int64))
        np.add.at(per_layout, at, self.fusion.traffic * runs)
        return per_layout * stream_s(self.device, 1.0)

    def _host_copies(self) -> np.ndarray:
        """[layouts] seconds per byte that arrays are copied to the host's memory, or back."""
        program, per_layout = self.analysis.program, np.zeros(len(self.layouts.table))
        for op in program.ops if self.device.host_bytes_per_s else ():
            if op.rule.unit == HOST:
                copied = self.layouts.of_value[list(op.results)]
                np.add.at(per_layout, copied, self.weights.region[op.region])
        return per_layout / (self.device.host_bytes_per_s or 1.0)

    def evaluate(self, decisions: Sequence[Decisions]) -> Costs:
        """The costs of these decisions."""
        return self.costs(*self.place(decisions))

    def costs(self, placements: np.ndarray, local_bytes: np.ndarray) -> Costs:
        """The costs of states that were placed (see `place`)."""
        rows = self.graph.rows(placements)  # [B, factors]
        peak = self._point_bytes(rows, local_bytes).max(1)
        return self._timed(rows, local_bytes, peak)

    def _timed(self, rows: np.ndarray, local_bytes: np.ndarray, peak: np.ndarray) -> Costs:
        """The costs of states whose factors are in these rows [B, factors]."""
        graph = self.graph
        compute_s, link_s = graph.compute_s[rows].sum(1), graph.link_s[rows].sum(1)
        if self.overlap is None:
            hidden = hidden_s(graph.column_sums(rows))
        else:
            hidden = self.overlap * np.minimum(compute_s, link_s)
        host_s = local_bytes @ self._host_s
        return Costs(compute_s, link_s, hidden, host_s, peak, self.overlap)

    def around_s(self, decisions: Decisions, axis: int, atoms: np.ndarray) -> np.ndarray:
        """[B] seconds of a step in which one axis splits `atoms` [B, layouts], fits or not.

        Some list of the axis claims them; the lists of the other axes, overrides and pins hold.
        """
        placements, local_bytes = self.layouts.claims.place_around(decisions.lists, axis, atoms)
        self._hold(placements, local_bytes, decisions.overrides)
        self._hold(placements, local_bytes, self.pins.items())
        rows = self.graph.rows(placements)
        return self._timed(rows, local_bytes, np.zeros(len(atoms))).step_s

    def changed_s(
        self, placements: np.ndarray, local_bytes: np.ndarray,
        changes: Sequence[tuple[int, Placement]], worth: float,
    ) -> np.ndarray:  # fmt: skip
        """[changes] seconds of a step once one layout of a state gets another placement.

        The state was placed (`place`: [1, S, A], [1, S]). Only the factors that see the layout are
        looked up, and not where all of them take less than this part of the step: no change can
        save more, and it counts as saving nothing.
        """
        graph, rows = self.graph, self.graph.rows(placements)[0]
        now_s = float(self._timed(rows[None], local_bytes, np.zeros(1)).step_s[0])
        layouts = np.array([layout for layout, _ in changes], np.int64)
        step_s = np.full(len(changes), now_s)
        copies = bool(self._host_s.any())
        able = np.flatnonzero(copies | (graph.seen_s(rows)[layouts] >= worth * now_s))
        if not len(able):
            return step_s
        stored, layouts = np.array([changes[k][1] for k in able.tolist()], np.int64), layouts[able]
        each = np.arange(len(able))
        change, factor, after = graph.rows_changed(placements[0], each, layouts, stored)
        before = rows[factor]

        def total_s(seconds: np.ndarray) -> np.ndarray:
            more = np.bincount(change, seconds[after] - seconds[before], len(able))
            return seconds[rows].sum() + more  # type: ignore[no-any-return]

        compute_s, link_s = total_s(graph.compute_s), total_s(graph.link_s)
        if self.overlap is None:
            parts = graph.column_s[after] - graph.column_s[before]
            more = graph.column_changes(change, factor, parts, len(able))
            hidden = hidden_s(graph.column_sums(rows[None]) + more)
        else:
            hidden = self.overlap * np.minimum(compute_s, link_s)
        step_s[able] = compute_s + (link_s - hidden)
        if copies:
            held = np.array([self._local_bytes(*changes[k]) for k in able.tolist()])
            more = (held - local_bytes[0, layouts]) * self._host_s[layouts]
            step_s[able] = np.maximum(step_s[able], local_bytes[0] @ self._host_s + more)
        return step_s

    def _point_bytes(self, rows: np.ndarray, local_bytes: np.ndarray) -> np.ndarray:
        """[B, points] the bytes that exist at each point: buffers, and copies that are moved."""
        unit = self.device.buffer_bytes
        live = (np.ceil(local_bytes / unit) * unit) @ self._live
        if self.classes.table:  # there is something to compute
            points = self.points
            live += self.copied_bytes(rows, points.temp_class, self._temp_at, points.lasting)
        return live

    def copied_bytes(
        self, rows: np.ndarray, runs: np.ndarray, at: tuple[np.ndarray, np.ndarray],
        lasting: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """[B, times] bytes of moved copies and of scratch memory, given the rows [B, factors].

        The op class that `runs` [times], or NO_CLASS, has them `at` columns of the graph; of copies
        that last `lasting` [times, columns of Lasting] says how many there are.
        """
        copies = np.where(runs >= 0, self.graph.temps(rows, *at), 0.0)
        if lasting.shape[1]:
            copies += self.graph.temps(rows, *self._lasting_at) @ lasting.T
        return copies

    def peak(self, decisions: Decisions) -> tuple[int, int]:
        """(time of the peak, bytes that exist then)."""
        placements, local_bytes = self.place([decisions])
        live = self._point_bytes(self.graph.rows(placements), local_bytes)[0]
        best = int(live.argmax())
        return int(self.points.times[best]), int(live[best])

    def cost(self, decisions: Decisions) -> Cost:
        """The cost of one set of decisions."""
        return self.evaluate([decisions])[0]

    def columns(self, decisions: Decisions) -> tuple[np.ndarray, np.ndarray]:
        """([phases] compute seconds, [phases] hideable seconds on links) where something hides."""
        placements, _ = self.place([decisions])
        columns = self.graph.column_sums(self.graph.rows(placements))[0]
        return columns[0::2], columns[1::2]

    def link_s(self, move: Move, phase: int) -> float:
        """Seconds of a move that hides behind a phase, or blocks."""
        has_slack = phase in self.graph.hiding.number
        return self.prices.combined_s(move) if has_slack else self.prices.move_s(move)

    def hidden_of(self, decisions: Decisions) -> Callable[[Move, int], float]:
        """A function of a move and the phase that it hides behind: its seconds behind compute."""
        if self.overlap is not None:  # of all links alike
            cost = self.cost(decisions)
            part = cost.hidden_s / cost.link_s if cost.link_s else 0.0
            return lambda move, phase: part * self.prices.move_s(move)
        compute, links = self.columns(decisions)
        part_of = {
            phase: min(c, link) / link
            for phase, c, link in zip(
                self.graph.hiding.phases, compute.tolist(), links.tolist(), strict=True
            )
            if link
        }
        return lambda move, phase: part_of.get(phase, 0.0) * self.prices.hideable_s([move])

    def place(self, decisions: Sequence[Decisions]) -> tuple[np.ndarray, np.ndarray]:
        """(placements [B, S, A], local bytes [B, S]): as the lists say, then overrides and pins."""
        lists = list(dict.fromkeys([d.lists for d in decisions]))
        placements, local_bytes = self.layouts.place(lists)
        if len(lists) < len(decisions):  # many overrides of one list
            number = {state: i for i, state in enumerate(lists)}
            rows = [number[d.lists] for d in decisions]
            placements, local_bytes = placements[rows], local_bytes[rows]
        for overrides, group in _by_overrides(decisions).items():
            self._hold(placements, local_bytes, overrides, group)
        self._hold(placements, local_bytes, self.pins.items())
        return placements, local_bytes

    def _hold(
        self, placements: np.ndarray, local_bytes: np.ndarray,
        held: Iterable[tuple[int, Placement]], states: list[int] | slice = slice(None),
    ) -> None:  # fmt: skip
        """Gives layouts other placements in these states, in place."""
        for layout, placement in held:
            placements[states, layout] = placement
            local_bytes[states, layout] = self._local_bytes(layout, placement)

    def override(
        self, placements: np.ndarray, local_bytes: np.ndarray,
        variants: Sequence[Mapping[int, Placement]],
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """The same of one state that was placed, for each of these overrides; pins stay."""
        count = len(variants)
        placements, local_bytes = np.repeat(placements, count, 0), np.repeat(local_bytes, count, 0)
        for i, overrides in enumerate(variants):
            for layout, placement in overrides.items():
                if layout not in self.pins:
                    placements[i, layout] = placement
                    local_bytes[i, layout] = self._local_bytes(layout, placement)
        return placements, local_bytes

    def _local_bytes(self, layout: int, placement: Placement) -> int:
        known = self._bytes.get((layout, placement))
        if known is None:
            known = self.layouts.table[layout].local_bytes(placement, self.mesh.sizes)
            self._bytes[layout, placement] = known
        return known

    def choices(self, decisions: Decisions) -> list[Choice]:
        """How every op class is computed."""
        placements, _ = self.place([decisions])
        rows, graph = self.graph.rows(placements)[0], self.graph
        return [graph.choices[rows[f]][i] for f, i in graph.place_of]

    def op_seconds(self, decisions: Decisions) -> np.ndarray:
        """[ops] the seconds that one run of each op computes, traffic of fused work left out."""
        classes = self.classes.of_op
        own = np.array([choice.compute_s for choice in self.choices(decisions)] or [0.0])
        return np.where(classes == NO_CLASS, 0.0, own[classes])

    def stored(self, decisions: Decisions) -> list[Placement]:
        """How every layout is stored."""
        placements, _ = self.place([decisions])
        return [tuple(p) for p in placements[0].tolist()]


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
        model.choices(decisions), model.prices, model.mesh.axes, model.slack, model.link_s,
        model.hidden_of(decisions),
    )  # fmt: skip


def model_ir(model: CostModel, decisions: Decisions) -> Ir:
    """The partitioning IR of a program as decided."""
    return build_ir(partitioned(model, decisions))


def model_collectives(model: CostModel, decisions: Decisions) -> list[Collective]:
    """The collectives of a program as decided, in program order."""
    return find_collectives(partitioned(model, decisions))
