"""Repeated structure shares one decision; different structure never does by accident."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardwright.analysis import analyze_program
from shardwright.program import trace
from shardwright.zoo.training import adamw, first_state, make_train_step
from tests.arrays import f32

from .partitions import analyze

B, D, F = 32, 16, 64
Array = jax.Array


def block(layer: Any, x: Array) -> Array:
    return x + jax.nn.relu(x @ layer["w1"]) @ layer["w2"]


def stack(layers: Any, x: Array) -> Array:
    for layer in layers:
        x = block(layer, x)
    return x


def weights(d: int = D, f: int = F) -> dict[str, Any]:
    return {"w1": f32(d, f), "w2": f32(f, d)}


def loss(layers: Any, x: Array) -> Array:
    return jnp.sum(stack(layers, x) ** 2)


@pytest.mark.parametrize("depth", [2, 3, 6])
def test_first_and_last_layers_join_the_middle_ones(depth: int) -> None:
    """The input needs no gradient, so the first layer lacks a dot that all others have."""
    analysis = analyze(jax.grad(loss), [weights()] * depth, f32(B, D))
    assert {g.label: len(g.colors) for g in analysis.groups} == {
        "x[0]": 1, "w1[0]": 1, "w1[1]": depth,
    }  # fmt: skip


def test_layers_of_other_sizes_do_not_join() -> None:
    layers = [weights(), weights(f=32), weights(), weights(f=32)]
    analysis = analyze(jax.grad(loss), layers, f32(B, D))
    hidden = [(g.size, len(g.colors)) for g in analysis.groups if g.label.startswith("w1[1]")]
    assert sorted(hidden) == [(32, 2), (64, 2)]


def test_the_same_weights_on_other_data_do_not_join() -> None:
    """Two encoders of one shape, one on 32 rows and one on 512: Adam is alike, the work is not."""

    def two_loss(params: Any, batch: Any) -> Array:
        a = stack(params["few"], batch["few"]).sum(0)
        b = stack(params["many"], batch["many"]).sum(0)
        return jnp.sum(a * b)

    params = {"few": [weights()] * 2, "many": [weights()] * 2}
    state = jax.eval_shape(lambda p: first_state(p, adamw()), params)
    batch = {"few": f32(32, D), "many": f32(512, D)}
    analysis = analyze(make_train_step(two_loss, adamw()), state, batch, donate_argnums=0)
    hidden = [g for g in analysis.groups if g.size == F]
    assert sorted(len(g.colors) for g in hidden) == [2, 2]
    for g in hidden:
        assert len({("few" in d, "many" in d) for d in g.dims}) == 1


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_encoder_and_decoder_stacks(depth: int) -> None:
    """Each stack is one decision, at every depth; the decoder also attends to the encoder."""

    def attend(layer: Any, x: Array, memory: Array) -> Array:
        q, k, v = x @ layer["wq"], memory @ layer["wk"], memory @ layer["wv"]
        return x + jax.nn.softmax(q @ k.T) @ v @ layer["wo"]

    def model(params: Any, source: Array, target: Array) -> Array:
        for layer in params["encoder"]:
            source = block(layer, attend(layer, source, source))
        for layer in params["decoder"]:
            target = block(layer, attend(layer, target, target))
            target = attend(layer["cross"], target, source)
        return jnp.sum(target**2)

    attention = {"wq": f32(D, 8), "wk": f32(D, 8), "wv": f32(D, 12), "wo": f32(12, D)}
    encoder = {**weights(), **attention}
    params = {"encoder": [encoder] * depth, "decoder": [{**encoder, "cross": attention}] * depth}
    analysis = analyze(jax.grad(model), params, f32(24, D), f32(40, D))
    # S, T, D of each stack; F, K and V of encoder and decoder; K and V of the cross attention.
    assert len(analysis.all_groups) == 2 + 2 + 3 + 3 + 2
    assert sorted(len(g.colors) for g in analysis.all_groups) == [1] * 4 + [depth] * 8
    # Self-attention of each stack, forward and backward, is one set per layer.
    assert (len(analysis.conflict_sets), len(set(analysis.set_group))) == (2 * depth, 2)


def test_moments_share_the_color_of_their_weight() -> None:
    state = jax.eval_shape(lambda p: first_state(p, adamw()), [weights()] * 2)
    analysis = analyze(make_train_step(loss, adamw()), state, f32(B, D), donate_argnums=0)
    hidden = analysis.group("w1[1]")
    assert set(hidden.dims) == {
        f"state.{tree}[*]['{w}'][{d}]"
        for tree in ("params", "opt_state[0].mu", "opt_state[0].nu")
        for w, d in (("w1", 1), ("w2", 0))
    }


def test_experts_written_out_share_a_decision() -> None:
    def experts(params: Any, x: Array) -> Array:
        return sum(block(e, x) for e in params)

    analysis = analyze(experts, [weights()] * 5, f32(B, D))
    assert len(analysis.group("w1[1]").colors) == 5
    assert len(analysis.groups) == 3


def test_what_is_set_aside() -> None:
    """Colors with less than 1e-4 of the bytes of the largest; dims that loops step over."""

    def fn(x: Array, small: Array, ws: Array) -> Any:
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0], small + 1

    analysis = analyze(fn, f32(512, 256), f32(8), f32(4, 256, 256))
    aside = {g.label: g.set_aside for g in analysis.all_groups}
    assert aside == {"x[0]": None, "ws[1]": None, "small[0]": "tiny", "ws[0]": "loop"}
    assert str(analysis).splitlines()[-1] == (
        "2 groups, 4 colors, 1 conflict sets; 2 groups set aside"
        " (1 too small to matter, 1 stepped over by loops)"
    )


def test_groups_that_no_axis_divides_are_set_aside_when_the_mesh_is_known() -> None:
    x, w = (jax.ShapeDtypeStruct(s, "float32") for s in ((8, 9), (9, 15)))
    program = trace(lambda x, w: x @ w, x, w)
    free = analyze_program(program)
    assert [g.label for g in free.groups] == ["x[0]", "w[0]", "w[1]"]
    on_mesh = analyze_program(program, axis_sizes=(4, 3))
    assert {g.label: g.set_aside for g in on_mesh.all_groups} == {
        "x[0]": None, "w[0]": None, "w[1]": None,
    }  # fmt: skip
    on_four = analyze_program(program, axis_sizes=(4,))
    assert [g.label for g in on_four.groups] == ["x[0]", "w[1]"]  # w[1]: padded inside
    assert str(on_four).endswith(
        "1 groups set aside"
        " (0 too small to matter, 0 stepped over by loops, 1 that no axis divides)"
    )
