"""Train steps whose optimisers keep unusual state."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tests.frameworks.shapes import F32, KEY, Program, shaped

PARAMS = {"embed": F32(64, 32), "w1": F32(32, 48), "b1": F32(48), "w2": F32(48, 32)}


def _loss(params: Any, x: jax.Array) -> jax.Array:
    h = jnp.tanh((x @ params["embed"]) @ params["w1"] + params["b1"])
    return jnp.mean((h @ params["w2"]) ** 2)


def _train(optimizer: optax.GradientTransformation) -> Program:
    """One step of the optimiser on a small model."""

    def step(params: Any, state: Any, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(_loss)(params, x)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (PARAMS, shaped(optimizer.init, PARAMS), F32(8, 64))


def adafactor() -> Program:
    """Row and column statistics instead of a full second moment."""
    return _train(optax.adafactor(1e-2, min_dim_size_to_factor=16, momentum=0.9))


def lion() -> Program:
    """Signs of an interpolated moment."""
    return _train(optax.lion(1e-4))


def muon() -> Program:
    """Newton-Schulz orthogonalised matrices, Adam for the rest."""
    return _train(optax.contrib.muon(1e-3))


def accumulated() -> Program:
    """Gradients summed over four steps before one update: a cond on the step count."""
    return _train(optax.MultiSteps(optax.adamw(1e-3), every_k_schedule=4))


def masked_chain() -> Program:
    """Clipping, masked weight decay, per-group optimisers, a schedule, a moving average."""
    groups = {"embed": "slow", "w1": "fast", "b1": "frozen", "w2": "fast"}
    return _train(
        optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adaptive_grad_clip(0.1),
            optax.masked(optax.add_decayed_weights(1e-2), {k: k != "b1" for k in PARAMS}),
            optax.partition(
                {
                    "slow": optax.adam(1e-4),
                    "fast": optax.rmsprop(1e-3),
                    "frozen": optax.set_to_zero(),
                },
                groups,
            ),
            optax.scale_by_schedule(optax.warmup_cosine_decay_schedule(0.0, 1.0, 10, 100)),
            optax.ema(0.99),
        )
    )


def noisy_and_guarded() -> Program:
    """A PRNG key in the state, and updates skipped when they are not finite."""
    inner = optax.chain(optax.add_noise(0.1, 0.55, 0), optax.sgd(0.1, momentum=0.9, nesterov=True))
    return _train(optax.apply_if_finite(inner, max_consecutive_errors=3))


def lamb() -> Program:
    """LAMB's trust ratios, then a bfloat16 moment."""
    return _train(optax.chain(optax.lamb(1e-3), optax.trace(0.9, accumulator_dtype=jnp.bfloat16)))


def lbfgs() -> Program:
    """Limited-memory BFGS with its line search: nested while loops around the loss."""
    optimizer = optax.lbfgs()

    def step(params: Any, state: Any, x: jax.Array) -> Any:
        def value(p: Any) -> jax.Array:
            return _loss(p, x)

        loss, grads = optax.value_and_grad_from_state(value)(params, state=state)
        updates, state = optimizer.update(
            grads, state, params, value=loss, grad=grads, value_fn=value
        )
        return optax.apply_updates(params, updates), state

    return step, (PARAMS, shaped(optimizer.init, PARAMS), F32(8, 64))


class Preconditioner(NamedTuple):
    left: jax.Array  # [I, I]
    right: jax.Array  # [O, O]


def _shampoo(rate: float) -> optax.GradientTransformation:
    """Kronecker-factored preconditioning: inverse fourth roots by eigendecomposition."""

    def init(params: Any) -> Any:
        return jax.tree.map(
            lambda p: (
                Preconditioner(*(1e-4 * jnp.eye(n) for n in p.shape)) if p.ndim == 2 else None
            ),
            params,
        )

    def root(statistic: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh(statistic)
        return (vectors * jnp.maximum(values, 1e-6) ** -0.25) @ vectors.T

    def one(g: jax.Array, old: Preconditioner | None) -> tuple[jax.Array, Preconditioner | None]:
        if old is None:
            return -rate * g, None
        new = Preconditioner(old.left + g @ g.T, old.right + g.T @ g)
        return -rate * root(new.left) @ g @ root(new.right), new

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        leaves, tree = jax.tree.flatten(grads)
        done = [one(g, s) for g, s in zip(leaves, tree.flatten_up_to(state), strict=True)]
        return tree.unflatten([u for u, _ in done]), tree.unflatten([s for _, s in done])

    return optax.GradientTransformation(init, update)


def shampoo() -> Program:
    """Shampoo-like preconditioners, square matrices per weight."""
    return _train(optax.chain(_shampoo(1e-2), optax.add_decayed_weights(1e-4)))


def differentially_private() -> Program:
    """Gradients per example, clipped one by one, summed with noise."""
    optimizer = optax.contrib.differentially_private_aggregate(1.0, 0.5, key=jax.random.key(0))

    def step(params: Any, state: Any, x: jax.Array) -> Any:
        grads = jax.vmap(jax.grad(lambda p, row: _loss(p, row[None])), (None, 0))(params, x)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step, (PARAMS, shaped(optimizer.init, PARAMS), F32(8, 64))


def sharpness_aware() -> Program:
    """SAM: a second gradient at a worse point nearby."""
    optimizer = optax.contrib.sam(
        optax.adam(1e-3), optax.chain(optax.contrib.normalize(), optax.sgd(0.05)), opaque_mode=True
    )

    def step(params: Any, state: Any, x: jax.Array) -> Any:
        grad = jax.grad(_loss)
        updates, state = optimizer.update(
            grad(params, x), state, params, grad_fn=lambda p, _: grad(p, x)
        )
        return optax.apply_updates(params, updates), state

    return step, (PARAMS, shaped(optimizer.init, PARAMS), F32(8, 64))


def dropout_by_key() -> Program:
    """A raw uint32 key in the batch, as older programs have it."""
    raw = jax.eval_shape(lambda: jax.random.PRNGKey(0))

    def step(params: Any, x: jax.Array, raw: jax.Array, key: jax.Array) -> Any:
        keep = jax.random.bernoulli(raw, 0.9, x.shape)
        order = jax.random.permutation(key, x.shape[0])
        return jax.grad(_loss)(params, jnp.where(keep, x, 0.0)[order])

    return step, (PARAMS, F32(8, 64), raw, KEY)
