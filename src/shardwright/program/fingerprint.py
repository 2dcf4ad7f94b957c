"""A fingerprint of a program: equal for equal programs on any machine, and what it covers."""

from __future__ import annotations

import hashlib

from shardwright.program.types import Program, format_type


def fingerprint(program: Program) -> str:
    """A short hash of every op, its rule and its wiring."""
    digest = hashlib.blake2b(digest_size=12)
    rules: dict[int, str] = {}
    for op in program.ops:
        rule = rules.get(id(op.rule))
        if rule is None:
            rule = rules[id(op.rule)] = str(op.rule)
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
