"""Ops follow: given how its operands and results are stored, how an op is computed.

Each axis splits one of the op's atoms that a stored operand or result already splits over it, or
none: whichever is cheapest in compute plus data movement. Given the placements of its operands and
results, the choice for one op does not depend on other ops, so it is exact; the caller memoises it
per class.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple, Protocol

from shardwright.rules.rule import PASS
from shardwright.rules.rule import PERMUTE as PERMUTES
from shardwright.spmd.division import can_divide, local_size
from shardwright.spmd.layout import REPLICATED, Placement
from shardwright.spmd.moves import ALL_GATHER, ALL_TO_ALL, PERMUTE, Move
from shardwright.spmd.opclass import NO_ATOM, OpClass, Slot
from shardwright.spmd.routes import NOWHERE, Route, Routes, SumAxes
from shardwright.spmd.travel import buffer_bytes, travel_moves, travels, with_buffers


class Prices(Protocol):
    """What compute and movement cost."""

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    routes: Routes
    sends_rows: bool  # there is a ragged all-to-all

    def move_s(self, move: Move) -> float: ...

    def compute_s(self, op: OpClass, local: Sequence[int], slot_bytes: Sequence[int]) -> float: ...

    def scratch_bytes(self, op: OpClass, slot_bytes: Sequence[int]) -> int: ...

    def copied_bytes(self, op: OpClass, slot_bytes: Sequence[int]) -> list[int]: ...

    def buffer_bytes(self, size: int) -> int: ...

    def moved_bytes(self, op: OpClass, slot: int, size: int) -> int: ...


class Choice(NamedTuple):
    """How one op class is computed in one state, and what that costs once."""

    claims: Placement  # [axes] op atom or REPLICATED
    needs: tuple[Placement, ...]  # per operand
    produced: tuple[Placement, ...]  # per result, after its reduction
    partial: tuple[int, ...]  # axes over which results are partial sums
    sum_axes: tuple[SumAxes, ...]  # per result
    operand_moves: tuple[list[Move], ...]
    exchanges: list[Move]  # neighbour exchanges inside the op
    result_moves: tuple[list[Move], ...]
    compute_s: float
    operand_s: tuple[float, ...]
    result_s: tuple[float, ...]
    exchange_s: float
    temp_bytes: int  # scratch, copies of operands, results before they are moved
    copied_bytes: tuple[int, ...]  # of those what may wait: the copies of each operand, as gathered


class Candidate(NamedTuple):
    """An op class computed with these claims: all that does not depend on how slots are stored."""

    claims: Placement
    needs: tuple[Placement, ...]
    produced: tuple[Placement, ...]
    partial: tuple[int, ...]
    sum_axes: tuple[SumAxes, ...]  # [results]; none: it is no partial sum
    slot_bytes: list[int]
    exchanges: list[Move]
    compute_s: float
    exchange_s: float


def choose(op: OpClass, stored: Sequence[Placement], prices: Prices) -> Choice:
    """The cheapest computation of `op` when its slots are stored like this; ties: the first."""
    if op.rule.leader is not None:
        led = candidate(op, claimed(op.slots[op.rule.leader], stored[op.rule.leader]), prices)
        if led is not None:
            return _choice(op, led, stored, prices)
    options = _options(op, stored, prices)
    first = tuple([o[0] for o in options])
    if max(map(len, options)) <= 2 and all([a == REPLICATED or op.kinds[a] == PASS for a in first]):  # noqa: C419
        still = candidate(op, first, prices)
        if still is not None and [*still.needs, *still.produced] == list(stored):
            return _choice(op, still, stored, prices)  # nothing moves: nothing is cheaper
    best, best_s = None, float("inf")
    for one in _candidates(op, options, prices):
        if one.compute_s < best_s:
            seconds = _seconds(op, one, stored, prices, best_s)
            if seconds < best_s - 1e-15:  # a femtosecond: what is less apart is a tie
                best, best_s = one, seconds
    assert best is not None  # an op can always be computed replicated
    return _choice(op, best, stored, prices)


def manual_claims(op: OpClass, prices: Prices) -> dict[int, int]:
    """{axis: op atom or REPLICATED} of a border of a shard_map: as its spec says.

    Where a reshape elsewhere cuts the dim in parts that its axes do not divide, no placement is
    what the spec says: then the array is replicated there.
    """
    number = prices.axis_names.index
    claims = {number(name): REPLICATED for name, _ in op.rule.manual}
    left = list(op.sizes)
    for name, factor in op.rule.manual:
        axis = number(name)
        if factor is None:
            continue
        n = prices.axis_sizes[axis]
        parts = [k for k, f in enumerate(op.factors) if f == factor and left[k] > 1]
        if not parts or left[parts[0]] % n:
            return dict.fromkeys(claims, REPLICATED)
        claims[axis] = parts[0]
        left[parts[0]] //= n
    return claims


def claimed(slot: Slot, placement: Placement) -> Placement:
    """The op's claims when it is computed as a slot is stored."""
    return tuple([slot.to_op[j] if j != REPLICATED else REPLICATED for j in placement])


