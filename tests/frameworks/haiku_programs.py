"""Programs as Haiku users write them: transformed functions with named parameters."""

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from tests.frameworks.shapes import F32, I32, KEY, Program, shaped


def haiku_attention() -> Program:
    """A transformer block with dropout, trained with a learning-rate schedule."""

    def forward(tokens: jax.Array) -> jax.Array:
        x = hk.Embed(64, 32)(tokens)
        h = hk.LayerNorm(-1, True, True)(x)
        mask = jnp.tril(jnp.ones((1, 1, tokens.shape[1], tokens.shape[1])))
        initial = hk.initializers.VarianceScaling()
        h = hk.MultiHeadAttention(4, key_size=8, w_init=initial)(h, h, h, mask=mask)
        x = x + hk.dropout(hk.next_rng_key(), 0.1, h)
        x = x + hk.nets.MLP([64, 32])(hk.LayerNorm(-1, True, True)(x))
        return hk.Linear(64)(x)

    model = hk.transform(forward)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)
    optimizer = optax.adam(schedule)
    tokens = I32(4, 16)

    def step(params: Any, state: Any, tokens: jax.Array, key: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            logits = model.apply(params, key, tokens)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

        grads = jax.grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state

    params = shaped(model.init, KEY, tokens)
    return step, (params, shaped(optimizer.init, params), tokens, KEY)


def haiku_convolution() -> Program:
    """Haiku's own ResNet-18: convolution, batch norm with state, pooling."""

    def forward(images: jax.Array) -> jax.Array:
        return hk.nets.ResNet18(10, resnet_v2=True)(images, is_training=True)

    model = hk.transform_with_state(forward)
    images = F32(4, 32, 32, 3)
    params, state = shaped(model.init, KEY, images)

    def step(params: Any, state: Any, images: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            logits, new = model.apply(params, state, None, images)
            return jnp.mean(jax.nn.logsumexp(logits, axis=-1)), new

        grads, new = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), new

    return step, (params, state, images)


def haiku_recurrent() -> Program:
    """A deep LSTM unrolled by hk.dynamic_unroll, and its gradients."""

    def forward(xs: jax.Array) -> jax.Array:
        core = hk.DeepRNN([hk.LSTM(24), jax.nn.relu, hk.GRU(16)])
        out, _ = hk.dynamic_unroll(core, xs, core.initial_state(xs.shape[1]))
        return hk.BatchApply(hk.Linear(4))(out)

    model = hk.without_apply_rng(hk.transform(forward))
    xs = F32(12, 4, 8)
    return (
        jax.value_and_grad(lambda params, xs: jnp.mean(model.apply(params, xs) ** 2)),
        (shaped(model.init, KEY, xs), xs),
    )


def haiku_vector_quantiser() -> Program:
    """A VQ-VAE: nearest codes by argmin, moving averages as state, straight-through gradients."""

    def forward(x: jax.Array) -> Any:
        codes = hk.nets.VectorQuantizerEMA(16, 32, commitment_cost=0.25, decay=0.99)
        latent = hk.Linear(16)(x)
        coded = codes(latent, is_training=True)
        out = hk.Linear(x.shape[-1])(coded["quantize"])
        return jnp.mean((out - x) ** 2) + coded["loss"]

    model = hk.transform_with_state(forward)
    x = F32(32, 8)
    params, state = shaped(model.init, KEY, x)

    def step(params: Any, state: Any, x: jax.Array) -> Any:
        return jax.value_and_grad(lambda p: model.apply(p, state, None, x), has_aux=True)(params)

    return step, (params, state, x)


def haiku_layer_stack() -> Program:
    """Layers scanned by hk.layer_stack, with spectral normalisation of one weight."""

    def forward(x: jax.Array) -> jax.Array:
        def layer(x: jax.Array) -> jax.Array:
            return x + jax.nn.gelu(hk.Linear(32)(hk.RMSNorm(-1)(x)))

        x = hk.layer_stack(3)(hk.remat(layer))(x)
        w = hk.get_parameter("w", (32, 8), init=hk.initializers.Orthogonal())
        return x @ hk.SpectralNorm()(w)

    model = hk.transform_with_state(forward)
    x = F32(8, 32)
    params, state = shaped(model.init, KEY, x)

    def step(params: Any, state: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            out, new = model.apply(params, state, None, x)
            return jnp.mean(out**2), new

        return jax.value_and_grad(loss, has_aux=True)(params)

    return step, (params, state, x)
