"""Writes docs/rules.md from the registry: `python -m tests.rules.document`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from shardwright.rules.examples import EXAMPLES
from shardwright.rules.opaque import OPAQUE
from shardwright.rules.registry import RULES, STRUCTURAL, lookup
from shardwright.rules.rule import REPLICATE, Rule
from tests.rules.isolated import isolate

PAGE = Path("docs/rules.md")

_INTRODUCTION = """\
# What Shardwright knows about each primitive

Written by `python -m tests.rules.document`; do not edit. How to add a rule of your own:
[extending.md](extending.md).

A rule is an einsum over factors: `([i,j],[j,k])->([i,k]) {i=4,j=8,k=6} reduction={j}`. A dim can be
several factors, major to minor (`ij`); a dim without factor is `1`. What can be split, and at what
price:

| kind | split it and | in the table |
|---|---|---|
| pass-through | nothing moves | not listed |
| reduction | the result is partial, to be summed | `reduction={j}` |
| other reductions | the same, by max, min, mul, and, or, argmax, argmin | `reduction_max={j}` |
| permutation | windows exchange rows; else another dim is split meanwhile | `permutation={j}` |
| need-replication | not possible: the dim is gathered first | `need_replication={j}` |

`even={j}` goes with any kind: every device must hold equally much of the factor. Dims that no axis
divides are padded where that pays, but not along such a factor: what pads it would be read, written
or counted (entries of a gather or scatter, the dim of an argmax), or the op needs even
shards.

Each line below is compiled by XLA in the tests, once per factor, and compared with Shardy's rule;
where either differs, `tests/rules` says why.
Work is counted as `work` x (product of all factor sizes) operations on the named unit; `fused` ops
are computed inside their consumer; partial sums pass through the operands listed as linear.
"""


def page() -> str:
    """The text of docs/rules.md."""
    parts = [_INTRODUCTION]
    examples = sorted(EXAMPLES, key=lambda e: (_family(e.primitive), e.primitive))
    for family, members in groupby(examples, key=lambda e: _family(e.primitive)):
        parts.append(f"## {family.capitalize()}\n")
        rows = []
        for example in members:
            rule = lookup(isolate(example).op)
            title = f"`{example.primitive}`" + (f" {example.note}" if example.note else "")
            rows.append((title, f"`{rule}`", _kinds(rule), _cost(rule), _linear(rule)))
        parts.append(_table(("primitive", "example", "kinds", "work", "linear"), rows))
    parts.append("## Taken apart by tracing\n")
    parts.append(_table(("primitive", "how"), [(f"`{n}`", how) for n, how in STRUCTURAL.items()]))
    parts.append("## Opaque on purpose\n")
    parts.append("Every dim needs replication; the ops are counted and reported.\n")
    by_reason: dict[str, list[str]] = {}
    for name, reason in OPAQUE.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    whys = [(reason, ", ".join(names)) for reason, names in by_reason.items()]
    parts.append(_table(("why", "primitives"), whys))
    return "\n".join(parts)


def _family(primitive: str) -> str:
    """The file that holds a primitive's rule."""
    return RULES[primitive].__module__.rsplit(".", 1)[-1]


def _kinds(rule: Rule) -> str:
    kinds = [("need-replication" if kind == REPLICATE else kind) for kind in rule.kinds]
    return ", ".join(dict.fromkeys(kinds)) or "-"


def _cost(rule: Rule) -> str:
    text = rule.unit if not rule.work else f"{rule.work:.3g} {rule.unit}"
    return text + (", fused" if rule.fusible else "")


def _linear(rule: Rule) -> str:
    return ", ".join(map(str, rule.linear)) or "-"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
