"""Tactics: known strategies as functions from a program's roles to decisions, and constraints.

A strategy appends entries to the list of its axis, or says why it does not apply. It finds its
dims through `roles`, so it works on any model. Constraints (`Pin`, `Replicate`, `Limit`) bind
whatever is searched. A schedule is a list of them, applied in order:

    [DataParallel("data"), Search(axes=["model"])]      # as PartIR's users write it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.search.constraints import Limit, Pin, Replicate, Search, Tactic
from shardwright.search.roles import Roles
from shardwright.spmd.decisions import EVERYTHING, UPDATES, AxisList, Entry


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """Why a strategy does not apply to a program on a mesh."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Context:
    """What a strategy may look at."""

    model: CostModel
    roles: Roles
    _weight_bytes: dict[tuple[int, int], dict[frozenset[int], int]] = field(default_factory=dict)

    def axis(self, name: str) -> int:
        """The number of a mesh axis."""
        names = self.model.mesh.names
        if name not in names:
            raise ShardwrightError(
                f"a tactic names an unknown mesh axis {name!r}",
                mesh=self.model.mesh, try_=" or ".join(map(repr, names)),
            )  # fmt: skip
        return names.index(name)

    def weight_bytes(self, n: int, scope: int) -> dict[frozenset[int], int]:
        """{groups of the dims that n divides: bytes of the parameters with such dims}"""
        if (n, scope) not in self._weight_bytes:
            program, layouts = self.model.analysis.program, self.model.layouts
            worth = {g.index for g in self.model.analysis.groups}
            found: dict[frozenset[int], int] = {}
            for v in self.roles.weights:
                if scope == UPDATES and not layouts.table[int(layouts.of_value[v])].update:
                    continue
                shape = program.values[v].shape
                dims = self.roles.groups_of[v]
                mine = frozenset([g for g, dim in dims if shape[dim] % n == 0 and g in worth])
                if mine:
                    found[mine] = found.get(mine, 0) + program.values[v].bytes
            self._weight_bytes[n, scope] = found
        return self._weight_bytes[n, scope]

    def splits(self, group: int, axis: str) -> bool:
        """Whether an axis divides the main size of a group."""
        return self.model.analysis.all_groups[group].size % self.model.mesh.shape[axis] == 0

    def label(self, group: int) -> str:
        """The label of a group."""
        return self.model.analysis.all_groups[group].label


