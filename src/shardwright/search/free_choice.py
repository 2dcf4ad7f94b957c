"""The bound where ops choose freely: for meshes on which tables of whole ops would be too large.

Given how an op is computed (its *candidate*), its layouts do not see each other: what it costs is
its compute plus, for each layout, the movement between the placement that it needs and the one in
which it is stored. So an op is a star: the candidate in the middle, and one table of pairs for each
of its layouts, which grows with the square of the placements of one layout and not with all
combinations. The sum over ops of the cheapest candidate is a lower bound; `agree` moves seconds
between ops until they want the same of each layout, as in relaxation.py. It says less than
tables of whole ops do: ops choose by what they are charged here, and each layout may be stored in
any way that some list gives it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from shardwright.cost.op_table import candidates_of
from shardwright.cost.pair_table import Made, PairTable, Patterns
from shardwright.cost.shares import Leaf, Phase, Share, shares
from shardwright.search.relaxation import SWEEPS, OpTables
from shardwright.spmd.decisions import Decisions, Placement
from shardwright.spmd.follow import Candidate
from shardwright.spmd.opclass import OpClass

STEADY = 3e-3  # of the bound: less gained in SWEEPS sweeps is not worth their time
MOST_PAIRS = 1 << 20  # of one table; a larger one counts as free
MOST_CANDIDATES = 1 << 13  # of one op; one with more counts as free


class Arm:
    """One layout of an op: seconds between what each candidate needs and each placement."""

    def __init__(self, layout: int, of: np.ndarray, seconds: np.ndarray) -> None:
        self.layout = layout
        self.of = of  # [candidates] a row
        self.seconds = seconds  # [rows, placements]
        self.order = np.argsort(of, kind="stable")
        self.start = np.searchsorted(of[self.order], np.arange(len(seconds)))
        self.moved = np.zeros(seconds.shape[1])  # [placements] seconds moved here from other ops
        self.least = np.zeros(len(of))  # [candidates] over placements
        self.look()

    def look(self) -> None:
        """Works out the least of each candidate again."""
        self.least = (self.seconds + self.moved).min(1)[self.of]

    def marginals(self, rest: np.ndarray) -> np.ndarray:
        """[placements] the least seconds of the op, given those of candidates without this arm."""
        by_row = np.minimum.reduceat(rest[self.order], self.start)
        return (self.seconds + by_row[:, None]).min(0) + self.moved  # type: ignore[no-any-return]


class Star(NamedTuple):
    """One op class."""

    seconds: np.ndarray  # [candidates] of compute and exchanges
    arms: list[Arm]

    @property
    def least(self) -> float:
        """Seconds of the cheapest candidate."""
        return float(sum([arm.least for arm in self.arms], self.seconds).min())


class FreeChoice:
    """The stars of a space, which agree more and more."""

    def __init__(self, ops: OpTables, near: Decisions) -> None:
        """`near` is a good state: the bound is tightest around it."""
        self.ops, self.model = ops, ops.model
        model, hiding = ops.model, ops.model.graph.hiding
        compute_s, link_s = model.columns(near)
        self.weights = (compute_s < link_s).astype(float)  # [phases] exact for this state
        charged = shares(model.weights, model.choices(near), ops.heavy, hiding)
        self._patterns = [Patterns(model.prices, out) for out in (False, True)]
        self._tables: dict[object, PairTable] = {}
        self._seconds: dict[object, np.ndarray | None] = {}
        self.constant_s = 0.0
        self.stars: list[Star] = []
        for op in model.classes.table:
            star = self._star(op, charged[op.index])
            if star is not None and star.arms:
                self.stars.append(star)
            elif star is not None:
                self.constant_s += float(star.seconds.min())
        self._users: dict[int, list[tuple[Star, Arm]]] = defaultdict(list)
        for star in self.stars:
            for arm in star.arms:
                self._users[arm.layout].append((star, arm))
        self._add_traffic()

    @property
    def bound_s(self) -> float:
        """No state of the space takes less."""
        return self.constant_s + sum(star.least for star in self.stars)

    def agree(self, enough_s: float, sweeps: int, report: Callable[[float], None]) -> None:
        """Gives the ops of each layout the same least seconds per placement: their mean."""
        layouts, before = sorted(i for i, users in self._users.items() if len(users) > 1), 0.0
        for sweep in range(sweeps):
            for layout in layouts if sweep % 2 == 0 else reversed(layouts):
                users, mine = self._users[layout], []
                for star, arm in users:
                    others = [one.least for one in star.arms if one is not arm]
                    mine.append(arm.marginals(sum(others, star.seconds)))
                mean = sum(mine) / len(mine)
                for (_, arm), least in zip(users, mine, strict=True):
                    arm.moved += mean - least
                    arm.look()
            if sweep % SWEEPS == SWEEPS - 1:
                bound = self.bound_s
                report(bound)
                if bound >= enough_s or bound < before * (1 + STEADY):
                    return
                before = bound

    def _add_traffic(self) -> None:
        """What fused work moves through memory: at the first op that sees the layout."""
        sizes, hiding = self.model.mesh.sizes, self.model.graph.hiding
        for factor in self.model.graph.factors:
            for layout, phase, per_byte in factor.traffic:
                table, seconds = (
                    self.model.layouts.table[layout],
                    per_byte * self._shown(hiding.number.get(phase)),
                )
                held = [float(table.local_bytes(p, sizes)) for p in self._placements(layout)]
                if self._users[layout]:
                    arm = self._users[layout][0][1]
                    arm.moved += seconds * np.array(held)
                    arm.look()
                else:
                    self.constant_s += seconds * min(held)

    def _shown(self, phase: int | None) -> float:
        """The part of a phase's compute that counts."""
        return 1.0 if phase is None else 1.0 - float(self.weights[phase])

    def _placements(self, layout: int) -> list[Placement]:
        """Those that some list gives a layout."""
        self.ops.cells((layout,))
        return self.ops.domains.placements[layout]

    def _star(self, op: OpClass, share: Share) -> Star | None:
        """What an op is charged; None where it has too many candidates."""
        for i in op.key_layouts:
            self._placements(i)
        found = candidates_of(op, self.ops.domains.placements, self.model.prices)
        if len(found) > MOST_CANDIDATES:
            return None
        seconds = np.array([share.exchanges * one.exchange_s for one in found])
        compute = np.array([one.compute_s for one in found])
        for phase, times in share.compute:
            seconds += times * self._shown(phase) * compute
        slots: dict[int, list[int]] = defaultdict(list)  # of each layout
        for s, slot in enumerate(op.slots):
            slots[slot.layout_index].append(s)
        arms = [self._arm(op, share, found, i, mine) for i, mine in slots.items()]
        return Star(seconds, [arm for arm in arms if arm is not None])

    def _arm(
        self, op: OpClass, share: Share, found: Sequence[Candidate], layout: int,
        slots: Sequence[int],
    ) -> Arm | None:  # fmt: skip
        """One layout of an op, in these slots of it; None where nothing of it is charged."""
        rows: dict[tuple[Made, ...], int] = {}
        of = np.array([
            rows.setdefault(tuple([_made(op, one, s) for s in slots]), len(rows)) for one in found
        ])  # fmt: skip
        total: np.ndarray | None = None
        for k, s in enumerate(slots):
            made = list(dict.fromkeys(key[k] for key in rows))
            at = {one: n for n, one in enumerate(made)}
            seconds = self._moved(op, share, s, made)
            if seconds is not None:
                mine = seconds if len(made) == len(rows) else seconds[[at[key[k]] for key in rows]]
                total = mine if total is None else total + mine
        return None if total is None else Arm(layout, of, total)

    def _moved(self, op: OpClass, share: Share, s: int, made: Sequence[Made]) -> np.ndarray | None:
        """[made, placements] what an op is charged for moving one slot; None: nothing."""
        r, slot = s - len(op.operands), op.slots[s]
        moves = [(phase, times) for at, phase, times in share.moves if at == s and times]
        paid = [
            (p.phase, [p.part(need) for need, _ in made]) for p in share.payments if p.slot == s
        ]
        leaves = share.leaves if r >= 0 else ()
        charged = moves or leaves or any(any(parts) for _, parts in paid)
        layout, stored = slot.layout, self._placements(slot.layout_index)
        free = slot.unused or layout.rematerialised or bool(layout.closed) or not layout.units
        # The entry that is the largest of all, and sums between slices, move in ways of their own.
        summed = any(sums for _, sums in made)
        free = free or (summed and bool(op.picks or self.model.prices.routes.across))
        if free or not charged or len(made) * len(stored) > MOST_PAIRS:
            return None
        domain = self.ops.routes.alike(slot.layout_index)
        table = (slot.geometry, domain, tuple(made), r >= 0, op.at_once)
        key = (table, tuple(moves), str(paid), leaves, len(op.results))
        if key not in self._seconds:
            cells = self._table(table, op, s, made)
            charges = [times * cells.exposed(self._weight(phase)) for phase, times in moves]
            charges += [self._leaf(op, leaf, cells, made) for leaf in leaves]
            out = np.zeros(cells.cell.shape)
            if charges:
                out += np.sum(charges, 0)[cells.cell]
            for phase, parts in paid:
                out += np.array(parts)[:, None] * cells.exposed(self._weight(phase))[cells.cell]
            self._seconds[key] = out if out.any() else None
        return self._seconds[key]

    def _weight(self, phase: Phase) -> float | None:
        """The part that counts of what hides in a phase."""
        return None if phase is None else float(self.weights[phase])

    def _leaf(self, op: OpClass, leaf: Leaf, cells: PairTable, made: Sequence[Made]) -> np.ndarray:
        """[cells] a leaf's own reduction, or its part of the common one, whichever is less."""
        own, weight = op.results[0].layout.itemsize, self._weight(leaf.phase)
        out = leaf.weight * cells.exposed(weight)
        common = leaf.weight * leaf.part * cells.exposed(weight, leaf.sizes.here, own)
        if leaf.hoisted is not None:
            late = cells.exposed(self._weight(leaf.phase_after), leaf.sizes.hoisted, own)
            late = np.where(cells.all_reduce(), leaf.hoisted * leaf.part * late, np.inf)
            common = np.minimum(common, late)
        partial = np.zeros(len(out), bool)
        rows = [n for n, (_, sums) in enumerate(made) if sums or len(op.results) > 1]
        partial[cells.cell[rows]] = True
        return np.where(partial, np.minimum(out, common), out)

    def _table(self, key: object, op: OpClass, s: int, made: Sequence[Made]) -> PairTable:
        """The pairs of one slot."""
        if key in self._tables:
            return self._tables[key]
        slot, prices = op.slots[s], self.model.prices
        stored: list[Placement] = self._placements(slot.layout_index)
        if s >= len(op.operands):
            summed = op.at_once and any(sums for _, sums in made)
            found = PairTable(slot.layout, made, stored, self._patterns[summed], prices)
        else:
            sources, needs = [(p, ()) for p in stored], [p for p, _ in made]
            found = PairTable(slot.layout, sources, needs, self._patterns[False], prices)
            found.cell = np.ascontiguousarray(found.cell.T)
        self._tables[key] = found
        return found


def _made(op: OpClass, one: Candidate, s: int) -> Made:
    """What a candidate needs of an operand, or how it makes a result."""
    r = s - len(op.operands)
    return (one.needs[s], ()) if r < 0 else (one.produced[r], one.sum_axes[r])
