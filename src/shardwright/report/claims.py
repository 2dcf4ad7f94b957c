"""The claims of each axis with what their groups are: what every text about decisions reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.record.types import Claim, GroupRow, PlanRecord


class Role:
    """What the dims of a group are, as records spell it."""

    BATCH, SEQUENCE, DATA = "batch", "sequence", "data"  # of what is not a parameter
    RESIDUAL, HIDDEN, EXPERTS = "residual", "hidden", "experts"


@dataclass(frozen=True, slots=True)
class Claimed:
    """One claim of an axis, and the group that it is about."""

    label: str  # of the group
    role: str
    scoped: bool  # moments and gradients only
    side: str  # by which of its two dims in attention scores a sequence is split; else nothing
    sizes: tuple[int, ...] = ()
    dims: tuple[str, ...] = ()

    @property
    def on_data(self) -> bool:
        """Whether it splits what is not a parameter."""
        return self.role in (Role.BATCH, Role.SEQUENCE, Role.DATA)

    @property
    def about(self) -> list[str]:
        """What it splits, where that has a name, and what is special about it."""
        return [self.role] * (self.role != Role.HIDDEN) + self.notes

    @property
    def notes(self) -> list[str]:
        """What is special about it."""
        return ["moments and gradients only"] * self.scoped + [self.side] * bool(self.side)


def claims_of(record: PlanRecord) -> dict[str, list[Claimed]]:
    """{axis: its claims in order}"""
    groups = {group.label: group for group in record.groups}
    return {
        axis: [_claimed(claim, groups.get(claim.group)) for claim in claims]
        for axis, claims in record.decisions.items()
    }


def before_data(claims: Sequence[Claimed]) -> tuple[Sequence[Claimed], Sequence[Claimed]]:
    """(claims of weights that come first, the rest from the first on the batch or sequence on)"""
    cut = next((i for i, claim in enumerate(claims) if claim.on_data), len(claims))
    return claims[:cut], claims[cut:]


def _claimed(claim: Claim, group: GroupRow | None) -> Claimed:
    if group is None:
        return Claimed(claim.group, Role.HIDDEN, bool(claim.scope), "")
    side = _side(claim, group)
    return Claimed(claim.group, group.role, bool(claim.scope), side, group.sizes, group.dims)


def _side(claim: Claim, group: GroupRow) -> str:
    """By which of its two dims in attention scores a sequence is split; nothing for others."""
    if not group.bits:
        return ""
    every = (1 << min(group.bits, 31)) - 1
    if group.query_bits < 0:  # not attention, or an older file
        return f"side {claim.bits} where it meets itself"
    sides = {group.query_bits: "by queries", group.query_bits ^ every: "by keys"}
    return sides.get(claim.bits, "partly by queries")
