"""Baselines: every strategy and sensible composition of strategies, over every choice of axes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

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


def compose(context: Context, tactics: tuple[Tactic, ...]) -> State | NotApplicable:
    """The state that a composition stands for, or why it does not apply."""
    state = empty(len(context.model.mesh.sizes))
    for tactic in tactics:
        axis = context.axis(tactic.axis)  # type: ignore[attr-defined]
        found = tactic.entries(context, state[axis])  # type: ignore[attr-defined]
        if isinstance(found, NotApplicable):
            return NotApplicable(f"{tactic}: {found}" if len(tactics) > 1 else str(found))
        for entry in found:
            state = append(state, axis, entry)
    return state


def baselines(context: Context) -> dict[str, State | NotApplicable]:
    """Every composition by name: DataParallel(data) + Megatron(model)."""
    names = tuple(name for name, size in context.model.mesh.axes if size > 1)
    return {
        " + ".join(map(str, tactics)): compose(context, tactics) for tactics in compositions(names)
    }
