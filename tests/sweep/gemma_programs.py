"""Google's Gemma, small: a window and a global layer, and a step of generation with its cache."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gemma.gm.nn import _config, _modules, _transformer

from tests.frameworks.shapes import Program
from tests.sweep.steps import train

BATCH, LENGTH, VOCABULARY = 8, 16, 64
TOKENS = np.random.default_rng(0).integers(1, VOCABULARY, (BATCH, LENGTH)).astype(np.int32)


def _model(*, dtype: Any, layers: int) -> Any:
    kinds = (_modules.AttentionType.LOCAL_SLIDING, _modules.AttentionType.GLOBAL)
    config = _config.TransformerConfig(
        num_embed=VOCABULARY, embed_dim=32, hidden_dim=64, num_heads=4, head_dim=8, num_kv_heads=2,
        final_logit_softcap=30.0, use_post_attn_norm=True, use_post_ffw_norm=True,
        attention_types=kinds[-layers:], attn_logits_soft_cap=50.0, sliding_window_size=8,
        use_qk_norm=True,
    )  # fmt: skip
    return _transformer.Transformer(tokens="tokens", config=config, dtype=dtype)


def train_step() -> Program:
    """A step of training."""
    model = _model(dtype=jnp.float32, layers=2)
    params = model.init(jax.random.key(0), TOKENS)["params"]

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = model.apply({"params": params}, tokens).logits
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)
        return -jnp.mean(chosen)

    return train(loss, params, TOKENS)


def generate_step() -> Program:
    """One more token, with a cache of keys and values."""
    model = _model(dtype=jnp.float32, layers=1)
    params = model.init(jax.random.key(0), TOKENS)["params"]
    cache = model.config.init_cache(BATCH, jnp.float32, cache_length=LENGTH)

    def step(params: Any, cache: Any, tokens: jax.Array, positions: jax.Array) -> Any:
        mask = jnp.arange(LENGTH)[None, None] <= positions[..., None]
        out = model.apply(
            {"params": params}, tokens, cache=cache, positions=positions, attention_mask=mask
        )
        return out.logits[:, -1].argmax(-1), out.cache

    return step, (params, cache, TOKENS[:, :1], np.zeros((BATCH, 1), np.int32))
