"""A rule: what Shardwright knows about one op, as an einsum over factors.

Invariants
- every dim is a tuple of factors, major to minor; a dim of size 1 has no factor;
- a factor has one size; only the dims of a permutation factor may differ from it;
- a factor appears at most once per operand or result.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from shardwright.errors import ShardwrightError

# Factor kinds. Every other kind is the name of a reduction.
PASS = "pass"  # may be split freely, no communication
PERMUTE = "permute"  # may be split at the price of a neighbour exchange
REPLICATE = "replicate"  # cannot be split
# argmax and argmin: what travels is the best (value, index) of each shard, not the index alone.
REDUCTIONS = ("add", "max", "min", "mul", "and", "or", "argmax", "argmin")

# Which unit of the device does the work.
MATRIX = "matrix"  # dots and convolutions
VECTOR = "vector"  # everything that computes
NOTHING = "nothing"  # views and moves
HOST = "host"  # copies between the memories of device and host, beside everything else

Dim = tuple[int, ...]  # factors, major to minor
Label = Hashable  # what a rule author calls a factor
DimLabel = Label | list[Label] | None  # a list: a compound dim


class TensorShape(NamedTuple):
    """Shape and dtype of one operand or result, and whether it is in the host's memory."""

    shape: tuple[int, ...]
    dtype: Any
    host: bool = False


class OpShape(NamedTuple):
    """All that a rule may look at: primitive name, shapes and parameters."""

    name: str
    operands: tuple[TensorShape, ...]
    results: tuple[TensorShape, ...]
    params: Mapping[str, Any]
    constants: Mapping[int, Any] = {}  # {operand: array} that are known while tracing

    def dims(self, operand: int) -> list[DimLabel]:
        """Fresh labels for the dims of one operand: ('o', operand, dim)."""
        return [("o", operand, d) for d in range(len(self.operands[operand].shape))]

    def result_dims(self, result: int = 0) -> list[DimLabel]:
        """Fresh labels for the dims of one result: ('r', result, dim)."""
        return [("r", result, d) for d in range(len(self.results[result].shape))]


class Halo(NamedTuple):
    """How far the windows of an op reach over the edges of a shard of its first operand."""

    factor: int
    rows: int  # of the first operand along that factor
    before: int  # rows of the shard before
    after: int  # rows of the shard behind


class Expanded(NamedTuple):
    """Buffers of an op that is written out as copies, loops and elementwise work."""

    copies: tuple[tuple[int, float], ...] = ()  # (slot, times its bytes); -1 is the last result
    words: int = 0  # buffers of a few words: counters, keys, the places of a loop's arrays


AS_IT_IS = Expanded()


class Collective(NamedTuple):
    """A collective that an op is, in the body of a shard_map."""

    kind: str  # as XLA spells it
    axes: tuple[str, ...]
    slot: int  # the operand or result (the last, -1) that is its larger side


class Dot(NamedTuple):
    """Dots of one size that a kernel does: so many times [m, k] x [k, n]."""

    times: float
    m: int
    n: int
    k: int
    dtype: str


