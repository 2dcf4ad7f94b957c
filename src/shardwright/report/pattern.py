"""The plan's pattern in the field's words: its decisions, and what its groups are."""

from __future__ import annotations

from typing import Any

from shardwright.report.facts import Record, are_pinned, matching_baseline

BATCH, SEQUENCE, DATA = "batch", "sequence", "data"  # dims of what is not a parameter
RESIDUAL, HIDDEN, EXPERTS = "residual", "hidden", "experts"
ON_DATA = (BATCH, SEQUENCE, DATA)


def roles(record: Record) -> dict[str, str]:
    """{group label: batch, sequence, data, residual, hidden or experts}"""
    return {group["label"]: group.get("role", HIDDEN) for group in record["groups"]}


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
    return f"{same.name}{', pinned' * are_pinned(record)}" if same else ""


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
    """Dims of parameters claim first: tensor parallelism, or moments and gradients alone."""
    whole = [e for e in entries if not e["scope"]]
    tail = " + ZeRO-2" if len(whole) < len(entries) else ""
    if not whole:
        return "moments and gradients split"
    if kinds[0] == RESIDUAL:
        return f"residual stream split{tail}"
    dense = [
        e for e, kind in zip(entries, kinds, strict=True) if not e["scope"] and kind != EXPERTS
    ]
    names = f" ({_names(dense)})" if len(dense) < 3 else ""
    words = ["expert parallel"] if len(dense) < len(whole) else []
    words += [f"tensor parallel{names}"] if dense else []
    return " and ".join(words) + tail


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
