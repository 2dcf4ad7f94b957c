"""Whether a call is the one that was planned: the types of its arguments, and its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardwright.errors import ShardwrightError, first_of
from shardwright.lowering.steps import Steps
from shardwright.program.fingerprint import argument_types, first_change
from shardwright.program.types import Program


def check_unchanged(steps: Steps, now: Program) -> None:
    """Raises unless a program that was traced again is the one that the steps are for."""
    check_types(steps.types, list(argument_types(now).values()))
    change = first_change(steps.program, now)
    if change is not None:
        raise ShardwrightError(
            f"{now.name} has changed since it was planned",
            was=change.was, now=change.now, at=change.at,
            try_="plan again: the function must compute the same whenever it is traced; what may"
            " change it is an argument, static if it is no array",
        )  # fmt: skip


def check_types(planned: Mapping[str, str], now: Sequence[str]) -> None:
    """Raises unless the leaves of a call have the planned types, {path: type}."""
    rows = zip(planned.items(), now, strict=True)
    changes = [f"{path}: was {was}, is {is_}" for (path, was), is_ in rows if was != is_]
    if changes:
        raise ShardwrightError(
            "the arguments have other types than this plan was made for",
            changed=first_of(changes),
            try_="plan again for these arguments",
        )