class Uneven(NamedTuple):
    """Work that is not the same in all entries of a factor: a causal mask."""

    factor: int
    weights: tuple[float, ...]  # of each entry, 1 on average

    def heaviest(self, parts: int) -> float:
        """The work of the busiest of so many parts, one after the other; 1: as all others."""
        size = -(-len(self.weights) // parts)
        starts = range(0, len(self.weights), size)
        return max(sum(self.weights[at : at + size]) for at in starts) / size


class AllIfSplit(NamedTuple):
    """Work that a kernel leaves out only where a factor is whole: under its own causal mask."""

    factor: int
    times: float  # the work without leaving anything out

    def heaviest(self, parts: int) -> float:
        """The work of each of so many parts."""
        return self.times if parts > 1 else 1.0


class Work(NamedTuple):
    """What a kernel does on the chip, all steps together."""

    dots: tuple[Dot, ...]
    operations: float  # of the vector unit
    fetched_bytes: float  # of blocks, from and to memory
    # Of those the ones whose block index is computed: a step that is masked out fetches none.
    chosen_bytes: float = 0.0
    uneven: Uneven | AllIfSplit | None = None

    @property
    def flops(self) -> float:
        """Operations of its dots; of the vector unit where it has none."""
        return sum(2.0 * d.times * d.m * d.n * d.k for d in self.dots) or self.operations

    def share(self, part: float) -> Work:
        """The work if only this part of the steps compute."""
        return Work(
            tuple(dot._replace(times=part * dot.times) for dot in self.dots),
            part * self.operations,
            self.fetched_bytes - (1.0 - part) * self.chosen_bytes,
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """How the dims of an op's operands and results meet, and what it computes."""

    operands: tuple[tuple[Dim, ...], ...]
    results: tuple[tuple[Dim, ...], ...]
    sizes: tuple[int, ...]  # per factor
    kinds: tuple[str, ...]  # per factor: PASS, PERMUTE, REPLICATE or a reduction
    unit: str = VECTOR
    work: float = 1.0  # operations per point of the iteration space: the product of `sizes`
    fusible: bool = False  # a compiler computes it inside its consumer
    # Operands whose partial sums may pass to the result; of a product, one operand at a time.
    linear: tuple[int, ...] = ()
    opaque: bool = False  # nothing is known: reported
    additive: bool = False  # the result is the sum of its linear operands, not their product
    halos: tuple[Halo, ...] = ()  # of permutation factors that are windows
    # Factors that must divide evenly: padding would be read, written or counted.
    even: tuple[int, ...] = ()
    maps: bool = True  # a batch of it is as fast as that many: a batch of convolutions is not
    # The operand whose sharding the op keeps: a loop's carry leaves a trip as it entered it.
    leader: int | None = None
    # How exactly a dot multiplies (rules/precision.py): it decides the rate, not how dims meet.
    precision: str = "default"
    # What a compiler holds besides, where it has no kernel for the op and writes out plain ones.
    expanded: Expanded = AS_IT_IS
    # Of a border of a shard_map: its axes, major to minor, and the factor that each splits.
    manual: tuple[tuple[str, int | None], ...] = ()
    collectives: tuple[Collective, ...] = ()
    kernel: Work | None = None  # of a kernel: what it does on the chip
    # Rows that each device sorts for itself: indices of a shard of this factor stay in that shard.
    own: int | None = None
    # Lowering runs it in a shard_map, where all its partial sums are reduced at once.
    in_shards: bool = False
    # Rows and groups, two factors that one axis may split together: rows go to the device of their
    # group by a ragged all-to-all, what is computed of them goes back.
    travels: tuple[int, int] | None = None
    why: str = ""  # it is opaque

    @property
    def slots(self) -> tuple[tuple[Dim, ...], ...]:
        """The dims of the operands, then of the results."""
        return self.operands + self.results

    def __str__(self) -> str:
        exact = "" if self.precision == "default" else f" precision={self.precision}"
        return format_rule(self) + exact


_LETTERS = "ijklmnopqrstuvwxyzabcdefgh"


def factor_name(factor: int) -> str:
    """i, j, k ... then i1, j1 ..."""
    round_, letter = divmod(factor, len(_LETTERS))
    return _LETTERS[letter] + (str(round_) if round_ else "")


def factor_names(rule: Rule) -> dict[int, str]:
    """{factor: its letter in the printed rule}, lettered in order of first appearance."""
    order = dict.fromkeys(f for slot in rule.slots for dim in slot for f in dim)
    return {f: factor_name(n) for n, f in enumerate(order)}


def format_rule(rule: Rule) -> str:
    """([i,k],[k,j])->([i,j]) {i=8,k=16,j=32} reduction={k}: as Shardy prints it."""
    order = factor_names(rule)

    def dim(factors: Dim) -> str:
        return "".join(order[f] for f in factors) or "1"

    def side(slots: tuple[tuple[Dim, ...], ...]) -> str:
        return ",".join("[" + ",".join(dim(d) for d in slot) + "]" for slot in slots)

    text = f"({side(rule.operands)})->({side(rule.results)})"
    if order:
        text += " {" + ",".join(f"{name}={rule.sizes[f]}" for f, name in order.items()) + "}"
    by_kind: dict[str, list[str]] = {}
    for f, name in order.items():
        if rule.kinds[f] != PASS:
            by_kind.setdefault(rule.kinds[f], []).append(name)
    for kind, names in by_kind.items():
        title = {PERMUTE: "permutation", REPLICATE: "need_replication", "add": "reduction"}
        text += f" {title.get(kind, 'reduction_' + kind)}={{{','.join(names)}}}"
    even = [name for f, name in order.items() if f in rule.even]
    text += f" even={{{','.join(even)}}}" if even else ""
    text += "" if rule.own is None else f" own={{{order[rule.own]}}}"
    on = [f"{axis}: {'-' if f is None else order[f]}" for axis, f in rule.manual]
    text += f" manual={{{', '.join(on)}}}" if on else ""
    text += "".join(f" {c.kind}={{{','.join(c.axes)}}}" for c in rule.collectives)
    return text + (" opaque" if rule.opaque else "")


def _labels(dim: DimLabel) -> tuple[Label, ...]:
    if dim is None:
        return ()
    return tuple(dim) if isinstance(dim, list) else (dim,)


def einsum(
    op: OpShape,
    operands: Sequence[Sequence[Any]],
    results: Sequence[Sequence[Any]],
    *,
    reduce: Mapping[Any, str] | Iterable[Any] = (),
    permute: Iterable[Any] = (),
    replicate: Iterable[Any] = (),
    sizes: Mapping[Any, int] | None = None,
    halos: Mapping[Any, tuple[int, int, int]] | None = None,
    even: Iterable[Any] = (),
    manual: Mapping[str, Any] | None = None,
    collectives: Iterable[Collective] = (),
    **fields: Any,
) -> Rule:
    """The rule that these dim labels spell.

    A dim is a label (any hashable), None (no factor) or a *list* of labels (compound, major to
    minor; their sizes must be given in `sizes`). Equal labels are one factor. Dims of size 1
    get no factor. `reduce` maps labels to reductions ("add" when only listed). A permutation
    factor has the size given in `sizes`, or the largest of its dims. `halos` maps labels of
    windows to (rows of the first operand, rows needed before, rows needed behind). `even` lists
    labels that may not be padded. `manual` maps the axes of a shard_map to labels. `fields` are
    those of the Rule that name no labels: its unit, its work, whether it is fusible ...
    """
    known: dict[Any, int] = dict(sizes or {})
    reductions = dict(reduce) if isinstance(reduce, Mapping) else dict.fromkeys(reduce, "add")
    moved, replicated = set(permute), set(replicate)
    index: dict[Any, int] = {}
    factor_sizes: list[int] = []

    def factor(label: Any, size: int) -> int:
        """The factor with this label, made when it is first met; a second size is an error."""
        if label not in index:
            index[label] = len(factor_sizes)
            factor_sizes.append(known.get(label, size))
        f = index[label]
        if factor_sizes[f] != size:
            if label in moved and label in known:
                return f
            if label not in moved:
                raise ShardwrightError(
                    f"rule of {op.name!r}: factor {label!r} has two sizes,"
                    f" {factor_sizes[f]} and {size}",
                    try_="give the dims different factors, or mark the factor as permutation",
                )
            factor_sizes[f] = max(factor_sizes[f], size)
        return f

    def side(what: str, tensors: Sequence[TensorShape], dims: Sequence[Sequence[Any]]) -> Any:
        """The dims of all operands, or of all results, as factors; checked against the op."""
        if len(tensors) != len(dims):
            raise ShardwrightError(
                f"rule of {op.name!r} has {len(dims)} {what}s, the op has {len(tensors)}"
            )
        out = []
        for n, (tensor, labels) in enumerate(zip(tensors, dims, strict=True)):
            if len(tensor.shape) != len(labels):
                raise ShardwrightError(
                    f"rule of {op.name!r}: {what} {n} has {len(labels)} dims in the rule"
                    f" and {len(tensor.shape)} in the op"
                )
            slot: list[Dim] = []
            for size, dim in zip(tensor.shape, labels, strict=True):
                names = _labels(dim)
                if len(names) == 1:
                    slot.append((factor(names[0], size),) if size > 1 else ())
                    continue
                if names and math.prod(known[name] for name in names) != size:
                    raise ShardwrightError(
                        f"rule of {op.name!r}: {what} {n} has a dim of size {size}, its factors "
                        f"multiply to {math.prod(known[name] for name in names)}"
                    )
                slot.append(tuple(factor(name, known[name]) for name in names if known[name] > 1))
            out.append(tuple(slot))
        return tuple(out)

    operand_dims = side("operand", op.operands, operands)
    result_dims = side("result", op.results, results)
    kinds = [PASS] * len(factor_sizes)
    for label, f in index.items():
        if label in reductions:
            kinds[f] = reductions[label]
        elif label in moved:
            kinds[f] = PERMUTE
        elif label in replicated:
            kinds[f] = REPLICATE
    windows = ((index[label], rows) for label, rows in (halos or {}).items() if label in index)
    return Rule(
        operand_dims, result_dims, tuple(factor_sizes), tuple(kinds),
        halos=tuple(Halo(factor, *rows) for factor, rows in windows),
        even=tuple(sorted(index[label] for label in set(even) if label in index)),
        manual=tuple((axis, index.get(label)) for axis, label in (manual or {}).items()),
        collectives=tuple(collectives), **fields,
    )  # fmt: skip


def with_work(rule: Rule, operations: float) -> Rule:
    """The same rule, doing this many operations in all."""
    return replace(rule, work=operations / max(1, math.prod(rule.sizes)))


def opaque_rule(op: OpShape, why: str = "") -> Rule:
    """The rule where nothing is known: every dim needs replication, and meets no other.

    It is taken to do one operation per element: more would be a guess.
    """
    operands = [op.dims(i) for i in range(len(op.operands))]
    results = [op.result_dims(i) for i in range(len(op.results))]
    every = [label for slot in (*operands, *results) for label in slot]
    rule = einsum(op, operands, results, replicate=every, opaque=True, why=why)
    return with_work(rule, sum(math.prod(t.shape) for t in (*op.operands, *op.results)))
