"""What a plan says of ops without a rule: why, where, and the line that would open them."""

from __future__ import annotations

from shardwright.program.types import LITERAL, Op, Program
from shardwright.rules.notation import line_for
from shardwright.rules.registry import called_names
from shardwright.rules.rule import OpShape, TensorShape

MOST = 5  # notes; the counts of all are in the record


def opaque_notes(program: Program) -> list[str]:
    """One sentence per kind of op without a rule."""
    found: dict[tuple[str, str], list[Op]] = {}
    for op in program.ops:
        if op.rule.opaque and op.rule.why:
            found.setdefault((_name(program, op), op.rule.why), []).append(op)
    return [
        f"{name}{f' x{len(ops)}' if len(ops) > 1 else ''} at {ops[0].source or 'no line'} is whole"
        f" on every device: {why}; to split it, give dims that go together one name in"
        f" {line_for(_shape(program, ops[0]), name)}"
        for (name, why), ops in list(found.items())[:MOST]
    ]


def _shape(program: Program, op: Op) -> OpShape:
    scalar = TensorShape((), None)
    operands = tuple(scalar if v == LITERAL else program.values[v].type for v in op.operands)
    results = tuple(program.values[v].type for v in op.results)
    return OpShape(op.name, operands, results, op.eqn.params)


def _name(program: Program, op: Op) -> str:
    """The name that a rule for the op goes by."""
    names = called_names(_shape(program, op))
    return names[0] if names else op.name
