"""Facts about the models that other ways of computing the same thing confirm."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.zoo import attention, decode, gnn, moe, resnet, transformer, unet, vit
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
