"""Tactics on several axes, and searches with more work."""

from __future__ import annotations

import pytest

from shardwright.search import (
    FSDP,
    ContextParallel,
    DataParallel,
    Limit,
    Megatron,
    Pin,
    SequenceParallel,
    Tactic,
    ZeRO,
)
from shardwright.search.constraints import over_axes
from shardwright.search.search import DEFAULT_SECONDS, _budgets, search
from tests.search.programs import model_of

BOTH = ("x", "y")


@pytest.mark.parametrize(
    "tactic, each",
    [
        (DataParallel(BOTH), [DataParallel("x"), DataParallel("y")]),
        (FSDP(BOTH), [FSDP("x"), FSDP("y")]),
        (ZeRO(2, BOTH), [ZeRO(2, "x"), ZeRO(2, "y")]),
        (Megatron(list(BOTH)), [Megatron("x"), Megatron("y")]),
        (SequenceParallel(BOTH), [SequenceParallel("x"), SequenceParallel("y")]),
        (ContextParallel(BOTH, "key"), [ContextParallel("x", "key"), ContextParallel("y", "key")]),
        (Pin("w", 0, BOTH), [Pin("w", 0, "x"), Pin("w", 0, "y")]),
        (Limit(BOTH, ["w"]), [Limit("x", ["w"]), Limit("y", ["w"])]),
    ],
    ids=str,
)
def test_a_tactic_on_several_axes_is_one_on_each(tactic: Tactic, each: list[Tactic]) -> None:
    assert list(over_axes([tactic])) == each


def test_fsdp_over_two_axes() -> None:
    model = model_of("transformer_train", {"x": 2, "y": 4})
    together = search(model, tactics=[FSDP(BOTH)])
    assert together.decisions == search(model, tactics=[FSDP("x"), FSDP("y")]).decisions


def test_several_axes_as_one_are_among_the_baselines() -> None:
    found = search(model_of("mlp_grad", {"x": 2, "y": 2, "z": 2}), exact=False)
    assert {"FSDP(x) + FSDP(y)", "DataParallel(y) + DataParallel(z)"} <= set(found.baselines)
    assert "FSDP(x) + Megatron(y) + Megatron(z)" in found.baselines


@pytest.mark.parametrize("more", [1, 2, 3, 7, 10])
def test_more_work_starts_with_what_less_does(more: int) -> None:
    """So that it never gives a worse plan: the best of all turns is kept."""
    less, all_of_it = _budgets(DEFAULT_SECONDS), _budgets(DEFAULT_SECONDS * more)
    assert all_of_it[: len(less)] == less
    assert sum(b.evaluations for b in all_of_it) <= DEFAULT_SECONDS * more * 1000