def _seconds(
    op: OpClass, one: Candidate, stored: Sequence[Placement], prices: Prices, enough: float
) -> float:
    """Seconds of a candidate; some number above `enough` as soon as it is known to cost more."""
    routes, total = prices.routes, one.compute_s + one.exchange_s
    for slot, have, need in zip(op.operands, stored, one.needs):  # noqa: B905
        if have != need:
            total += routes.reshard(slot, have, need).seconds
            if total > enough:
                return total
    for n, want in enumerate(stored[len(op.operands) :]):
        total += result_s(op, n, one, want, routes)
    return total


def result_route(op: OpClass, n: int, one: Candidate, want: Placement, routes: Routes) -> Route:
    """The route of a result from how a candidate makes it to where it is stored."""
    slot, made, sums = op.results[n], one.produced[n], one.sum_axes[n]
    if slot.unused:
        return NOWHERE
    if sums:
        return routes.reduce(op, slot, sums, made, want)
    return routes.reshard(slot, made, want)


def result_s(op: OpClass, n: int, one: Candidate, want: Placement, routes: Routes) -> float:
    """Seconds that a candidate counts for a result that is stored so.

    A sum is amortised over its loop's trips only if it can be reduced after the loop: one that is
    scattered, or moved to another placement, is reduced in every trip.
    """
    seconds = result_route(op, n, one, want, routes).seconds
    return seconds / op.trips if one.sum_axes[n] and one.produced[n] == want else seconds


def _options(op: OpClass, stored: Sequence[Placement], prices: Prices) -> list[list[int]]:
    """For each axis the op atoms that some slot gives it, in the order of the slots; REPLICATED.

    A dim that the op slices, concatenates or reverses cannot stay split: its axis may then split
    another dim while the op runs (`OpClass.detours`).
    """
    options: list[list[int]] = [[] for _ in prices.axis_sizes]
    for slot, placement in zip(op.slots, stored, strict=True):
        for a, j in enumerate(placement):
            if j != REPLICATED:
                found = offered(op, slot, j, prices.axis_sizes[a])
                options[a] += [k for k in found if k not in options[a]]
    options = [[*one, REPLICATED] for one in options]
    for axis, atom in manual_claims(op, prices).items() if op.rule.manual else ():
        options[axis] = [atom]
    return options


def offered(op: OpClass, slot: Slot, atom: int, n: int) -> Sequence[int]:
    """The op atoms that an axis of n devices may split where it splits this atom of a slot."""
    k = slot.to_op[atom]
    if k == NO_ATOM:
        return ()
    if op.splittable[k]:
        return (k, *[pair for pair, (rows, _) in op.pairs.items() if rows == k])
    if op.kinds[k] == PERMUTES:
        return [d for d in op.detours if op.sizes[d] % n == 0]
    return ()


