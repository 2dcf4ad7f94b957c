"""Constraints: what a user may ask of whatever is searched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any


class Tactic:
    """The common type of everything that may stand in a schedule.

    Where a tactic names a mesh axis it may name several: FSDP(("data", "model")) is FSDP over each.
    """


@dataclass(frozen=True, slots=True)
class Pin(Tactic):
    """A group, or the group of an argument's dim, is the first to claim an axis.

    `what` is a group's label (then `dim` is not needed) or an argument path in which * stands
    for anything. The whole group follows: dims that must be split alike are pinned alike.
    """

    what: str
    dim: int | None = None
    axis: Any = ""  # or several

    def __str__(self) -> str:
        dim = "" if self.dim is None else f", {self.dim}"
        return f"Pin({self.what!r}{dim}, {self.axis!r})"


@dataclass(frozen=True, slots=True)
class Replicate(Tactic):
    """Arguments that match a path pattern are replicated; a label: the group is."""

    what: str

    def __str__(self) -> str:
        return f"Replicate({self.what!r})"


@dataclass(frozen=True, slots=True)
class Limit(Tactic):
    """Only groups with these labels may claim an axis."""

    axis: Any  # or several
    labels: tuple[str, ...]

    def __init__(self, axis: Any, labels: Sequence[str]) -> None:
        object.__setattr__(self, "axis", axis)
        object.__setattr__(self, "labels", (labels,) if isinstance(labels, str) else tuple(labels))

    def __str__(self) -> str:
        return f"Limit({self.axis!r}, {list(self.labels)})"


@dataclass(frozen=True, slots=True)
class Search(Tactic):
    """The search goes on from here on these axes; on all of them when none is named."""

    axes: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f"Search({', '.join(self.axes)})" if self.axes else "Search"

    def __init__(self, axes: Sequence[str] | None = None) -> None:
        object.__setattr__(self, "axes", None if axes is None else tuple(axes))


def over_axes(tactics: Iterable[Any]) -> tuple[Any, ...]:
    """The tactics, one for each axis of those that name several."""
    out: list[Any] = []
    for tactic in tactics:
        axes = getattr(tactic, "axis", None)
        several = isinstance(tactic, Tactic) and isinstance(axes, tuple | list)
        out += [replace(tactic, axis=axis) for axis in axes] if several else [tactic]  # type: ignore[type-var, union-attr]
    return tuple(out)
