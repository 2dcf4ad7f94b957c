"""The one exception family of Shardwright."""

from collections.abc import Sequence

SHOWN = 8  # lines of a list in an error


class ShardwrightError(Exception):
    """What went wrong, where in the user's code, and what to try.

    >>> print(ShardwrightError("unknown device 'tpu-v9'", try_="tpu-v5e, h100"))
    unknown device 'tpu-v9'
      try     tpu-v5e, h100
    """

    def __init__(self, what: str, *, try_: str | None = None, **facts: object) -> None:
        self.what = what
        self.facts = {name: str(fact) for name, fact in facts.items() if fact is not None}
        if try_ is not None:
            self.facts["try"] = try_
        lines = [what]
        for name, fact in self.facts.items():
            first, *rest = fact.splitlines() or [""]
            lines.append(f"  {name.replace('_', ' '):<7} {first}")
            lines.extend(f"  {'':<7} {line}" for line in rest)
        super().__init__("\n".join(lines))


def first_of(changes: Sequence[str]) -> str:
    """A line for each of the first changes, and how many more there are."""
    more = [f"... and {len(changes) - SHOWN} more"] if len(changes) > SHOWN else []
    return "\n".join([*changes[:SHOWN], *more])


class NoPlanFits(ShardwrightError):
    """There is too little memory for any plan."""