def _needed(op: OpClass, slot: Slot, claims: Placement) -> Placement:
    """The placement of a slot when the op is computed with these claims."""
    atoms = {k: j for j, k in enumerate(slot.to_op) if k != NO_ATOM}
    split = [[atoms[k] for k in _split(op, c) if k in atoms] for c in claims]
    return tuple([found[0] if found else REPLICATED for found in split])


def _split(op: OpClass, claim: int) -> tuple[int, ...]:
    """The atoms that an axis splits with its claim."""
    return op.pairs.get(claim, () if claim == REPLICATED else (claim,))


def _possible(op: OpClass, claims: Sequence[int], axis_sizes: Sequence[int]) -> bool:
    """Whether the op can be split so: atoms divide; of a compound dim only a prefix is split."""
    shards = [1] * len(op.sizes)
    claimed: set[int] = set()
    for n, c in zip(axis_sizes, claims, strict=True):
        for k in _split(op, c):
            if not can_divide(op.sizes[k], shards[k], n, pads=op.pads[k]):
                return False
            shards[k] *= n
            claimed.add(k)
    if any(shards[groups] > n for n, (_, groups) in travels(op, claims, axis_sizes)):
        return False  # what travels over one axis is split over another
    for slot in op.slots:
        atoms = slot.layout.atoms
        for j, k in enumerate(slot.to_op):
            if k in claimed and k != NO_ATOM:
                for i in slot.to_op[j - atoms[j].place : j]:
                    if shards[i] < op.sizes[i]:
                        return False
    for halo in op.rule.halos:  # shards are even, and a window reaches no further than the next one
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
    return tuple([a for a, c in enumerate(claims) if c != REPLICATED and op.factors[c] == factor])


def local_sizes(
    op: OpClass, claims: Sequence[int], axis_sizes: Sequence[int], *, held: bool = False
) -> list[int]:
    """[atoms] what one device computes of each, or holds, when the axes split these.

    Of rows that travel it computes its share, of which of its groups they may be.
    """
    shards = [1] * len(op.sizes)
    for n, c in zip(axis_sizes, claims, strict=True):
        for k in _split(op, c)[: None if held else 1]:
            shards[k] *= n
    return [local_size(size, p) for size, p in zip(op.sizes, shards, strict=True)]


def _candidates(op: OpClass, options: list[list[int]], prices: Prices) -> list[Candidate]:
    """Every possible candidate whose axes take one of their options; memoised."""
    key = tuple([tuple(o) for o in options])
    known = op.candidate_lists.get(key)
    if known is None:
        every = [candidate(op, claims, prices) for claims in product(*options)]
        known = op.candidate_lists[key] = [one for one in every if one is not None]
    return known


def candidate(op: OpClass, claims: Placement, prices: Prices) -> Candidate | None:
    """The candidate with these claims, memoised; None when the op cannot be split so."""
    if claims in op.candidates:
        return op.candidates[claims]
    one = None
    sends = bool(travels(op, claims, prices.axis_sizes))
    if _possible(op, claims, prices.axis_sizes) and (not sends or prices.sends_rows):
        needs = tuple([_needed(op, slot, claims) for slot in op.operands])
        produced = tuple([_needed(op, slot, claims) for slot in op.results])
        partial = tuple([a for a, c in enumerate(claims) if c in op.summed])
        slot_bytes = [
            prices.routes.bytes(slot, p)
            for slot, p in zip(op.slots, (*needs, *produced), strict=True)
        ]
        local = local_sizes(op, claims, prices.axis_sizes)
        exchanges = _exchanges(op, claims, slot_bytes, prices)
        used = with_buffers(op, claims, slot_bytes, prices.axis_sizes)
        compute_s = 0.0 if op.rule.collectives else prices.compute_s(op, local, used)
        one = Candidate(
            claims, needs, produced, partial,
            tuple([_sum_axes(op, claims, partial, s) for s in op.results]), slot_bytes, exchanges,
            compute_s, sum(prices.move_s(m) for m in exchanges),
        )  # fmt: skip
    op.candidates[claims] = one
    return one


