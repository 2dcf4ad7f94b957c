"""Ops follow: given how its operands and results are stored, how an op is computed.

Each axis goes to one of the op's atoms that a stored operand or result already gives it, or to
none: whichever is cheapest in compute plus data movement. Given the values, ops are
independent, so this choice is exact; the caller memoises it per class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import NamedTuple, Protocol

from shardwright.rules.rule import PASS, REPLICATE
from shardwright.rules.rule import PERMUTE as PERMUTES
from shardwright.spmd.division import can_divide, local_size
from shardwright.spmd.layout import WHOLE, Placement
from shardwright.spmd.moves import (
    ALL_GATHER,
    ALL_TO_ALL,
    PERMUTE,
    SLICE,
    Move,
    best_of_parts,
    gathers_minor,
    reductions,
    reshard,
)
from shardwright.spmd.opclass import NO_ATOM, OpClass, Slot


class Prices(Protocol):
    """What compute and movement cost."""

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    routes: Routes

    def move_s(self, move: Move) -> float: ...

    def compute_s(self, op: OpClass, local: Sequence[int], slot_bytes: Sequence[int]) -> float: ...

    def scratch_bytes(self, op: OpClass, slot_bytes: Sequence[int]) -> int: ...

    def buffer_bytes(self, size: int) -> int: ...


class Route(NamedTuple):
    """The way of one layout from one placement to another."""

    moves: list[Move]
    seconds: float
    reordered: bool = False  # parts are put together in another order than they are kept in

    @property
    def travels(self) -> bool:
        """Whether it is sent: what is only sliced, elementwise work takes as it is."""
        return any(m.kind != SLICE for m in self.moves)


class Routes:
    """Routes and local sizes, each worked out once."""

    def __init__(
        self, axis_sizes: tuple[int, ...], move_s: Callable[[Move], float], *,
        scatters_at_once: bool, gathers_major: bool,
    ) -> None:  # fmt: skip
        self._axis_sizes, self._move_s, self._gathers_major = axis_sizes, move_s, gathers_major
        self._scatters_at_once = scatters_at_once  # over several axes in one collective
        self._known: dict[object, Route] = {}
        self._bytes: dict[tuple[int, Placement], int] = {}

    def bytes(self, slot: Slot, placement: Placement) -> int:
        """Bytes of one device's part of a slot."""
        key = (slot.geometry, placement)
        size = self._bytes.get(key)
        if size is None:
            size = self._bytes[key] = slot.layout.local_bytes(placement, self._axis_sizes)
        return size

    def reshard(self, slot: Slot, have: Placement, need: Placement) -> Route:
        """From stored to needed."""
        if have == need:
            return _NOWHERE
        key = (slot.geometry, have, need)
        route = self._known.get(key)
        if route is None:
            moves = reshard(slot.layout, have, need, self._axis_sizes)
            twice = self._gathers_major and gathers_minor(
                slot.layout, have, moves, self._axis_sizes
            )
            seconds = sum(self._move_s(m) for m in moves)
            route = self._known[key] = Route(moves, seconds, twice)
        return route

    def reduce(self, op: OpClass, slot: Slot, way: _Way, made: Placement, want: Placement) -> Route:
        """From partial results to stored."""
        picks = op.operands[0].layout.itemsize if op.picks else 0
        key = (slot.geometry, made, way.rounds, want, picks, op.at_once)
        route = self._known.get(key)
        if route is None:
            given = (slot.layout, made, way.rounds, want, self._axis_sizes)
            ways = [best_of_parts(*given, picks)] if picks else reductions(
                *given, at_once=self._scatters_at_once, written_out=op.at_once
            )  # fmt: skip
            routes = [Route(moves, sum(self._move_s(m) for m in moves)) for moves in ways]
            route = self._known[key] = min(routes, key=lambda one: one.seconds)
        return route


_NOWHERE = Route([], 0.0)


class Choice(NamedTuple):
    """How one op class is computed in one state, and what that costs once."""

    claims: Placement  # [axes] op atom or WHOLE
    needs: tuple[Placement, ...]  # per operand
    produced: tuple[Placement, ...]  # per result, after its reduction
    partial: tuple[int, ...]  # axes over which results are partial sums
    operand_moves: tuple[list[Move], ...]
    exchanges: list[Move]  # neighbour exchanges inside the op
    result_moves: tuple[list[Move], ...]
    compute_s: float
    operand_s: tuple[float, ...]
    result_s: tuple[float, ...]
    exchange_s: float
    temp_bytes: int  # scratch, moved copies of operands, results before they are moved

    @property
    def total_s(self) -> float:
        return self.compute_s + sum(self.operand_s) + sum(self.result_s) + self.exchange_s


