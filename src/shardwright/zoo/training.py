"""The train step every model of the zoo shares: gradients, AdamW, next state."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import ShardwrightError
from .example import Example
from .parameters import Params

try:
    import optax
except ModuleNotFoundError as missing:
    raise ShardwrightError(
        "the model zoo trains with optax, which is not installed",
        try_="pip install 'shardwright[zoo]'",
    ) from missing

Loss = Callable[[Params, Any], jax.Array]  # parameters, batch -> scalar


class TrainState(NamedTuple):
    """What one step hands to the next."""

    params: Params
    opt_state: Any
    step: jax.Array


def adamw(learning_rate: float = 3e-3) -> optax.GradientTransformation:
    """The optimiser of every train step here."""
    return optax.adamw(learning_rate, b1=0.9, b2=0.95, weight_decay=1e-2)


def first_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def make_train_step(
    loss: Loss, optimizer: optax.GradientTransformation
) -> Callable[[TrainState, Any], tuple[TrainState, jax.Array]]:
    """A function (state, batch) -> (next state, loss)."""

    def train_step(state: TrainState, batch: Any) -> tuple[TrainState, jax.Array]:
        value, grads = jax.value_and_grad(loss)(state.params, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, state.step + 1), value

    return train_step


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean negative log-likelihood of `targets` [...] under `logits` [..., V]."""
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def train_example(
    config: Any,
    name: str,
    *,
    init: Callable[[Any, jax.Array], Params],
    loss: Callable[[Any, Params, Any], jax.Array],
    batch: Callable[[Any, jax.Array], Any],
) -> Example:
    """One AdamW step of a model as an example: (state, batch) -> (next state, loss)."""
    optimizer = adamw()
    return Example(
        name=name,
        fn=make_train_step(partial(loss, config), optimizer),
        make=lambda key: (first_state(init(config, key), optimizer), batch(config, key)),
        donate_argnums=(0,),
    )
