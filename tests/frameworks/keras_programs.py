"""Programs as Keras users write them on its JAX backend: stateless calls of layers."""

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras

from tests.frameworks.shapes import F32, I32, Program


def _struct(variable: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(variable.shape, jnp.dtype(variable.dtype))


def _train(model: Any, optimizer: Any, x: Any, y: Any) -> Program:
    """One step through `stateless_call` and `stateless_apply`, as Keras' own JAX loop does."""
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(trainable: Any, other: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(trainable: Any) -> Any:
            logits, new = model.stateless_call(trainable, other, x, training=True)
            return loss_fn(y, logits), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(trainable)
        trainable, state = optimizer.stateless_apply(state, grads, trainable)
        return trainable, new, state, value

    variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    return step, (*([_struct(v) for v in group] for group in variables), x, y)


def keras_attention() -> Program:
    """A functional model with multi-head attention, dropout and AdamW."""
    tokens = keras.Input((16,), dtype="int32")
    x = keras.layers.Embedding(64, 32)(tokens)
    h = keras.layers.LayerNormalization()(x)
    h = keras.layers.MultiHeadAttention(4, 8, dropout=0.1)(h, h, use_causal_mask=True)
    x = keras.layers.Add()([x, keras.layers.Dropout(0.1)(h)])
    model = keras.Model(tokens, keras.layers.Dense(64)(x))
    return _train(model, keras.optimizers.AdamW(1e-3), I32(4, 16), I32(4, 16))


def keras_convolution() -> Program:
    """Convolutions (plain, separable), batch norm, both poolings, SGD with momentum."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(16, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.SeparableConv2D(16, 3),
            layers.GroupNormalization(4),
            layers.UpSampling2D(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    return _train(model, keras.optimizers.SGD(0.1, momentum=0.9), F32(8, 16, 16, 3), I32(8))


def keras_recurrent() -> Program:
    """An LSTM under a bidirectional GRU, trained with Adafactor."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((12, 8)),
            layers.LSTM(24, return_sequences=True),
            layers.Bidirectional(layers.GRU(16)),
            layers.Dense(10),
        ]
    )
    return _train(model, keras.optimizers.Adafactor(1e-3), F32(4, 12, 8), I32(4))


def keras_unusual_state() -> Program:
    """Lion with gradient accumulation and a moving average, on a normalised MLP."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((24,)),
            layers.Dense(32, activation="gelu"),
            layers.RMSNormalization(),
            layers.SpectralNormalization(layers.Dense(10)),
        ]
    )
    optimizer = keras.optimizers.Lion(
        1e-4, use_ema=True, gradient_accumulation_steps=2, global_clipnorm=1.0
    )
    return _train(model, optimizer, F32(8, 24), I32(8))