@dataclass(frozen=True, slots=True)
class Strategy(Tactic):
    """A tactic that appends to the list of an axis, or of several alike."""

    axis: Any

    def entries(self, context: Context, listed: AxisList) -> AxisList | NotApplicable:
        """What to append to what the axis already lists; every strategy has its own."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.axis})"


def _fresh(groups: Sequence[int], listed: AxisList, scope: int = EVERYTHING) -> AxisList:
    """Entries for the groups that an axis does not list yet."""
    have = {e.group for e in listed}
    return tuple(Entry(g, 0, scope) for g in groups if g not in have)


def _chosen(
    groups: Sequence[int], context: Context, axis: str, listed: AxisList, what: str
) -> AxisList | NotApplicable:
    """Entries for the groups that the axis divides."""
    if not groups:
        return NotApplicable(f"no {what} found")
    fit = [g for g in groups if context.splits(g, axis)]
    if not fit:
        sizes = ", ".join(
            f"{context.label(g)} of {context.model.analysis.all_groups[g].size}" for g in groups
        )
        return NotApplicable(f"{what} {sizes} not divisible by {context.model.mesh.shape[axis]}")
    return _fresh(fit, listed)


class DataParallel(Strategy):
    """Examples are split; parameters are whole."""

    __slots__ = ()

    def entries(self, context: Context, listed: AxisList) -> AxisList | NotApplicable:
        return _chosen(context.roles.batch, context, self.axis, listed, "batch dim")


class FSDP(Strategy):
    """Examples are split, and so are parameters, gradients and moments: ZeRO-3."""

    __slots__ = ()

    def entries(self, context: Context, listed: AxisList) -> AxisList | NotApplicable:
        return _sharded_data_parallel(context, self.axis, listed, EVERYTHING)


@dataclass(frozen=True, slots=True)
class ZeRO(Tactic):
    """Examples are split; of stages 1 and 2 gradients and moments too; of 3 parameters as well."""

    stage: int
    axis: Any

    def __post_init__(self) -> None:
        if self.stage not in (1, 2, 3):
            raise ShardwrightError(
                f"ZeRO has no stage {self.stage!r}", try_="ZeRO(1 | 2 | 3, axis)"
            )

    def entries(self, context: Context, listed: AxisList) -> AxisList | NotApplicable:
        scope = EVERYTHING if self.stage == 3 else UPDATES
        return _sharded_data_parallel(context, self.axis, listed, scope)

    def __str__(self) -> str:
        return f"ZeRO-{self.stage}({self.axis})"


def _sharded_data_parallel(
    context: Context, axis: str, listed: AxisList, scope: int
) -> AxisList | NotApplicable:
    """The batch, and groups that split the weights; of scope UPDATES for ZeRO."""
    data = _chosen(context.roles.batch, context, axis, listed, "batch dim")
    if isinstance(data, NotApplicable):
        return data
    cover = cover_weights(context, axis, (*listed, *data), scope)
    if not cover and scope == UPDATES and not _optimiser_state(context):
        return NotApplicable("no optimiser state among the arguments")
    if not cover:
        return NotApplicable(
            f"no parameter has a dim divisible by {context.model.mesh.shape[axis]}"
        )
    return (*data, *cover)


def _optimiser_state(context: Context) -> bool:
    """Whether an argument never feeds a contraction: moments, say."""
    layouts = context.model.layouts
    return any(layouts.table[int(layouts.of_value[v])].update for v in context.roles.weights)


def cover_weights(context: Context, axis: str, listed: AxisList, scope: int) -> AxisList:
    """Groups that, greedily, split the most parameter bytes that nothing listed splits yet."""
    have = {e.group for e in listed if e.scope <= scope}
    every = context.weight_bytes(context.model.mesh.shape[axis], scope)
    left = [(size, mine) for mine, size in every.items() if not mine & have]
    chosen: list[int] = []
    while left:
        gain: dict[int, int] = {}
        for size, mine in left:
            for g in mine:
                gain[g] = gain.get(g, 0) + size
        best = max(gain, key=lambda g: (gain[g], -g))
        chosen.append(best)
        left = [(size, mine) for size, mine in left if best not in mine]
    return _fresh(chosen, listed, scope=scope)


class Megatron(Strategy):
    """Heads, hidden dims and vocabularies are split; the residual stream is whole."""

    __slots__ = ()

    def entries(self, context: Context, listed: AxisList) -> AxisList | NotApplicable:
        return _chosen(context.roles.hidden, context, self.axis, listed, "hidden dim")


class SequenceParallel(Strategy):
    """Behind Megatron on the same axis: what holds no heads or hidden dims is split by sequence."""

    __slots__ = ()

    def entries(self, context: Context, listed: AxisList) -> AxisList | NotApplicable:
        return _chosen(context.roles.sequence[:1], context, self.axis, listed, "sequence dim")


@dataclass(frozen=True, slots=True)
class ContextParallel(Tactic):
    """The sequence is split: by "query" keys are gathered, by "key" softmax is partial."""

    axis: Any
    by: Literal["query", "key"] = "query"

    def __post_init__(self) -> None:
        if self.by not in ("query", "key"):
            raise ShardwrightError(
                f"ContextParallel splits by query or by key, not by {self.by!r}",
                try_=f'ContextParallel({self.axis!r}, "query")',
            )

    def entries(self, context: Context, listed: AxisList) -> AxisList | NotApplicable:
        found = _chosen(context.roles.sequence[:1], context, self.axis, listed, "sequence dim")
        if isinstance(found, NotApplicable) or not found:
            return found
        group = context.model.analysis.all_groups[found[0].group]
        if not group.conflict_sets:
            return (
                found if self.by == "query" else NotApplicable("the sequence meets itself nowhere")
            )
        bits = query_bits(context, group.index) if self.by == "query" else None
        if bits is None:
            bits = query_bits(context, group.index) ^ ((1 << min(len(group.conflict_sets), 31)) - 1)
        return (Entry(group.index, bits),)

    def __str__(self) -> str:
        return f"ContextParallel({self.axis}, {self.by})"


def query_bits(context: Context, group: int) -> int:
    """The resolution that splits queries: the side that a forward dot does not sum over.

    In scores [.., s, t] x values [t, ..] the dot sums over t, so of the two dims of the scores
    the one that stays is the queries'.
    """
    analysis = context.model.analysis
    bits = 0
    for i, bit in enumerate(analysis.all_groups[group].conflict_sets):
        for conflict_set, k in zip(analysis.conflict_sets, analysis.set_group, strict=True):
            if k != bit:
                continue
            side = _kept_side(context, conflict_set)
            bits |= (side or 0) << min(i, 30)
            break
    return bits


def _kept_side(context: Context, conflict_set: object) -> int | None:
    """0 when resolution 0 keeps the dims that forward dots do not sum over, 1 when 1 does."""
    program = context.model.analysis.program
    uses = program.uses()
    for conflict, flip in zip(conflict_set.conflicts, conflict_set.flips, strict=True):  # type: ignore[attr-defined]
        if conflict.is_op:
            continue
        for u in uses[conflict.owner]:
            op = program.ops[u]
            if op.transposed or op.rule.unit != "matrix":
                continue
            slot = op.operands.index(conflict.owner)
            kept = {f for dims in op.rule.results for dim in dims for f in dim}
            for i, (dim, _) in enumerate(conflict.places[:2]):
                factors = op.rule.operands[slot][dim]
                if factors and factors[0] in kept:
                    return (i & 1) ^ flip
    return None


class ExpertParallel(Strategy):
    """Experts are split, and tokens where they are not at an expert.

    Rows of grouped dots may be sent to the devices of their experts (docs/kernels.md).
    """

    __slots__ = ()

    def entries(self, context: Context, listed: AxisList) -> AxisList | NotApplicable:
        found = _chosen(context.roles.experts, context, self.axis, listed, "expert dim")
        if isinstance(found, NotApplicable):
            return found
        batch = [g for g in context.roles.batch if context.splits(g, self.axis)]
        return (*found, *_fresh(batch, (*listed, *found)))


class WeightStationary(Strategy):
    """The residual stream is split, so that weights never move: for decoding."""

    __slots__ = ()

    def entries(self, context: Context, listed: AxisList) -> AxisList | NotApplicable:
        return _chosen(context.roles.residual, context, self.axis, listed, "residual stream")


__all__ = [
    "FSDP", "Context", "ContextParallel", "DataParallel", "ExpertParallel", "Limit", "Megatron",
    "NotApplicable", "Pin", "Replicate", "Search", "SequenceParallel", "Strategy", "Tactic",
    "WeightStationary", "ZeRO",
]  # fmt: skip
