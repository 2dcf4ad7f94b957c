"""Roles: what the groups of a program are to a strategy, read off the analysis, not off names.

- batch: the leading dim of the data, on most activations, never contracted in a forward dot;
- weight dims: how each forward dot between activations and parameters uses the parameter's
  dims (contracted, free, or one per slice: experts);
- sequence: the largest other dim of activations that no matrix of parameters holds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from shardwright.analysis.analysis import Analysis
from shardwright.program.ties import Tie
from shardwright.program.types import LITERAL, TOP, Op, Program, is_backward
from shardwright.rules.rule import MATRIX

# Another group is data too when it is on this part of the activation bytes that batch is on.
ALSO_DATA = 0.05
# A dim on more than this part of all dots with parameters, and on more than the two that make and
# sum any hidden dim, is the residual stream.
RESIDUAL, HIDDEN_DOTS = 0.6, 2

_ROOT = re.compile(r"^[^.\[]+")


@dataclass(frozen=True, slots=True)
class WeightDot:
    """One forward op between activations and parameters: the groups of the parameter's dims."""

    op: int
    contracted: frozenset[int]
    free: frozenset[int]
    slices: frozenset[int]  # one dot for each: experts, or channels of a depthwise filter
    looked_up: frozenset[int]  # indexed dims of a table

    @property
    def groups(self) -> frozenset[int]:
        """The groups of all dims of the weight."""
        return self.contracted | self.free | self.slices | self.looked_up

    @property
    def experts(self) -> frozenset[int]:
        """Slices that are whole matrices."""
        return self.slices if self.free else frozenset()


@dataclass(frozen=True, slots=True)
class Roles:
    """The groups that strategies talk about, each list best first."""

    batch: tuple[int, ...]
    sequence: tuple[int, ...]
    hidden: tuple[int, ...]  # Megatron: heads, hidden, vocabulary; no two share a matrix
    residual: tuple[int, ...]
    experts: tuple[int, ...]
    weights: tuple[int, ...]  # input values that are parameters (or their optimiser state)
    dots: tuple[WeightDot, ...]
    groups_of: list[list[tuple[int, int]]]  # for each value its (group, dim) pairs


def find_roles(analysis: Analysis) -> Roles:
    """The roles of a program's groups."""
    program = analysis.program
    groups_of = value_groups(analysis)
    batch = _batch(analysis, groups_of)
    data = set(batch or _largest_leading(analysis, groups_of))
    weights = tuple(
        v for v in program.inputs
        if program.values[v].shape and not data & {g for g, _ in groups_of[v]}
        and not _is_integer(program.values[v].dtype)
    )  # fmt: skip
    dots = _weight_dots(analysis, groups_of, set(weights))
    worth = {g.index: g for g in analysis.groups}
    residual = _residual(analysis, dots, worth)
    hidden = _hidden(dots, worth, {*residual, *batch})
    experts = tuple(sorted({g for d in dots for g in d.experts if g in worth} - set(batch)))
    in_matrices = {g for d in dots for g in d.groups}
    sequence = [
        g for g in analysis.groups
        if g.index not in batch and g.index not in in_matrices and g.activation_bytes > 0
    ]  # fmt: skip
    sequence.sort(key=lambda g: (not g.conflict_sets, -g.activation_bytes, g.index))
    return Roles(
        batch, tuple(g.index for g in sequence), hidden, residual, experts, weights, dots, groups_of
    )


def group_roles(analysis: Analysis) -> dict[int, str]:
    """What each group is, in one word: batch, sequence, experts, residual, hidden, or data."""
    roles = find_roles(analysis)
    on_weights = {g for v in roles.weights for g, _ in roles.groups_of[v]}
    out = {g.index: "hidden" for g in analysis.groups}
    for g in roles.sequence:
        meets_itself = bool(analysis.all_groups[g].conflict_sets)
        if meets_itself or g not in on_weights:
            out[g] = "sequence" if meets_itself else "data"
    out |= dict.fromkeys(roles.residual[:1], "residual")
    out |= dict.fromkeys(roles.experts, "experts")
    return out | dict.fromkeys(roles.batch, "batch")


def value_groups(analysis: Analysis) -> list[list[tuple[int, int]]]:
    """For each value its (group, dim) pairs, dims in order."""
    table = analysis.color_table.values
    group = analysis.color_group[table.color]
    out: list[list[tuple[int, int]]] = [[] for _ in analysis.program.values]
    for owner, dim, g in zip(table.owner.tolist(), table.dim.tolist(), group.tolist(), strict=True):
        out[owner].append((g, dim))
    return out