class _Way(NamedTuple):
    """One way to compute an op class: everything that does not depend on how slots are stored."""

    claims: Placement
    needs: tuple[Placement, ...]
    produced: tuple[Placement, ...]
    partial: tuple[int, ...]
    rounds: tuple[tuple[int, ...], ...]
    slot_bytes: list[int]
    exchanges: list[Move]
    compute_s: float
    exchange_s: float


def choose(op: OpClass, stored: Sequence[Placement], prices: Prices) -> Choice:
    """The cheapest way to compute `op` when its slots are stored like this; ties keep order."""
    if op.rule.leader is not None:
        way = _way(op, _claimed(op.slots[op.rule.leader], stored[op.rule.leader]), prices)
        if way is not None:
            return _choice(op, way, stored, prices)
    options = _options(op, stored, prices.axis_sizes)
    fixed = _manual_claims(op, prices)
    for axis, atom in fixed.items():
        options[axis] = [atom] if atom != WHOLE else []
    first = tuple([o[0] if o else WHOLE for o in options])
    if max(map(len, options)) <= 1 and all([a == WHOLE or op.kinds[a] == PASS for a in first]):  # noqa: C419
        way = _way(op, first, prices)
        if way is not None and [*way.needs, *way.produced] == list(stored):
            return _choice(op, way, stored, prices)  # everything is where it is needed
    best, best_s = None, float("inf")
    for way in _ways(op, options, prices):
        if way.compute_s < best_s and all(way.claims[a] == atom for a, atom in fixed.items()):
            seconds = _seconds(op, way, stored, prices, best_s)
            if seconds < best_s - 1e-15:
                best, best_s = way, seconds
    assert best is not None  # splitting nothing is always possible
    return _choice(op, best, stored, prices)


def _manual_claims(op: OpClass, prices: Prices) -> dict[int, int]:
    """{axis: op atom or WHOLE} of a border of a shard_map: as its spec says.

    Where a reshape elsewhere cuts the dim in parts that its axes do not divide, no placement is
    what the spec says: then the array is whole there.
    """
    number = prices.axis_names.index
    claims = {number(name): WHOLE for name, _ in op.rule.manual}
    left = list(op.sizes)
    for name, factor in op.rule.manual:
        axis = number(name)
        if factor is None:
            continue
        n = prices.axis_sizes[axis]
        parts = [k for k, f in enumerate(op.factors) if f == factor and left[k] > 1]
        if not parts or left[parts[0]] % n:
            return dict.fromkeys(claims, WHOLE)
        claims[axis] = parts[0]
        left[parts[0]] //= n
    return claims


def _claimed(slot: Slot, placement: Placement) -> Placement:
    """The op's claims when it is computed as a slot is stored."""
    return tuple([slot.to_op[j] if j != WHOLE else WHOLE for j in placement])


def _seconds(
    op: OpClass, way: _Way, stored: Sequence[Placement], prices: Prices, enough: float
) -> float:
    """Seconds of one way, or anything above `enough` once it is clear that it costs more."""
    routes, total = prices.routes, way.compute_s + way.exchange_s
    for slot, have, need in zip(op.operands, stored, way.needs):  # noqa: B905
        if have != need:
            total += routes.reshard(slot, have, need).seconds
            if total > enough:
                return total
    for slot, made, want in zip(op.results, way.produced, stored[len(op.operands) :], strict=True):
        if way.partial:
            once = op.rounds if made == want else 1  # what is scattered cannot wait for the end
            total += routes.reduce(op, slot, way, made, want).seconds / once
        elif made != want:
            total += routes.reshard(slot, made, want).seconds
    return total


