"""The plan's pattern in the field's words: its decisions, and what its groups are."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.record.types import PlanRecord
from shardwright.report.claims import Claimed, Role, before_data, claims_of
from shardwright.report.facts import are_pinned, matching_baseline


def pattern(record: PlanRecord) -> str:
    """The whole plan in one line: data parallel + FSDP over data; tensor parallel over model"""
    if not any(record.decisions.values()):
        return "nothing is split"
    by_phrase: dict[str, list[str]] = {}
    for axis, claims in claims_of(record).items():
        by_phrase.setdefault(axis_pattern(claims), []).append(axis)
    return "; ".join(f"{phrase} over {' and '.join(axes)}" for phrase, axes in by_phrase.items())


def also_known_as(record: PlanRecord) -> str:
    """The named tactic with exactly this cost, or nothing."""
    same = matching_baseline(record)
    return f"{same.name}{', pinned' * are_pinned(record)}" if same else ""


def axis_pattern(claims: Sequence[Claimed]) -> str:
    """What one axis is used for."""
    before, after = before_data(claims)
    parts = [_on_weights(before)] if before else []
    parts += [_on_data(after, behind_weights=bool(before))] if after else []
    return ", then ".join(parts) or "nothing"


def _on_weights(claims: Sequence[Claimed]) -> str:
    """Dims of parameters claim first: tensor parallelism, or moments and gradients alone."""
    full = [c for c in claims if not c.scoped]  # the parameters too
    tail = " + ZeRO-2" if len(full) < len(claims) else ""
    if not full:
        return "moments and gradients split"
    if claims[0].role == Role.RESIDUAL:
        return f"residual stream split{tail}"
    dense = [c.label for c in full if c.role != Role.EXPERTS]
    names = f" ({', '.join(dict.fromkeys(dense))})" if len(dense) < 3 else ""
    words = ["expert parallel"] if any(c.role == Role.EXPERTS for c in full) else []
    words += [f"tensor parallel{names}"] if dense else []
    return " and ".join(words) + tail


def _on_data(claims: Sequence[Claimed], *, behind_weights: bool) -> str:
    """The batch or the sequence claims first; parameters take what those leave free."""
    words = {Role.BATCH: "data parallel", Role.SEQUENCE: "context parallel"}
    if behind_weights:
        words[Role.SEQUENCE] = "sequence parallel"
    with_batch = any(c.role == Role.BATCH for c in claims)  # which arrays with a sequence have too
    heads = [
        words.get(c.role, f"split by {c.label}")
        for c in claims
        if c.on_data and not (c.role == Role.SEQUENCE and with_batch)
    ]
    head = " and ".join(dict.fromkeys(heads))
    weights = [c for c in claims if not c.on_data]
    if not weights:
        return head
    return f"{head} + {'ZeRO-2' if all(c.scoped for c in weights) else 'FSDP'}"
