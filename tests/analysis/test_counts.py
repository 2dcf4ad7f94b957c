"""How many colors, conflict sets and groups: the numbers of the design, written out."""

from dataclasses import replace
from typing import Any

import jax
import pytest

from shardwright import zoo
from shardwright.analysis import Analysis
from shardwright.zoo import transformer

from .partitions import analyze

TINY = zoo.programs("tiny")


def of(example: zoo.Example) -> Analysis:
    return analyze(example.fn, *example.args, donate_argnums=example.donate_argnums)


@pytest.mark.parametrize(
    "name, colors, conflict_sets",
    [
        ("mlp_forward", 4, 0),  # batch, inputs, hidden, outputs
        ("mlp_grad", 4, 0),
        ("attention_forward", 4, 1),  # sequence (twice on the scores), model, key, value
        ("attention_grad", 4, 1),  # forward and backward are one set
    ],
)
def test_small_programs(name: str, colors: int, conflict_sets: int) -> None:
    analysis = of(TINY[name])
    assert len(analysis.colors) == len(analysis.groups) == colors
    assert len(analysis.conflict_sets) == conflict_sets


# The eight decisions of a transformer, by one dim of each: V, D, S, B, then, in every layer, H,
# K of q and k, K of v and o, F.
OUTSIDE = [
    "state.params['embedding'][0]", "state.params['embedding'][1]",
    "state.params['positions'][0]", "batch['tokens'][0]",
]  # fmt: skip
INSIDE = ["['wk'][1]", "['wk'][2]", "['wo'][1]", "['w1'][1]"]


def eight(layers: int, scan: bool) -> list[str]:
    """The eight argument dims as patterns; stacked weights have a leading dim."""
    if scan:
        inside = [f"{dim[:-2]}{int(dim[-2]) + 1}]" for dim in INSIDE]
        return OUTSIDE + [f"state.params['layers']{dim}" for dim in inside]
    which = "[*]" if layers > 1 else "[0]"
    return OUTSIDE + [f"state.params['layers']{which}{dim}" for dim in INSIDE]


def assert_one_group_each(analysis: Analysis, dims: list[str]) -> None:
    """Every group worth deciding holds exactly one of these dims."""
    held = [[d for d in dims if d in g.dims] for g in analysis.groups]
    assert sorted(held) == sorted([d] for d in dims)


@pytest.mark.parametrize("layers", [1, 2, 4, 8, 32])
def test_transformer_train_step_has_eight_groups_at_every_depth(layers: int) -> None:
    analysis = of(transformer.train(transformer.Config(layers=layers)))
    assert_one_group_each(analysis, eight(layers, scan=False))
    assert len(analysis.all_groups) == 8
    # V, D, S and B are one color each; H, F and the two K one per layer.
    assert len(analysis.colors) == 4 + 4 * layers
    assert len(analysis.conflict_sets) == layers
    assert len(set(analysis.set_group)) == 1
    (conflicted,) = [g for g in analysis.groups if g.conflict_sets]
    assert conflicted.label == "positions[0]"
    assert all(s.contradictions == 0 for s in analysis.conflict_sets)


@pytest.mark.parametrize("layers", [2, 4, 32])
def test_the_same_eight_groups_when_scanned(layers: int) -> None:
    analysis = of(transformer.train(transformer.Config(layers=layers, scan=True)))
    assert_one_group_each(analysis, eight(layers, scan=True))
    assert all(len(g.colors) == 1 for g in analysis.groups)
    assert len(analysis.conflict_sets) == len(set(analysis.set_group)) == 1
    assert {g.set_aside for g in analysis.all_groups} == {None, "loop"}


# A scan of one step has no leading dim to split.
@pytest.mark.parametrize("layers, scan", [(1, False), (2, False), (4, False), (2, True), (4, True)])
def test_an_untied_embedding_adds_one(layers: int, scan: bool) -> None:
    config = transformer.Config(layers=layers, tied=False, scan=scan)
    nine = [*eight(layers, scan), "state.params['unembedding'][1]"]
    assert_one_group_each(of(transformer.train(config)), nine)


def test_remat_recomputes_with_a_choice_of_its_own() -> None:
    """The scores of the forward pass and the recomputed ones share nothing that is split twice."""
    plain, remat = (
        of(transformer.train(transformer.Config(layers=3, remat=remat))) for remat in (False, True)
    )
    assert [g.label for g in plain.groups] == [g.label for g in remat.groups]
    assert (len(plain.conflict_sets), len(set(plain.set_group))) == (3, 1)
    assert (len(remat.conflict_sets), len(set(remat.set_group))) == (6, 2)


def test_grouped_query_heads_split_h_into_two_colors() -> None:
    """H = (N, G): N is shared with the key/value heads, G belongs to the queries alone."""
    config = replace(transformer.PRESETS["tiny_llama"], layers=3)
    analysis = of(transformer.train(config))
    shared, own = analysis.group("wo[0]"), analysis.group("wo[0]#2")
    assert (shared.size, own.size) == (config.kv_heads, config.heads // config.kv_heads)
    assert "state.params['layers'][*]['wk'][1]" in shared.dims
    assert "state.params['layers'][*]['wk'][1]" not in own.dims
    # No learned positions; two embeddings; H is two groups.
    assert len(analysis.groups) == 8 + 1 + 1


def test_bytes_are_sums_over_values() -> None:
    """MLP forward, float32: x [B, I], w1 [I, F], h and relu(h) [B, F], w2 [F, O], y and result."""
    b, i, f, o = 32, 16, 64, 24
    analysis = of(TINY["mlp_forward"])
    expected = {
        "x[0]": (4 * b * i, 4 * (2 * b * f + 2 * b * o)),
        "w1[0]": (4 * (b * i + i * f), 0),
        "w2[0]": (4 * (i * f + f * o), 4 * 2 * b * f),
        "w2[1]": (4 * f * o, 4 * 2 * b * o),
    }
    assert {g.label: (g.argument_bytes, g.activation_bytes) for g in analysis.groups} == expected


@pytest.mark.parametrize(
    "fn, args, colors",
    [
        (lambda: 1.0, (), 0),
        (lambda x: x, (1.0,), 0),
        (lambda x: x + 1, (jax.ShapeDtypeStruct((1, 1), "float32"),), 0),
        (lambda x: x.sum(), (jax.ShapeDtypeStruct((0, 8), "float32"),), 1),
        (lambda x: x, (jax.ShapeDtypeStruct((4,), "float32"),), 1),
        (lambda x: (x.reshape(2, 2), 3), (jax.ShapeDtypeStruct((4,), "float32"),), 2),
    ],
)
def test_programs_with_next_to_nothing_in_them(fn: Any, args: Any, colors: int) -> None:
    analysis = analyze(fn, *args)
    assert len(analysis.colors) == colors
    assert str(analysis).splitlines()[-1].startswith(f"{colors} groups, {colors} colors")