def _options(
    op: OpClass, stored: Sequence[Placement], axis_sizes: Sequence[int]
) -> list[list[int]]:
    """For each axis the op atoms that some slot gives it, in the order of the slots.

    A dim that is cut, joined or turned around cannot stay split: then another may take its axis.
    """
    options: list[list[int]] = [[] for _ in axis_sizes]
    for slot, placement in zip(op.slots, stored, strict=True):
        for a, j in enumerate(placement):
            atom = slot.to_op[j] if j != WHOLE else NO_ATOM
            if atom == NO_ATOM:
                continue
            if op.splittable[atom]:
                found = [atom]
            elif op.kinds[atom] == PERMUTES:
                found = [k for k in op.detours if op.sizes[k] % axis_sizes[a] == 0]
            else:
                continue
            options[a] += [k for k in found if k not in options[a]]
    return options


def _needed(slot: Slot, claims: Placement) -> Placement:
    known = slot.needed.get(claims)
    if known is None:
        known = slot.needed[claims] = tuple(
            slot.to_op.index(c) if c != WHOLE and c in slot.to_op else WHOLE for c in claims
        )
    return known


def _possible(op: OpClass, claims: Sequence[int], axis_sizes: Sequence[int]) -> bool:
    """Whether the atoms divide and only prefixes of compound dims are split."""
    parts = [1] * len(op.sizes)
    for n, c in zip(axis_sizes, claims, strict=True):
        if c != WHOLE:
            if not can_divide(op.sizes[c], parts[c], n, pads=op.pads[c]):
                return False
            parts[c] *= n
    claimed = set(claims)
    for slot in op.slots:
        atoms = slot.layout.atoms
        for j, k in enumerate(slot.to_op):
            if k in claimed and k != NO_ATOM:
                for i in slot.to_op[j - atoms[j].place : j]:
                    if parts[i] < op.sizes[i]:
                        return False
    for halo in op.rule.halos:  # parts are even, and no window reaches further than the next one
        shares = prod(axis_sizes[a] for a in split_by(op, claims, halo.factor))
        if shares > 1 and (
            op.rule.sizes[halo.factor] % shares
            or halo.rows % shares
            or halo.rows // shares < max(halo.before, halo.after)
        ):
            return False
    return True


def split_by(op: OpClass, claims: Sequence[int], factor: int) -> tuple[int, ...]:
    """The axes that split a factor of the rule."""
    return tuple([a for a, c in enumerate(claims) if c != WHOLE and op.factors[c] == factor])


def local_sizes(
    sizes: Sequence[int], claims: Sequence[int], axis_sizes: Sequence[int]
) -> list[int]:
    """[atoms] what one device holds of each when the axes split these."""
    parts = [1] * len(sizes)
    for n, c in zip(axis_sizes, claims, strict=True):
        if c != WHOLE:
            parts[c] *= n
    return [local_size(size, p) for size, p in zip(sizes, parts, strict=True)]


def _ways(op: OpClass, options: list[list[int]], prices: Prices) -> list[_Way]:
    """All ways that give each axis to one of its options or to none, worked out once."""
    key = tuple([tuple(o) for o in options])
    known = op.ways_with.get(key)
    if known is None:
        every = [_way(op, claims, prices) for claims in product(*[[*o, WHOLE] for o in options])]
        known = op.ways_with[key] = [way for way in every if way is not None]
    return known


def _way(op: OpClass, claims: Placement, prices: Prices) -> _Way | None:
    """The way with these claims, worked out once; None when it is not possible."""
    if claims in op.ways:
        return op.ways[claims]
    way = None
    if _possible(op, claims, prices.axis_sizes):
        needs = tuple([_needed(slot, claims) for slot in op.operands])
        produced = tuple([_needed(slot, claims) for slot in op.results])
        partial = tuple([
            a for a, c in enumerate(claims)
            if c != WHOLE and op.kinds[c] not in (PASS, PERMUTES, REPLICATE)
            and c not in op.in_results
        ])  # fmt: skip
        slot_bytes = [
            prices.routes.bytes(slot, p)
            for slot, p in zip(op.slots, (*needs, *produced), strict=True)
        ]
        local = local_sizes(op.sizes, claims, prices.axis_sizes)
        exchanges = _exchanges(op, claims, slot_bytes, prices)
        compute_s = 0.0 if op.rule.collectives else prices.compute_s(op, local, slot_bytes)
        way = _Way(
            claims, needs, produced, partial,
            _rounds(op, claims, partial) if partial else (), slot_bytes, exchanges,
            compute_s, sum(prices.move_s(m) for m in exchanges),
        )  # fmt: skip
    op.ways[claims] = way
    return way


