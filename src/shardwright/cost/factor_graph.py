"""The factor graph: a step's seconds as a sum of small tables, each over a few layouts.

In the words of the literature this is a cost function network (a weighted constraint problem).
Its variables are the layouts of a program, the values of a variable are its placements, and each
*factor* is a cost function of the few layouts in its *scope*: what the op classes on these layouts
cost to compute, what moves between them, and the traffic of fused work. A factor is a table with a
cell for every combination of placements of its scope; a cell is priced when it is first looked at.

Evaluating states, bounding them, responding to them and reporting them all read these tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import mul
from threading import Lock
from typing import NamedTuple

import numpy as np

from shardwright.cost.cells import Cell, Cells
from shardwright.cost.hiding import Hiding
from shardwright.cost.prices import DevicePrices
from shardwright.spmd.decisions import Placement
from shardwright.spmd.follow import Choice, choose
from shardwright.spmd.layout import REPLICATED
from shardwright.spmd.layouts import Layouts
from shardwright.spmd.moves import Move
from shardwright.spmd.opclass import OpClass, OpClasses
from shardwright.spmd.sums import reduced_once
from shardwright.spmd.weights import DeferredReduction, SharedTransfer, Weights

NOT_PRICED = -1  # the row of a cell that nobody has looked at


@dataclass(frozen=True, slots=True)
class Factor:
    """One summand of a step: it depends on how the layouts in its scope are stored alone."""

    scope: tuple[int, ...]  # layouts, ascending
    ops: tuple[OpClass, ...] = ()
    shared: tuple[SharedTransfer, ...] = ()
    deferred: tuple[DeferredReduction, ...] = ()
    # (layout, phase, seconds per byte of one device's part)
    traffic: tuple[tuple[int, int, float], ...] = ()

    def __str__(self) -> str:
        terms = [str(op.rule) for op in self.ops]
        terms += [f"shared transfer for {len(t.uses)} uses" for t in self.shared]
        terms += [f"deferred reduction of {len(d.leaves)} results" for d in self.deferred]
        terms += [f"traffic of {layout}" for layout in sorted({t[0] for t in self.traffic})]
        return f"{list(self.scope)}: {'; '.join(terms)}"

    @property
    def classes(self) -> list[int]:
        """The op classes that are chosen here, some to know what a shared movement costs."""
        found = [op.index for op in self.ops]
        found += [c for transfer in self.shared for c in _sharing(transfer)]
        return found + [c for reduction in self.deferred for c in _sharing(reduction)]


class _Priced(NamedTuple):
    """An op class in one state of its layouts, times its runs per step."""

    choice: Choice
    compute_s: float
    link_s: float
    columns: tuple[tuple[int, float], ...]  # (place among its factor's columns, seconds)
    temp_bytes: int


class _Rows(dict[Cell, int]):
    """The row of each cell that was priced."""

    def __missing__(self, cell: Cell) -> int:
        return NOT_PRICED


def _sharing(term: SharedTransfer | DeferredReduction) -> list[int]:
    """The op classes whose choices decide what a shared movement costs."""
    if isinstance(term, SharedTransfer):
        return [c for c, _ in term.uses]
    return [*[c for c, _ in term.leaves], *term.hoisted_past]


def find_factors(
    classes: Sequence[OpClass], weights: Weights, traffic_s: np.ndarray
) -> list[Factor]:
    """All factors, one for each scope; the traffic of a layout goes to the first that sees it."""
    scopes: dict[tuple[int, ...], dict[str, list[object]]] = {}

    def add(layouts: Collection[int], kind: str, term: object) -> None:
        scope = tuple(sorted(set(layouts)))
        scopes.setdefault(scope, {}).setdefault(kind, []).append(term)

    def seen(term: SharedTransfer | DeferredReduction) -> list[int]:
        return [i for c in _sharing(term) for i in classes[c].key_layouts]

    for op in classes:
        add(op.key_layouts, "ops", op)
    for transfer in weights.shared:
        add(seen(transfer), "shared", transfer)
    for reduction in weights.deferred:
        add(seen(reduction), "deferred", reduction)
    first: dict[int, tuple[int, ...]] = {}
    for scope in scopes:
        for layout in scope:
            first.setdefault(layout, scope)
    for layout, phase in np.argwhere(traffic_s).tolist():
        scope = first.get(layout, (layout,))
        add(scope, "traffic", (layout, phase, float(traffic_s[layout, phase])))
    return [
        Factor(scope, **{kind: tuple(terms) for kind, terms in kinds.items()})  # type: ignore[arg-type]
        for scope, kinds in scopes.items()
    ]


def _picked(
    table: np.ndarray, rows: np.ndarray, factors: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """[B, N] table[rows[:, factors], columns], in half the time."""
    at = rows.take(factors, axis=1)
    at *= table.shape[1]
    at += columns
    return table.ravel().take(at)


class FactorGraph:
    """The factors of a program on a mesh, with the cells that were looked at."""

    def __init__(
        self, layouts: Layouts, classes: OpClasses, weights: Weights, prices: DevicePrices, *,
        traffic_s: np.ndarray, entering: Collection[int], hiding: Hiding,
    ) -> None:  # fmt: skip
        """The factors, with no cell priced yet.

        `traffic_s` is [layouts, phases] seconds per byte. `entering` are op classes of ties: one
        that moves a value copies it for its region.
        """
        self.factors = find_factors(classes.table, weights, traffic_s)
        self._layouts, self._classes = layouts, classes.table
        self._prices, self._entering = prices, frozenset(entering)
        self.hiding = hiding
        self._weights = (  # by op class
            weights.compute.sum(1).tolist(), weights.exchanges.tolist(),
            [w.tolist() for w in weights.operands], [w.tolist() for w in weights.results],
        )  # fmt: skip
        # Op classes of one shape choose alike, whatever their layouts are called.
        by_shape: dict[object, dict[tuple[Placement, ...], Choice]] = {}
        self._choices = [by_shape.setdefault(op.shape, {}) for op in classes.table]
        self._priced: list[dict[tuple[Placement, ...], _Priced]] = [{} for _ in classes.table]
        self.place_of = [(0, 0)] * len(classes.table)  # op class -> (factor, place in it)
        self._operands_of = [0] * len(classes.table)  # op class -> column of its first operand
        width = 1
        for f, factor in enumerate(self.factors):
            column = len(factor.ops)
            for i, op in enumerate(factor.ops):
                self.place_of[op.index], self._operands_of[op.index] = (f, i), column
                column += len(op.operands)
            width = max(width, column)
        self.columns = [self._columns(factor) for factor in self.factors]  # [F] of Hiding
        places = sorted((c, f, i) for f, cs in enumerate(self.columns) for i, c in enumerate(cs))
        at = np.array(places, np.int64).reshape(-1, 3)  # [N] (column, factor, place in its row)
        self._column_at = at[:, 1].copy(), at[:, 2].copy()
        self._column_start = np.unique(at[:, 0], return_index=True)[1]
        self._columns_of = np.full(  # [F, places] padded by a column that nothing counts in
            (len(self.factors), max(map(len, self.columns), default=0)), hiding.columns
        )
        for c, f, i in places:
            self._columns_of[f, i] = c
        self._seen = [  # [F] {op class: where in the scope its layouts stand}
            {c: tuple(map(f.scope.index, classes.table[c].key_layouts)) for c in f.classes}
            for f in self.factors
        ]
        scopes = [factor.scope for factor in self.factors]
        self.cells = Cells(layouts.table, scopes, len(prices.axis_sizes))
        self._row_of = _Rows()
        self._growing = Lock()  # threads may share a graph
        self.choices: list[tuple[Choice, ...]] = []  # [rows] of the factor's op classes
        self.compute_s, self.link_s = np.zeros(256), np.zeros(256)  # [rows]
        self.column_s = np.zeros((256, max(map(len, self.columns), default=0)))  # [rows, places]
        # [rows, columns] Choice.temp_bytes of each op class, then copied_bytes of their operands.
        self.temp_bytes = np.zeros((256, width))

    def __str__(self) -> str:
        head = f"{len(self._layouts.table)} variables, {len(self.factors)} factors"
        return "\n".join([head, *[f"  {factor}" for factor in self.factors]])

    def _columns(self, factor: Factor) -> list[int]:
        """The columns in which a factor counts, ascending."""
        hiding, found = self.hiding, set[int | None]()
        for op in factor.ops:
            found |= {c for c, _ in hiding.compute[op.index]}
            found |= {c for _, c, _ in hiding.links[op.index]}
        found |= {hiding.compute_column.get(phase) for _, phase, _ in factor.traffic}
        phases = [one.phase for one in factor.shared]
        phases += [phase for one in factor.deferred for phase in (one.phase, one.phase_after)]
        found |= set(map(hiding.link_column.get, phases))
        return sorted(c for c in found if c is not None)

    def temp_columns(
        self, classes: Iterable[int], operands: Iterable[tuple[int, int]] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """([N] factor, [N] column of temp_bytes) of op classes, then of operands.

        Of NO_CLASS anything: nobody looks at it.
        """
        places = [self.place_of[c] if c >= 0 else (0, 0) for c in classes]
        places += [(self.place_of[c][0], self._operands_of[c] + slot) for c, slot in operands]
        return (
            np.array([f for f, _ in places], np.int64), np.array([i for _, i in places], np.int64)
        )  # fmt: skip

    def rows(self, placements: np.ndarray) -> np.ndarray:
        """[B, F] the row of every factor, given the placements [B, S, A] of all layouts."""
        if not self.factors or not len(placements):
            return np.zeros((len(placements), len(self.factors)), np.int64)
        rows = np.repeat(self._rows_of(placements[0])[None], len(placements), 0)
        state, layouts = np.nonzero((placements != placements[0]).any(2))
        if len(state):  # states that differ little from the first are soon done
            changed = placements[state, layouts]
            state, factor, found = self.rows_changed(placements[0], state, layouts, changed)
            rows[state, factor] = found
        return rows

    def _rows_of(self, placements: np.ndarray) -> np.ndarray:
        """[F] the row of every factor, given the placements [S, A] of all layouts."""
        cells = self.cells.of_state(placements)
        rows = np.array(list(map(self._row_of.__getitem__, cells.tolist())), np.int64)
        rows[list(self.cells.wide)] = NOT_PRICED
        for f in np.flatnonzero(rows == NOT_PRICED).tolist():
            stored = placements[list(self.factors[f].scope)]
            rows[f] = self._row(self.cells.exact(f, int(cells[f]), stored), f, stored)
        return rows

    def rows_changed(
        self, placements: np.ndarray, change: np.ndarray, layouts: np.ndarray, changed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """([N] change, [N] factor, [N] its row) of every factor that sees a changed layout.

        Change number change[k] stores layouts[k] of the `placements` [S, A] as in changed[k] [A];
        those of several layouts follow one another.
        """
        change_of, factor, cells = self.cells.changed(placements, change, layouts, changed)
        rows = np.array(list(map(self._row_of.__getitem__, cells.tolist())), np.int64)
        wide = np.isin(factor, list(self.cells.wide))
        new = np.flatnonzero(~wide & (rows == NOT_PRICED))
        fresh = new[np.unique(cells[new], return_index=True)[1]]  # each cell once
        stored, start = placements.copy(), np.searchsorted(change, np.arange(change.max() + 2))
        now = slice(0, 0)  # of the changes that are in `stored`
        for n in np.sort(np.concatenate([fresh, np.flatnonzero(wide)])).tolist():
            f, c = int(factor[n]), int(change_of[n])
            if now != (mine := slice(start[c], start[c + 1])):
                stored[layouts[now]] = placements[layouts[now]]
                stored[layouts[mine]] = changed[mine]
                now = mine
            at_factor = stored[list(self.factors[f].scope)]
            rows[n] = self._row(self.cells.exact(f, int(cells[n]), at_factor), f, at_factor)
        rows[new] = list(map(self._row_of.__getitem__, cells[new].tolist()))
        return change_of, factor, rows

    def column_sums(self, rows: np.ndarray) -> np.ndarray:
        """[B, columns] the columns of the whole step, given the rows [B, F] of all factors."""
        if not self.hiding.columns:
            return np.zeros((len(rows), 0))
        values = _picked(self.column_s, rows, *self._column_at)
        return np.add.reduceat(values, self._column_start, axis=1)

    def seen_s(self, rows: np.ndarray) -> np.ndarray:
        """[S] compute and links of all factors that see each layout, given their rows [F]."""
        seconds = (self.compute_s[rows] + self.link_s[rows])[self.cells.seeing]
        seen_by = self.cells.seen_by
        return np.bincount(np.repeat(np.arange(len(seen_by)), seen_by), seconds, len(seen_by))

    def column_changes(
        self, change: np.ndarray, factor: np.ndarray, more: np.ndarray, count: int
    ) -> np.ndarray:
        """[count, columns] what the columns of a step gain, given [N, places] of these factors."""
        width = self.hiding.columns + 1
        at = change[:, None] * width + self._columns_of[factor]
        total = np.bincount(at.ravel(), more.ravel(), count * width)
        return total.reshape(count, width)[:, :-1]

    def temps(self, rows: np.ndarray, factors: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """[B, N] bytes in columns of temp_bytes (see temp_columns), given the rows [B, F]."""
        return _picked(self.temp_bytes, rows, factors, columns)

    def seconds(
        self, factor: int, cells: list[Cell], placements: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """([R] seconds of one factor, [R, its columns]) in these cells.

        The cells are those of the placements [R, scope, A]; the seconds are compute and links, one
        after the other.
        """
        rows = [self._row(cell, factor, at) for cell, at in zip(cells, placements, strict=True)]
        seconds: np.ndarray = self.compute_s[rows] + self.link_s[rows]
        return seconds, self.column_s[rows, : len(self.columns[factor])]

    def _row(self, cell: Cell, factor: int, at: np.ndarray) -> int:
        """The row of a cell, priced when it is looked at for the first time."""
        row = self._row_of[cell]
        if row == NOT_PRICED:
            with self._growing:
                row = self._row_of[cell]
                if row == NOT_PRICED:
                    row = self._row_of[cell] = self._price(factor, at)
        return row

    def _price(self, factor: int, at: np.ndarray) -> int:
        """A new row: all that the factor's scope decides when it is stored like this."""
        one, columns = self.factors[factor], [0.0] * len(self.columns[factor])
        stored, hiding = list(map(tuple, at.tolist())), self.hiding
        priced = [self._price_op(factor, op, stored) for op in one.ops]
        compute = link = 0.0
        for part in priced:
            compute += part.compute_s
            link += part.link_s
            for column, seconds in part.columns:
                columns[column] += seconds
        moved = [self._shared(factor, transfer, stored) for transfer in one.shared]
        moved += [self._deferred(factor, reduction, stored) for reduction in one.deferred]
        places = self.columns[factor]
        for phase, seconds, hideable in moved:
            link += seconds
            if (at_link := hiding.link_column.get(phase)) is not None:
                columns[places.index(at_link)] += hideable
        sizes = self._prices.axis_sizes
        for layout, phase, per_byte in one.traffic:
            placement = stored[one.scope.index(layout)]
            seconds = self._layouts.table[layout].local_bytes(placement, sizes) * per_byte
            compute += seconds
            if (at_compute := hiding.compute_column.get(phase)) is not None:
                columns[places.index(at_compute)] += seconds
        temps = [part.temp_bytes for part in priced]
        temps += [size for part in priced for size in part.choice.copied_bytes]
        row = len(self.choices)
        self.choices.append(tuple([part.choice for part in priced]))
        if row >= len(self.compute_s):
            self.compute_s = np.concatenate([self.compute_s, np.zeros(row)])
            self.link_s = np.concatenate([self.link_s, np.zeros(row)])
            more = np.zeros((row, self.column_s.shape[1]))
            self.column_s = np.concatenate([self.column_s, more])
            more = np.zeros((row, self.temp_bytes.shape[1]))
            self.temp_bytes = np.concatenate([self.temp_bytes, more])
        self.compute_s[row], self.link_s[row] = compute, link
        self.column_s[row, : len(columns)] = columns
        self.temp_bytes[row, : len(temps)] = temps
        return row

    def _price_op(self, factor: int, op: OpClass, stored: Sequence[Placement]) -> _Priced:
        """What an op class of a factor costs when the scope is stored so, worked out once."""
        placed = tuple([stored[i] for i in self._seen[factor][op.index]])
        known = self._priced[op.index].get(placed)
        if known is not None:
            return known
        choice, hiding, columns = self._choose(op, placed), self.hiding, self.columns[factor]
        compute_w, exchange_w, operand_w, result_w = self._weights
        parts = [
            (columns.index(column), times * choice.compute_s)
            for column, times in hiding.compute[op.index]
        ]
        link = exchange_w[op.index] * choice.exchange_s
        for slot, column, times in hiding.links[op.index]:
            if moves := (choice.operand_moves + choice.result_moves)[slot]:
                parts.append((columns.index(column), times * self._prices.hideable_s(moves)))
                alone_s = (choice.operand_s + choice.result_s)[slot]
                link += times * (self._prices.slack_s(moves) - alone_s)
        link += sum(map(mul, operand_w[op.index], choice.operand_s))
        link += sum(map(mul, result_w[op.index], choice.result_s))
        known = self._priced[op.index][placed] = _Priced(
            choice, compute_w[op.index] * choice.compute_s, link, tuple(parts),
            self._copies(op, choice, placed),
        )  # fmt: skip
        return known

    def _choose(self, op: OpClass, placed: tuple[Placement, ...]) -> Choice:
        """How a class is computed when its slots are stored like this, worked out once."""
        known = self._choices[op.index].get(placed)
        if known is None:
            known = self._choices[op.index][placed] = choose(op, placed, self._prices)
        return known

    def _chosen(self, factor: int, op_class: int, stored: Sequence[Placement]) -> Choice:
        """The same for a class that a factor sees, given how its scope is stored."""
        placed = tuple([stored[i] for i in self._seen[factor][op_class]])
        return self._choose(self._classes[op_class], placed)

    def _shared(
        self, factor: int, transfer: SharedTransfer, stored: Sequence[Placement]
    ) -> tuple[int, float, float]:
        """(phase, seconds, hideable ones): to each way in which it is needed a value moves once."""
        have = stored[self.factors[factor].scope.index(transfer.layout)]
        if all([atom == REPLICATED for atom in have]):  # noqa: C419  (slices are free)
            return transfer.phase, 0.0, 0.0
        moved: dict[Placement, list[Move]] = {}
        for c, slot in transfer.uses:
            choice = self._chosen(factor, c, stored)
            moved[choice.needs[slot]] = choice.operand_moves[slot]
        return self._moved(
            transfer.phase, transfer.weight, [m for ms in moved.values() for m in ms]
        )

    def _moved(self, phase: int, weight: float, moves: Sequence[Move]) -> tuple[int, float, float]:
        """(phase, seconds, hideable ones) of moves that happen so often."""
        has_slack = phase in self.hiding.number
        seconds = self._prices.slack_s(moves) if has_slack else sum(map(self._prices.move_s, moves))
        return phase, weight * seconds, weight * self._prices.hideable_s(moves)

    def _deferred(
        self, factor: int, one: DeferredReduction, stored: Sequence[Placement]
    ) -> tuple[int, float, float]:
        """(phase, seconds, hideable ones): equal reductions happen once, after the additions."""
        parts = [
            (self._classes[c], self._chosen(factor, c, stored), order) for c, order in one.leaves
        ]
        past = [self._chosen(factor, c, stored) for c in one.hoisted_past]
        once = reduced_once(parts, past, one.sizes, self._prices)
        moves = once.moves if once else [m for _, c, _ in parts for m in c.result_moves[0]]
        phase, weight = one.phase, one.weight
        if once and once.after_loop:
            phase, weight = one.phase_after, one.after_loop
        return self._moved(phase, weight, moves)

    def _copies(self, op: OpClass, choice: Choice, placed: Sequence[Placement]) -> int:
        """Bytes that exist besides operands and results while an op, or what a tie enters, runs."""
        if op.index not in self._entering:
            return choice.temp_bytes
        if not (any(choice.operand_moves) or any(choice.result_moves)):
            return 0
        results = zip(op.results, placed[len(op.operands) :], strict=True)
        sizes = [self._prices.routes.bytes(slot, placement) for slot, placement in results]
        return sum(map(self._prices.buffer_bytes, sizes))
