"""A character-level language model: planned, trained, saved, restored on a mesh of another shape.

    python examples/char_lm.py [FILE]      # by default it learns this project's licence

Eight devices are made out of the host's CPU. The train step is ordinary JAX.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

import shardwright as sw

LAYERS, WIDTH, HEADS, SEQ, BATCH = 2, 64, 4, 32, 32
TEXT = Path(__file__).parents[1] / "LICENSE"
optimizer = optax.adam(3e-3)


def init(key: jax.Array, vocab: int):
    """Parameters and the optimiser's moments."""
    shapes = {"qkv": (WIDTH, 3, HEADS, WIDTH // HEADS), "out": (HEADS, WIDTH // HEADS, WIDTH),
              "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}  # fmt: skip
    *keys, last = jax.random.split(key, LAYERS + 1)
    layers = [
        {name: 0.1 * jax.random.normal(k, shape) for name, shape in shapes.items()} for k in keys
    ]
    params = {"table": 0.1 * jax.random.normal(last, (vocab, WIDTH)), "layers": layers}
    return params, optimizer.init(params)


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def loss_fn(params, text):
    x = params["table"][text[:, :-1]]
    for w in params["layers"]:
        q, k, v = jnp.moveaxis(jnp.einsum("bsd,dchk->bschk", norm(x), w["qkv"]), 2, 0)
        seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + jnp.einsum("bshk,hkd->bsd", seen, w["out"])
        x = x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]
    logits = norm(x) @ params["table"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()


def train_step(state, text):
    """One step of Adam on a batch of character numbers; nothing here knows of devices."""
    params, moments = state
    loss, grads = jax.value_and_grad(loss_fn)(params, text)
    updates, moments = optimizer.update(grads, moments)
    return (optax.apply_updates(params, updates), moments), loss


def main(path: Path = TEXT, steps: int = 60) -> list[float]:
    """Trains on the text; the losses."""
    letters, numbers = np.unique(list(path.read_text()), return_inverse=True)
    rng = np.random.default_rng(0)
    state = jax.eval_shape(lambda: init(jax.random.key(0), len(letters)))
    batch = jax.ShapeDtypeStruct((BATCH, SEQ + 1), jnp.int32)
    losses, saved = [], Path(tempfile.mkdtemp()) / "checkpoint"
    for mesh in ({"data": 4, "model": 2}, {"data": 2, "model": 4}):
        plan = sw.partition(  # a model this small is best left whole: the tactics say how to split
            train_step, state, batch, mesh=mesh, device="cpu", donate_argnums=0,
            tactics=[sw.FSDP("data"), sw.Megatron("model")],
        )  # fmt: skip
        step, (like, _) = plan.jit(train_step), plan.place(state, batch)  # shapes get shardings
        with ocp.StandardCheckpointer() as checkpoints:
            if not saved.exists():
                now = plan.init(lambda: init(jax.random.key(0), len(letters)))
            else:  # what the other mesh wrote is read as this plan splits it
                now = checkpoints.restore(saved, like)
            for _ in range(steps):
                starts = rng.integers(0, len(numbers) - SEQ - 1, (BATCH, 1))
                now, loss = step(now, numbers[starts + np.arange(SEQ + 1)].astype(np.int32))
                losses.append(float(loss))
            checkpoints.save(saved, now, force=True)
        up = now[0]["layers"][0]["up"]
        print(f"{mesh}: loss {losses[-1]:.2f}, up {up.shape} is split {up.sharding.spec}")
    return losses


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