def _choice(op: OpClass, way: _Way, stored: Sequence[Placement], prices: Prices) -> Choice:
    """The chosen way with its movements."""
    count, routes = len(op.operands), prices.routes
    into = [routes.reshard(s, have, need) for s, have, need in zip(op.operands, stored, way.needs)]  # noqa: B905
    results = list(zip(op.results, way.produced, stored[count:], strict=True))
    if way.partial:
        out = [routes.reduce(op, s, way, made, want) for s, made, want in results]
    else:
        out = [routes.reshard(s, made, want) for s, made, want in results]
    temp = prices.scratch_bytes(op, way.slot_bytes)
    for size, route in zip(way.slot_bytes, (*into, *out), strict=True):
        if route.travels or (route.moves and not op.rule.fusible):
            temp += sum(map(prices.buffer_bytes, _copies(size, route)))
    return Choice(
        way.claims, way.needs, way.produced, way.partial,
        tuple([r.moves for r in into]), way.exchanges, tuple([r.moves for r in out]),
        way.compute_s, tuple([r.seconds for r in into]), tuple([r.seconds for r in out]),
        way.exchange_s, temp,
    )  # fmt: skip


def _copies(size: int, route: Route) -> list[int]:
    """[bytes] of a slot as the op has it, or of what is gathered on the way and split again.

    What is put together in another order than it is kept in exists once more.
    """
    gathered = [m.bytes for m in route.moves if m.kind in (ALL_GATHER, ALL_TO_ALL)]
    on_the_way = [m.bytes for m in route.moves[:-1] if m.kind == ALL_GATHER]
    return [max([size, *on_the_way]), *([max(gathered)] if route.reordered else [])]


def _rounds(
    op: OpClass, claims: Placement, partial: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """The axes of each reduction, one after the other."""
    if op.at_once or len(partial) <= 1:
        return (partial,)
    by_atom: dict[int, list[int]] = {}
    for a in partial:
        by_atom.setdefault(claims[a], []).append(a)
    return tuple(tuple(axes) for axes in by_atom.values())


def _exchanges(
    op: OpClass, claims: Placement, slot_bytes: Sequence[int], prices: Prices
) -> list[Move]:
    """What an op itself moves: a collective, rows at the edges of windows, shards of shard_maps.

    Windows need rows of the first operand from both sides, of each dim in turn.
    """
    moves, axis_sizes = _written(op, slot_bytes, prices), prices.axis_sizes
    moves += _border_moves(op, claims, slot_bytes, prices) if op.rule.manual else []
    size = slot_bytes[0] if op.rule.halos else 0
    for halo in op.rule.halos:
        axes = split_by(op, claims, halo.factor)
        if axes:
            rows = halo.rows // prod(axis_sizes[a] for a in axes)
            reach = [n for n in (halo.before, halo.after) if n]
            moves += [Move(PERMUTE, axes, size * n // rows, ()) for n in reach]
            size += size * sum(reach) // rows
    return moves


def _written(op: OpClass, slot_bytes: Sequence[int], prices: Prices) -> list[Move]:
    """The collectives that the user wrote."""
    moves = []
    for kind, names, slot in op.rule.collectives:
        several = zip(prices.axis_names, prices.axis_sizes, strict=True)
        axes = tuple(a for a, (name, n) in enumerate(several) if n > 1 and name in names)
        if axes:
            moves.append(Move(kind, axes, slot_bytes[slot], ()))
    return moves


def _border_moves(
    op: OpClass, claims: Placement, slot_bytes: Sequence[int], prices: Prices
) -> list[Move]:
    """What a border of a shard_map moves where its spec is no placement of ours.

    Parts split over axes in another order than the mesh's change places; what leaves in parts
    that no placement describes is gathered.
    """
    moves, by_factor = [], dict[int, list[int]]()
    for name, factor in op.rule.manual:
        axis = prices.axis_names.index(name)
        if factor is not None:
            by_factor.setdefault(factor, []).append(axis)
    leaves = [f for dim in op.rule.results[0] for f in dim]
    for factor, axes in by_factor.items():
        slot = int(factor in leaves)
        if claims[axes[0]] == WHOLE:
            moves += [Move(ALL_GATHER, tuple(sorted(axes)), slot_bytes[1], ())] if slot else []
        elif axes != sorted(axes):
            moves.append(Move(PERMUTE, tuple(sorted(axes)), slot_bytes[slot], ()))
    return moves
