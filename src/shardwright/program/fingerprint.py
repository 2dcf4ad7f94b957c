"""Whether two programs are the same: by a fingerprint in a file, or op by op in one process.

A plan file's fingerprint covers what decisions depend on: ops, rules, wiring, arguments. Steps of
a plan that is about to run are tied to more: keys, types, windows, regions, pins. The content of a
program is all that a plan, or what is said of one, can depend on: the user's lines too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
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


def content(program: Program, *, lines: bool = True) -> str:
    """A hash of all that a plan of this program can depend on; the same in every process.

    Without `lines`, what a plan only tells (the user's lines, the function's name) may differ.
    """
    digest = hashlib.blake2b(digest_size=20)
    for part in _parts(program, lines):
        digest.update(_ADDRESS.sub("", f"{part!r};").encode())
    return digest.hexdigest()


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the text of a function among an op's parameters


def _parts(program: Program, lines: bool) -> Iterator[Any]:
    """All that makes a program what it is, part by part."""
    rules: dict[int, int] = {}  # ops share rules: each is told once, then named
    for op in program.ops:
        if id(op.rule) not in rules:
            rules[id(op.rule)] = len(rules)
            yield op.rule
        own = op.eqn is not None and not op.tie and not op.is_region  # bodies are ops themselves
        yield (
            *_wiring(op), op.transposed, rules[id(op.rule)], str(op.source) if lines else None,
            [format_type(program.values[v].type) for v in op.results],
            _told(op.eqn.params) if own else None,
        )  # fmt: skip
    signature = program.signature
    yield argument_types(program), result_types(program), program.regions
    yield [format_type(program.values[v].type) for v in program.consts]
    yield program.inputs, program.consts, program.outputs, sorted(program.donated)
    yield sorted(program.aliases.items()), sorted(program.updates.items())
    yield [(pin.value, pin.sharding, pin.by) for pin in program.pins]
    yield (
        signature.name if lines else "", signature.arguments, signature.weak,
        signature.static_argnums, signature.donated_argnums, signature.tie,
    )  # fmt: skip


def _told(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of an op whose text is the same in every process: that of a set is not."""
    return {
        name: sorted(map(repr, item)) if isinstance(item, set | frozenset) else item
        for name, item in params.items()
    }


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
