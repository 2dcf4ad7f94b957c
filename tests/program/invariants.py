"""The checker of a Program's invariants (listed in program/types.py).

Each function below checks one of them and names the first op or value that breaks it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from shardwright.errors import ShardwrightError
from shardwright.program.interpret import Key
from shardwright.program.printing import format_op
from shardwright.program.ties import ENTRIES, EXITS, Tie
from shardwright.program.types import (
    LITERAL,
    NO_OP,
    TOP,
    Op,
    Program,
    Region,
    Value,
)
from shardwright.rules.rule import PERMUTE

KINDS = ("scan", "while_cond", "while", "cond", "shard_map")


def check(program: Program) -> None:
    """Raises ShardwrightError at the first invariant that does not hold."""
    _check_numbers(program)
    _check_regions(program)
    _check_nesting(program)
    homes = _check_definitions(program)
    _check_uses(program, homes)
    for op in program.ops:
        _check_rule(program, op)
    _check_borders(program)


def _fail(program: Program, what: str, op: Op | None = None) -> ShardwrightError:
    what = f"invalid program {program.name!r}: {what}"
    if op is None:
        return ShardwrightError(what)
    return ShardwrightError(what, op=f"#{op.index} {format_op(program, op)}", at=op.source)


def _check_numbers(program: Program) -> None:
    """Values, ops and regions are numbered by place; no two ops have one key."""
    lists: dict[str, Sequence[Value | Op | Region]] = {
        "value": program.values, "op": program.ops, "region": program.regions,
    }  # fmt: skip
    for what, items in lists.items():
        for i, item in enumerate(items):
            if item.index != i:
                raise _fail(program, f"{what} {i} is numbered {item.index}")
    keys: set[Key] = set()
    for op in program.ops:
        if op.key in keys:
            raise _fail(program, f"a second op with the key {op.key}", op)
        keys.add(op.key)
        for v in (*op.operands, *op.results):
            if not (0 <= v < len(program.values) or (v == LITERAL and v in op.operands)):
                raise _fail(program, f"there is no value {v}", op)
        if LITERAL in op.results:
            raise _fail(program, "a literal is no result", op)


def _check_regions(program: Program) -> None:
    """Every region but the function is the body of one region op of its parent."""
    top, *bodies = program.regions
    if (top.kind, top.parent, top.op, top.trips) != ("function", TOP, NO_OP, 1):
        raise _fail(program, f"region 0 is not the function: {top}")
    for region in bodies:
        if region.kind not in KINDS or region.parent >= region.index or region.trips < 0:
            raise _fail(program, f"impossible region {region}")
        op = program.ops[region.op]
        if not op.is_region or region.index not in op.body or op.region != region.parent:
            raise _fail(program, f"region {region.index} is not a body of its op", op)
    for op in program.ops:
        if any(op.is_region and program.regions[r].op != op.index for r in op.body):
            raise _fail(program, "its body belongs to another op", op)
        if (op.tie is not None) != (op.name in {tie.value for tie in Tie}):
            raise _fail(program, "a tie by name or by mark only", op)


def _around(program: Program, region: int) -> Iterator[int]:
    """A region and those around it, innermost first."""
    while region != TOP:
        yield region
        region = program.regions[region].parent
    yield TOP


def _check_nesting(program: Program) -> None:
    """After a region op: its entry ties, its bodies in order, its exit ties, nothing else."""
    open_ops: list[tuple[Op, int]] = []  # region ops around, each with the phase it is in
    for op in program.ops:
        own = program.regions[op.body[0]].op if op.tie and op.body else NO_OP
        inside = set(_around(program, op.region))
        while open_ops:
            region_op, phase = open_ops[-1]
            body = [n for n, r in enumerate(region_op.body) if r in inside]
            if own == region_op.index:
                now = -1 if op.tie in ENTRIES else len(region_op.body)
            elif body:
                now = body[0]
            else:  # this region op is over
                open_ops.pop()
                continue
            if now < phase:
                raise _fail(program, "an op of a loop or branch out of order", op)
            open_ops[-1] = (region_op, now)
            break
        around = [o for o, _ in open_ops]
        if own != NO_OP and (not around or around[-1].index != own):
            raise _fail(program, "a tie away from its loop or branch", op)
        expected = [program.regions[r].op for r in inside if r != TOP]
        if own != NO_OP:
            expected.append(own)
        if sorted(expected) != [o.index for o in around]:
            raise _fail(program, "an op outside the loop or branch of its region", op)
        if op.is_region:
            open_ops.append((op, -1))


def _check_definitions(program: Program) -> list[int]:
    """Every value is defined once; returns the region in which each can be seen."""
    home = [NO_OP] * len(program.values)
    given: set[int] = set()
    for region in program.regions:
        for v in region.inputs:
            if v == LITERAL:
                continue
            if v in given:
                raise _fail(program, f"%{v} is an input twice")
            given.add(v)
            home[v] = region.index
    defined: dict[int, Op] = {}
    for op in program.ops:
        for v in op.results:
            if v in defined:
                raise _fail(program, f"%{v} is defined again", op)
            defined[v] = op
            if program.values[v].op != op.index:
                raise _fail(program, f"%{v} says it comes from op {program.values[v].op}", op)
            if op.tie in ENTRIES:
                if home[v] not in op.body:
                    raise _fail(program, f"%{v} is no input of the body", op)
            elif v in given:
                raise _fail(program, f"the input %{v} is computed", op)
            else:
                home[v] = op.region
    for value in program.values:
        if value.index not in defined and value.op != NO_OP:
            if not program.ops[value.op].is_region:
                raise _fail(program, f"{value} is no result", program.ops[value.op])
            home[value.index] = program.ops[value.op].region  # a loop or branch gave a literal
    return home


def _check_uses(program: Program, homes: list[int]) -> None:
    """Operands are defined before their op, in its region or around it (exit ties: in the body)."""
    for op in program.ops:
        seen = set(_around(program, op.region))
        if op.tie in EXITS:
            seen |= set(op.body)
        for v in op.operands:
            if v == LITERAL:
                continue
            if program.values[v].op >= op.index:  # NO_OP, of inputs, comes before everything
                raise _fail(program, f"%{v} is read before it is defined", op)
            if homes[v] != NO_OP and homes[v] not in seen:
                raise _fail(program, f"%{v} belongs to region {homes[v]}", op)


def _check_rule(program: Program, op: Op) -> None:
    """The rule has one dim of factors for each dim of each operand and result."""
    rule = op.rule
    if (len(rule.operands), len(rule.results)) != (len(op.operands), len(op.results)):
        raise _fail(program, "the rule has another number of operands or results", op)
    if len(rule.kinds) != len(rule.sizes):
        raise _fail(program, "the rule has factors without kind or size", op)
    used = {f for slot in rule.slots for dim in slot for f in dim}
    if used != set(range(len(rule.sizes))):
        raise _fail(program, "the rule has factors that stand nowhere", op)
    for v, slot in zip((*op.operands, *op.results), rule.slots, strict=True):
        factors = [f for dim in slot for f in dim]
        if len(set(factors)) != len(factors):
            raise _fail(program, "the rule has a factor twice in one operand or result", op)
        if v == LITERAL:
            continue
        value = program.values[v]
        if len(slot) != len(value.shape):
            raise _fail(program, f"the rule does not have the rank of {value}", op)
        for size, dim in zip(value.shape, slot, strict=True):
            moved = any(rule.kinds[f] == PERMUTE for f in dim)
            if dim and not moved and math.prod(rule.sizes[f] for f in dim) != size:
                raise _fail(program, f"the rule does not fit the shape of {value}", op)
            if size == 1 and dim:
                raise _fail(program, f"the rule has a factor for a dim of size 1 of {value}", op)


def _check_borders(program: Program) -> None:
    """Arguments have paths; results come from `return` ties; aliases are donated, updates alike."""
    top = program.regions[TOP]
    if top.inputs != (*program.consts, *program.inputs) or top.outputs != program.outputs:
        raise _fail(program, "the function's region has other inputs or outputs")
    for v in program.inputs:
        if program.values[v].path is None or program.values[v].op != NO_OP:
            raise _fail(program, f"the argument %{v} has no path")
    for v in program.outputs:
        if v != LITERAL and program.ops[program.values[v].op].tie is not Tie.RETURN:
            raise _fail(program, f"the result %{v} is not returned")
    if len(program.output_paths) != len(program.outputs):
        raise _fail(program, "results and their paths differ in number")
    if not program.donated <= set(program.inputs):
        raise _fail(program, "something donated is not an argument")
    if len(set(program.aliases.values())) != len(program.aliases):
        raise _fail(program, "two results take the place of one argument")
    for position, source in program.aliases.items():
        result = program.outputs[position]
        if source not in program.donated or result == LITERAL:
            raise _fail(program, f"result {position} takes the place of %{source}")
    for position, source in program.updates.items():
        result = program.outputs[position]
        if source not in program.inputs or result == LITERAL:
            raise _fail(program, f"result {position} is stored like %{source}")
        if program.values[result].type != program.values[source].type:
            raise _fail(program, f"result {position} has another type than %{source}")
