"""Programs as Equinox users write them: modules are pytrees, filtered transformations."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from tests.frameworks.shapes import F32, I32, KEY, Program


def _create(make: Any) -> Any:
    """The module with its arrays replaced by shapes."""
    return eqx.filter_eval_shape(make, jax.random.key(0))


def _train(model: Any, loss: Any, optimizer: Any, *batch: Any) -> Program:
    """One optimiser step on the arrays of the module; the rest of it is static."""
    arrays, static = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def step(arrays: Any, opt_state: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(
            lambda a: loss(eqx.combine(a, static), *batch), allow_int=True
        )(arrays)
        updates, opt_state = optimizer.update(grads, opt_state, arrays)
        return eqx.apply_updates(arrays, updates), opt_state, value

    return step, (arrays, jax.eval_shape(optimizer.init, arrays), *batch)


class Encoder(eqx.Module):
    embed: eqx.nn.Embedding
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    rope: eqx.nn.RotaryPositionalEmbedding
    mlp: eqx.nn.MLP

    def __init__(self, key: jax.Array) -> None:
        k1, k2, k3 = jax.random.split(key, 3)
        self.embed = eqx.nn.Embedding(64, 32, key=k1)
        self.norm = eqx.nn.LayerNorm(32)
        self.attention = eqx.nn.MultiheadAttention(4, 32, dropout_p=0.1, key=k2)
        self.rope = eqx.nn.RotaryPositionalEmbedding(8)
        self.mlp = eqx.nn.MLP(32, 64, 48, 2, key=k3)

    def __call__(self, tokens: jax.Array, key: jax.Array) -> jax.Array:
        x = jax.vmap(self.embed)(tokens)
        h = jax.vmap(self.norm)(x)

        def turn(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
            return jax.vmap(self.rope, 1, 1)(q), jax.vmap(self.rope, 1, 1)(k), v

        mask = jnp.tril(jnp.ones((tokens.size, tokens.size), bool))
        x = x + self.attention(h, h, h, mask=mask, key=key, process_heads=turn)
        return jax.vmap(self.mlp)(x)


def equinox_attention() -> Program:
    """One sequence vmapped over the batch: attention with rotary positions and dropout."""

    def loss(model: Any, tokens: jax.Array, key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, tokens.shape[0])
        logits = jax.vmap(model)(tokens, keys)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

    return _train(_create(Encoder), loss, optax.adamw(1e-3), I32(4, 16), KEY)


def equinox_convolution() -> Program:
    """Convolution, group norm, pooling, written for one image and vmapped."""

    def make(key: jax.Array) -> Any:
        k1, k2, k3 = jax.random.split(key, 3)
        return eqx.nn.Sequential(
            [
                eqx.nn.Conv2d(3, 16, 3, padding=1, key=k1),
                eqx.nn.GroupNorm(4, 16),
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.MaxPool2d(2, 2),
                eqx.nn.ConvTranspose2d(16, 8, 3, stride=2, key=k2),
                eqx.nn.AdaptiveAvgPool2d(4),
                eqx.nn.Lambda(jnp.ravel),
                eqx.nn.Linear(128, 10, key=k3),
            ]
        )

    def loss(model: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits = jax.vmap(model)(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return _train(_create(make), loss, optax.sgd(0.1, momentum=0.9), F32(8, 3, 16, 16), I32(8))


def equinox_batch_norm() -> Program:
    """Batch norm over a vmapped axis, its statistics threaded through eqx.nn.State."""

    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        norm: eqx.nn.BatchNorm
        out: eqx.nn.Linear

        def __init__(self, key: jax.Array) -> None:
            k1, k2 = jax.random.split(key)
            self.conv = eqx.nn.Conv2d(3, 8, 3, padding=1, key=k1)
            self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")
            self.out = eqx.nn.Linear(8, 10, key=k2)

        def __call__(self, x: jax.Array, state: Any) -> Any:
            x, state = self.norm(self.conv(x), state)
            return self.out(jnp.mean(jax.nn.relu(x), axis=(1, 2))), state

    model, state = eqx.nn.make_with_state(Net)(jax.random.key(0))

    def loss(model: Any, state: Any, images: jax.Array) -> Any:
        apply = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        logits, state = apply(images, state)
        return jnp.mean(logits**2), state

    def step(model: Any, state: Any, images: jax.Array) -> Any:
        (_, state), grads = eqx.filter_value_and_grad(loss, has_aux=True)(model, state, images)
        return eqx.filter(eqx.apply_updates(model, grads), eqx.is_array), state

    arrays, static = eqx.partition(model, eqx.is_array)
    return (
        lambda arrays, state, images: step(eqx.combine(arrays, static), state, images),
        (arrays, state, F32(8, 3, 8, 8)),
    )


def equinox_recurrent() -> Program:
    """An LSTM cell in lax.scan, trained with gradient clipping and RMSProp."""

    class Net(eqx.Module):
        cell: eqx.nn.LSTMCell
        out: eqx.nn.Linear

        def __init__(self, key: jax.Array) -> None:
            k1, k2 = jax.random.split(key)
            self.cell = eqx.nn.LSTMCell(8, 24, key=k1)
            self.out = eqx.nn.Linear(24, 4, key=k2)

        def __call__(self, xs: jax.Array) -> jax.Array:
            def body(carry: Any, x: jax.Array) -> Any:
                carry = self.cell(x, carry)
                return carry, carry[0]

            _, hidden = jax.lax.scan(body, (jnp.zeros(24), jnp.zeros(24)), xs)
            return jax.vmap(self.out)(hidden)

    def loss(model: Any, xs: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(model)(xs) ** 2)

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.rmsprop(1e-3))
    return _train(_create(Net), loss, optimizer, F32(4, 12, 8))


def equinox_fixed_point() -> Program:
    """A layer iterated until it settles: a while loop in the forward pass."""

    def make(key: jax.Array) -> Any:
        return eqx.nn.Linear(16, 16, key=key)

    def solve(arrays: Any, x: jax.Array) -> jax.Array:
        model = eqx.combine(arrays, static)

        def far(carry: Any) -> jax.Array:
            z, old, count = carry
            return (jnp.max(jnp.abs(z - old)) > 1e-5) & (count < 50)

        def iterate(carry: Any) -> Any:
            z, _, count = carry
            return jnp.tanh(0.5 * jax.vmap(model)(z) + x), z, count + 1

        return jax.lax.while_loop(far, iterate, (x, x + 1, 0))[0]

    arrays, static = eqx.partition(
        _create(make), lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
    )
    return solve, (arrays, F32(8, 16))
