"""Penzai's transformers, small configurations: named axes, models as trees of layers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import penzai.core.variables
from penzai import pz
from penzai.models.transformer.variants import llamalike_common

from tests.frameworks.shapes import Program
from tests.sweep.steps import train

BATCH, LENGTH, VOCABULARY = 8, 16, 64
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, LENGTH)).astype(np.int32)


def _model(**options: Any) -> tuple[Any, Any]:
    """(the layers without their parameters, the parameters)."""
    config = llamalike_common.LlamalikeTransformerConfig(
        query_head_multiplier=2, embedding_dim=32, projection_dim=8, mlp_hidden_dim=64,
        num_decoder_blocks=2, vocab_size=VOCABULARY, parameter_dtype=jnp.float32,
        activation_dtype=jnp.float32, use_layer_stack=False,
        **{
            "num_kv_heads": 2, "mlp_variant": "swiglu", "tie_embedder_and_logits": False,
            "rope_wavelength": 10_000, "rms_norm_eps": 1e-6,
            "attention_type": llamalike_common.AttentionTypeGlobalCausal(), **options,
        },
    )  # fmt: skip
    model = llamalike_common.build_llamalike_transformer(config, jax.random.key(0))
    return pz.unbind_params(model)


def _train(**options: Any) -> Program:
    model, params = _model(**options)
    frozen = [p.freeze() for p in params]
    values = [p.value for p in frozen]

    def loss(values: Any, tokens: jax.Array) -> jax.Array:
        now = [
            penzai.core.variables.ParameterValue(value=v, label=p.label, metadata=p.metadata)
            for v, p in zip(values, frozen, strict=True)
        ]
        named = pz.nx.wrap(tokens).tag("batch", "seq")
        logits = pz.bind_variables(model, now)(
            named, token_positions=pz.nx.wrap(jnp.arange(LENGTH)).tag("seq")
        )
        logits = logits.untag("batch", "seq", "vocabulary").unwrap()
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)
        return -jnp.mean(chosen)

    return train(loss, values, TOKENS)


def llama() -> Program:
    """A Llama-like decoder with grouped heads."""
    return _train()


def gemma() -> Program:
    """A Gemma-like decoder: one key head, a tied embedding, sliding windows."""
    return _train(
        mlp_variant="geglu_approx", tie_embedder_and_logits=True, num_kv_heads=1,
        attention_type=llamalike_common.AttentionTypeSlidingWindowCausal(8),
    )  # fmt: skip
