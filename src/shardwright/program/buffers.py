"""Buffers with room for the worst case: rows that a ragged all-to-all may bring.

How many rows come is data. If every device gets as many as it sends, a buffer is filled to the
share of rows sent to rows there is room for, and so is what is computed from it row by row.
Grouped dots multiply rows of groups only; all other ops work on the whole buffer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from shardwright.program.types import LITERAL, Op, Program
from shardwright.rules.grouped import GROUPED_DOTS
from shardwright.rules.rule import Rule


class Filled(NamedTuple):
    """How far the rows of an array are filled: an expectation, for prices only."""

    rows: int
    share: float


def price_filled_rows(program: Program) -> None:
    """Grouped dots of such buffers do the work of the rows that are expected to be filled."""
    filled: dict[int, Filled] = {}
    rules: dict[tuple[int, float], Rule] = {}  # ops that are alike keep one rule
    for op in program.ops:
        known = [filled[v] for v in op.operands if v in filled]
        if op.name == "ragged_all_to_all":
            known = [_expected(program, op)]
        elif known and op.name in GROUPED_DOTS:
            share = min(buffer.share for buffer in known)
            less = replace(op.rule, work=op.rule.work * share)
            op.rule = rules.setdefault((id(op.rule), share), less)
        for v in op.results:
            of_rows = [buffer for buffer in known if buffer.rows in program.values[v].shape]
            if of_rows:
                filled[v] = min(of_rows, key=lambda buffer: buffer.share)


def _expected(program: Program, op: Op) -> Filled:
    sent, buffer = (
        0 if v == LITERAL else program.values[v].shape[0] for v in (op.operands[0], op.results[0])
    )
    return Filled(buffer, min(1.0, sent / buffer) if sent and buffer else 1.0)
