"""Program -> Analysis: the space of decisions, found without a hint from the user."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.analysis.colors import Colors, NameTable, find_colors
from shardwright.analysis.conflicts import Conflict, ConflictSet, find_conflicts, pair_conflicts
from shardwright.analysis.groups import group_colors, group_sets
from shardwright.analysis.labels import fits, labels_of, patterns, starred, unique_labels
from shardwright.analysis.names import batch_ops, name_nodes
from shardwright.errors import ShardwrightError
from shardwright.program.ties import Tie
from shardwright.program.types import LITERAL, Program
from shardwright.rules.rule import REPLICATE

# A group whose values hold less than this fraction of the bytes of the largest group's is not worth
# a decision. On 4 x 4 v5e chips, with 0 in its place the search finds the same step for six
# programs of tests/search (experts, moe_1l, moe_forward_2l, vit_b512, gnn_2r, unet_forward_b64) and
# proves one fewer; with 1e-3 the U-Net gets 0.02% slower, with 1e-2 0.4%.
TINY = 1e-4


@dataclass(frozen=True, slots=True)
class Group:
    """Colors that share one decision."""

    index: int
    label: str
    dims: tuple[str, ...]  # argument dims it has, as patterns
    sizes: tuple[int, ...]  # sizes of its dims, largest share of bytes first
    colors: tuple[int, ...]
    argument_bytes: int
    activation_bytes: int
    conflict_sets: tuple[int, ...]  # groups of conflict sets: one resolution bit each
    set_aside: str | None  # why it is not decided, or None

    @property
    def size(self) -> int:
        """The size of most of its bytes' dims."""
        return self.sizes[0]


@dataclass(frozen=True, slots=True)
class Analysis:
    """Colors, conflicts and groups of one program."""

    program: Program
    color_table: Colors
    color_group: np.ndarray  # [colors]
    conflicts: list[Conflict]
    conflict_sets: list[ConflictSet]
    set_group: list[int]  # per conflict set: its group (resolution bit)
    all_groups: list[Group]

    @property
    def colors(self) -> range:
        """The numbers of all colors."""
        return range(self.color_table.count)

    @property
    def groups(self) -> list[Group]:
        """The groups worth deciding."""
        return [g for g in self.all_groups if g.set_aside is None]

    def group(self, label: str) -> Group:
        """The group with this label."""
        for g in self.all_groups:
            if g.label == label:
                return g
        raise KeyError(label)

    def __str__(self) -> str:
        from shardwright.analysis.table import format_analysis

        return format_analysis(self)


def analyze_program(
    program: Program, labels: Mapping[str, str] | None = None, *, axis_sizes: Sequence[int] = ()
) -> Analysis:
    """The analysis of a program; `labels` maps a user's label to an argument dim pattern.

    Given the sizes of the mesh axes, groups that none of them can split are set aside too.
    """
    batches = batch_ops(program)
    colors = find_colors(name_nodes(program, batches))
    color_group = group_colors(program, batches, colors)
    conflicts = find_conflicts(colors)
    sets = pair_conflicts(program, colors, conflicts)
    set_group = group_sets(program, sets, color_group)
    groups = _describe(program, colors, color_group, sets, set_group, labels or {})
    if axis_sizes:
        inner = _inner_groups(program, colors, color_group)
        groups = [
            replace(g, set_aside="indivisible")
            if g.set_aside is None and not _may_split(axis_sizes, g.sizes, g.index in inner)
            else g
            for g in groups
        ]
    return Analysis(program, colors, color_group, conflicts, sets, set_group, groups)


def _may_split(axis_sizes: Sequence[int], sizes: Sequence[int], inner: bool) -> bool:
    """Whether some axis divides some dim; inside a program shards may be uneven."""
    return any(1 < n <= size and (inner or size % n == 0) for n in axis_sizes for size in sizes)


def _inner_groups(program: Program, colors: Colors, color_group: np.ndarray) -> set[int]:
    """The groups with a value that is neither an argument, a constant nor a result."""
    border = np.zeros(len(program.values), bool)
    border[[v for v in (*program.inputs, *program.consts, *program.outputs) if v != LITERAL]] = True
    inside = ~border[colors.values.owner]
    return set(color_group[colors.values.color[inside]].tolist())


