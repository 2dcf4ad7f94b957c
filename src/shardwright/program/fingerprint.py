"""Whether two programs are the same: by a fingerprint in a file, or op by op in one process.

A plan file's fingerprint covers what decisions depend on: ops, rules, wiring, arguments. Steps of
a plan that is about to run are tied to more: keys, types, windows, regions, pins.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, NamedTuple

from shardwright.program.pins import ARGUMENT
from shardwright.program.printing import format_op
from shardwright.program.types import Op, Program, UserPin, format_type
from shardwright.rules.rule import format_rule


def fingerprint(program: Program) -> str:
    """A short hash of every op, its rule and its wiring."""
    digest = hashlib.blake2b(digest_size=12)
    rules: dict[int, str] = {}
    for op in program.ops:
        rule = rules.get(id(op.rule))
        if rule is None:
            rule = rules[id(op.rule)] = format_rule(op.rule)
        digest.update(f"{op.name}{op.operands}{op.results}{rule}{op.region};".encode())
    for lines in (argument_types(program), result_types(program)):
        digest.update(repr(sorted(lines.items())).encode())
    return digest.hexdigest()


def argument_types(program: Program) -> dict[str, str]:
    """{argument path: type}"""
    return {
        program.values[v].path or "": format_type(program.values[v].type) for v in program.inputs
    }


def result_types(program: Program) -> dict[str, str]:
    """{result path: type}"""
    return {
        path: format_type(program.values[v].type) if v >= 0 else "literal"
        for path, v in zip(program.output_paths, program.outputs, strict=True)
    }


class Change(NamedTuple):
    """The first difference between two programs."""

    was: str
    now: str
    at: Any = None  # the user's line


def first_change(planned: Program, now: Program) -> Change | None:
    """How a program differs from the planned one where that matters to a plan; None if nowhere.

    Literals, the precision of dots and parameters that its rules do not read may differ: an op
    is run as it is now.
    """
    alike: dict[tuple[int, int], bool] = {}  # rules are shared by many ops

    def same(a: Op, b: Op) -> bool:
        key = (id(a.rule), id(b.rule))
        if key not in alike:
            alike[key] = a.rule == replace(b.rule, precision=a.rule.precision)
        types = all(planned.values[v].type == now.values[v].type for v in a.results)
        return alike[key] and _wiring(a) == _wiring(b) and types

    for a, b in zip(planned.ops, now.ops, strict=False):
        if not same(a, b):
            return Change(format_op(planned, a), format_op(now, b), b.source)
    for what, was, is_ in (
        ("ops", len(planned.ops), len(now.ops)),
        ("loops", _loops(planned), _loops(now)),
        ("arguments", argument_types(planned), argument_types(now)),
        ("results", result_types(planned), result_types(now)),
        ("shardings", _in_code(planned), _in_code(now)),
    ):
        if was != is_:
            return Change(f"{what} {was!s:.200}", f"{what} {is_!s:.200}")
    return None


def _wiring(op: Op) -> tuple[Any, ...]:
    return (
        op.name, op.operands, op.results, op.key, op.region, op.body, op.tie, op.remat,
        op.custom,
    )  # fmt: skip


def _in_code(program: Program) -> list[UserPin]:
    """The shardings in the code: where arguments are is no part of a program."""
    return [pin for pin in program.pins if pin.by != ARGUMENT]


def _loops(program: Program) -> list[tuple[str, int, int]]:
    return [(region.kind, region.parent, region.trips) for region in program.regions]
