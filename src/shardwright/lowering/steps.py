"""What lowering must do at each op: plain data made from a state, keyed by the op's number."""

from __future__ import annotations

from dataclasses import dataclass

from jax.sharding import PartitionSpec

from shardwright.cost.model import CostModel
from shardwright.program.types import LITERAL, Program
from shardwright.spmd.decisions import State
from shardwright.spmd.layout import Layout, Placement
from shardwright.spmd.moves import ALL_GATHER, Move
from shardwright.spmd.opclass import NO_CLASS

Spec = tuple[tuple[str, ...], ...]  # axes per dim: hashable, JAX-free


@dataclass(frozen=True, slots=True)
class Step:
    """One op: where its operands must be, and how its results travel to where they are kept."""

    needs: tuple[tuple[Spec, ...] | None, ...]  # per operand: placements on the way; None: literal
    gathers: tuple[bool, ...]  # per operand: whether it is gathered on the way
    makes: tuple[tuple[Spec, ...], ...]  # per result: as produced, ..., as stored


@dataclass(frozen=True, slots=True)
class Steps:
    """The whole program."""

    by_serial: dict[int, Step]
    count: int  # of ops in the walk, dead ones included: the program must be the same
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]


def spec_of(layout: Layout, placement: Placement, rank: int, names: tuple[str, ...]) -> Spec:
    """The axes on each dim, major to minor."""
    dims: list[list[tuple[int, int]]] = [[] for _ in range(rank)]
    for axis, j in enumerate(placement):
        if j >= 0:
            dims[layout.atoms[j].dim].append((layout.atoms[j].place, axis))
    return tuple(tuple(names[a] for _, a in sorted(d)) for d in dims)


def partition_spec(spec: Spec) -> PartitionSpec:
    """As JAX writes it: P('data', None, ('data', 'model'))."""
    parts = [dim[0] if len(dim) == 1 else (dim or None) for dim in spec]
    while parts and parts[-1] is None:
        parts.pop()
    return PartitionSpec(*parts)


def make_steps(model: CostModel, state: State) -> Steps:
    """The steps of every live op of the program in this state."""
    program, names = model.analysis.program, model.mesh.names
    stored, choices = model.stored(state), model.choices(state)
    layout_of = model.layouts.of_value.tolist()
    table = model.layouts.table

    def spec(value: int, placement: Placement) -> Spec:
        return spec_of(table[layout_of[value]], placement, len(program.values[value].shape), names)

    def stored_spec(value: int) -> Spec:
        return spec(value, stored[layout_of[value]])

    def path(value: int, moves: list[Move]) -> tuple[Spec, ...]:
        return tuple(dict.fromkeys(spec(value, m.after) for m in moves))

    by_serial: dict[int, Step] = {}
    for op in program.ops:
        c = int(model.classes.of_op[op.index])
        if c == NO_CLASS:
            continue
        choice, slot = choices[c], 0
        needs: list[tuple[Spec, ...] | None] = []
        gathers: list[bool] = []
        for v in op.operands:
            if v == LITERAL:
                needs.append(None)
                gathers.append(False)
                continue
            moves = choice.operand_moves[slot]
            needs.append(path(v, moves))
            gathers.append(any(m.kind == ALL_GATHER for m in moves))
            slot += 1
        makes = []
        for v, produced, moves in zip(
            op.results, choice.produced, choice.result_moves, strict=True
        ):
            if not moves:
                makes.append((stored_spec(v),))
            else:
                way = (spec(v, produced), *path(v, moves), stored_spec(v))
                makes.append(tuple(dict.fromkeys(way)))
        by_serial[op.serial] = Step(tuple(needs), tuple(gathers), tuple(makes))
    return Steps(
        by_serial, program.walk_length,
        tuple(stored_spec(v) for v in program.inputs),
        tuple(() if v == LITERAL else stored_spec(v) for v in program.outputs),
    )  # fmt: skip


def program_specs(program: Program, steps: Steps) -> dict[str, PartitionSpec]:
    """{argument path: PartitionSpec}"""
    return {
        program.values[v].path or "": partition_spec(spec)
        for v, spec in zip(program.inputs, steps.inputs, strict=True)
    }
