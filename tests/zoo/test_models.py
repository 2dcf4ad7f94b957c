"""Facts about the models that other ways of computing the same thing confirm."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.zoo import (
    attention,
    decode,
    dit,
    encoder_decoder,
    gnn,
    mamba,
    moe,
    pair_stack,
    recommender,
    resnet,
    sorted_moe,
    transformer,
    two_tower,
    unet,
    vit,
)
from shardwright.zoo.example import QUICK

KEY = jax.random.key(3)
STYLES = {
    "gpt": transformer.PRESETS["tiny"],
    "llama": transformer.PRESETS["tiny_llama"],
    "partir": transformer.PRESETS["tiny_partir"],
}


quick = partial(jax.jit, compiler_options=QUICK)


def start(model: Any, config: Any) -> Any:
    """Fresh parameters, compiled quickly."""
    return quick(model.init, static_argnums=0)(config, KEY)


def stack_layers(params: Any) -> Any:
    """The parameters of an unrolled transformer as its scanned twin wants them."""
    return params | {"layers": jax.tree.map(lambda *xs: jnp.stack(xs), *params["layers"])}


def assert_close(got: Any, want: Any, tolerance: float = 1e-4) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_scanned_equals_unrolled(style: str, remat: bool) -> None:
    config = replace(STYLES[style], layers=3)
    params, batch = start(transformer, config), transformer.batch(config, KEY)
    twin = replace(config, scan=True, remat=remat)

    @quick
    def both(params: Any, batch: Any) -> Any:
        grad = jax.value_and_grad(transformer.loss, argnums=1)
        loss, grads = grad(config, params, batch)
        return grad(twin, stack_layers(params), batch), (loss, stack_layers(grads))

    assert_close(*both(params, batch))


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_prefill_then_decode_equals_the_full_forward(style: str, scan: bool) -> None:
    config = STYLES[style]
    params, tokens = start(transformer, config), transformer.batch(config, KEY)["tokens"]
    want = quick(partial(transformer.forward, config))(params, tokens)  # [B, S, V]
    if scan:
        config, params = replace(config, scan=True), stack_layers(params)
    prompt = config.seq // 2
    logits, cache = quick(decode.prefill_step(config))(
        params, decode.init_cache(config), tokens[:, :prompt]
    )
    assert_close(logits, want[:, prompt - 1])
    step = quick(decode.decode_step(config), donate_argnums=1)
    for position in range(prompt, config.seq):
        logits, cache = step(params, cache, tokens[:, position], jnp.int32(position))
        assert_close(logits, want[:, position])


@pytest.mark.parametrize("style", STYLES)
def test_a_token_never_sees_the_future(style: str) -> None:
    config = STYLES[style]
    params, tokens = start(transformer, config), transformer.batch(config, KEY)["tokens"]
    changed = tokens.at[:, 9].add(1) % config.vocab
    forward = quick(partial(transformer.forward, config))
    before, after = (forward(params, t) for t in (tokens, changed))
    assert_close(after[:, :9], before[:, :9], 1e-6)
    assert np.abs(after[:, 9:] - before[:, 9:]).max() > 1e-3


def test_one_full_group_of_queries_equals_repeated_keys() -> None:
    q, k, v = (
        jax.random.normal(jax.random.fold_in(KEY, i), (2, 8, heads, 4))
        for i, heads in enumerate((6, 2, 2))
    )
    want = transformer.attend(q, jnp.repeat(k, 3, axis=2), jnp.repeat(v, 3, axis=2))
    assert_close(transformer.attend(q, k, v), want)


def test_attention_agrees_with_jax() -> None:
    config = attention.PRESETS["tiny"]
    params, (x, _) = start(attention, config), attention.inputs(config, KEY)
    wide = params | {"wv": params["wv"][:, :8]}  # jax's attention wants one head size
    q, k, v = (x @ wide[name] for name in ("wq", "wk", "wv"))
    want = jax.nn.dot_product_attention(*(y[None, :, None, :] for y in (q, k, v)))[0, :, 0]
    assert_close(attention.forward(wide, x), want)


def test_experts_with_room_for_all_equal_a_loop_over_tokens() -> None:
    config = replace(moe.PRESETS["tiny"], capacity_factor=8.0)
    layer = start(moe, config)["layers"][0]
    x = jax.random.normal(KEY, (2, config.seq, config.d_model))
    got, _ = quick(partial(moe.experts, config))(layer, x)
    gates = jax.nn.softmax(x @ layer["router"])
    best = np.argsort(-np.asarray(gates), axis=-1)[..., : config.top_k]
    for b, s in [(0, 0), (0, 7), (1, 15)]:
        share = gates[b, s, best[b, s]] / gates[b, s, best[b, s]].sum()
        want = sum(
            w * (jax.nn.gelu(x[b, s] @ layer["w1"][e]) @ layer["w2"][e])
            for w, e in zip(share, best[b, s], strict=True)
        )
        assert_close(got[b, s], want)


def test_no_expert_slot_is_used_twice() -> None:
    config = replace(moe.PRESETS["tiny"], capacity_factor=0.5)  # most tokens are dropped
    layer = start(moe, config)["layers"][0]
    x = jax.random.normal(KEY, (config.batch, config.seq, config.d_model))
    combine, _ = quick(partial(moe.route, config))(layer["router"], x)
    assert combine.shape == (config.batch, config.seq, config.experts, config.capacity)
    assert np.all(np.sum(np.asarray(combine) > 0, axis=1) <= 1)
    assert np.any(np.sum(np.asarray(combine), axis=(2, 3)) == 0)


def test_batch_norm_keeps_running_statistics() -> None:
    config = resnet.PRESETS["tiny"]
    params, stats = start(resnet, config)
    images = 3 + resnet.batch(config, KEY)["images"]
    forward = quick(resnet.forward, static_argnums=0, static_argnames="training")
    for _ in range(60):
        trained, stats = forward(config, params, stats, images, training=True)
    evaluated, kept = forward(config, params, stats, images)
    assert_close(kept, stats, 0)
    assert_close(evaluated, trained, 2e-2)  # 0.9 ** 60 of the first statistics is left


def test_nodes_without_edges_ignore_the_others() -> None:
    config = gnn.PRESETS["tiny"]
    params, graph = start(gnn, config), gnn.batch(config, KEY)
    graph |= {name: graph[name] % 32 for name in ("senders", "receivers")}
    changed = graph | {"nodes": graph["nodes"].at[:32].add(1)}
    forward = quick(partial(gnn.forward, config))
    before, after = (forward(params, g) for g in (graph, changed))
    assert_close(after[32:], before[32:], 1e-6)
    assert np.abs(after[:32] - before[:32]).max() > 1e-2


def test_images_of_a_batch_do_not_mix() -> None:
    """Rows of the batch are independent in the U-Net and the ViT (no batch norm there)."""
    uc, vc = unet.PRESETS["tiny"], vit.PRESETS["tiny"]
    up, vp = start(unet, uc), start(vit, vc)
    ux, vx, t = unet.images(uc, KEY), vit.batch(vc, KEY)["images"], jnp.linspace(0.1, 0.9, 8)
    denoise = quick(unet.forward, static_argnums=0)
    classify = quick(vit.forward, static_argnums=0)
    assert_close(denoise(uc, up, ux[2:4], t[2:4]), denoise(uc, up, ux, t)[2:4])
    assert_close(classify(vc, vp, vx[2:4]), classify(vc, vp, vx)[2:4])


@pytest.mark.parametrize("shared", [0, 64])
def test_sorted_experts_equal_a_loop_over_tokens(shared: int) -> None:
    config = replace(sorted_moe.PRESETS["tiny"], shared=shared)
    layer = start(sorted_moe, config)["layers"][0]
    x = jax.random.normal(KEY, (2, config.seq, config.d_model))
    got = quick(partial(sorted_moe.experts, config))(layer, x)
    gates = jax.nn.softmax(x @ layer["router"])
    best = np.argsort(-np.asarray(gates), axis=-1)[..., : config.top_k]

    def expert(row: Any, e: Any) -> Any:
        return (jax.nn.silu(row @ layer["w1"][e]) * (row @ layer["w3"][e])) @ layer["w2"][e]

    for b, s in [(0, 0), (0, 7), (1, 15)]:
        share = gates[b, s, best[b, s]] / gates[b, s, best[b, s]].sum()
        want = sum(w * expert(x[b, s], e) for w, e in zip(share, best[b, s], strict=True))
        if shared:
            gated = jax.nn.silu(x[b, s] @ layer["shared1"]) * (x[b, s] @ layer["shared3"])
            want += gated @ layer["shared2"]
        assert_close(got[b, s], want)


def test_the_associative_scan_is_a_recurrence() -> None:
    config = mamba.PRESETS["tiny"]
    layer = start(mamba, config)["layers"][0]
    x = jax.random.normal(KEY, (2, config.seq, config.d_inner))
    step = jax.nn.softplus(x @ layer["step_in"] @ layer["step_out"] + layer["step_bias"])
    state, want = jnp.zeros((2, config.d_inner, config.state)), []
    for t in range(config.seq):
        keep = jnp.exp(-step[:, t, :, None] * jnp.exp(layer["decay"]))
        state = keep * state + (step[:, t] * x[:, t])[..., None] * (x[:, t] @ layer["wb"])[:, None]
        want.append(
            jnp.einsum("bfn,bn->bf", state, x[:, t] @ layer["wc"]) + layer["skip"] * x[:, t]
        )
    assert_close(quick(mamba.selective_scan)(layer, x), jnp.stack(want, axis=1), 1e-3)


def test_a_triangle_is_closed_by_its_third_corner() -> None:
    """Outgoing edges of z are the incoming ones of its transpose."""
    config = pair_stack.PRESETS["tiny"]
    w = start(pair_stack, config)["layers"][0]["outgoing"]
    z = pair_stack.batch(config, KEY)["pairs"][:2]
    outgoing = pair_stack.multiply(w, z, outgoing=True)
    incoming = pair_stack.multiply(w, jnp.swapaxes(z, 1, 2), outgoing=False)
    # The gate of an edge is its own, so only the ungated parts agree.
    gate = jax.nn.sigmoid(pair_stack.layer_norm(z, w["gain"], w["bias"]) @ w["gate"])
    assert_close(outgoing / gate, incoming / jnp.swapaxes(gate, 1, 2), 1e-3)


def test_a_recommender_multiplies_every_pair_once() -> None:
    config = recommender.PRESETS["tiny"]
    params, batch = start(recommender, config), recommender.batch(config, KEY)
    first = recommender.mlp(config, params["bottom"], batch["features"])
    vectors = [first] + [
        t[i].sum(1) for t, i in zip(params["tables"], batch["indices"], strict=True)
    ]
    pairs = [jnp.sum(a * b, -1) for i, a in enumerate(vectors) for b in vectors[:i]]
    want = recommender.mlp(config, params["top"], jnp.column_stack([first, *pairs]))[:, 0]
    assert_close(recommender.forward(config, params, batch), want)


def test_towers_prefer_their_own_pairs() -> None:
    """With one-hot embeddings the loss is what the formula says."""
    config = replace(two_tower.PRESETS["tiny"], layers=0, features=16, embedding=16)
    params = {tower: {"layers": [], "head": jnp.eye(16)} for tower in two_tower.TOWERS}
    loss = two_tower.loss(config, params, dict.fromkeys(two_tower.TOWERS, jnp.eye(16)))
    right = np.exp(1 / config.temperature)
    assert_close(loss, -np.log(right / (right + 15)), 1e-4)


def test_a_decoder_sees_the_source_and_not_the_future() -> None:
    config = encoder_decoder.PRESETS["tiny"]
    params, batch = start(encoder_decoder, config), encoder_decoder.batch(config, KEY)
    forward = quick(partial(encoder_decoder.forward, config))
    source, tokens = batch["source"], batch["tokens"]
    before = forward(params, source, tokens)
    later = forward(params, source, tokens.at[:, 9].add(1) % config.vocab)
    assert_close(later[:, :9], before[:, :9], 1e-6)
    assert np.abs(later[:, 9:] - before[:, 9:]).max() > 1e-3
    other = forward(params, source.at[:, -1].add(1) % config.vocab, tokens)
    assert np.abs(other - before).max(axis=(0, 2)).min() > 1e-5


def test_noise_of_one_image_is_its_own() -> None:
    config = dit.PRESETS["tiny"]
    params, batch = start(dit, config), dit.batch(config, KEY)
    predict = quick(partial(dit.forward, config))
    args = batch["images"], batch["times"], batch["labels"]
    assert_close(predict(params, *(a[2:4] for a in args)), predict(params, *args)[2:4])
