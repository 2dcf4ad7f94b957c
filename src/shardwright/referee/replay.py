"""Replay: the seconds of a compiled schedule, and how much of its links is exposed.

The text of scheduled HLO is the order of execution. Compute runs one instruction after the other; a
collective takes the links of its axes from its start until its seconds are over, and whatever ends
it waits for that. What has no start and end of its own is both: nothing else runs meanwhile.

- TPU: an asynchronous collective is named by every fusion that runs beside it, with one channel: it
  runs from the first to the last mention.
- GPU, and permutes on TPU: pairs of `-start` and `-done`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from shardwright.referee.compiled import (
    CompiledCollective,
    fused_channel,
    is_collective,
    read_collective,
)
from shardwright.referee.estimates import Estimate, everything_in
from shardwright.referee.hlo import Computation, Instruction, Module, parse
from shardwright.referee.loops import Run, calls

_SEQUENCED = ("while", "conditional", "call")  # whose bodies have schedules of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """One step of a compiled schedule, on one device."""

    compute_s: float
    link_s: float  # of all collectives
    exposed_s: float  # in which compute waits for them

    @property
    def step_s(self) -> float:
        """Compute, and the links that it does not hide."""
        return self.compute_s + self.exposed_s


@dataclass(slots=True)
class _Clock:
    """When each thing is free again, from the start of one computation on."""

    now_s: float = 0.0
    compute_s: float = 0.0
    link_s: float = 0.0
    free_s: dict[str, float] = field(default_factory=dict)  # mesh axis -> end of its last use
    ends_s: dict[str, float] = field(default_factory=dict)  # collective -> when it is over

    def start(self, key: str, axes: Iterable[str], seconds: float) -> None:
        """A collective takes its links as soon as they are free."""
        begin = max([self.now_s, *[self.free_s.get(a, 0.0) for a in axes]])
        self.ends_s[key] = begin + seconds
        self.free_s.update(dict.fromkeys(axes, begin + seconds))
        self.link_s += seconds

    def wait(self, keys: Iterable[str]) -> None:
        """Compute waits for collectives."""
        self.now_s = max([self.now_s, *[self.ends_s[key] for key in keys]])

    def run(self, seconds: float) -> None:
        """Compute runs."""
        self.now_s += seconds
        self.compute_s += seconds

    def include(self, inner: _Clock, times: int) -> None:
        """A loop's body, so many times; nothing runs beside a loop."""
        self.wait(self.ends_s)
        self.now_s += times * inner.now_s
        self.compute_s += times * inner.compute_s
        self.link_s += times * inner.link_s


def replay(
    hlo_text: str, mesh: Mapping[str, int], link_s: Callable[[CompiledCollective], float],
    compute_s: Estimate,
) -> Seconds:  # fmt: skip
    """The seconds of a schedule; `link_s` are those of one collective."""
    module, memo = parse(hlo_text), dict[str, _Clock]()

    def below(name: str) -> _Clock:
        """A computation played once; memoised."""
        if name not in memo:
            memo[name] = _Clock()  # a computation never calls itself; stay finite if the text does
            memo[name] = play(module.computation(name))
        return memo[name]

    def play(computation: Computation) -> _Clock:
        """The clock after one computation."""
        clock, rows = _Clock(), list(computation.instructions.values())
        mentions = [list(_mentions(module, computation, row)) for row in rows]
        last = {key: i for i, found in enumerate(mentions) for key, _ in found}
        for i, row in enumerate(rows):
            for key, run in mentions[i]:
                if key not in clock.ends_s:
                    one = read_collective(module, run, mesh)
                    clock.start(key, one.axes or tuple(mesh), link_s(one))
            if row.opcode in _SEQUENCED:
                for branches, times, _ in calls(module, computation, row):
                    longest = max(map(below, branches), key=lambda c: c.now_s, default=_Clock())
                    clock.include(longest, times)
            else:
                clock.run(compute_s(module, computation, row))
            clock.wait(key for key, _ in mentions[i] if last[key] == i)
        clock.wait(clock.ends_s)
        return clock

    step = below(module.entry)
    return Seconds(
        compute_s=step.compute_s, link_s=step.link_s, exposed_s=step.now_s - step.compute_s
    )


def _mentions(
    module: Module, computation: Computation, row: Instruction
) -> Iterator[tuple[str, Run]]:
    """(its name, it) for every collective that an instruction starts, runs beside or ends."""
    start = computation.instructions.get(row.operands[0]) if row.operands else None
    if row.opcode.endswith("-done") and start is not None:
        yield from _mentions(module, computation, start)
    elif is_collective(row):
        yield row.name, Run(computation, row, 1, True)
    elif row.opcode not in _SEQUENCED:
        for inside, inner in everything_in(module, row):
            if is_collective(inner):
                channel = fused_channel(inner)
                name = row.name if channel is None else f"channel {channel}"
                yield name, Run(inside, inner, 1, True, row)
