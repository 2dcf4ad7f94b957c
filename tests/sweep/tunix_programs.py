"""Google's Tunix: its Llama 3 and the experts of its Qwen 3, small, trained by Flax's NNX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tunix.models.llama3 import model as llama3
from tunix.models.qwen3 import model as qwen3

from tests.frameworks.shapes import Program
from tests.sweep.steps import train

BATCH, LENGTH, VOCABULARY = 8, 16, 64
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, LENGTH)).astype(np.int32)
SMALL = {
    "num_layers": 1, "vocab_size": VOCABULARY, "embed_dim": 32, "hidden_dim": 64, "num_heads": 4,
    "head_dim": 8, "num_kv_heads": 2, "rope_theta": 10_000, "norm_eps": 1e-6,
}  # fmt: skip


def _train(model: Any) -> Program:
    graph, params = nnx.split(model)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), (BATCH, LENGTH, LENGTH))
        logits, _ = nnx.merge(graph, params)(tokens, positions, None, mask)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)
        return -jnp.mean(chosen)

    return train(loss, nnx.to_pure_dict(params), TOKENS)


def llama() -> Program:
    """A layer of Llama 3."""
    return _train(llama3.Llama3(llama3.ModelConfig(**SMALL), rngs=nnx.Rngs(0)))


def qwen_experts() -> Program:
    """A layer of Qwen 3 with experts."""
    config = qwen3.ModelConfig(**SMALL, num_experts=4, num_experts_per_tok=2)
    return _train(qwen3.Qwen3(config, rngs=nnx.Rngs(0)))
