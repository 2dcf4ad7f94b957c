"""KerasHub's models, small ones without weights from elsewhere: a step of stateless training."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import keras_hub
import numpy as np

from tests.frameworks.shapes import Program

BATCH, LENGTH, VOCABULARY = 8, 16, 64
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, VOCABULARY, (BATCH, LENGTH)).astype(np.int32)
INPUTS = {"token_ids": TOKENS, "padding_mask": np.ones((BATCH, LENGTH), np.int32)}


def _train(backbone: Any, inputs: Any) -> Program:
    """Gradients of the mean square of a backbone's result, and a step of SGD."""
    trainable = [v.value for v in backbone.trainable_variables]
    fixed = [v.value for v in backbone.non_trainable_variables]

    def step(trainable: Any, fixed: Any, inputs: Any) -> Any:
        def loss(weights: Any) -> Any:
            out, state = backbone.stateless_call(weights, fixed, inputs, training=True)
            return sum(jnp.mean(leaf**2) for leaf in jax.tree.leaves(out)), state

        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(trainable)
        return [w - 0.1 * g for w, g in zip(trainable, grads, strict=True)], state, value

    return step, (trainable, fixed, inputs)


def gpt2() -> Program:
    """GPT-2's decoder with dropout."""
    keras.utils.set_random_seed(0)
    return _train(
        keras_hub.models.GPT2Backbone(
            vocabulary_size=VOCABULARY, num_layers=2, num_heads=4, hidden_dim=32,
            intermediate_dim=64, dropout=0.0, max_sequence_length=LENGTH,
        ),
        INPUTS,
    )  # fmt: skip


def llama() -> Program:
    """Llama's decoder with grouped heads."""
    keras.utils.set_random_seed(0)
    return _train(
        keras_hub.models.LlamaBackbone(
            vocabulary_size=VOCABULARY, num_layers=2, num_query_heads=4, num_key_value_heads=2,
            hidden_dim=32, intermediate_dim=64,
        ),
        INPUTS,
    )  # fmt: skip


def gemma() -> Program:
    """Gemma's decoder."""
    keras.utils.set_random_seed(0)
    return _train(
        keras_hub.models.GemmaBackbone(
            vocabulary_size=VOCABULARY, num_layers=2, num_query_heads=4, num_key_value_heads=1,
            hidden_dim=32, intermediate_dim=64, head_dim=8,
        ),
        INPUTS,
    )  # fmt: skip


def mixtral() -> Program:
    """Mixtral's decoder: experts chosen per token."""
    keras.utils.set_random_seed(0)
    return _train(
        keras_hub.models.MixtralBackbone(
            vocabulary_size=VOCABULARY, num_layers=1, num_query_heads=4, num_key_value_heads=2,
            hidden_dim=32, intermediate_dim=64, num_experts=4, top_k=2, sliding_window=8,
        ),
        INPUTS,
    )  # fmt: skip


def bert() -> Program:
    """BERT's encoder."""
    keras.utils.set_random_seed(0)
    model = keras_hub.models.BertBackbone(
        vocabulary_size=VOCABULARY, num_layers=2, num_heads=4, hidden_dim=32,
        intermediate_dim=64, dropout=0.0, max_sequence_length=LENGTH,
    )  # fmt: skip
    return _train(model, {**INPUTS, "segment_ids": np.zeros((BATCH, LENGTH), np.int32)})


def resnet() -> Program:
    """A small ResNet."""
    keras.utils.set_random_seed(0)
    model = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64], input_conv_kernel_sizes=[3], stackwise_num_filters=[64, 128],
        stackwise_num_blocks=[1, 1], stackwise_num_strides=[1, 2], block_type="basic_block",
        image_shape=(16, 16, 3),
    )  # fmt: skip
    return _train(model, RNG.normal(size=(BATCH, 16, 16, 3)).astype(np.float32))
