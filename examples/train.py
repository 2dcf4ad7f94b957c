"""The quickstart: an ordinary train step, planned and run. No accelerator needed:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/train.py

The same from the command line, for devices you do not have here:

    shardwright plan examples/train.py:train_step --mesh data=8,model=4 --device h100 --donate 0
"""

from typing import Any

import jax
import jax.numpy as jnp

import shardwright as sw

LAYERS = 4


def init(key: jax.Array, width: int = 512) -> dict[str, Any]:
    """Parameters and momentum of a residual MLP."""
    keys, wide = jax.random.split(key, 2 * LAYERS), 4 * width
    params = [
        {
            "up": jax.random.normal(a, (width, wide)) / width**0.5,
            "down": jax.random.normal(b, (wide, width)) / wide**0.5,
        }
        for a, b in zip(keys[::2], keys[1::2], strict=True)
    ]
    return {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params)}


def loss_fn(params: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for layer in params:
        x = x + 0.1 * jax.nn.relu(x @ layer["up"]) @ layer["down"]
    return jnp.mean((x - batch["y"]) ** 2)


def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    """One step of gradient descent with momentum: nothing here knows of devices."""
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda w, m: w - 0.05 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, loss


def example_args(width: int = 8192, batch: int = 16384) -> Any:
    """The shapes of the arguments; the command line asks for them by this name."""
    data = jax.ShapeDtypeStruct((batch, width), jnp.float32)
    state = jax.eval_shape(lambda: init(jax.random.key(0), width))
    return state, {"x": data, "y": data}


def main() -> None:
    state, batch = example_args(width=512, batch=256)
    plan = sw.partition(
        train_step, state, batch, mesh={"data": 4, "model": 2}, device="cpu", donate_argnums=0
    )
    print(plan)

    step = plan.jit(train_step)  # an ordinary jitted function
    state = plan.init(init, jax.random.key(0))  # created split: never whole on one device
    x = jax.random.normal(jax.random.key(1), (256, 512))
    batch = {"x": x, "y": jnp.roll(x, 1, axis=1)}
    for i in range(5):
        state, loss = step(state, batch)
        print(f"step {i}: loss {float(loss):.5f}")


if __name__ == "__main__":
    main()
