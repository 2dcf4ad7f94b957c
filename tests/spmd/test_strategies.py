"""The named strategies come out of the general rule, with the collectives their papers count.

Each row writes a strategy as lists of groups and its collectives as formulas in the model's sizes.
Sizes are those where the strategy pays: ops follow whatever is cheapest. Counts of one layer are
the difference between models of three and of two layers. Small collectives (norm gains, biases,
the loss, masks) are bounded in bytes instead of listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from shardwright.cost.devices import device
from shardwright.cost.model import CostModel, model_ir
from shardwright.mesh import Mesh
from shardwright.spmd.ir import Collective
from shardwright.zoo import decode, moe, transformer
from tests.spmd.lists import LABELS, analyze, decided, ir_of

AG, AR, RS, A2A = "all-gather", "all-reduce", "reduce-scatter", "all-to-all"
BF16, F32 = 2, 4

Table = dict[tuple[str, str, int], float]  # (kind, axis, bytes): times

BIG = replace(
    transformer.PRESETS["gpt_2l"], d_model=8192, d_ff=32768, heads=64, kv_heads=64, seq=1024
)
WIDE = replace(BIG, batch=4)  # few tokens, large weights: tensor parallelism pays
LONG = replace(BIG, batch=8, seq=8192)  # many tokens: weights are cheaper to move than activations
EXPERTS = replace(moe.PRESETS["moe_8x"], d_model=4096, d_ff=16384, heads=32, kv_heads=32, batch=16)
SERVING = replace(
    decode.PRESETS["gpt_2l"], d_model=8192, d_ff=32768, heads=64, kv_heads=64, batch=8
)


@dataclass(frozen=True)
class Sizes:
    """Bytes that the formulas speak of; n and m are the sizes of the first and second axis."""

    c: Any
    n: int
    m: int = 1

    @property
    def stream(self) -> int:  # the residual stream
        return BF16 * self.c.batch * self.c.seq * self.c.d_model

    @property
    def heads(self) -> int:  # queries, keys or values
        return BF16 * self.c.batch * self.c.seq * self.c.heads * self.c.d_head

    @property
    def attention(self) -> int:  # one of wq, wk, wv, wo in bfloat16
        return BF16 * self.c.d_model * self.c.heads * self.c.d_head

    @property
    def mlp(self) -> int:  # one of w1, w2
        return BF16 * self.c.d_model * self.c.d_ff

    @property
    def table(self) -> int:  # the embedding
        return BF16 * self.c.vocab * self.c.d_model


@dataclass(frozen=True)
class Strategy:
    """Lists, and the large collectives of each layer and of everything else."""

    config: Any
    mesh: dict[str, int]
    lists: tuple[str, ...]
    layer: Callable[[Sizes], Table]
    outside: Callable[[Sizes], Table]
    example: Callable[[Any], Any] = transformer.train
    labels: dict[str, str] | None = None


def weight_gradients(s: Sizes, kind: str, axis: str, parts: int = 1) -> Table:
    """One collective for each weight of a layer: wq, wk, wv, wo, w1, w2."""
    return {(kind, axis, s.attention // parts): 4, (kind, axis, s.mlp // parts): 2}


STRATEGIES = {
    # Every weight's gradient is a partial sum over the batch. The table is used twice: the parts
    # of its gradient, from the lookup and from the logits, are added in float32 and reduced once.
    "data parallel": Strategy(
        LONG, {"data": 8}, ("B",),
        layer=lambda s: weight_gradients(s, AR, "data"),
        outside=lambda s: {
            (AR, "data", 2 * s.table): 1, (AR, "data", BF16 * s.c.seq * s.c.d_model): 1,
        },
    ),
    # Megatron: one all-reduce after attention, one after the MLP, and one each in the backward
    # pass: the input gradients of wq, wk and wv are added before they are reduced.
    "Megatron": Strategy(
        WIDE, {"model": 8}, ("H F V",),
        layer=lambda s: {(AR, "model", s.stream): 4},
        outside=lambda s: {(AR, "model", s.stream): 1, (AR, "model", 2 * s.stream): 1},
    ),
    # Each all-reduce becomes a reduce-scatter and an all-gather, and the two gathered inputs are
    # gathered once more for the weight gradients (Korthikanti et al., arXiv 2205.05198).
    "Megatron + sequence parallel": Strategy(
        WIDE, {"model": 8}, ("H F V S",),
        layer=lambda s: {(AG, "model", s.stream): 4 + 2, (RS, "model", s.stream): 4},
        outside=lambda s: {
            (AG, "model", s.stream): 2, (AG, "model", 2 * s.stream): 1,
            (RS, "model", s.stream): 1, (RS, "model", 2 * s.stream): 1,
        },
    ),
    # Weights are gathered for the forward and for the backward pass; gradients are scattered.
    # The lookup works on slices of D: what it finds, and the gradient of that, move between B and
    # D as activations; its sums need no reduction.
    "FSDP": Strategy(
        LONG, {"data": 8}, ("B D",),
        layer=lambda s: {
            (AG, "data", s.attention): 8, (AG, "data", s.mlp): 4,
            **weight_gradients(s, RS, "data"),
        },
        outside=lambda s: {
            (AG, "data", s.table): 2, (RS, "data", s.table): 1,
            (AG, "data", BF16 * s.c.seq * s.c.d_model): 1,
            (RS, "data", BF16 * s.c.seq * s.c.d_model): 1,
            (A2A, "data", 2 * s.stream // s.n): 2,
        },
    ),
    # Gradients and moments are split, weights whole: one gather of each new weight, in float32.
    "ZeRO-1/2": Strategy(
        LONG, {"data": 8}, ("B D!",),
        layer=lambda s: {
            **weight_gradients(s, RS, "data"),
            (AG, "data", 2 * s.attention): 4, (AG, "data", 2 * s.mlp): 2,
        },
        outside=lambda s: {
            (RS, "data", s.table): 1, (AG, "data", 2 * s.table): 1,
            (RS, "data", BF16 * s.c.seq * s.c.d_model): 1,
            (AG, "data", F32 * s.c.seq * s.c.d_model): 1,
            (A2A, "data", 2 * s.stream // s.n): 1,
        },
    ),
    "FSDP + TP": Strategy(
        replace(WIDE, batch=32), {"data": 8, "model": 8}, ("B D", "H F V"),
        layer=lambda s: {
            (AR, "model", s.stream // s.n): 4,
            (AG, "data", s.attention // s.m): 8, (AG, "data", s.mlp // s.m): 4,
            **weight_gradients(s, RS, "data", s.m),
        },
        outside=lambda s: {
            (AR, "model", s.stream // s.n): 1, (AR, "model", 2 * s.stream // s.n): 1,
            # The lookup gathers the f32 table; the zeros of its gradient are made in place.
            (AG, "data", s.table // s.m): 2, (AG, "data", 2 * s.table // s.m): 1,
            (RS, "data", 2 * s.table // s.m): 1,
            (AG, "data", BF16 * s.c.seq * s.c.d_model): 1,
            (RS, "data", BF16 * s.c.seq * s.c.d_model): 1,
        },
    ),
    # Queries stay; keys and values are gathered in each pass, their gradients scattered.
    "context parallel by query": Strategy(
        LONG, {"model": 8}, ("S",),
        layer=lambda s: {
            (AG, "model", s.heads): 2 + 2, (RS, "model", s.heads): 2,
            **weight_gradients(s, AR, "model"),
        },
        outside=lambda s: {(AR, "model", 2 * s.table): 1},
    ),
    # Keys stay; queries are gathered in each pass, and the output's gradient. The output and the
    # queries' gradient are sums over keys; the softmax combines its maxima and sums.
    "context parallel by key": Strategy(
        LONG, {"model": 8}, ("S'",),
        layer=lambda s: {
            (AG, "model", s.heads): 2 + 1, (RS, "model", s.heads): 2,
            **weight_gradients(s, AR, "model"),
        },
        outside=lambda s: {(AR, "model", 2 * s.table): 1},
    ),
    # GShard: tokens move to their experts and back. Forward: `sent` and `done`; backward: both
    # gradients, and `done` once more for the gradient of the combine weights. The dispatch and
    # combine weights [B, S, E, C] are stored by expert and used by token: two moves forward,
    # two backward, and the gradient.
    "expert parallel": Strategy(
        EXPERTS, {"model": 8}, ("E B",),
        layer=lambda s: {
            (A2A, "model", slots(s) * s.c.d_model // s.n): 2 + 3,
            (A2A, "model", slots(s) * s.c.seq // s.n): 2 + 3,
            (AR, "model", s.attention): 4,
        },
        outside=lambda s: {
            (AR, "model", s.table): 1, (AG, "model", 2 * s.stream): 1,
            (AR, "model", BF16 * s.c.seq * s.c.d_model): 1,
        },
        example=moe.train, labels=LABELS | {"E": "*['w1'][0]"},
    ),
    "expert parallel, forward": Strategy(
        EXPERTS, {"model": 8}, ("E B",),
        layer=lambda s: {
            (A2A, "model", slots(s) * s.c.d_model // s.n): 2,
            (A2A, "model", slots(s) * s.c.seq // s.n): 2,
        },
        outside=lambda s: {},
        example=moe.infer, labels=LABELS | {"E": "*['w1'][0]"},
    ),
    # Weights never move: [B, ...] partial sums over x, then over y (Pope et al., arXiv 2211.05102).
    "weight-stationary decoding": Strategy(
        SERVING, {"x": 4, "y": 4}, ("D", "H F"),
        layer=lambda s: {
            (AR, "x", BF16 * s.c.batch * s.c.heads * s.c.d_head // s.m): 3,
            (AR, "x", BF16 * s.c.batch * s.c.d_ff // s.m): 1,
            (AR, "y", BF16 * s.c.batch * s.c.d_model // s.n): 2,
        },
        outside=lambda s: {(AR, "x", BF16 * s.c.batch * s.c.vocab): 1},
        example=decode.decode, labels=LABELS | {"B": "tokens[0]"},
    ),
}  # fmt: skip


def slots(s: Sizes) -> int:
    """Bytes of one number for each slot of each expert and sequence."""
    return BF16 * s.c.experts * s.c.batch * s.c.capacity


def table(collectives: list[Collective]) -> Counter[tuple[str, str, int]]:
    """{(kind, axes, bytes): times per step}"""
    found: Counter[tuple[str, str, int]] = Counter()
    for c in collectives:
        found[c.kind, "+".join(c.axes), c.bytes] += c.count  # type: ignore[assignment]
    return found


def large(found: Table) -> Table:
    """Only what moves at least a sixteenth of the largest; what is left must be next to nothing."""
    least = max((b for _, _, b in found), default=0) / 16
    rest = sum(b * n for (_, _, b), n in found.items() if b < least)
    assert rest < 0.05 * sum(b * n for (_, _, b), n in found.items()) or not found
    return {key: n for key, n in found.items() if n and key[2] >= least}


@pytest.mark.parametrize("name", STRATEGIES)
def test_collectives(name: str) -> None:
    strategy = STRATEGIES[name]
    found = []
    for layers in (2, 3):
        example = strategy.example(replace(strategy.config, layers=layers))
        ir = ir_of(analyze(example, strategy.labels), strategy.mesh, *strategy.lists)
        found.append(table(ir.collectives))
    layer = {key: found[1][key] - found[0][key] for key in found[1]}
    outside = {key: found[0][key] - 2 * layer.get(key, 0) for key in found[0] | found[1]}
    sizes = Sizes(strategy.config, *strategy.mesh.values())
    assert large({k: n for k, n in layer.items() if n}) == strategy.layer(sizes)
    assert large({k: n for k, n in outside.items() if n}) == large(strategy.outside(sizes))


@pytest.mark.parametrize(
    "changes, forward, backward",
    [
        ({}, 2, 2),
        ({"scan": True}, 2, 2),
        # A recomputed block repeats the sum after attention; that after the MLP is not needed.
        ({"remat": True}, 2, 2 + 1),
        ({"remat": True, "scan": True}, 2, 2 + 1),
        ({"mlp": "swiglu", "tied": False, "positions": "rotary"}, 2, 2),
    ],
)
def test_megatron_in_every_form(changes: dict[str, Any], forward: int, backward: int) -> None:
    """Unrolled, scanned, recomputed: 4 all-reduces per layer and step, plus what is recomputed."""
    layers = 4
    config = replace(WIDE, layers=layers, **changes)
    stacked = {"H": "*['wq'][2]", "F": "*['w1'][2]"} if config.scan else {}
    ir = ir_of(analyze(transformer.train(config), LABELS | stacked), {"model": 8}, "H F")
    stream = Sizes(config, 8).stream
    inside = [c for c in ir.collectives if c.bytes == stream and c.kind == AR]
    assert sum(c.count for c in inside) == layers * (forward + backward)
    assert len(inside) == (forward + backward) * (1 if config.scan else layers)


# PartIR (arXiv 2401.11202), 32 layers: lists, (all-gathers, all-reduces, reduce-scatters).
PARTIR = {
    "batch": (("B", ""), (0, 290, 0)),
    "+ Megatron": (("B", "H F"), (0, 418, 0)),
    "+ ZeRO-2": (("B D!", "H F"), (129, 289, 129)),
    "+ ZeRO-3": (("B D", "H F"), (259, 289, 129)),
}


@pytest.fixture(scope="module")
def partir() -> tuple[CostModel, dict[int, tuple[int, ...]]]:
    """PartIR's 32 layers; as there, only matrices are worth scattering: vectors stay whole.

    The step returns the state alone: PartIR does not count the sum of the loss. PartIR always
    moves the table to its lookups. We do where that is cheaper than to move what they find, so
    the batch is large.
    """
    example = transformer.train(replace(transformer.PRESETS["partir_32l"], batch=192))
    step = replace(example, fn=lambda *args: example.fn(*args)[0])
    analysis = analyze(step, LABELS | {"H": "*['wqkv'][2]"})
    model = CostModel(analysis, Mesh({"batch": 4, "model": 4}), device("tpu-v3"))
    d, s = analysis.group("D").index, analysis.group("S").index
    whole = {
        i: (-1, -1) for i, layout in enumerate(model.layouts.table)
        if [a.group for a in layout.atoms] in ([d], [s, d])  # gains, biases; positions
    }  # fmt: skip
    return model, whole


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTIR)
def test_partir(name: str, partir: tuple[CostModel, dict[int, tuple[int, ...]]]) -> None:
    (model, whole), (lists, theirs) = partir, PARTIR[name]
    decisions = decided(model.analysis, *lists).override(whole)
    found = table(model_ir(model, decisions).collectives)
    ours = [sum(n for (k, _, _), n in found.items() if k == kind) for kind in (AG, AR, RS)]
    assert ours == list(theirs)
    assert {kind for kind, _, _ in found} <= {AG, AR, RS}
