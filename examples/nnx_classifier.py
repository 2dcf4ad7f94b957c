"""Flax NNX: modules that are updated in place, dropout and BatchNorm included. One line changes.

python examples/nnx_classifier.py
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import shardwright as sw


class Classifier(nnx.Module):
    """Two layers with everything that has state in NNX."""

    def __init__(self, features: int, hidden: int, classes: int, *, rngs: nnx.Rngs):
        self.up = nnx.Linear(features, hidden, rngs=rngs)
        self.norm = nnx.BatchNorm(hidden, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.down = nnx.Linear(hidden, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(self.drop(nnx.relu(self.norm(self.up(x)))))


# This was @nnx.jit. The plan is made on the first call; without tactics it would leave a model
# this small whole.
@sw.jit(mesh={"data": 4, "model": 2}, device="cpu", tactics=[sw.FSDP("data"), sw.Megatron("model")])
def train_step(model: Classifier, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array):
    """Updates model and optimiser in place; the loss."""

    def loss_fn(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def main(steps: int = 20) -> list[float]:
    """Trains on two rings of points; the losses."""
    model = Classifier(16, 256, 2, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    x = jax.random.normal(jax.random.key(1), (64, 16))
    y = (jnp.linalg.norm(x, axis=1) > 4).astype(jnp.int32)
    losses = [float(train_step(model, optimizer, x, y)) for _ in range(steps)]
    kernel = model.up.kernel
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; up.kernel is split {kernel.sharding.spec}")
    return losses


if __name__ == "__main__":
    main()
