"""Baselines: every strategy and sensible composition of strategies, over every choice of axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, permutations

from shardwright.search.tactics import (
    FSDP,
    Context,
    ContextParallel,
    DataParallel,
    ExpertParallel,
    Megatron,
    NotApplicable,
    SequenceParallel,
    Strategy,
    Tactic,
    WeightStationary,
    ZeRO,
)  # fmt: skip
from shardwright.spmd.decisions import State, append, empty


def compositions(names: tuple[str, ...]) -> Iterator[tuple[Tactic, ...]]:
    """Schedules over axes with these names, each given here once per assignment of axes."""
    for a in names:
        yield (DataParallel(a),)
        yield (FSDP(a),)
        yield (ZeRO(2, a),)
        yield (Megatron(a),)
        yield (Megatron(a), SequenceParallel(a))
        yield (ContextParallel(a, "query"),)
        yield (ContextParallel(a, "key"),)
        yield (ExpertParallel(a),)
        yield (ContextParallel(a, "query"), FSDP(a))
        yield (ExpertParallel(a), FSDP(a))
    everywhere: tuple[type[Strategy], ...] = (DataParallel, FSDP, Megatron)
    if len(names) > 1:
        for kind in everywhere:
            yield tuple(kind(a) for a in names)
        yield tuple(ZeRO(2, a) for a in names)
        yield (*(Megatron(a) for a in names), *(SequenceParallel(a) for a in names))
    for size in range(1, len(names)) if len(names) > 2 else ():  # several axes act as one
        for some in combinations(names, size):
            rest = [a for a in names if a not in some]
            if size > 1:
                yield from (tuple(kind(a) for a in some) for kind in everywhere)
            for kind in (DataParallel, FSDP):
                both = (*(kind(a) for a in some), *(Megatron(a) for a in rest))
                yield both
                yield (*both, *(SequenceParallel(a) for a in rest))
    for a, b in permutations(names, 2):
        for first in (DataParallel(a), FSDP(a), ZeRO(2, a)):
            yield (first, Megatron(b))
            yield (first, Megatron(b), SequenceParallel(b))
            yield (first, ContextParallel(b, "query"))
            yield (first, ContextParallel(b, "key"))
            yield (first, ExpertParallel(b))
        yield (FSDP(a), ContextParallel(b, "query"), FSDP(b))
        yield (FSDP(a), ExpertParallel(b), FSDP(b))
        yield (FSDP(a), Megatron(b), SequenceParallel(b), FSDP(b))
        yield (ExpertParallel(a), Megatron(b))
        yield (ContextParallel(a, "query"), Megatron(b))
        yield (ContextParallel(a, "key"), Megatron(b))
        yield (WeightStationary(a), Megatron(b))
    for a, b, c in permutations(names, 3):
        for first in (DataParallel(a), FSDP(a)):
            for second in (
                DataParallel(b),
                FSDP(b),
                ContextParallel(b, "query"),
                ExpertParallel(b),
            ):
                yield (first, second, Megatron(c))
                yield (first, second, Megatron(c), SequenceParallel(c))


def compose(
    context: Context,
    tactics: tuple[Tactic, ...],
    pins: State,
    allowed: Callable[[int, int], bool],
) -> State | NotApplicable:
    """The state that a composition stands for behind the pins, or why it does not apply."""
    state = pins
    for tactic in tactics:
        axis = context.axis(tactic.axis)  # type: ignore[attr-defined]
        found = tactic.entries(context, state[axis])  # type: ignore[attr-defined]
        if isinstance(found, NotApplicable):
            return NotApplicable(f"{tactic}: {found}" if len(tactics) > 1 else str(found))
        kept = [entry for entry in found if allowed(axis, entry.group)]
        if found and not kept:
            reason = "your Limit or Replicate leaves it nothing to split"
            return NotApplicable(f"{tactic}: {reason}" if len(tactics) > 1 else reason)
        for entry in kept:
            state = append(state, axis, entry)
    return state


def baselines(
    context: Context,
    pins: State | None = None,
    allowed: Callable[[int, int], bool] = lambda axis, group: True,
) -> dict[str, State | NotApplicable]:
    """Every composition by name: DataParallel(data) + Megatron(model).

    `pins` are the lists that every search starts from, `allowed(axis, group)` what it may append:
    a tactic that breaks them would be compared with plans that may not.
    """
    names = tuple(name for name, size in context.model.mesh.axes if size > 1)
    start = empty(len(context.model.mesh.sizes)) if pins is None else pins
    return {
        " + ".join(map(str, tactics)): compose(context, tactics, start, allowed)
        for tactics in compositions(names)
    }
