"""Partial sums of a decided program: which are written out as data, and which reduced later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwright.lowering.actions import PartialSums, Scatters, Unreduced
from shardwright.lowering.specs import Way
from shardwright.program.types import LITERAL, Op
from shardwright.spmd.ir import Partitioned, reduction_of
from shardwright.spmd.moves import REDUCE_SCATTER
from shardwright.spmd.opclass import Slot, adds_entries
from shardwright.spmd.sums import Leaf, find_sums, path


@dataclass(frozen=True, slots=True)
class Deferred:
    """What is reduced later than where it is made."""

    values: set[int] = field(default_factory=set)  # that are unreduced where they are read
    loops: dict[int, Leaf] = field(default_factory=dict)  # {init tie: a term of what it adds up}


def find_deferred(given: Partitioned) -> Deferred:
    """The sums that are reduced after their additions, or after their loops."""
    program, deferred = given.program, Deferred()
    for one in find_sums(program):
        once = reduction_of(given, one)
        if once is None:
            continue
        if one.hoist and once.after_loop:
            deferred.values.update(one.in_loop(program))
            first = one.leaves[0]._replace(order=one.hoist.orders[0])
            deferred.loops[one.hoist.loop.init] = first
        else:
            for leaf in one.leaves:
                deferred.values.update(path(program, leaf.op, one.value))
    return deferred


def partial_sums(given: Partitioned, op: Op, way: Way, deferred: Deferred) -> PartialSums | None:
    """The explicit form of an op's partial sums; None where the plain one is reduced as planned.

    A compiler reduces right behind the op, and one dim after the other.
    """
    op_class, choice = given.computed(op.index)
    if not choice.partial or not op_class.at_once or op.rule.in_shards:
        return None
    several = len(choice.partial) > 1  # over one axis a compiler scatters by itself
    scatter = scatters(given, op, 0) if several else ()
    atoms = {choice.claims[a] for a in choice.partial}
    if not (op.results[0] in deferred.values or len(atoms) > 1 or scatter):
        return None
    slots = iter(op_class.operands)
    split = [choice.claims[a] for a in choice.partial]
    dims = tuple(
        (None,) * len(split) if v == LITERAL else _dims_of(next(slots), split) for v in op.operands
    )
    names, sizes = zip(*(given.axes[a] for a in choice.partial), strict=True)
    return PartialSums(Unreduced(names, sizes, way, scatter), dims, adds_entries(op.rule))


def _dims_of(slot: Slot, atoms: Sequence[int]) -> tuple[int | None, ...]:
    """The dims of an operand that these atoms of its op are on; None where it has no such dim."""
    on = {k: atom.dim for k, atom in zip(slot.to_op, slot.layout.atoms, strict=True)}
    return tuple(on.get(k) for k in atoms)


def scatters(given: Partitioned, op: Op, result: int) -> Scatters:
    """(axes, dim) of the reduce-scatters of a result's sums, as `Unreduced` has them."""
    op_class, choice = given.computed(op.index)
    atoms, found = op_class.results[result].layout.atoms, []
    for m in choice.result_moves[result]:
        if m.kind == REDUCE_SCATTER:
            on = [atoms[m.after[a]] for a in m.axes]
            axes = sorted(zip([atom.place for atom in on], m.axes, strict=True))
            found.append((tuple(given.axes[a][0] for _, a in axes), on[0].dim))
    return tuple(found)
