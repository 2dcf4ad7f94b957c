"""The partitioning IR: one row per op, with local shapes, claims, collectives and seconds.

Plain data, independent of JAX once built. It is what tests read and what `explain` shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from shardwright.program.ties import Tie
from shardwright.program.types import LITERAL, Op, Program, format_type
from shardwright.rules.rule import factor_names
from shardwright.spmd.follow import Choice, Prices
from shardwright.spmd.layout import REPLICATED, Layout, Placement
from shardwright.spmd.layouts import Layouts
from shardwright.spmd.moves import SLICE, Move
from shardwright.spmd.opclass import NO_CLASS, OpClass, OpClasses
from shardwright.spmd.slack import BLOCKS, Slack
from shardwright.spmd.sums import Reduction, Sum, find_sums, reduced_once
from shardwright.spmd.weights import place_of, region_runs, region_weights, transfer_phases


class Total(NamedTuple):
    """What collectives take together, per step and device."""

    calls: float
    bytes: float
    seconds: float


Totals = dict[tuple[str, tuple[str, ...]], Total]  # by kind and axes


@dataclass(frozen=True, slots=True, order=True)
class Cause:
    """Why data moves; report/causes.py says it in words.

    - operand: an op needs a value in another sharding than it is stored in;
    - halo: an op needs rows of its operand that neighbours hold;
    - manual: the user wrote it, in a shard_map;
    - partial: an op gives partial sums, which are reduced;
    - sum: the partial sums of several ops are added, then reduced once;
    - scan: partial sums are added over all trips of a scan, then reduced once;
    - stored: a value is stored in another sharding than an op gives it in;
    - returned: a result leaves the program in another sharding than it was made in;
    - other: what an older file says in words, as `value`.
    """

    kind: Literal[
        "operand", "halo", "manual", "partial", "sum", "scan", "stored", "returned", "other"
    ]  # fmt: skip
    op: str = ""  # the op that needs it or gives it
    value: str = ""  # the path of the argument (or a copy of it) or result that moves
    maker: str = ""  # where that is no path: the op that made it; nothing for a constant
    stored: str = ""  # what becomes of it: f32[8/4,16]
    terms: int = 0  # of a sum

    def __str__(self) -> str:
        from shardwright.report.causes import sentence

        return sentence(self)


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of the step."""

    kind: str  # as XLA spells it
    axes: tuple[str, ...]
    bytes: int  # the larger side on one device
    count: float  # times per step
    seconds: float  # once
    source: str  # the user's line, or the argument path of what moves
    cause: Cause
    op: int
    hidden_s: float = 0.0  # of these seconds, behind compute


@dataclass(frozen=True, slots=True)
class Row:
    """One op as it runs on one device."""

    op: int
    name: str
    depth: int  # of nested regions
    results: tuple[str, ...]  # %12:f32[8/4,16]
    operands: tuple[str, ...]
    claims: tuple[tuple[str, str], ...]  # (axis, factor of the rule, see atom_names)
    collectives: tuple[Collective, ...]
    compute_s: float
    count: float


@dataclass(frozen=True, slots=True)
class Ir:
    """A partitioned program."""

    axes: tuple[tuple[str, int], ...]
    rows: tuple[Row, ...]

    @property
    def collectives(self) -> list[Collective]:
        """The collectives of all rows, in program order."""
        return [c for row in self.rows for c in row.collectives]

    def totals(self) -> Totals:
        """What the collectives take together, by kind and axes."""
        return totals(self.collectives)

    def __str__(self) -> str:
        lines = ["mesh " + " ".join(f"{name}={size}" for name, size in self.axes)]
        for row in self.rows:
            lines.append("  " * (row.depth + 1) + format_row(row))
        for (kind, axes), (count, size, seconds) in self.totals().items():
            lines.append(
                f"total {kind} over {'+'.join(axes)}: {count:g} x, {size / 1e6:.3f} MB,"
                f" {seconds * 1e3:.4f} ms"
            )
        return "\n".join(lines)


def totals(collectives: Iterable[Collective]) -> Totals:
    """{(kind, axes): what these collectives take together}"""
    out: Totals = {}
    for c in collectives:
        n, b, s = out.get((c.kind, c.axes), (0.0, 0.0, 0.0))
        out[c.kind, c.axes] = Total(n + c.count, b + c.count * c.bytes, s + c.count * c.seconds)
    return dict(sorted(out.items()))


