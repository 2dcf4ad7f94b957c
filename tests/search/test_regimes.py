"""Tree search alone, with no hints, recovers known strategies where the regime calls for them.

Each case states the regime and what must be claimed: [for each argument pattern and dim, the axis
that splits it], read off the placements, not off the lists.
"""

from __future__ import annotations

import pytest

from shardwright.cost.model import CostModel, model_collectives
from shardwright.search.best_response import Responses
from shardwright.search.mcts import tree_search
from shardwright.search.objective import Budget, Objective
from shardwright.search.space import Space
from shardwright.spmd.decisions import Decisions, State
from shardwright.spmd.layout import REPLICATED
from shardwright.spmd.moves import ALL_GATHER, REDUCE_SCATTER
from tests.search.programs import model_of

W1 = "state.params['layers'][0]['w1']"
WQ = "state.params['layers'][0]['wq']"
EMBEDDING = "state.params['embedding']"
TOKENS = "batch['tokens']"


def split_dims(model: CostModel, state: State, path: str) -> dict[str, int]:
    """{axis: dim} of one argument."""
    program = model.analysis.program
    value = next(v for v in program.inputs if program.values[v].path == path)
    layout = int(model.layouts.of_value[value])
    placement = model.stored(Decisions(state))[layout]
    return {
        name: model.layouts.table[layout].atoms[atom].dim
        for name, atom in zip(model.mesh.names, placement, strict=True)
        if atom != REPLICATED
    }


def search_without_hints(model: CostModel, memory: int | None = None) -> State:
    objective = Objective(model, memory or model.device.usable_bytes)
    space = Space(model)
    tree_search(Responses(space, objective), Budget(evaluations=2000), seed=0)
    assert objective.best is not None
    return objective.best


def test_megatron_when_the_batch_cannot_be_split() -> None:
    """4 x 512 tokens on 8 devices: heads, hidden dim and vocabulary are split instead."""
    model = model_of("small_batch", {"model": 8})
    state = search_without_hints(model)
    assert split_dims(model, state, W1) == {"model": 1}  # [D, F] by F
    assert split_dims(model, state, WQ) == {"model": 1}  # [D, H, K] by H
    assert split_dims(model, state, EMBEDDING) == {"model": 0}  # [V, D] by V
    assert split_dims(model, state, TOKENS) in ({}, {"model": 1})  # not by batch


def test_fsdp_when_the_batch_is_large() -> None:
    """64 x 1024 tokens and 7.2 GB, where plain data parallelism needs 13 GB: examples are
    split, and so is every matrix of parameters with its gradient and moments."""
    model = model_of("large_batch", {"data": 8})
    state = search_without_hints(model, memory=7_200_000_000)
    assert split_dims(model, state, TOKENS) == {"data": 0}
    for path in (W1, WQ, EMBEDDING):
        assert split_dims(model, state, path), path
    moments = [f"state.opt_state[0].{m}['layers'][0]['w1']" for m in ("mu", "nu")]
    for path in moments:
        assert split_dims(model, state, path), path


@pytest.mark.slow
def test_fsdp_and_tensor_parallelism_when_both_are_needed() -> None:
    """2 billion parameters with optimiser state, 16 x 2048 tokens on 64 devices: one axis splits
    examples and gathers parameters, the other computes with parts of the hidden dim."""
    model = model_of("large_model_and_batch", {"data": 16, "model": 4})
    state = search_without_hints(model)
    assert split_dims(model, state, TOKENS)["data"] == 0
    assert split_dims(model, state, W1) == {"data": 0, "model": 1}
    assert set(split_dims(model, state, WQ)) == {"data", "model"}
    assert split_dims(model, state, EMBEDDING)["model"] == 0  # the vocabulary
    moved = {(c.kind, c.axes) for c in model_collectives(model, Decisions(state))}
    assert (ALL_GATHER, ("data",)) in moved  # of parameters
    assert (REDUCE_SCATTER, ("data",)) in moved  # of their gradients
    assert (REDUCE_SCATTER, ("model",)) in moved  # of activations, after the hidden dim


def test_context_parallelism_for_one_long_sequence() -> None:
    """One sequence of 16384 tokens on more devices than heads: split by queries or by keys.

    On 8 devices the search splits heads inside attention and the sequence elsewhere.
    """
    model = model_of("long_sequence", {"x": 32})
    state = search_without_hints(model)
    assert split_dims(model, state, TOKENS) == {"x": 1}
    (entry,) = [e for e in state[0] if e.group == model.analysis.group("positions[0]").index]
    assert state[0][0] == entry  # the sequence comes first


@pytest.mark.slow
def test_expert_parallelism_for_a_mixture_of_experts() -> None:
    """8 experts on 4 x 4 devices: experts are split over an axis, not gathered."""
    model = model_of("experts", {"data": 4, "model": 4})
    state = search_without_hints(model)
    w1 = split_dims(model, state, W1)  # [E, D, F]
    assert 0 in w1.values()
    (expert_axis,) = [axis for axis, dim in w1.items() if dim == 0]
    assert split_dims(model, state, TOKENS).get(expert_axis) == 0  # tokens by examples: all-to-all