def _batch(analysis: Analysis, groups_of: list[list[tuple[int, int]]]) -> tuple[int, ...]:
    """Groups that count examples: leading dims of inputs, never contracted going forward."""
    program = analysis.program
    worth = {g.index: g for g in analysis.groups}
    leading = _leading(analysis, groups_of)
    twice = _twice_in_values(analysis)
    once = [g for g in leading if twice.isdisjoint(worth[g].conflict_sets)]
    if not once:
        return ()
    made = _made_by_dots(analysis, groups_of)
    first = max(
        once,
        key=lambda g: (
            made.get(g, 0), not worth[g].conflict_sets,
            worth[g].activation_bytes - worth[g].argument_bytes, -g,
        ),
    )  # fmt: skip
    if worth[first].activation_bytes == 0:
        return ()
    roots = {_root(program, v) for v in leading[first]}
    least, looked_up = ALSO_DATA * worth[first].activation_bytes, _looked_up(analysis)
    others = [
        g for g, inputs in leading.items()
        if g != first and worth[g].activation_bytes > least and g not in looked_up
        and any(_root(program, v) in roots for v in inputs)
    ]  # fmt: skip
    others.sort(key=lambda g: (-worth[g].activation_bytes, g))
    return (first, *others)


def _twice_in_values(analysis: Analysis) -> set[int]:
    """Groups of conflict sets in which a value has two dims of one color, and not only an op.

    A write to one place of every example's cache meets the batch twice: as where, and as what.
    """
    return {
        group for group, one in zip(analysis.set_group, analysis.conflict_sets, strict=True)
        if not all(conflict.is_op for conflict in one.conflicts)
    }  # fmt: skip


def _leading(analysis: Analysis, groups_of: list[list[tuple[int, int]]]) -> dict[int, list[int]]:
    """{group that may count examples: the inputs that it leads}

    Behind a dim that a loop goes over (time, microbatches) the next one leads, be it another dim
    or the rest of the same: a batch that is reshaped to [microbatches, examples]. So it does
    behind the positions of a sequence, in data with time first, if all that is computed for
    positions is computed for examples too.
    """
    program, contracted = analysis.program, _contracted(analysis)
    worth = {g.index: g for g in analysis.groups}
    positions = {g for g in contracted & worth.keys() if worth[g].conflict_sets}
    behind = _looped(program, groups_of) | positions
    made = _made_by_dots(analysis, groups_of)
    leading: dict[int, list[int]] = {}
    for v, source in (*((v, v) for v in program.inputs), *_slices(program)):
        rows = [(g, dim) for g, dim in groups_of[v] if g not in behind]
        least = max((made.get(g, 0) for g, _ in groups_of[v] if g in positions), default=0)
        for g, dim in rows:
            first = dim == rows[0][1] and made.get(g, 0) >= least
            if first and g in worth and g not in contracted:
                leading.setdefault(g, []).append(source)
    return leading


def _looped(program: Program, groups_of: list[list[tuple[int, int]]]) -> set[int]:
    """Groups of the dims that loops go over, entry by entry."""
    return {
        g for op in program.ops if op.tie is Tie.SCAN_XS and op.operands[0] != LITERAL
        for g, dim in groups_of[op.operands[0]] if dim == 0
    }  # fmt: skip


def _slices(program: Program) -> list[tuple[int, int]]:
    """(result, input) of each op in a loop that slices an input: a microbatch by its number."""
    return [
        (op.results[0], program.origin(op.operands[0]))
        for op in program.ops
        if op.name == "dynamic_slice" and op.region != TOP and op.operands[0] != LITERAL
        and program.values[program.origin(op.operands[0])].path is not None
    ]  # fmt: skip


def _made_by_dots(analysis: Analysis, groups_of: list[list[tuple[int, int]]]) -> dict[int, int]:
    """For each group the bytes of the results of forward dots that hold it."""
    program, made = analysis.program, dict[int, int]()
    for op in program.ops:
        if op.rule.unit == MATRIX and not is_backward(program, op):
            for v in op.results:
                for g in {g for g, _ in groups_of[v]}:
                    made[g] = made.get(g, 0) + program.values[v].bytes
    return made


def _largest_leading(analysis: Analysis, groups_of: list[list[tuple[int, int]]]) -> tuple[int, ...]:
    """Without a batch (one long sequence, say), the leading dim on most activation bytes."""
    worth = {g.index: g for g in analysis.groups}
    leading = {g for v in analysis.program.inputs for g, dim in groups_of[v] if dim == 0}
    found = sorted(leading & set(worth), key=lambda g: (-worth[g].activation_bytes, g))
    return tuple(found[:1])


def _contracted(analysis: Analysis) -> set[int]:
    """Groups that a forward dot sums over."""
    return _gone_after(analysis, lambda op: op.rule.unit == MATRIX)


def _looked_up(analysis: Analysis) -> set[int]:
    """Groups whose entries a forward look-up picks: words of a table, pages of a cache."""
    return _gone_after(analysis, lambda op: op.name == "gather")


def _gone_after(analysis: Analysis, picks: Callable[[Op], bool]) -> set[int]:
    """Groups that some forward op of this kind has in operands and not in its result."""
    table, found = analysis.color_table.ops, set()
    group = analysis.color_group[table.color]
    for owner, factor, g in zip(
        table.owner.tolist(), table.dim.tolist(), group.tolist(), strict=True
    ):
        op = analysis.program.ops[owner]
        if not picks(op) or is_backward(analysis.program, op):
            continue
        if not any(factor in dim for slot in op.rule.results for dim in slot):
            found.add(g)
    return found


