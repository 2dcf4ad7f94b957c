"""Where one color meets itself: squares, attention in its forms, contradictions.

Sizes: S sequence 16, D model 8, K keys 4, O values 12. Each row: colors, conflict sets, resolution
bits (groups of sets) and contradictions, forward and with the gradients of all arguments.
"""

from typing import Any

import pytest

from tests.arrays import f32

from .attention_programs import (
    attention_in_scan,
    attention_layers,
    causal_attention,
    cross_attention,
    gram,
    grouped_heads,
    pairwise,
    self_attention,
    shared_projection,
    square_chain,
    square_residual,
    symmetric,
    with_gradient,
)  # fmt: skip
from .partitions import analyze, blocks

S, D, K, O = 16, 8, 4, 12
X, QKV = f32(S, D), (f32(D, K), f32(D, K), f32(D, O))


@pytest.mark.parametrize(
    "fn, args, forward, backward",
    [
        # S, D, K, O; one set on S. The backward pass joins the same set.
        (self_attention, (X, *QKV), (4, 1, 1, 0), (4, 1, 1, 0)),
        (causal_attention, (X, *QKV), (4, 1, 1, 0), (4, 1, 1, 0)),
        (shared_projection, (X, QKV[0], QKV[2]), (4, 1, 1, 0), (4, 1, 1, 0)),
        # Queries and keys come from two sequences: two more colors and no conflict.
        (cross_attention, (X, f32(24, D), *QKV), (6, 0, 0, 0), (6, 0, 0, 0)),
        # H = (N, G), K of q and k, K of v: S, D, N, G, K, K'.
        (grouped_heads, (X, f32(D, 12, K), f32(D, 3, K), f32(D, 3, K)), (6, 1, 1, 0), (6, 1, 1, 0)),
        # Three layers: S and D once, K per layer. wv [D, D] on the residual stream is a square,
        # so each layer has a set on S, one on D, and one for the gradient of wv, tied to nothing.
        (attention_layers, (X, [(f32(D, K), f32(D, K), f32(D, D))] * 3), (5, 6, 2, 0),
         (5, 9, 3, 0)),
        # The same in a scan: one layer, and the leading dims of what is stacked, which stay apart.
        (attention_in_scan, (X, (f32(3, D, K), f32(3, D, K), f32(3, D, D))), (6, 2, 2, 0),
         (17, 3, 3, 0)),
        # Without a residual stream a square weight joins two colors.
        (square_chain, (X, [f32(D, D)] * 3), (5, 0, 0, 0), (5, 0, 0, 0)),
        (square_residual, (X, [f32(D, D)] * 3), (2, 3, 1, 0), (2, 6, 2, 0)),
        # Two rows of one matrix: the rows meet themselves on the result.
        (gram, (X,), (2, 1, 1, 0), (2, 1, 1, 0)),
        # Three names of one color on one value are one conflict.
        (pairwise, (f32(S),), (1, 1, 1, 0), (1, 1, 1, 0)),
        # The transposed link flips the side, the sum keeps it: an odd cycle, and its mirror image.
        (symmetric, (f32(S, S),), (1, 1, 1, 1), (1, 1, 1, 2)),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)  # fmt: skip
def test_conflicts(fn: Any, args: Any, forward: Any, backward: Any) -> None:
    for f, expected in ((fn, forward), (with_gradient(fn), backward)):
        analysis = analyze(f, *args)
        sets = analysis.conflict_sets
        bits, wrong = len(set(analysis.set_group)), sum(s.contradictions for s in sets)
        assert (len(analysis.colors), len(sets), bits, wrong) == expected


def test_both_sides_of_a_set_are_the_query_side_and_the_key_side() -> None:
    """Choosing side 0 of the set splits the scores by query everywhere, or by key everywhere."""
    analysis = analyze(self_attention, X, *QKV)
    (found,) = analysis.conflict_sets
    program = analysis.program
    sides: dict[str, list[int]] = {}
    for conflict, flip in zip(found.conflicts, found.flips, strict=True):
        if not conflict.is_op:
            value = program.values[conflict.owner]
            assert value.shape == (S, S)
            sides.setdefault(program.ops[value.op].name, []).append(flip)
            assert conflict.places == ((0, 0), (1, 0))
    assert {flip for flips in sides.values() for flip in flips} == {0}, "no [S, S] is transposed"
    assert {"dot_general", "exp", "div"} <= set(sides)


def test_a_transposed_use_flips_the_side() -> None:
    def fn(x: Any, w: Any) -> Any:
        scores = x @ x.T
        return (scores @ w, scores.T @ w)

    analysis = analyze(fn, X, f32(S, O))
    (found,) = [s for s in analysis.conflict_sets if len(s.conflicts) > 1]
    program = analysis.program
    flips = {
        program.ops[program.values[c.owner].op].name: flip
        for c, flip in zip(found.conflicts, found.flips, strict=True)
        if not c.is_op
    }
    assert flips["dot_general"] != flips["transpose"]


def test_who_shares_a_color_in_attention() -> None:
    analysis = analyze(self_attention, X, *QKV)
    dims = ["x[0]", "x[1]", "wq[0]", "wk[0]", "wv[0]", "wq[1]", "wk[1]", "wv[1]"]
    assert blocks(analysis, *dims) == [
        {"x[0]"}, {"x[1]", "wq[0]", "wk[0]", "wv[0]"}, {"wq[1]", "wk[1]"}, {"wv[1]"},
    ]  # fmt: skip


def test_who_shares_a_color_in_cross_attention() -> None:
    analysis = analyze(cross_attention, X, f32(24, D), *QKV)
    dims = ["x[0]", "memory[0]", "x[1]", "memory[1]", "wq[0]", "wk[0]", "wv[0]", "wq[1]", "wk[1]"]
    assert blocks(analysis, *dims) == [
        {"x[0]"}, {"memory[0]"}, {"x[1]", "wq[0]"}, {"memory[1]", "wk[0]", "wv[0]"},
        {"wq[1]", "wk[1]"},
    ]  # fmt: skip
