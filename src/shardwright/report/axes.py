"""What each mesh axis is used for, a sentence each: the batch, and every weight and moment (FSDP).

The lists say what an axis is for; how much of the weights it splits is read off their specs.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.record.types import PlanRecord
from shardwright.report import facts
from shardwright.report.claims import Claimed, Role, before_data, claims_of
from shardwright.report.words import change, human_seconds, listed, type_bytes

ALL, SOME = 0.995, 0.005  # shares that are called every and none
DIMS = 3  # dims named in a sentence
NAMES = {"parameters": "weight", "optimiser state": "moment"}


def axis_sentences(record: PlanRecord) -> dict[str, str]:
    """{axis: what it is used for}"""
    return {axis: _sentence(record, axis, claims) for axis, claims in claims_of(record).items()}


def _sentence(record: PlanRecord, axis: str, claims: Sequence[Claimed]) -> str:
    """What one axis splits, in the order in which arrays give it to their dims."""
    before, after = before_data(claims)
    parts = [*_on_weights(before), *_on_data(record, axis, after, elsewhere=bool(before))]
    return "; ".join(parts) if parts else f"nothing{_why_nothing(record, axis)}"


def _on_weights(claims: Sequence[Claimed]) -> list[str]:
    """Dims of weights come first: arrays that have them are split there."""
    full = [c for c in claims if not c.scoped]
    roles, hidden = [c.role for c in full], [c.label for c in full if c.role == Role.HIDDEN]
    parts = ["the experts (expert parallel)"] if Role.EXPERTS in roles else []
    parts += ["the residual stream"] if Role.RESIDUAL in roles else []
    if hidden:
        many = "s" * (len(hidden) > 1)
        parts.append(f"the hidden dim{many} {listed(hidden, DIMS)} (tensor parallel)")
    if len(full) < len(claims):
        parts.append("moments and gradients (ZeRO-2)")
    return parts


def _on_data(
    record: PlanRecord, axis: str, claims: Sequence[Claimed], *, elsewhere: bool
) -> list[str]:
    """The batch or the sequence comes first; weights take the axis where those leave it free."""
    if not claims:
        return []
    words, names = [], []
    for claim in claims:
        if claim.role == Role.BATCH:
            words.append("the batch")
        elif claim.role == Role.SEQUENCE:
            if "the batch" in words:  # which takes the axis where both are
                continue
            words.append(f"the sequence {claim.side}".rstrip())
            names.append("sequence parallel" if elsewhere else "context parallel")
        elif claim.on_data:
            words.append(claim.label)
    weights = [c for c in claims if not c.on_data]
    if weights:
        scoped = all(c.scoped for c in weights)
        words.append("moments and gradients" if scoped else _share(record, axis))
        names.append("ZeRO-2" if scoped else "FSDP")
    elif words == ["the batch"]:
        names.append("data parallel")
    words = list(dict.fromkeys(words))
    last = f", and {words[-1]}" if len(words) > 1 else ""
    text = ", ".join(words[:-1] or words) + last
    text += f" ({', '.join(dict.fromkeys(names))})" if names else ""
    return [f"elsewhere {text}" if elsewhere else text]


def _share(record: PlanRecord, axis: str) -> str:
    """How much of the weights and of the optimiser's moments an axis splits, in words."""
    shares = {}
    for kind, noun in NAMES.items():
        paths = [path for path, one in record.kinds.items() if one == kind]
        total = sum(type_bytes(record.arguments[path]) for path in paths)
        split = [path for path in paths if any(axis in on for on in record.specs[path])]
        if total:
            shares[noun] = sum(type_bytes(record.arguments[path]) for path in split) / total
    if not shares:
        return "weights"
    if all(share >= ALL for share in shares.values()):
        return f"every {' and '.join(shares)}"
    nouns = {noun: share for noun, share in shares.items() if share >= SOME}
    texts = [
        f"every {noun}" if share >= ALL else f"{share:.0%} of the {noun}s"
        for noun, share in nouns.items()
    ]
    return " and ".join(texts) or "single weights"


def _why_nothing(record: PlanRecord, axis: str) -> str:
    """Why nothing is split over an axis: what the best tactic that uses it would cost."""
    if record.mesh.shape[axis] == 1:
        return ": it has one device"
    names = (f"({axis})", f"({axis},")
    rows = [
        b for b in facts.ranked_baselines(record)
        if b.fits and any(part in b.name for part in names)
    ]  # fmt: skip
    if not rows:
        return ""
    best, cost = rows[0], record.cost
    if best.cost.step_s <= cost.step_s:
        given = facts.constraints(record)
        faster = f"{human_seconds(best.cost.step_s)}, {change(best.cost.step_s, cost.step_s)}"
        return f"; {given} leave it out: {best.name} would take {faster}" if given else ""
    more, less = best.cost.link_s - cost.link_s, cost.compute_s - best.cost.compute_s
    if less > 0:
        price = f"saves {human_seconds(less)} of compute and adds {human_seconds(more)} of links"
    else:
        price = f"takes {change(best.cost.step_s, cost.step_s)}"
    return f"; of the tactics that use it {best.name} is best, and {price}"
