"""The plan's pattern in the field's words, read off its decisions.

The record names groups of dims, not their meaning, so meaning is read off the argument paths:
the argument with most leaves holds the parameters; a leading dim of any other argument is the
batch, another dim of it the sequence; what only parameters have is a hidden dim, and the one
on most of them the residual stream.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from shardwright.report.facts import Record, matching_baseline

BATCH, SEQUENCE, RESIDUAL, HIDDEN = "batch", "sequence", "residual", "hidden"

_ROOT = re.compile(r"^[^.\[]+")
_DIM = re.compile(r"^(.*)\[(\d+)\]$", re.DOTALL)


def roles(record: Record) -> dict[str, str]:
    """{group label: batch, sequence, residual or hidden}"""
    leaves = Counter(_root(path) for path in record["arguments"])
    if not leaves:
        return {}
    parameters, most = leaves.most_common(1)[0]
    if list(leaves.values()).count(most) > 1:
        parameters = ""  # a bare list of arrays: nothing says which are parameters
    out: dict[str, str] = {}
    on: dict[str, int] = {}  # bytes of the parameters that hold the group
    for group in record["groups"]:
        dims = [m.groups() for m in map(_DIM.match, group["dims"]) if m]
        data = [int(dim) for path, dim in dims if parameters and _root(path) != parameters]
        if data:
            out[group["label"]] = BATCH if 0 in data else SEQUENCE
        else:
            out[group["label"]] = HIDDEN
            on[group["label"]] = group["argument_bytes"] if len(dims) > 2 else 0
    if parameters and any(on.values()):
        out[max(on, key=lambda label: on[label])] = RESIDUAL
    return out


def pattern(record: Record) -> str:
    """The whole plan in one line: data parallel + FSDP over data; tensor parallel over model"""
    named = roles(record)
    by_phrase: dict[str, list[str]] = {}
    for axis, entries in record["decisions"].items():
        by_phrase.setdefault(axis_pattern(entries, named), []).append(axis)
    return "; ".join(f"{phrase} over {' and '.join(axes)}" for phrase, axes in by_phrase.items())


def also_known_as(record: Record) -> str:
    """The named tactic with exactly this cost, or nothing."""
    same = matching_baseline(record)
    return same.name if same else ""


def axis_pattern(entries: list[dict[str, Any]], named: dict[str, str]) -> str:
    """What one axis is used for."""
    if not entries:
        return "nothing"
    kinds = [named.get(e["group"], HIDDEN) for e in entries]
    cut = next((i for i, kind in enumerate(kinds) if kind in (BATCH, SEQUENCE)), len(entries))
    before, after = entries[:cut], entries[cut:]
    parts = []
    if before:
        parts.append(_on_weights(before, kinds[:cut]))
    if after:
        parts.append(_on_data(after, kinds[cut:], behind_weights=bool(before)))
    return ", then ".join(parts)


def _on_weights(entries: list[dict[str, Any]], kinds: list[str]) -> str:
    """Dims of parameters claim first: tensor parallelism, or optimiser state alone."""
    if all(e["scope"] for e in entries):
        return "optimiser state split"
    if kinds[0] == RESIDUAL:
        return "residual stream split"
    return "tensor parallel" if len(entries) > 2 else f"tensor parallel ({_names(entries)})"


def _on_data(entries: list[dict[str, Any]], kinds: list[str], *, behind_weights: bool) -> str:
    """The batch or the sequence claims first; parameters take what those leave free."""
    weights = [e for e, k in zip(entries, kinds, strict=True) if k not in (BATCH, SEQUENCE)]
    both = BATCH in kinds and SEQUENCE in kinds
    if kinds[0] == BATCH:
        head = "data parallel" + (" and context parallel" if both else "")
    elif behind_weights:
        head = "sequence parallel" + (" and data parallel" if both else "")
    else:
        head = "context parallel" + (" and data parallel" if both else "")
    if not weights:
        return head
    if all(e["scope"] for e in weights):
        return f"{head} + ZeRO-2"
    return f"{head} + FSDP"


def _names(entries: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(e["group"] for e in entries))


def _root(path: str) -> str:
    found = _ROOT.match(path)
    return found.group(0) if found else path
