"""The cost of a state op by op: no classes, no memo, every point of the program a possible peak.

This is the meaning of a state written down plainly, to judge the folded model by. It shares the
model's definitions (which values are materialised and when they live, which partial sums meet in
additions, what one op costs) and none of its folding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from shardwright.analysis.analysis import Analysis
from shardwright.cost.copies import SAME_BUFFER, gathered_ahead
from shardwright.cost.cost import Cost
from shardwright.cost.liveness import NO_POINT
from shardwright.cost.model import CostModel
from shardwright.cost.prices import DevicePrices
from shardwright.cost.roofline import stream_s
from shardwright.cost.schedule import region_spans
from shardwright.program.types import LITERAL, NO_OP, TOP, Op, itemsize
from shardwright.spmd.claim import claim
from shardwright.spmd.decisions import Decisions, Placement
from shardwright.spmd.follow import Choice, choose
from shardwright.spmd.layout import NO_BIT, Atom, Layout
from shardwright.spmd.layouts import Layouts, find_updates, resolution_bits
from shardwright.spmd.moves import Move
from shardwright.spmd.opclass import NO_CLASS, fold_ops
from shardwright.spmd.slack import BLOCKS
from shardwright.spmd.sums import Sum, find_sums, find_trips, reduced_once
from shardwright.spmd.weights import region_runs, region_weights


def walk_cost(model: CostModel, decisions: Decisions) -> Cost:
    """What `model.cost(decisions)` must be."""
    return Walk(model).cost(decisions)


class Walk:
    """A program taken apart once, so that each state is a walk over all of its ops."""

    def __init__(self, model: CostModel) -> None:
        self.model, self.program = model, model.analysis.program
        self.layouts = _Unfolded(model.analysis, model.mesh.sizes)
        rounds = find_trips(self.program, find_sums(self.program))
        self.ops = fold_ops(model.analysis, self.layouts, rounds)  # values differ: no two fold
        self.weights, self.runs = region_weights(self.program), region_runs(self.program)
        self.sums = find_sums(self.program)
        _, self.last = region_spans(self.program, model.schedule)

    def cost(self, decisions: Decisions) -> Cost:
        """The cost of one set of decisions."""
        stored = self.stored(decisions)
        choices = self._choices(stored)
        local_bytes = [
            layout.local_bytes(placement, self.model.mesh.sizes)
            for layout, placement in zip(self.layouts.table, stored, strict=True)
        ]
        # Seconds of each phase; of links those that block are under BLOCKS.
        compute_s = self._compute_s(choices) + self._traffic_s(local_bytes)
        link_s, hideable_s = self._links(choices)
        if self.model.overlap is None:
            hidden_s = sum(min(compute_s[p], s) for p, s in hideable_s.items())
        else:
            hidden_s = self.model.overlap * min(compute_s.total(), link_s)
        return Cost(
            compute_s=compute_s.total(),
            link_s=link_s,
            hidden_s=hidden_s,
            peak_bytes=self._peak_bytes(choices, local_bytes),
            overlap=self.model.overlap,
        )

    def stored(self, decisions: Decisions) -> list[Placement]:
        """How each value is stored."""
        model, state = self.model, decisions.lists
        fixed = {**dict(decisions.overrides), **model.pins}
        claimed = {
            layout: claim(layout, state, model.mesh.sizes) for layout in set(self.layouts.table)
        }
        return [
            fixed.get(folded) or claimed[layout]
            for layout, folded in zip(
                self.layouts.table, model.layouts.of_value.tolist(), strict=True
            )
        ]

    def _choices(self, stored: Sequence[Placement]) -> list[Choice | None]:
        """How each op is computed; None for loops and branches themselves."""
        prices = DevicePrices(self.model.mesh, self.model.device)  # remembers nothing yet
        out: list[Choice | None] = []
        for c in self.ops.of_op.tolist():
            if c == NO_CLASS:
                out.append(None)
                continue
            one = self.ops.table[c]
            out.append(choose(one, [stored[v] for v in one.key_layouts], prices))
        return out

    def _compute_s(self, choices: Sequence[Choice | None]) -> Counter[int]:
        """{phase: seconds} of all ops, a body's as often as it runs."""
        seconds = Counter[int]()
        for op, choice in zip(self.program.ops, choices, strict=True):
            if choice is not None:
                phase = self.model.slack.phase[op.index]
                seconds[phase] += self.weights[op.region] * choice.compute_s
        return seconds

    def _traffic_s(self, local_bytes: Sequence[int]) -> Counter[int]:
        """{phase: seconds} in which fused work reads and writes materialised values."""
        seconds = Counter[int]()
        for v in self.program.values:
            region = self.program.ops[v.op].region if v.op != NO_OP else TOP
            passes = self.weights[region] * int(self.model.fusion.traffic[v.index])
            phase = self.model.slack.value_phase[v.index]
            seconds[phase] += stream_s(self.model.device, passes * local_bytes[v.index])
        return seconds

    def _links(self, choices: Sequence[Choice | None]) -> tuple[float, Counter[int]]:
        """(seconds of all movements, {phase: hideable seconds}).

        One value moved the same way for several uses in one place is moved once, and hides if it
        may for all of these uses; partial sums that are only added up are reduced once, if all of
        them are partial alike.
        """
        total, hideable, slack = 0.0, Counter[int](), self.model.slack

        def count(moves: Sequence[Move], times: float, phase: int) -> None:
            nonlocal total
            prices = self.model.prices
            if phase in self.model.graph.hiding.phases:  # what can wait is combined
                total += times * sum(map(prices.combined_s, moves))
                hideable[phase] += times * prices.hideable_s(moves)
            else:
                total += times * sum(map(prices.move_s, moves))

        summed: set[int] = set()
        for one in self.sums:
            summed |= {leaf.op for leaf in one.leaves}
            count(*self._reduce(one, choices))
        uses: dict[tuple[int, int, int, bool], dict[Placement, tuple[list[Move], int]]] = {}
        phases: dict[tuple[int, int, int, bool], set[int]] = {}
        for op, choice in zip(self.program.ops, choices, strict=True):
            if choice is None:
                continue
            count(choice.exchanges, self.runs[op.result_region], BLOCKS)
            if op.index not in summed:
                for moves in choice.result_moves:
                    count(moves, self.runs[op.result_region], slack.results[op.index])
            operands = [v for v in op.operands if v != LITERAL]
            for i, v in enumerate(operands):
                use = (v, op.operand_region, op.remat, op.transposed)
                moved = choice.operand_moves[i], op.operand_region
                uses.setdefault(use, {}).setdefault(choice.needs[i], moved)
                phases.setdefault(use, set()).add(slack.operands[op.index][i])
        for use, ways in uses.items():
            phase = max(phases[use]) if len(phases[use]) == 1 else BLOCKS
            for moves, region in ways.values():
                count(moves, self.runs[region], phase)
        return total, hideable

    def _reduce(self, one: Sum, choices: Sequence[Choice | None]) -> tuple[list[Move], float, int]:
        """(moves, times, phase) of a sum: after the additions, after the loop, or of each part."""
        parts = [
            (self.ops.table[int(self.ops.of_op[leaf.op])], choice, leaf.order)
            for leaf in one.leaves if (choice := choices[leaf.op]) is not None
        ]  # fmt: skip
        past = [c for i in one.hoisted_past(self.program) if (c := choices[i]) is not None]
        once = reduced_once(parts, past, one.sizes(self.program), self.model.prices)
        slack = self.model.slack.results
        if once is not None and once.after_loop and one.hoist is not None:
            carry = one.hoist.loop.carry
            return once.moves, self.runs[self.program.ops[carry].region], slack[carry]
        moves = once.moves if once else [m for _, c, _ in parts for m in c.result_moves[0]]
        inside = self.program.ops[one.leaves[0].op].region
        return moves, self.runs[inside], slack[self.program.values[one.value].op]

    def _peak_bytes(self, choices: Sequence[Choice | None], local_bytes: Sequence[int]) -> int:
        """The most bytes that live at any op, its moved copies included."""
        lifetimes = self.model.lifetimes
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        spans = zip(
            lifetimes.first.tolist(), lifetimes.last.tolist(), lifetimes.held.tolist(), local_bytes,
            strict=True,
        )  # fmt: skip
        for first, last, held, local in spans:
            size = held * self.model.prices.buffer_bytes(local)
            if first != NO_POINT:
                starts[first] = starts.get(first, 0) + size
                ends[last] = ends.get(last, 0) + size
        copies = self._copies(choices, local_bytes, starts, ends)
        live = peak = 0
        for point in range(len(choices) + 1):
            live += starts.get(point, 0)
            peak = max(peak, live + copies[point])
            live -= ends.get(point, 0)
        return int(peak)

    def _copies(
        self, choices: Sequence[Choice | None], local_bytes: Sequence[int],
        starts: dict[int, int], ends: dict[int, int],
    ) -> list[int]:  # fmt: skip
        """[times] moved copies of each op; those for a whole loop or branch are made to live."""
        copies = [0] * (len(choices) + 1)
        time = self.model.schedule.time.tolist()
        if self.model.overlap is None and self.model.device.hides.get("all-gather"):
            for op, slot, first in gathered_ahead(
                self.program, self.model.slack, self.model.schedule, self.model.device
            ):
                choice = choices[op.index]
                size = choice.copied_bytes[slot] if choice is not None else 0
                last = time[op.index] - 1
                if time[first] <= last:
                    starts[time[first]] = starts.get(time[first], 0) + size
                    ends[last] = ends.get(last, 0) + size
        for op, choice in zip(self.program.ops, choices, strict=True):
            if choice is None:
                continue
            if op.tie not in SAME_BUFFER:
                copies[time[op.index]] = choice.temp_bytes
                if self.model.device.breadth_first and not op.tie:
                    self._wait(op, choice, starts, ends)
            elif any(choice.operand_moves) or any(choice.result_moves):
                buffer_bytes = self.model.prices.buffer_bytes
                size = sum(buffer_bytes(local_bytes[v]) for v in op.results)
                first = time[op.index]
                last = max(first, *[self.last[r] for r in op.body])
                starts[first] = starts.get(first, 0) + size
                ends[last] = ends.get(last, 0) + size
        return copies

    def _wait(self, op: Op, choice: Choice, starts: dict[int, int], ends: dict[int, int]) -> None:
        """Copies of operands exist from the time when these are there."""
        time = self.model.schedule.time
        operands = [v for v in op.operands if v != LITERAL]
        for v, size in zip(operands, choice.copied_bytes, strict=True):
            fused = not self.model.fusion.materialised[v]
            behind = self.model.fusion.sources[v] if fused else (v,)
            made = [self.program.values[s].op for s in behind]
            first = max([int(time[i]) + 1 for i in made if i != NO_OP], default=0)
            if first < time[op.index]:
                starts[first] = starts.get(first, 0) + size
                ends[int(time[op.index]) - 1] = ends.get(int(time[op.index]) - 1, 0) + size


