"""Un-sharing: one color of a group gets a decision of its own (one layer may differ)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardwright.analysis.analysis import Analysis, Group
from shardwright.errors import ShardwrightError


def unshare(analysis: Analysis, group: int, color: int) -> Analysis:
    """The analysis in which `color` is a group by itself, last in the list.

    Its label is the group's with a number: w1[1]@0 is the first that left w1[1].
    """
    known = 0 <= group < len(analysis.all_groups)
    if not known or color not in (colors := analysis.all_groups[group].colors) or len(colors) < 2:
        raise ShardwrightError(
            f"color {color} shares no decision with others in group {group}", try_="plan again"
        )
    old = analysis.all_groups[group]
    place = sum(g.label.startswith(f"{old.label}@") for g in analysis.all_groups)
    color_group = analysis.color_group.copy()
    color_group[color] = len(analysis.all_groups)
    count = len(old.colors)
    rest = replace(
        old, colors=tuple(c for c in old.colors if c != color),
        argument_bytes=old.argument_bytes * (count - 1) // count,
        activation_bytes=old.activation_bytes * (count - 1) // count,
    )  # fmt: skip
    alone = replace(
        old, index=len(analysis.all_groups), label=f"{old.label}@{place}", colors=(color,),
        argument_bytes=old.argument_bytes // count, activation_bytes=old.activation_bytes // count,
    )  # fmt: skip
    groups: list[Group] = [rest if g.index == group else g for g in analysis.all_groups]
    return replace(analysis, color_group=color_group, all_groups=[*groups, alone])


def unshare_all(analysis: Analysis, pairs: Iterable[tuple[int, int]]) -> Analysis:
    """The analysis after un-sharing these (group, color) pairs in order."""
    for group, color in pairs:
        analysis = unshare(analysis, group, color)
    return analysis
