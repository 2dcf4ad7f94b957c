"""What a compiler materialises: which values are written to memory, and how often they are read.

Elementwise chains fuse. A value that a fusible op computes is kept in memory only when something
needs it there: a dot, a loop border, a result, or several readers for whom computing it again
would read more than the value itself. A gather computes just the entries that it picks. What
enters and leaves a shard_map is the value itself: compilers fuse across its borders.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from shardwright.analysis.names import components
from shardwright.cost.devices import Device
from shardwright.program.ties import CONSTS, MANUAL, Tie
from shardwright.program.types import LITERAL, NO_OP, Op, Program, Value, is_backward
from shardwright.rules.rule import HOST, MATRIX, NOTHING, PASS, PERMUTE, REPLICATE, Rule

_LIBRARY = {"add", "max", "min"}  # reductions that libraries have
NOT_REDUCED = (PASS, PERMUTE, REPLICATE)  # kinds of factors; all others are reductions
# A value read several times is kept when computing it anew would read this much more. Assumed: no
# compiler's figures stand behind it.
RECOMPUTE_READS = 1.5


@dataclass(frozen=True, slots=True)
class Fusion:
    """The static fusion model of one program."""

    materialised: np.ndarray  # [values] bool
    traffic: np.ndarray  # [values] times its bytes pass between memory and fused work
    sources: list[tuple[int, ...]]  # [values] materialised values behind an unmaterialised one
    held: np.ndarray  # [values] part of its bytes that a buffer of it takes
    exponentials: frozenset[int]  # of softmaxes, kept whoever else reads them


def reads_fused(op: Op, device: Device) -> bool:
    """Whether an op computes its operands on the fly: elementwise work and reductions."""
    rule = op.rule
    if rule.fusible:
        return not op.tie
    kinds = zip(rule.kinds, rule.sizes, strict=True)
    reduced = [size for kind, size in kinds if kind not in NOT_REDUCED]
    if rule.unit in (MATRIX, NOTHING) or len(op.operands) > 2 or not reduced:
        return False
    too_long = device.fused_reduction and max(reduced) > device.fused_reduction
    too_large = device.library_reduction and prod(rule.sizes) >= device.library_reduction
    return not too_long and not (too_large and not _LIBRARY.isdisjoint(rule.kinds))


def picks_entries(op: Op) -> bool:
    """Whether an op reads single entries of its first operand, and computes those on the fly."""
    rule = op.rule
    able = rule.unit == NOTHING and not rule.fusible and not op.tie and len(op.operands) == 2
    return able and any(kind not in NOT_REDUCED for kind in rule.kinds)


def pads(op: Op, size: Sequence[int]) -> bool:
    """Whether an op puts something around its operand."""
    if PERMUTE not in op.rule.kinds or op.operands[0] == LITERAL:
        return False
    return size[op.results[0]] > size[op.operands[0]]


def _made_inside(program: Program) -> set[int]:
    """Constants of loops that the body computes itself: constant subgraphs, such as masks.

    JAX hands them to the loop; compilers sink them into its body, into the work that reads them.
    """
    constant = list(program.constant_subgraphs())
    made: set[int] = set()
    for op in program.ops:
        known = [v == LITERAL or constant[v] for v in op.operands]
        in_shards = bool(program.regions[op.region].manual) and op.rule.fusible and not op.tie
        if op.tie in CONSTS and known[0]:
            made.add(op.results[0])
        if all(known) and (in_shards or op.tie in MANUAL or op.tie in CONSTS):
            constant[op.results[0]] = True
    return made


def _of_softmax(program: Program, op: Op, readers: Sequence[int]) -> bool:
    """Whether an op makes exponentials that are summed up, and read again in the same pass."""
    backward = is_backward(program, op)
    by = [r for r in map(program.ops.__getitem__, readers) if is_backward(program, r) == backward]
    summed = any(not (r.rule.fusible or r.tie) for r in by)
    return op.name == "exp" and summed and any(r.rule.fusible for r in by)


def _same_value(program: Program) -> list[int]:
    """[values] the value that each is, across the borders of shard_maps."""
    same = list(range(len(program.values)))
    for op in program.ops:
        if op.tie in MANUAL:
            same[op.results[0]] = same[op.operands[0]]
    return same


def _readers(program: Program, same: Sequence[int]) -> list[list[int]]:
    """[values] the ops that read each, under whichever name."""
    readers: list[list[int]] = [[] for _ in program.values]
    for value, ops in enumerate(program.uses()):
        readers[same[value]] += [u for u in ops if program.ops[u].tie not in MANUAL]
    return readers


def _global_bytes(program: Program) -> list[int]:
    """[values] bytes on all devices together: a body of a shard_map has shards."""
    shards: list[int] = []
    for region in program.regions:
        own = prod(size for axis, size in region.mesh if axis in region.manual)
        shards.append(own * (shards[region.parent] if shards else 1))
    return [
        v.bytes * (shards[program.ops[v.op].region] if v.op != NO_OP else 1)
        for v in program.values
    ]  # fmt: skip


def _read_on_the_way(program: Program, v: Value, readers: Sequence[int]) -> bool:
    """Whether elementwise work makes a result, and elementwise work of its shape goes on with it.

    All that is one loop with several results. The update of AdamW reads a weight, its gradient and
    both moments once, and writes three of them (seen: XLA of jaxlib 0.10.2 for TPU and for GPU).
    """
    returned = [u for u in readers if program.ops[u].tie is Tie.RETURN]
    loop = [program.ops[u] for u in (v.op, *readers) if u not in returned]
    return bool(returned) and all(
        op.rule.fusible and not op.tie
        and all(program.values[r].type.shape == v.type.shape for r in op.results)
        for op in loop
    )  # fmt: skip


def find_fusions(program: Program, device: Device) -> Fusion:
    """Walks the program once, in order."""
    count = len(program.values)
    same = _same_value(program)
    uses = _readers(program, same)
    size = _global_bytes(program)
    fused = [reads_fused(op, device) for op in program.ops]
    materialised = np.ones(count, bool)
    sources: list[tuple[int, ...]] = [()] * count
    outputs = set(program.outputs)
    made_inside = _made_inside(program)
    softmaxes = {
        op.results[0]
        for op in program.ops
        if device.keeps_exponentials
        and op.results
        and _of_softmax(program, op, uses[op.results[0]])
    }
    exponentials: set[int] = set()  # of softmaxes, which dots divide themselves
    for v in program.values:
        if v.op == NO_OP or v.index in outputs or same[v.index] != v.index:
            continue
        op = program.ops[v.op]
        if (not op.rule.fusible or op.tie) and v.index not in made_inside:
            continue
        behind: dict[int, None] = {}
        for x in (same[x] for x in op.operands if x != LITERAL):
            behind.update(dict.fromkeys((x,) if materialised[x] else sources[x]))
        readers = uses[v.index]
        divided = any(s in exponentials for s in behind) and all(
            s in exponentials or size[s] < size[v.index] for s in behind
        )
        kept = any(
            not fused[u] and program.ops[u].tie is not Tie.RETURN
            and not (divided and program.ops[u].rule.unit == MATRIX)
            and made_inside.isdisjoint(program.ops[u].results)
            and not (picks_entries(program.ops[u]) and same[program.ops[u].operands[0]] == v.index)
            for u in readers
        )  # fmt: skip
        if not kept and not divided and len(readers) > 1:
            kept = sum(size[s] for s in behind) > RECOMPUTE_READS * size[v.index]
            kept |= device.keeps_padded and pads(op, size)
            if v.index in softmaxes:
                kept = True
                exponentials.add(v.index)
        materialised[v.index] = kept
        sources[v.index] = tuple(behind)
    traffic = _traffic(program, uses, same, fused, materialised, made_inside)
    for value, of in enumerate(same):
        materialised[value], sources[value] = materialised[of], sources[of]
    held = _held(program, device, outputs)
    if device.transposes:
        _hold_orders(program, materialised, sources, held)
    return Fusion(materialised, traffic, sources, held, frozenset(softmaxes))


def _traffic(
    program: Program, uses: Sequence[Sequence[int]], same: Sequence[int], fused: Sequence[bool],
    materialised: np.ndarray, made_inside: Container[int],
) -> np.ndarray:  # fmt: skip
    """[values] times its bytes pass between memory and fused work."""
    passed_on = {
        v.index for v in program.values
        if v.op != NO_OP and _read_on_the_way(program, v, uses[v.index])
    }  # fmt: skip
    inside = [  # a reader of what need not come from memory, and what makes it: one piece of work
        (u, v.op) for v in program.values
        if (not materialised[v.index] and v.op != NO_OP and v.index not in made_inside)
        or v.index in passed_on
        for u in uses[v.index] if fused[u]
    ]  # fmt: skip
    work = components(len(program.ops), np.array(inside, np.int64).reshape(-1, 2)).tolist()
    traffic = np.zeros(len(program.values), np.int64)
    for v in program.values:
        if not materialised[v.index] or same[v.index] != v.index:
            continue
        if v.index not in passed_on:
            traffic[v.index] += len({work[u] for u in uses[v.index] if fused[u]})
        if v.op != NO_OP and program.ops[v.op].rule.fusible and not program.ops[v.op].tie:
            traffic[v.index] += 1  # fused work writes it; other ops count their own results
    for op in program.ops:
        if op.tie is Tie.RETURN and not materialised[same[op.operands[0]]]:
            traffic[op.results[0]] += 1  # computed straight into the result
    traffic[[v.type.host for v in program.values]] = 0  # no memory of the device
    return traffic


def _held(program: Program, device: Device, outputs: Container[int]) -> np.ndarray:
    """[values] part of its bytes that a buffer takes: less of what only dots read, rounded."""
    held = np.ones(len(program.values))
    for op in program.ops:
        rounds = op.rule.unit == MATRIX or (op.rule.fusible and op.rule.unit != HOST)
        for v in op.results if rounds and not op.tie else ():
            readers = program.uses()[v]
            if readers and v not in outputs:
                dtype = program.values[v].dtype
                held[v] = max(rounded(program.ops[u].rule, dtype, device) for u in readers)
    return held


def _hold_orders(
    program: Program, materialised: np.ndarray, sources: Sequence[Sequence[int]], held: np.ndarray
) -> None:
    """Where fused work reads arrays in different orders of dims, what it transposes first.

    That is every operand in another order than its result, held in the widest type that it is
    computed in; a result that several dots read is held in both orders. The gradient of attention
    scores whose heads are grouped is such work.
    """
    shapes, own = [v.type.shape for v in program.values], [v.bytes for v in program.values]

    def alike(value: int) -> list[int]:
        dims = sorted(shapes[value])
        return [s for s in sources[value] if sorted(shapes[s]) == dims]

    wide = list(own)  # [values] bytes of the widest elementwise work that reads each
    for v in program.values:
        for s in alike(v.index) if not materialised[v.index] else ():
            wide[s] = max(wide[s], own[v.index])
    for v, readers in zip(program.values, program.uses(), strict=True):
        dots = sum(program.ops[u].rule.unit == MATRIX for u in readers)
        read = alike(v.index) if dots and materialised[v.index] else []
        turned = [s for s in read if shapes[s] != shapes[v.index]]
        if 0 < len(turned) < len(read):
            held[turned] = [wide[s] / own[s] for s in turned]
            held[v.index] *= min(dots, 2)


def rounded(rule: Rule, dtype: Any, device: Device) -> float:
    """The part of an operand's bytes that an op reads: dots of f32 may round to bf16 first."""
    rounds = device.rounds_dots and rule.unit == MATRIX and rule.precision == "default"
    return 0.5 if rounds and dtype == np.float32 else 1.0