def _describe(
    program: Program, colors: Colors, color_group: np.ndarray, sets: list[ConflictSet],
    set_group: list[int], labels: Mapping[str, str],
) -> list[Group]:  # fmt: skip
    """One Group per group number, with sizes, bytes and labels."""
    count = int(color_group.max(initial=-1)) + 1
    row_group = color_group[colors.values.color]
    row_bytes = np.array([v.bytes for v in program.values], np.int64)[colors.values.owner]
    argument, activation = _held_bytes(program, colors.values, row_group, row_bytes, count)
    sizes = _sizes(colors, row_group, row_bytes, count)
    names, dims = _names(program, colors.values, row_group, count, labels)
    members: list[list[int]] = [[] for _ in range(count)]
    for c, g in enumerate(color_group.tolist()):
        members[g].append(c)
    bits: list[dict[int, None]] = [{} for _ in range(count)]
    for s, k in zip(sets, set_group, strict=True):
        bits[int(color_group[s.color])][k] = None
    looped, total = _loop_groups(program, colors, color_group), argument + activation
    limit = TINY * int(total.max(initial=0))
    return [
        Group(
            g, names[g], dims[g], sizes[g], tuple(members[g]), int(argument[g]),
            int(activation[g]), tuple(bits[g]),
            "loop" if g in looped else "tiny" if total[g] < limit else None,
        )
        for g in range(count)
    ]  # fmt: skip


def _held_bytes(
    program: Program, table: NameTable, row_group: np.ndarray, row_bytes: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """[groups] the bytes of the arguments (and constants) and of the other values of each."""
    # A value with two names of one group counts once.
    _, once = np.unique(table.owner * max(count, 1) + row_group, return_index=True)
    is_argument = np.isin(table.owner[once], [*program.inputs, *program.consts])
    held = row_bytes[once]
    argument, activation = np.zeros((2, count), np.int64)
    np.add.at(argument, row_group[once], np.where(is_argument, held, 0))
    np.add.at(activation, row_group[once], np.where(is_argument, 0, held))
    return argument, activation


def _sizes(
    colors: Colors, row_group: np.ndarray, row_bytes: np.ndarray, count: int
) -> list[tuple[int, ...]]:
    """[groups] the sizes of each one's dims, that of most bytes first."""
    size_bytes: list[dict[int, int]] = [{} for _ in range(count)]
    for g, size, held in zip(
        row_group.tolist(), colors.atom_size[colors.values.atom].tolist(), row_bytes.tolist(),
        strict=True,
    ):  # fmt: skip
        size_bytes[g][size] = size_bytes[g].get(size, 0) + held
    return [tuple(sorted(own, key=lambda s: (-own[s], -s))) for own in size_bytes]


def _names(
    program: Program, table: NameTable, row_group: np.ndarray, count: int, labels: Mapping[str, str]
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Per group its label and the argument dims it holds, as patterns.

    The user's label comes first, then the dim of its largest argument, then the line of its first
    value.
    """
    dims: list[list[tuple[str, int]]] = [[] for _ in range(count)]
    largest: list[tuple[int, str, int]] = [(-1, "", 0)] * count
    for row in np.flatnonzero(np.isin(table.owner, program.inputs)).tolist():
        value, dim, g = program.values[table.owner[row]], int(table.dim[row]), int(row_group[row])
        path = value.path or ""
        dims[g].append((path, dim))
        elements = math.prod(value.shape)  # not bytes: a wide moment is no larger than its weight
        if elements > largest[g][0]:
            largest[g] = (elements, path, dim)
    forms = [patterns(d) for d in dims]
    first_row = dict(
        zip(*(x.tolist() for x in np.unique(row_group, return_index=True)), strict=True)
    )
    held = [g for g in range(count) if largest[g][0] >= 0]
    by_argument = labels_of([forms[g][starred(*largest[g][1:])] for g in held])
    label_of = dict(zip(held, by_argument, strict=True))

    def by_line(group: int) -> str:
        row = first_row.get(group)
        if row is None:  # a factor of an op that none of its values has
            return "inside an op"
        return f"{program.where(int(table.owner[row]))}[{int(table.dim[row])}]"

    names = [label_of.get(g) or by_line(g) for g in range(count)]
    for wanted, pattern in labels.items():
        for g in range(count):
            if any(fits(f"{path}[{dim}]", pattern) for path, dim in dims[g]):
                names[g] = wanted
    return unique_labels(names), [tuple(form.values()) for form in forms]


def check_labels(analysis: Analysis, labels: Mapping[str, str]) -> None:
    """Raises ShardwrightError for a user's label that names no group: its pattern fits no dim."""
    for wanted, pattern in labels.items():
        if all(g.label.split("#")[0] != wanted for g in analysis.all_groups):
            raise ShardwrightError(
                f"the label {wanted!r} fits no dim that can be split: {pattern}",
                try_=", ".join(g.dims[0] for g in analysis.all_groups if g.dims) or "no label",
            )


def _loop_groups(program: Program, colors: Colors, color_group: np.ndarray) -> set[int]:
    """The groups of dims that scans step over: split, each trip would gather the whole stack."""
    table, found = colors.ops, set()
    stacked = [op.index for op in program.ops if op.tie in (Tie.SCAN_XS, Tie.SCAN_YS)]
    for row in np.flatnonzero(np.isin(table.owner, stacked)).tolist():
        rule = program.ops[table.owner[row]].rule
        if rule.kinds[table.dim[row]] == REPLICATE:
            found.add(int(color_group[table.color[row]]))
    return found