def format_row(row: Row) -> str:
    """%5:f32[8/4,16] = dot_general %1 %2  {data: i}  all-reduce model 128 B  1.2 us"""
    claims = " {" + ", ".join(f"{a}: {f}" for a, f in row.claims) + "}" if row.claims else ""
    moves = "".join(
        f"  {c.kind} {'+'.join(c.axes)} {c.bytes} B" + (f" x{c.count:g}" if c.count != 1 else "")
        for c in row.collectives
    )
    return (
        f"{', '.join(row.results)} = {row.name} {' '.join(row.operands)}{claims}{moves}"
        f"  {row.compute_s * 1e6:.2f} us"
    )


class Partitioned(NamedTuple):
    """A program in one state: the placement of each layout and the choice of each op class."""

    program: Program
    layouts: Layouts
    classes: OpClasses
    stored: Sequence[Placement]
    choices: Sequence[Choice]
    prices: Prices
    axes: Sequence[tuple[str, int]]
    slack: Slack
    link_s: Callable[[Move, int], float]  # of a move, given the phase that it hides behind
    hidden_s: Callable[[Move, int], float]  # of these seconds, behind compute

    def computed(self, op: int) -> tuple[OpClass, Choice]:
        """The class of an op, and how it is computed."""
        number = int(self.classes.of_op[op])
        return self.classes.table[number], self.choices[number]

    def shape(self, value: int) -> str:
        """f32[8/4,16]"""
        index = int(self.layouts.of_value[value])
        return local_shape(
            self.program, value, self.layouts.table[index], self.stored[index],
            self.prices.axis_sizes,
        )  # fmt: skip


def build_ir(given: Partitioned) -> Ir:
    """The IR of a partitioned program."""
    program, names = given.program, [name for name, _ in given.axes]
    depth = [len(list(program.around(r.index))) for r in program.regions]
    weights = region_weights(program)
    moved: dict[int, list[Collective]] = {}
    for collective in find_collectives(given):
        moved.setdefault(collective.op, []).append(collective)
    rows = []
    letters = [atom_names(op_class) for op_class in given.classes.table]
    for op in program.ops:
        c = int(given.classes.of_op[op.index])
        if c == NO_CLASS:
            continue
        choice = given.choices[c]
        claims = [(names[a], letters[c][k]) for a, k in enumerate(choice.claims) if k != REPLICATED]
        row = Row(
            op.index, op.name, depth[op.region],
            tuple(f"%{v}:{given.shape(v)}" for v in op.results),
            tuple("literal" if v == LITERAL else f"%{v}" for v in op.operands),
            tuple(claims), tuple(moved.get(op.index, ())), choice.compute_s, weights[op.region],
        )  # fmt: skip
        rows.append(row)
    return Ir(tuple(given.axes), tuple(rows))


def atom_names(op_class: OpClass) -> list[str]:
    """[op atoms] The letter that the printed rule gives to each atom's factor.

    Where a reshape elsewhere in the program cuts a factor into several atoms, `i.0` is the major
    one of `i`, `i.1` the next: [B*S] after [B,S] is one factor of an op, and two atoms. `i to k`:
    rows go to the devices of their groups.
    """
    factors = op_class.factors[: len(op_class.factors) - len(op_class.pairs)]
    letters, atoms, seen = factor_names(op_class.rule), Counter(factors), Counter[int]()
    out = []
    for f in factors:
        out.append(f"{letters[f]}.{seen[f]}" if atoms[f] > 1 else letters[f])
        seen[f] += 1
    return out + [f"{out[rows]} to {out[groups]}" for rows, groups in op_class.pairs.values()]


class _Movement(NamedTuple):
    """Moves of one value at one op."""

    op: Op
    value: int
    moves: Sequence[Move]
    cause: Cause
    phase: int  # that they hide behind, or BLOCKS
    times: float  # per step


def find_collectives(given: Partitioned) -> list[Collective]:
    """Every collective of the step, in program order."""
    names, found = given.prices.axis_names, []
    for op, value, moves, cause, phase, times in _movements(given):
        sent = [m for m in moves if m.kind != SLICE]
        source = str((op.source or given.program.where(value)) if sent else "")  # as for a return
        found += [
            Collective(
                m.kind, tuple(names[a] for a in m.axes), m.bytes, times, given.link_s(m, phase),
                source, cause, op.index, given.hidden_s(m, phase),
            )
            for m in sent
        ]  # fmt: skip
    return found


