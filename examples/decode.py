"""Serving: one plan for reading a prompt, one for writing tokens, the same weights in both.

    python examples/decode.py

The weights are placed once, as the decode plan wants them: it runs for every token. The cache is
an argument and a result: it keeps its sharding, and each step writes into it.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

import shardwright as sw
from shardwright import zoo
from shardwright.zoo import decode

MESH = {"data": 2, "model": 4}


def generate(prefill, step, params, cache, prompt, tokens: int) -> list[list[int]]:
    """Tokens that follow the prompt, the likeliest each time, for every sequence."""
    logits, cache = prefill(params, cache, prompt)
    written = []
    for i in range(tokens):
        last = jnp.argmax(logits, -1).astype(jnp.int32)
        written.append(last.tolist())
        logits, cache = step(params, cache, last, jnp.int32(prompt.shape[1] + i))
    return written


def main(tokens: int = 8) -> bool:
    """Writes tokens with and without plans; whether they are the same."""
    config = decode.PRESETS["tiny_llama"]
    reads, writes = decode.prefill(config), decode.decode(config)
    writing = sw.partition(
        writes.fn, *writes.args, mesh=MESH, device="cpu", donate_argnums=1,
        tactics=[sw.DataParallel("data"), sw.Megatron("model")],
    )  # fmt: skip
    reading = sw.partition(  # with the weights where the other plan has them
        reads.fn, *reads.args, mesh=MESH, device="cpu", donate_argnums=1, share=writing
    )
    params, cache, prompt = zoo.materialize(reads)
    plain = generate(jax.jit(reads.fn), jax.jit(writes.fn), params, cache, prompt, tokens)
    params, cache, prompt = reading.place(params, cache, prompt)
    planned = generate(reading.jit(reads.fn), writing.jit(writes.fn), params, cache, prompt, tokens)
    for sequence in list(zip(*planned, strict=True))[:2]:
        print(*sequence)
    print("the same tokens as on one device" if planned == plain else "other tokens: DIFFERENT")
    return planned == plain


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
