"""Op classes: ops with one rule on the same layouts, which cost the same in every state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from shardwright.analysis.analysis import Analysis
from shardwright.program.ties import Tie
from shardwright.program.types import LITERAL, NO_OP, Op, Program
from shardwright.rules.rule import NOTHING, PASS, PERMUTE, REPLICATE, Rule
from shardwright.spmd.layout import Layout, Placement
from shardwright.spmd.layouts import Layouts


class Slot(NamedTuple):
    """One operand or result: its layout, and which op atom each of its atoms is."""

    layout_index: int
    layout: Layout
    geometry: int  # layouts of the same geometry move alike
    to_op: tuple[int, ...]  # [value atoms] op atom, or NO_ATOM where the op takes the dim apart
    dtype: Any
    unused: bool = False  # a result that nothing needs: it is neither summed nor moved


NO_ATOM = -1  # where an op takes a dim apart in another way than its atoms


@dataclass(eq=False, slots=True)
class OpClass:
    """One class: the rule refined to atoms, the layouts of its slots, and memos of `follow`."""

    index: int
    rule: Rule
    sizes: tuple[int, ...]  # [op atoms]
    kinds: tuple[str, ...]  # [op atoms] factor kinds
    factors: tuple[int, ...]  # [op atoms] factor of the rule
    splittable: tuple[bool, ...]  # [op atoms]
    operands: tuple[Slot, ...]  # literals left out
    results: tuple[Slot, ...]
    example: int  # an op of this class
    trips: int  # of the loop over which partial results are added up; 1: no such loop
    updates_stack: bool  # see `updates_stack`
    # The last atoms stand for two, which an axis splits together: {the atom: (rows, groups)}. They
    # have one entry, and are in no slot.
    pairs: dict[int, tuple[int, int]]
    slots: tuple[Slot, ...] = field(init=False)
    # [op atoms] whether an axis may split it unevenly: compilers pad dots, sums and elementwise
    # ops, not ops that work along a dim (sorts, windows), nor kernels, which run in shard_map.
    pads: tuple[bool, ...] = field(init=False)
    # Atoms that an axis may split while the op runs, instead of a permutation atom: an all-to-all
    # before the op and one after it, and no exchange inside.
    detours: list[int] = field(init=False)
    # Whether partial sums over several dims are reduced in one collective: where lowering makes
    # them explicit (lowering/partial.py). Others a compiler reduces one dim after the other.
    at_once: bool = field(init=False)
    picks: bool = field(init=False)  # the result is an index
    in_results: frozenset[int] = field(init=False)  # op atoms
    # Atoms of a reduction: results that do not have them are partial where they are split.
    summed: frozenset[int] = field(init=False)
    key_layouts: tuple[int, ...] = field(init=False)  # [slots]
    shape: tuple[Any, ...] = field(init=False)  # classes of one shape compute alike
    # Of `follow`: by their claims, and lists of them by the options of each axis, as they occur;
    # classes of one shape share them.
    candidates: dict[Placement, Any] = field(default_factory=dict)
    candidate_lists: dict[tuple[Placement, ...], list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rule, kinds = self.rule, self.kinds
        self.slots = slots = self.operands + self.results
        along = rule.unit != NOTHING and not {PERMUTE, REPLICATE}.isdisjoint(rule.kinds)
        shared = {k for slot in slots for k in _in_shared_dims(slot)}
        self.pads = tuple(
            kind not in (PERMUTE, REPLICATE) and self.factors[k] not in rule.even and not along
            and rule.kernel is None and k not in shared
            for k, kind in enumerate(kinds)
        )  # fmt: skip
        self.detours = [k for k, kind in enumerate(kinds) if kind == PASS and self.splittable[k]]
        onto_constant = adds_entries(rule) and self.operands[0].layout.rematerialised
        self.at_once = sums_at_once(rule) or rule.in_shards or onto_constant
        self.picks = not {"argmax", "argmin"}.isdisjoint(kinds)
        self.in_results = frozenset(k for slot in self.results for k in slot.to_op)
        self.summed = frozenset(
            k for k, kind in enumerate(kinds)
            if kind not in (PASS, PERMUTE, REPLICATE)
            and any(k not in s.to_op for s in self.results if not s.unused)
        )  # fmt: skip
        self.key_layouts = tuple(slot.layout_index for slot in slots)
        self.shape = (
            rule, self.sizes, kinds, self.factors, self.splittable, self.trips,
            self.updates_stack, len(self.operands), tuple(self.pairs),
            tuple([(s.geometry, s.to_op, s.dtype, s.unused) for s in slots]),
        )  # fmt: skip


def sums_at_once(rule: Rule) -> bool:
    """Whether an op is a dot or a plain sum, whose partial sums lowering can make explicit."""
    return (
        not rule.fusible
        and rule.maps
        and rule.unit != NOTHING
        and len(rule.operands) <= 2
        and len(rule.results) == 1
        and all(kind in (PASS, "add") for kind in rule.kinds)
        and "add" in rule.kinds
    )


def stays(op: OpClass) -> bool:
    """Whether an op copies and moves nothing in any state: elementwise work on one layout.

    Whatever that layout's placement is, the op can be computed so, and all of it is in place.
    """
    slot = op.slots[0] if op.slots else None
    if slot is None or not op.rule.fusible or op.rule.even or op.rule.leader is not None:
        return False
    return (
        all((s.layout_index, s.to_op) == (slot.layout_index, slot.to_op) for s in op.slots)
        and slot.layout.pinned is None
        and all(kind == PASS for kind in op.kinds)
        and all(
            k != NO_ATOM and op.splittable[k] and op.pads[k] >= slot.layout.pads(j)
            for j, k in enumerate(slot.to_op)
        )
    )  # fmt: skip


def adds_entries(rule: Rule) -> bool:
    """Whether an op is a scatter-add into its first operand: the gradient of a lookup."""
    return len(rule.operands) == 3 and 0 in rule.linear and "add" in rule.kinds


def updates_stack(program: Program, op: Op) -> bool:
    """Whether an op changes one entry of a stack in each trip of a scan: a cache that is xs and ys.

    Compilers have no update in place for that: the entry leaves one stack and enters another.
    """
    if op.rule.fusible or op.rule.unit != NOTHING or op.operands[:1] in ((), (LITERAL,)):
        return False
    old, new = program.values[op.operands[0]], program.values[op.results[0]]
    return (
        old.shape == new.shape and old.op != NO_OP and program.ops[old.op].tie is Tie.SCAN_XS
        and any(program.ops[u].tie is Tie.SCAN_YS for u in program.uses()[new.index])
    )  # fmt: skip


def _in_shared_dims(slot: Slot) -> list[int]:
    """The op atoms that share their dim of this slot with other atoms."""
    dims = [a.dim for a in slot.layout.atoms]
    return [k for k, d in zip(slot.to_op, dims, strict=True) if dims.count(d) > 1]


class OpClasses(NamedTuple):
    """All classes and the class of each op; region ops themselves have none."""

    table: list[OpClass]
    of_op: np.ndarray  # [ops] class index or NO_CLASS


NO_CLASS = -1  # of loops and branches themselves; of a literal operand


def fold_ops(analysis: Analysis, layouts: Layouts, trips: Mapping[int, int]) -> OpClasses:
    """The op classes of a program; `trips` are those of spmd.sums.find_trips."""
    program, names = analysis.program, analysis.color_table.ops
    given = {*program.outputs, *(v for region in program.regions for v in region.outputs)}
    unused = [not uses and v not in given for v, uses in enumerate(program.uses())]
    start = np.searchsorted(names.owner, np.arange(len(program.ops) + 1)).tolist()
    factor, size = names.dim.tolist(), analysis.color_table.atom_size[names.atom].tolist()
    layout_of = layouts.of_value.tolist()
    rules: dict[Any, int] = {}
    rule_number: dict[int, int] = {}
    found: dict[tuple[int, ...], int] = {}
    table: list[OpClass] = []
    by_shape: dict[object, OpClass] = {}
    of_op = np.full(len(program.ops), NO_CLASS, np.int64)
    for op in program.ops:
        if op.is_region:
            continue
        number = rule_number.get(id(op.rule))
        if number is None:
            key = (op.rule, tuple(v == LITERAL for v in op.operands))
            number = rule_number[id(op.rule)] = rules.setdefault(key, len(rules))
        stacked = updates_stack(program, op)
        signature = (
            number,
            trips.get(op.index, 1),
            int(stacked),
            *[NO_CLASS if v == LITERAL else layout_of[v] for v in op.operands],
            *[~layout_of[v] if unused[v] else layout_of[v] for v in op.results],
        )
        known = found.get(signature)
        if known is None:
            low, high = start[op.index], start[op.index + 1]
            known = found[signature] = len(table)
            made = _op_class(
                known, program, op, layouts, factor[low:high], size[low:high],
                trips.get(op.index, 1), stacked, [unused[v] for v in op.results],
            )  # fmt: skip
            alike = by_shape.setdefault(made.shape, made)
            made.candidates, made.candidate_lists = alike.candidates, alike.candidate_lists
            table.append(made)
        of_op[op.index] = known
    return OpClasses(table, of_op)


def _op_class(
    index: int, program: Program, op: Op, layouts: Layouts, factors: list[int], sizes: list[int],
    trips: int, stacked: bool, unused: list[bool],
) -> OpClass:  # fmt: skip
    """The class of one op; `factors` and `sizes` describe its atoms in order."""
    atoms_of: dict[int, list[int]] = {}
    for atom, f in enumerate(factors):
        atoms_of.setdefault(f, []).append(atom)
    kinds = tuple(op.rule.kinds[f] for f in factors)
    windows = {halo.factor for halo in op.rule.halos}
    splittable = [
        kind != REPLICATE and (kind != PERMUTE or f in windows)
        for kind, f in zip(kinds, factors, strict=True)
    ]

    def slot(value: int, dims: tuple[tuple[int, ...], ...]) -> Slot:
        """The slot of a value; atoms that do not match the op's make those not splittable."""
        number = int(layouts.of_value[value])
        layout = layouts.table[number]
        to_op = [NO_ATOM] * len(layout.atoms)
        for d, dim in enumerate(dims):
            mine = [j for j, a in enumerate(layout.atoms) if a.dim == d]
            theirs = [atom for f in dim for atom in atoms_of.get(f, [])]
            same = len(mine) == len(theirs) and (
                len(mine) == 1
                or all(layout.atoms[j].size == sizes[k] for j, k in zip(mine, theirs, strict=True))
            )
            for j, k in zip(mine, theirs, strict=False):
                if same:
                    to_op[j] = k
            if not same:  # the op cuts the dim elsewhere than its atoms do: it needs it replicated
                for k in theirs:
                    splittable[k] = False
        geometry, dtype = layouts.geometry[number], program.values[value].dtype
        return Slot(number, layout, geometry, tuple(to_op), dtype)

    operands = tuple(
        slot(v, dims) for v, dims in zip(op.operands, op.rule.operands, strict=True) if v != LITERAL
    )
    made = (slot(v, dims) for v, dims in zip(op.results, op.rule.results, strict=True))
    results = tuple(s._replace(unused=no) for s, no in zip(made, unused, strict=True))
    pairs = {}
    if op.rule.travels is not None:
        every, (group, *_) = (atoms_of[f] for f in op.rule.travels)
        both = [(row, group) for row in every if splittable[row] and splittable[group]]
        pairs = {len(sizes) + n: pair for n, pair in enumerate(both)}
    more_factors = [factors[row] for row, _ in pairs.values()]
    return OpClass(
        index, op.rule, (*sizes, *[1] * len(pairs)), (*kinds, *[PASS] * len(pairs)),
        (*factors, *more_factors), (*splittable, *[True] * len(pairs)), operands, results,
        op.index, trips, stacked, pairs,
    )  # fmt: skip
