"""Programs as Flax users write them, linen and nnx."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.training.train_state import TrainState

from tests.frameworks.shapes import F32, I32, KEY, Program, shaped


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        h = nn.MultiHeadDotProductAttention(num_heads=4, dropout_rate=0.1)(
            nn.LayerNorm()(x), mask=mask, deterministic=not train
        )
        x = x + nn.Dropout(0.1, deterministic=not train)(h)
        return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))


class LinenDecoder(nn.Module):
    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embed = nn.Embed(128, 32)
        x = embed(tokens)
        for _ in range(2):
            x = nn.remat(LinenBlock)()(x)
        return embed.attend(nn.LayerNorm()(x))


def linen_attention() -> Program:
    """A decoder with dropout, remat and tied embeddings, trained through flax's TrainState."""
    model = LinenDecoder()
    tokens = I32(4, 16)

    def create(key: jax.Array) -> TrainState:
        params = model.init({"params": key, "dropout": key}, jnp.zeros((4, 16), jnp.int32))
        return TrainState.create(
            apply_fn=model.apply, params=params["params"], tx=optax.adamw(1e-3)
        )

    def step(state: TrainState, tokens: jax.Array, key: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            rngs = {"dropout": jax.random.fold_in(key, state.step)}
            logits = state.apply_fn({"params": params}, tokens, rngs=rngs)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    return step, (shaped(create, KEY), tokens, KEY)


class LinenCNN(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        for features in (16, 32):
            x = nn.Conv(features, (3, 3))(x)
            x = nn.BatchNorm(use_running_average=not train)(x)
            x = nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))
        x = nn.Conv(32, (3, 3), feature_group_count=4, kernel_dilation=2)(x)
        x = nn.GroupNorm(num_groups=4)(x)
        x = nn.ConvTranspose(8, (3, 3), strides=(2, 2))(nn.avg_pool(x, (2, 2), (2, 2)))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


def linen_convolution() -> Program:
    """Convolutions (grouped, dilated, transposed), batch and group norm, both poolings."""
    model = LinenCNN()
    images, labels = F32(8, 16, 16, 3), I32(8)
    variables = shaped(lambda key, x: model.init(key, x, train=True), KEY, images)

    def step(variables: Any, images: jax.Array, labels: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            logits, new = model.apply(
                {"params": params, "batch_stats": variables["batch_stats"]},
                images,
                train=True,
                mutable=["batch_stats"],
            )
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, variables["params"], grads)
        return {"params": params, **new}, value

    return step, (variables, images, labels)


class LinenLSTM(nn.Module):
    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(64, 16)(tokens)
        x = nn.Bidirectional(nn.RNN(nn.LSTMCell(24)), nn.RNN(nn.LSTMCell(24)))(x)
        return nn.Dense(64)(x)


def linen_recurrent() -> Program:
    """A bidirectional LSTM and the gradients of its parameters."""
    model = LinenLSTM()
    tokens = I32(4, 12)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = model.apply(params, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

    return jax.value_and_grad(loss), (shaped(model.init, KEY, tokens), tokens)


def linen_scanned_layers() -> Program:
    """A stack of layers through nn.scan, with rematerialisation and Adafactor."""

    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            body = nn.scan(
                nn.remat(Layer, prevent_cse=False),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=3,
            )
            return body()(x, None)[0]

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return x + nn.Dense(32)(nn.swish(nn.Dense(64)(nn.RMSNorm()(x)))), None

    model, optimizer, x = Stack(), optax.adafactor(1e-2, min_dim_size_to_factor=16), F32(8, 32)
    params = shaped(model.init, KEY, x)

    def step(params: Any, state: Any, x: jax.Array) -> Any:
        grads = jax.grad(lambda p: jnp.mean(model.apply(p, x) ** 2))(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step, (params, shaped(optimizer.init, params), x)


class Attention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(128, 32, rngs=rngs)
        self.norm = nnx.LayerNorm(32, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=4, in_features=32, decode=False, rngs=rngs
        )
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(32, 128, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        return self.out(x + self.dropout(self.attention(self.norm(x))))


class ConvNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(3, 16, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.out = nnx.LinearGeneral((8, 8, 16), 10, axis=(-3, -2, -1), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(nnx.relu(self.norm(self.conv(x))))


class Recurrent(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.rnn = nnx.RNN(nnx.GRUCell(16, 24, rngs=rngs))
        self.out = nnx.Linear(24, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.rnn(x))


def _nnx_train(module: type[nnx.Module], x: Any, y: Any) -> Program:
    """One step of nnx.Optimizer on the module, split into its graph and its state."""

    def create() -> Any:
        model = module(nnx.Rngs(0))
        return nnx.split((model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)))

    graph, state = nnx.eval_shape(create)

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        model, optimizer = nnx.merge(graph, state)

        def loss(model: Any) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), value

    return step, (state, x, y)


def nnx_attention() -> Program:
    """Attention with dropout, whose PRNG state lives in the module."""
    return _nnx_train(Attention, I32(4, 16), I32(4, 16))


def nnx_convolution() -> Program:
    """A convolution with batch norm, whose statistics live in the module."""
    return _nnx_train(ConvNet, F32(8, 16, 16, 3), I32(8))


def nnx_recurrent() -> Program:
    """A GRU scanned over time."""
    return _nnx_train(Recurrent, F32(4, 12, 16), I32(4, 12))


def nnx_inference() -> Program:
    """A forward pass in bfloat16 with everything closed over but the input."""
    model = ConvNet(nnx.Rngs(0))
    model.eval()
    return lambda x: model(x.astype(jnp.bfloat16)), (F32(8, 16, 16, 3),)
