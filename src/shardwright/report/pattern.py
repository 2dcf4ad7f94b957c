"""The plan's pattern in the field's words: its decisions, and what its groups are."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.record.types import Claim, PlanRecord
from shardwright.report.facts import are_pinned, matching_baseline

BATCH, SEQUENCE, DATA = "batch", "sequence", "data"  # dims of what is not a parameter
RESIDUAL, HIDDEN, EXPERTS = "residual", "hidden", "experts"
ON_DATA = (BATCH, SEQUENCE, DATA)


def pattern(record: PlanRecord) -> str:
    """The whole plan in one line: data parallel + FSDP over data; tensor parallel over model"""
    named = {group.label: group.role for group in record.groups}
    if not any(record.decisions.values()):
        return "nothing is split"
    by_phrase: dict[str, list[str]] = {}
    for axis, claims in record.decisions.items():
        by_phrase.setdefault(axis_pattern(claims, named), []).append(axis)
    return "; ".join(f"{phrase} over {' and '.join(axes)}" for phrase, axes in by_phrase.items())


def also_known_as(record: PlanRecord) -> str:
    """The named tactic with exactly this cost, or nothing."""
    same = matching_baseline(record)
    return f"{same.name}{', pinned' * are_pinned(record)}" if same else ""


def axis_pattern(claims: Sequence[Claim], named: dict[str, str]) -> str:
    """What one axis is used for."""
    if not claims:
        return "nothing"
    kinds = [named.get(c.group, HIDDEN) for c in claims]
    cut = next((i for i, kind in enumerate(kinds) if kind in ON_DATA), len(claims))
    before, after = claims[:cut], claims[cut:]
    parts = []
    if before:
        parts.append(_on_weights(before, kinds[:cut]))
    if after:
        parts.append(_on_data(after, kinds[cut:], behind_weights=bool(before)))
    return ", then ".join(parts)


def _on_weights(claims: Sequence[Claim], kinds: list[str]) -> str:
    """Dims of parameters claim first: tensor parallelism, or moments and gradients alone."""
    full = [c for c in claims if not c.scope]  # the parameters too
    tail = " + ZeRO-2" if len(full) < len(claims) else ""
    if not full:
        return "moments and gradients split"
    if kinds[0] == RESIDUAL:
        return f"residual stream split{tail}"
    dense = [c for c, kind in zip(claims, kinds, strict=True) if not c.scope and kind != EXPERTS]
    names = f" ({_names(dense)})" if len(dense) < 3 else ""
    words = ["expert parallel"] if len(dense) < len(full) else []
    words += [f"tensor parallel{names}"] if dense else []
    return " and ".join(words) + tail


def _on_data(claims: Sequence[Claim], kinds: list[str], *, behind_weights: bool) -> str:
    """The batch or the sequence claims first; parameters take what those leave free."""
    words = {BATCH: "data parallel", SEQUENCE: "context parallel"}
    if behind_weights:
        words[SEQUENCE] = "sequence parallel"
    heads = [
        words.get(kind, f"split by {claim.group}")
        for claim, kind in zip(claims, kinds, strict=True)
        if kind in ON_DATA and not (kind == SEQUENCE and BATCH in kinds)  # arrays have both
    ]
    head = " and ".join(dict.fromkeys(heads))
    weights = [c for c, kind in zip(claims, kinds, strict=True) if kind not in ON_DATA]
    if not weights:
        return head
    return f"{head} + {'ZeRO-2' if all(c.scope for c in weights) else 'FSDP'}"


def _names(claims: Sequence[Claim]) -> str:
    return ", ".join(dict.fromkeys(c.group for c in claims))
