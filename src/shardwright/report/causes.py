"""Why data moves, in words."""

from __future__ import annotations

from dataclasses import replace

from shardwright.report.words import any_layer, short_path
from shardwright.spmd.ir import Cause

# {op}, {what} (the value that moves), {stored} and {terms} of a Cause.
SENTENCES = {
    "operand": "{what} is needed by {op}",
    "halo": "{op} reaches over the split of its operand",
    "manual": "{op} of a shard_map",
    "partial": "partial sums of {op}, stored as {stored}",
    "sum": "sum of {terms} partial results, stored as {stored}",
    "scan": "sum over all trips of a scan, stored as {stored}",
    "stored": "{what}, stored as {stored}",
    "returned": "{what} is returned as {stored}",
    "other": "{what}",
}
# In a word or two: {name} is the last name of a path.
BRIEF = SENTENCES | {
    "operand": "{name}", "partial": "sums", "sum": "{terms} sums",
    "scan": "sum over a scan", "stored": "{name}", "returned": "returned {name}",
    "halo": "halo of {op}", "manual": "{op}",
}  # fmt: skip


def sentence(cause: Cause) -> str:
    """The cause as a sentence: w1 is needed by dot_general"""
    return _say(cause, SENTENCES)


def brief(cause: Cause) -> str:
    """The cause in a word or two, for a narrow table: w1"""
    return _say(cause, BRIEF)


def alike(cause: Cause) -> Cause:
    """The cause, equal for all layers of a list: layers[3]['w'] is layers[*]['w']."""
    return replace(cause, value=any_layer(cause.value))


def _say(cause: Cause, words: dict[str, str]) -> str:
    made = f"result of {cause.maker}" if cause.maker else "constant"
    name = short_path(cause.value).rpartition(".")[2] or made
    return words[cause.kind].format(
        op=cause.op, what=cause.value or made, stored=cause.stored, terms=cause.terms, name=name
    )