def _weight_dots(
    analysis: Analysis, groups_of: list[list[tuple[int, int]]], weights: set[int]
) -> tuple[WeightDot, ...]:
    """Forward ops that meet parameters with something that is not made of parameters alone."""
    program = analysis.program
    pure = np.zeros(len(program.values) + 1, bool)  # made of parameters alone
    pure[[*weights, *program.consts]] = True
    dots = []
    for op in program.ops:
        own = [v for v in op.operands if v != LITERAL]
        if own and all(pure[v] for v in own) and op.rule.unit != MATRIX:
            pure[list(op.results)] = True
            continue
        if len(op.operands) < 2 or not _meets(op) or is_backward(program, op):
            continue
        pures = [i for i, v in enumerate(op.operands) if v != LITERAL and pure[v]]
        if not pures or all(v == LITERAL or pure[v] for v in op.operands):
            continue
        dot = _weight_dot(op, pures[0], groups_of)
        if dot is not None:
            dots.append(dot)
    return tuple(dots)


def _meets(op: Op) -> bool:
    """Dots, convolutions and look-ups."""
    return op.rule.unit == MATRIX or op.name == "gather"


def _weight_dot(op: Op, operand: int, groups_of: list[list[tuple[int, int]]]) -> WeightDot | None:
    """How an op uses a weight: what it does with the groups of its dims; None: with none."""
    rule = op.rule
    in_result = {f for slot in rule.results for dim in slot for f in dim}
    elsewhere = {
        f for i, slot in enumerate(rule.operands) if i != operand for dim in slot for f in dim
    }
    sides: dict[str, set[int]] = {
        "contracted": set(),
        "free": set(),
        "slices": set(),
        "looked_up": set(),
    }
    for g, dim in groups_of[op.operands[operand]]:
        factors = rule.operands[operand][dim]
        if not factors:
            continue
        if rule.travels and factors[0] == rule.travels[1]:  # the groups of a grouped dot
            side = "slices"
        elif rule.unit != MATRIX:
            side = "free" if factors[0] in in_result else "looked_up"
        elif factors[0] not in in_result:
            side = "contracted"
        else:
            side = "slices" if factors[0] in elsewhere else "free"
        sides[side].add(g)
    if not any(sides.values()):
        return None
    return WeightDot(op.index, *(frozenset(sides[s]) for s in sides))


def _residual(
    analysis: Analysis, dots: tuple[WeightDot, ...], worth: Mapping[int, object]
) -> tuple[int, ...]:
    """Groups on most of the dots with parameters, both as what goes in and what comes out.

    Dots are counted by color: the residual stream is one color through all layers, while each
    layer has a hidden dim of its own.
    """
    table, at = analysis.color_table.ops, {d.op: d for d in dots}
    on_dots = {
        (owner, color)
        for owner, color in zip(table.owner.tolist(), table.color.tolist(), strict=True)
        if owner in at and analysis.color_group[color] in at[owner].groups
    }  # fmt: skip
    count: dict[int, int] = {}
    for color, dots_of_color in Counter(color for _, color in on_dots).items():
        g = int(analysis.color_group[color])
        count[g] = max(count.get(g, 0), dots_of_color)
    both = {g for d in dots for g in d.contracted} & {g for d in dots for g in (d.free | d.slices)}
    most = max(HIDDEN_DOTS, RESIDUAL * len(dots))
    found = (g for g in both if g in worth and count[g] > most)
    return tuple(sorted(found, key=lambda g: (-count[g], g)))


def _hidden(dots: tuple[WeightDot, ...], worth: dict, taken: set[int]) -> tuple[int, ...]:  # type: ignore[type-arg]
    """Dims that one matrix makes and a later one sums over, then vocabularies.

    None share a matrix.
    """
    made = {g: d.op for d in reversed(dots) for g in d.free}  # where first
    summed = {g: d.op for d in dots for g in d.contracted}  # where last
    between = {g for g in made if made[g] < summed.get(g, -1)}
    looked_up = {g for d in dots for g in d.looked_up}
    sliced = {g for d in dots for g in d.experts}

    def order(groups: set[int]) -> list[int]:
        return sorted(
            (g for g in groups if g in worth and g not in taken and g not in sliced),
            key=lambda g: (-worth[g].argument_bytes, -worth[g].size, g),
        )

    chosen: list[int] = []
    ends = (made.keys() | looked_up) - summed.keys()
    for g in (*order(between), *order(ends), *order(summed.keys() - made.keys())):
        if not any(g in d.groups and d.groups & set(chosen) for d in dots):
            chosen.append(g)
    return tuple(chosen)


def _root(program: Program, value: int) -> str:
    """The argument that an input leaf belongs to."""
    found = _ROOT.match(program.values[value].path or "")
    return found.group(0) if found else ""


def _is_integer(dtype: object) -> bool:
    return str(dtype).startswith(("int", "uint", "bool"))