def _choice(op: OpClass, one: Candidate, stored: Sequence[Placement], prices: Prices) -> Choice:
    """The chosen candidate with its movements."""
    count, routes = len(op.operands), prices.routes
    into = [routes.reshard(s, have, need) for s, have, need in zip(op.operands, stored, one.needs)]  # noqa: B905
    out = [result_route(op, n, one, want, routes) for n, want in enumerate(stored[count:])]
    copied = prices.copied_bytes(op, one.slot_bytes)
    temp = prices.scratch_bytes(op, one.slot_bytes)
    for i, (size, route) in enumerate(zip(one.slot_bytes, (*into, *out), strict=True)):
        if route.moves and (route.travels or not op.rule.fusible):
            moved, *turned = _copies(size, route)
            copied[i] += prices.moved_bytes(op, i, moved)
            temp += sum([prices.moved_bytes(op, i, copy) for copy in turned])
    temp += sum(copied)
    temp += buffer_bytes(op, one.claims, one.slot_bytes, prices.axis_sizes)
    if one.exchanges and op.rule.halos:  # rows of the neighbours, and the operand with them
        rows = [move.bytes for move in one.exchanges]
        temp += sum(map(prices.buffer_bytes, [*rows, one.slot_bytes[0] + sum(rows)]))
    return Choice(
        one.claims, one.needs, one.produced, one.partial, one.sum_axes,
        tuple([r.moves for r in into]), one.exchanges, tuple([r.moves for r in out]),
        one.compute_s, tuple([r.seconds for r in into]), tuple([r.seconds for r in out]),
        one.exchange_s, temp, tuple(copied[:count]),
    )  # fmt: skip


def _copies(size: int, route: Route) -> list[int]:
    """[bytes] of the buffers of a moved slot: the largest that its route makes.

    That is the slot as the op has it, or what is gathered and split again in between. Shards that
    are gathered in another order than that of the dims need a second buffer for the transpose.
    """
    gathered = [m.bytes for m in route.moves if m.kind in (ALL_GATHER, ALL_TO_ALL)]
    on_the_way = [m.bytes for m in route.moves[:-1] if m.kind == ALL_GATHER]
    return [max([size, *on_the_way]), *([max(gathered)] if route.reordered else [])]


def _sum_axes(op: OpClass, claims: Placement, partial: tuple[int, ...], result: Slot) -> SumAxes:
    """The axes of each reduction of a result, one after the other; none where it is complete."""
    if result.unused:
        return ()
    partial = tuple([a for a in partial if claims[a] not in result.to_op])
    if op.at_once or len(partial) <= 1:
        return (partial,) if partial else ()
    by_atom: dict[int, list[int]] = {}
    for a in partial:
        by_atom.setdefault(claims[a], []).append(a)
    return tuple(tuple(axes) for axes in by_atom.values())


def _exchanges(
    op: OpClass, claims: Placement, slot_bytes: Sequence[int], prices: Prices
) -> list[Move]:
    """What an op itself moves: a collective, halos of windows, shards of shard_maps.

    Windows need rows of the first operand from both neighbours, dim by dim.
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
    return moves + travel_moves(op, claims, slot_bytes, axis_sizes)


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
        if claims[axes[0]] == REPLICATED:
            moves += [Move(ALL_GATHER, tuple(sorted(axes)), slot_bytes[1], ())] if slot else []
        elif axes != sorted(axes):
            moves.append(Move(PERMUTE, tuple(sorted(axes)), slot_bytes[slot], ()))
    return moves
