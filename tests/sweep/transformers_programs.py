"""Hugging Face's Flax language models of random weights: what many train on TPUs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from transformers import (
    FlaxGPT2LMHeadModel,
    FlaxLlamaForCausalLM,
    GPT2Config,
    LlamaConfig,
)

from tests.frameworks.shapes import Program
from tests.sweep.steps import train

BATCH, LENGTH, VOCABULARY = 8, 16, 64
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, LENGTH)).astype(np.int32)


def _train(model: Any) -> Program:
    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = model(tokens, params=params, train=False).logits
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)
        return -jnp.mean(chosen)

    return train(loss, model.params, TOKENS)


def llama() -> Program:
    """Llama with grouped heads."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
    )  # fmt: skip
    return _train(FlaxLlamaForCausalLM(config, input_shape=(1, LENGTH)))


def gpt2() -> Program:
    """GPT-2 with a tied embedding."""
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=LENGTH)
    return _train(FlaxGPT2LMHeadModel(config, input_shape=(1, LENGTH)))
