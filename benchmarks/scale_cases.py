"""The (program, mesh) cases that `benchmarks.scale` measures, as models of what they cost.

KNOWN are looked at while the search is tuned. UNSEEN were written down, and committed, before; they
are run to judge, not to choose. HELD_OUT were written down later, before the bound on three and
four axes was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from shardwright import zoo
from shardwright.zoo import transformer
from shardwright.zoo.example import Example
from tests.search.programs import GPT, REGIMES

LLAMA_8B = replace(transformer.PRESETS["llama_8b"], scan=True)
Case = tuple[str, dict[str, int], str]  # program, mesh, device

KNOWN: list[Case] = [
    ("gpt", {"data": 4, "model": 4}, "tpu-v5e"),
    ("gpt", {"data": 2, "model": 8}, "h100"),
    ("gpt_32l", {"data": 8, "model": 8}, "tpu-v5e"),
    ("large_model", {"data": 8, "model": 4}, "tpu-v5e"),
    ("vit_train", {"data": 4, "model": 4}, "tpu-v5e"),
    ("experts", {"data": 4, "model": 4}, "tpu-v5e"),
    ("gnn_2r", {"x": 4, "y": 2}, "tpu-v4"),
    ("unet_train", {"data": 4, "model": 4}, "tpu-v5e"),
    ("haiku_resnet50", {"data": 4, "model": 2}, "tpu-v5e"),
    ("haiku_mobilenet", {"data": 4, "model": 2}, "tpu-v5e"),
    ("gpt", {"x": 4, "y": 4, "z": 2}, "tpu-v5p"),
    ("gpt_b8", {"x": 2, "y": 2, "z": 2}, "tpu-v5p"),
    ("llama_scan_8l", {"x": 8, "y": 4, "z": 4}, "tpu-v5p"),
    ("llama_8b", {"x": 16, "y": 32, "z": 8}, "gb200"),
    ("moe_1l", {"x": 4, "y": 2, "z": 2}, "tpu-v5p"),
    ("resnet_train", {"x": 4, "y": 2, "z": 2}, "tpu-v5p"),
    ("gpt", {"w": 2, "x": 2, "y": 2, "z": 2}, "h100"),
    ("llama_scan_8l", {"w": 4, "x": 4, "y": 4, "z": 4}, "h100"),
]

UNSEEN: list[Case] = [
    ("gpt_untied", {"data": 8, "model": 8}, "tpu-v5p"),
    ("llama_b16", {"data": 4, "model": 8}, "tpu-v5p"),
    ("resnet_train", {"data": 8, "model": 8}, "tpu-v4"),
    ("moe_forward_2l", {"x": 8, "y": 4}, "h100"),
    ("partir_train", {"data": 16, "model": 4}, "a100-80"),
    ("llama_b64", {"x": 8, "y": 4, "z": 2}, "tpu-v4"),
    ("vit_wide", {"x": 4, "y": 4, "z": 2}, "h100"),
    ("experts", {"x": 4, "y": 4, "z": 2}, "tpu-v5p"),
    ("gpt_b8", {"w": 4, "x": 2, "y": 2, "z": 2}, "h100"),
    ("llama_decode_b64", {"w": 2, "x": 4, "y": 2, "z": 2}, "h100"),
]

HELD_OUT: list[Case] = [
    ("gpt_remat", {"data": 8, "model": 2}, "b200"),
    ("dit_train", {"data": 4, "model": 4}, "h100"),
    ("gpt_untied", {"x": 4, "y": 2, "z": 4}, "h100"),
    ("llama_prefill_b4", {"x": 2, "y": 4, "z": 2}, "tpu-v5p"),
    ("llama_b16", {"w": 2, "x": 2, "y": 2, "z": 2}, "tpu-v5p"),
    ("gpt_remat", {"w": 2, "x": 4, "y": 2, "z": 2}, "tpu-v4"),
    ("vit_b512", {"w": 2, "x": 2, "y": 2, "z": 4}, "h100"),
    ("moe_1l", {"w": 2, "x": 2, "y": 2, "z": 2}, "h100"),
]


def _haiku(forward: Callable[[jax.Array], jax.Array], name: str) -> Example:
    """A train step of one of Haiku's own networks on 256 images."""
    model, optimizer = hk.transform_with_state(forward), optax.adam(1e-3)

    def step(params: Any, state: Any, moments: Any, images: jax.Array, labels: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            logits, new = model.apply(params, state, None, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new

        grads, new = jax.grad(loss, has_aux=True)(params)
        updates, moments = optimizer.update(grads, moments)
        return optax.apply_updates(params, updates), new, moments

    def make(key: jax.Array) -> tuple[Any, ...]:
        images, labels = jnp.zeros((256, 224, 224, 3)), jnp.zeros(256, jnp.int32)
        params, state = model.init(key, images)
        return params, state, optimizer.init(params), images, labels

    return Example(name=name, fn=step, make=make, donate_argnums=(0, 1, 2))


MORE: dict[str, Callable[[], Example]] = {
    "gpt_32l": lambda: layers(32),
    "llama_scan_8l": lambda: transformer.train(
        replace(LLAMA_8B, layers=8, batch=64, seq=4096), "llama_scan_8l"
    ),
    "llama_8b": lambda: transformer.train(replace(LLAMA_8B, batch=4096), "llama_8b"),
    "haiku_resnet50": lambda: _haiku(
        lambda images: hk.nets.ResNet50(1000, resnet_v2=True)(images, is_training=True),
        "haiku_resnet50",
    ),
    "haiku_mobilenet": lambda: _haiku(
        lambda images: hk.nets.MobileNetV1()(images, is_training=True), "haiku_mobilenet"
    ),
}


def layers(count: int, scan: bool = False) -> Example:
    """The GPT of the benchmarks with so many layers."""
    return transformer.train(replace(GPT, layers=count, scan=scan, remat=True), f"gpt_{count}l")


@functools.cache
def example(name: str) -> Example:
    """A program by its name: of this page, of the tests of the search, or of the zoo."""
    made = MORE.get(name) or REGIMES.get(name)
    return made() if made else zoo.programs("full")[name]
