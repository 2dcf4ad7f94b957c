"""The plan's pattern in the field's words, read off its decisions.

The record names groups of dims, not their meaning, so meaning is read off the argument paths:
the argument with most leaves holds the parameters; a dim that several of them share is a hidden
dim, and the one on most bytes the residual stream; of the others, a leading dim of another
argument is the batch, another dim of it the sequence if it meets itself (as in attention).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from shardwright.report.facts import Record, matching_baseline

BATCH, SEQUENCE, DATA = "batch", "sequence", "data"  # dims of what is not a parameter
RESIDUAL, HIDDEN = "residual", "hidden"
ON_DATA = (BATCH, SEQUENCE, DATA)

_ROOT = re.compile(r"^[^.\[]+")
_ATTRIBUTE = re.compile(r"^.*\.\w+")
_KEY = re.compile(r"\['([^']*)'\]")
_DIM = re.compile(r"^(.*)\[(\d+)\]$", re.DOTALL)


def roles(record: Record) -> dict[str, str]:
    """{group label: batch, sequence, data, residual or hidden}"""
    leaves = Counter(_root(path) for path in record["arguments"])
    if not leaves:
        return {}
    parameters, most = leaves.most_common(1)[0]
    if list(leaves.values()).count(most) > 1:
        parameters = ""  # a bare list of arrays: nothing says which are parameters
    out: dict[str, str] = {}
    on: dict[str, int] = {}  # bytes of the parameters that share the group
    for group in record["groups"]:
        dims = [m.groups() for m in map(_DIM.match, group["dims"]) if m]
        data = [int(dim) for path, dim in dims if parameters and _root(path) != parameters]
        weights = {_tail(path) for path, _ in dims if _root(path) == parameters}
        label = group["label"]
        if data and len(weights) < 2 and (0 in data or group["bits"] or not weights):
            out[label] = BATCH if 0 in data else SEQUENCE if group["bits"] else DATA
            continue
        out[label] = HIDDEN
        if len(weights) > 2 or (weights and data):
            on[label] = group["argument_bytes"]
    if on:
        out[max(on, key=lambda label: on[label])] = RESIDUAL
    return out


def pattern(record: Record) -> str:
    """The whole plan in one line: data parallel + FSDP over data; tensor parallel over model"""
    named = roles(record)
    if not any(record["decisions"].values()):
        return "nothing is split"
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
    cut = next((i for i, kind in enumerate(kinds) if kind in ON_DATA), len(entries))
    before, after = entries[:cut], entries[cut:]
    parts = []
    if before:
        parts.append(_on_weights(before, kinds[:cut]))
    if after:
        parts.append(_on_data(after, kinds[cut:], behind_weights=bool(before)))
    return ", then ".join(parts)


def _on_weights(entries: list[dict[str, Any]], kinds: list[str]) -> str:
    """Dims of parameters claim first: tensor parallelism, or optimiser state alone."""
    whole = [e for e in entries if not e["scope"]]
    tail = " + ZeRO-2" if len(whole) < len(entries) else ""
    if not whole:
        return "optimiser state split"
    if kinds[0] == RESIDUAL:
        return f"residual stream split{tail}"
    names = f" ({_names(whole)})" if len(whole) < 3 else ""
    return f"tensor parallel{names}{tail}"


def _on_data(entries: list[dict[str, Any]], kinds: list[str], *, behind_weights: bool) -> str:
    """The batch or the sequence claims first; parameters take what those leave free."""
    words = {BATCH: "data parallel", SEQUENCE: "context parallel"}
    if behind_weights:
        words[SEQUENCE] = "sequence parallel"
    heads = [
        words.get(kind, f"split by {entry['group']}")
        for entry, kind in zip(entries, kinds, strict=True)
        if kind in ON_DATA
    ]
    head = " and ".join(dict.fromkeys(heads))
    weights = [e for e, kind in zip(entries, kinds, strict=True) if kind not in ON_DATA]
    if not weights:
        return head
    return f"{head} + {'ZeRO-2' if all(e['scope'] for e in weights) else 'FSDP'}"


def _names(entries: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(e["group"] for e in entries))


def _root(path: str) -> str:
    found = _ROOT.match(path)
    return found.group(0) if found else path


def _tail(path: str) -> str:
    """The last two keys: one name for a parameter and its moments, mu['w1'] and params['w1']."""
    return "/".join(_KEY.findall(_ATTRIBUTE.sub("", path))[-2:]) or path