class _Unfolded(Layouts):
    """A layout for every value, whatever other values look like."""

    def __init__(self, analysis: Analysis, axis_sizes: Sequence[int]) -> None:
        program, names = analysis.program, analysis.color_table.values
        decided = {
            (conflict.owner, dim, place): (bit, (i & 1) ^ flip)
            for one, bit in zip(analysis.conflict_sets, resolution_bits(analysis), strict=True)
            for conflict, flip in zip(one.conflicts, one.flips, strict=True)
            if not conflict.is_op
            for i, (dim, place) in enumerate(conflict.places)
        }
        atoms: list[list[Atom]] = [[] for _ in program.values]
        for owner, dim, place, atom, color in zip(
            names.owner.tolist(), names.dim.tolist(), names.place.tolist(), names.atom.tolist(),
            names.color.tolist(), strict=True,
        ):  # fmt: skip
            bit, side = decided.get((owner, dim, place), (NO_BIT, 0))
            size = int(analysis.color_table.atom_size[atom])
            group = int(analysis.color_group[color])
            atoms[owner].append(Atom(dim, place, size, group, bit, side))
        border = {*program.inputs, *program.consts, *program.outputs}
        update = find_updates(program)
        self.of_value = np.arange(len(program.values))
        self.table = [
            Layout(
                tuple(atoms[v.index]), itemsize(v.dtype),
                0 if 0 in v.shape else 1, v.index in border, update[v.index],
                rematerialised=program.constant_subgraphs()[v.index],
            )
            for v in program.values
        ]  # fmt: skip
        self.geometry = list(range(len(self.table)))
