"""Equinox: a module with Python values among its leaves, filtered gradients. One line changes.

python examples/equinox_regression.py
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import shardwright as sw

optimizer = optax.adamw(3e-3)


# This was @eqx.filter_jit: what is no array in a module (activations, names, sizes) is static.
@sw.jit(mesh={"data": 4, "model": 2}, device="cpu", tactics=[sw.FSDP("data"), sw.Megatron("model")])
def train_step(model, moments, x, y, key):
    """The next model and moments, and the loss."""

    @eqx.filter_value_and_grad
    def loss_fn(model):
        predicted = jax.vmap(model)(x, key=jax.random.split(key, len(x)))
        return jnp.mean((predicted - y) ** 2)

    loss, grads = loss_fn(model)
    updates, moments = optimizer.update(grads, moments, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), moments, loss


def main(steps: int = 20) -> list[float]:
    """Fits a sine; the losses."""
    keys = jax.random.split(jax.random.key(0), 4)
    model = eqx.nn.Sequential(
        [
            eqx.nn.MLP(8, 128, 256, 2, key=keys[0]),
            eqx.nn.Dropout(0.05),
            eqx.nn.Linear(128, 8, key=keys[1]),
        ]
    )
    moments = optimizer.init(eqx.filter(model, eqx.is_array))
    x = jax.random.normal(keys[2], (64, 8))
    losses = []
    for key in jax.random.split(keys[3], steps):
        model, moments, loss = train_step(model, moments, x, jnp.sin(2 * x), key)
        losses.append(float(loss))
    spec = model.layers[2].weight.sharding.spec
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; the last weight is split {spec}")
    return losses


if __name__ == "__main__":
    main()