def _movements(given: Partitioned) -> Iterator[_Movement]:
    """What moves at each op, in program order: shared transfers and deferred sums once."""
    program, choices, of_op = given.program, given.choices, given.classes.of_op.tolist()
    runs = region_runs(program)
    summed: dict[int, tuple[Sum, Reduction]] = {}  # ops whose sums are added, then reduced
    for one in find_sums(program):
        once = reduction_of(given, one)
        if once is not None:
            summed.update({leaf.op: (one, once) for leaf in one.leaves})
    returned = dict(zip(program.outputs, program.output_paths, strict=True))
    still = [not (any(c.operand_moves) or any(c.result_moves) or c.exchanges) for c in choices]
    slack, behind = given.slack, transfer_phases(program, given.classes, given.slack)
    moved: set[tuple[int, int, int, bool, Placement]] = set()
    for op in program.ops:
        if of_op[op.index] == NO_CLASS or still[of_op[op.index]]:
            continue
        choice, times = choices[of_op[op.index]], runs[op.result_region]
        for slot, v in enumerate(op.arrays):
            place = place_of(op, v)
            key = (*place, choice.needs[slot])
            if key not in moved and choice.operand_moves[slot]:
                moved.add(key)
                cause = Cause("operand", op.name, *_origin(program, v))
                moves = choice.operand_moves[slot]
                yield _Movement(op, v, moves, cause, behind[place], runs[op.operand_region])
        for v in op.results[:1]:
            cause = Cause("halo" if op.rule.halos else "manual", op.name)
            if op.rule.travels is not None:
                cause = Cause("operand", op.name, *_origin(program, op.operands[0]))
            yield _Movement(op, v, choice.exchanges, cause, BLOCKS, times)
        if op.index in summed:
            one, once = summed[op.index]
            if op.index == max(leaf.op for leaf in one.leaves):  # the others are reduced with it
                hoist = one.hoist if once.after_loop else None
                if hoist:
                    times = runs[program.ops[hoist.loop.carry].region]
                maker = hoist.loop.carry if hoist else program.values[one.value].op
                value = (hoist or one).value
                cause = Cause(
                    "scan" if hoist else "sum", op.name, stored=given.shape(value),
                    terms=len(one.leaves),
                )  # fmt: skip
                yield _Movement(op, value, once.moves, cause, slack.results[maker], times)
            continue
        made = given.classes.table[of_op[op.index]].results
        for v, result, moves in zip(op.results, made, choice.result_moves, strict=True):
            if not moves:
                continue
            stored = given.shape(v)
            if op.tie is Tie.RETURN:
                cause = Cause("returned", value=returned[v], stored=stored)
            elif any(choice.claims[a] not in result.to_op for a in choice.partial):
                cause = Cause("partial", op.name, stored=stored)
            else:
                cause = Cause("stored", op.name, *_origin(program, v), stored)
            yield _Movement(op, v, moves, cause, slack.results[op.index], times)


def reduction_of(given: Partitioned, one: Sum) -> Reduction | None:
    """How a sum is reduced, or None when its terms are reduced before they are added."""
    terms = [(*given.computed(leaf.op), leaf.order) for leaf in one.leaves]
    past = [given.computed(i)[1] for i in one.hoisted_past(given.program)]
    return reduced_once(terms, past, one.sizes(given.program), given.prices)


def local_shape(
    program: Program, value: int, layout: Layout, placement: Placement, axis_sizes: Sequence[int]
) -> str:
    """f32[8/4,16]: the global shape, with what each dim is divided by."""
    v = program.values[value]
    shards = [1] * len(v.shape)
    for axis, j in enumerate(placement):
        if j != REPLICATED:
            shards[layout.atoms[j].dim] *= axis_sizes[axis]
    dims = ",".join(f"{n}/{p}" if p > 1 else str(n) for n, p in zip(v.shape, shards, strict=True))
    return format_type(v.type).split("[")[0] + f"[{dims}]"


def _origin(program: Program, value: int) -> tuple[str, str]:
    """(path of the argument that a value is (a copy of), else the op that makes it)."""
    v = program.values[program.origin(value)]
    if v.path is not None:
        return v.path, ""
    return "", program.ops[v.op].name if v.op >= 0 else ""
