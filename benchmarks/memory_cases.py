"""The triples (model, mesh, plan) whose peak memory compilers judge, and which are held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp

import shardwright as sw
from shardwright.zoo import (
    attention,
    decode,
    dit,
    encoder_decoder,
    gnn,
    mamba,
    mlp,
    moe,
    pair_stack,
    recommender,
    resnet,
    sorted_moe,
    transformer,
    two_tower,
    unet,
    vit,
)
from shardwright.zoo.example import Example
from shardwright.zoo.training import (
    adamw,
    cross_entropy,
    first_state,
    make_train_step,
    train_example,
)

GPT = transformer.PRESETS["gpt_2l"]
LLAMA = transformer.PRESETS["llama_8b"]
NARROW = replace(
    LLAMA, layers=4, d_model=2048, d_ff=5632, heads=16, vocab=32_000, batch=32, scan=True
)


def next_tokens(config: transformer.Config, name: str) -> Example:
    """GPT whose loss shifts the logits: `logits[:, :-1]` against `tokens[:, 1:]`."""

    def loss(config: transformer.Config, params: Any, tokens: Any) -> Any:
        return cross_entropy(transformer.forward(config, params, tokens)[:, :-1], tokens[:, 1:])

    def batch(config: transformer.Config, key: Any) -> Any:
        return transformer.batch(config, key)["tokens"]

    return train_example(config, name, init=transformer.init, loss=loss, batch=batch)


def accumulating(config: transformer.Config, microbatches: int, name: str) -> Example:
    """A step that adds up the gradients of microbatches in a loop."""
    loss = partial(transformer.loss, config)

    def mean_loss(params: Any, batch: Any) -> Any:
        parts = jax.tree.map(lambda x: x.reshape(microbatches, -1, *x.shape[1:]), batch)
        total, _ = jax.lax.scan(
            lambda total, part: (total + jax.checkpoint(loss)(params, part), None),
            jnp.float32(0), parts,
        )  # fmt: skip
        return total / microbatches

    return Example(
        name=name, fn=make_train_step(mean_loss, adamw()), donate_argnums=(0,),
        make=lambda key: (
            first_state(transformer.init(config, key), adamw()), transformer.batch(config, key)
        ),
    )  # fmt: skip


MODELS: dict[str, Callable[[], Example]] = {
    "GPT b8": lambda: transformer.train(replace(GPT, batch=8)),
    "GPT b32": lambda: transformer.train(GPT),
    "GPT b16, logits sliced": lambda: next_tokens(replace(GPT, batch=16), "sliced"),
    "GPT 4 scanned layers": lambda: transformer.train(replace(GPT, layers=4, scan=True)),
    "GPT 4 layers, remat": lambda: transformer.train(replace(GPT, layers=4, remat=True)),
    "GPT, 4 microbatches": lambda: accumulating(replace(GPT, batch=64), 4, "microbatches"),
    "GPT prefill": lambda: decode.prefill(replace(GPT, layers=4, batch=16)),
    "Llama, 4 narrow scanned layers": lambda: transformer.train(NARROW),
    "Llama, 8 scanned layers": lambda: transformer.train(
        replace(LLAMA, layers=8, scan=True, batch=16, seq=4096)
    ),
    "Llama, 16 scanned layers, b32": lambda: transformer.train(
        replace(LLAMA, layers=16, scan=True, batch=32, seq=4096)
    ),
    "Llama decode, 8 layers": lambda: decode.decode(
        replace(LLAMA, layers=8, batch=64, param_dtype=jnp.bfloat16)
    ),
    "Llama decode, 8 scanned layers": lambda: decode.decode(
        replace(LLAMA, layers=8, batch=64, scan=True, param_dtype=jnp.bfloat16)
    ),
    "Gemma, 2 layers": lambda: transformer.train(
        replace(transformer.PRESETS["gemma_2b"], layers=2, batch=32)
    ),
    "MoE, one-hot": lambda: moe.train(replace(moe.PRESETS["moe_8x"], layers=2)),
    "Mixtral, 1 layer": lambda: sorted_moe.train(
        replace(sorted_moe.PRESETS["mixtral_8x7b"], layers=1, batch=16)
    ),
    "encoder-decoder": lambda: encoder_decoder.train(
        replace(encoder_decoder.PRESETS["t5_11b"], layers=1, batch=128)
    ),
    "ViT, 4 layers": lambda: vit.train(replace(vit.PRESETS["vit_l16"], layers=4)),
    "DiT, 4 layers": lambda: dit.train(replace(dit.PRESETS["dit_xl"], layers=4)),
    "U-Net": lambda: unet.train(replace(unet.PRESETS["latent"], batch=64)),
    "U-Net forward": lambda: unet.infer(unet.PRESETS["latent"]),
    "ResNet, 6 blocks": lambda: resnet.train(
        replace(resnet.PRESETS["resnet_50"], depths=(2, 2, 1, 1), batch=512)
    ),
    "recommender": lambda: recommender.train(
        replace(recommender.PRESETS["dlrm"], tables=8, rows=2_000_000)
    ),
    "two towers": lambda: two_tower.train(
        replace(two_tower.PRESETS["contrastive_32k"], layers=2)
    ),
    "GNN, 2 rounds": lambda: gnn.train(replace(gnn.PRESETS["graphcast"], rounds=2)),
    "Mamba, 1 layer": lambda: mamba.train(
        replace(mamba.PRESETS["mamba_3b"], layers=1, batch=32)
    ),
    "pair stack, 1 layer": lambda: pair_stack.train(
        replace(pair_stack.PRESETS["pair_256"], layers=1, batch=16)
    ),
    "MLP gradient": lambda: mlp.gradient(mlp.PRESETS["mlp_8k"]),
    "attention gradient": lambda: attention.gradient(attention.PRESETS["attention_32k"]),
}  # fmt: skip

TARGETS = {
    "tpu-v5e": ("tpu:v5e:4x4", {"data": 4, "model": 4}),
    "tpu-v5p": ("tpu:v5p:2x2x2", {"data": 4, "model": 2}),
    "tpu-v6e": ("tpu:v6e:2x4", {"data": 2, "model": 4}),
    "h100": ("cuda:h100:2x8", {"data": 2, "model": 8}),
}
FOUND = "found"
PLANS: dict[str, Sequence[Any] | None] = {
    FOUND: None,
    "FSDP": [sw.FSDP("data"), sw.FSDP("model")],
    "DP": [sw.DataParallel("data"), sw.DataParallel("model")],
    "DP + Megatron": [sw.DataParallel("data"), sw.Megatron("model")],
    "FSDP + Megatron": [sw.FSDP("data"), sw.Megatron("model")],
    "FSDP + experts": [sw.FSDP("data"), sw.ExpertParallel("model")],
    "ZeRO-1 + Megatron": [sw.ZeRO(1, "data"), sw.Megatron("model")],
    "Megatron + sequence": [
        sw.DataParallel("data"), sw.Megatron("model"), sw.SequenceParallel("model"),
    ],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One triple."""

    device: str
    model: str
    plan: str

    @property
    def name(self) -> str:
        return f"{self.model}, {self.device}, {self.plan}"

    @property
    def held_out(self) -> bool:
        """Whether nobody looks at it while tuning: every third, by its name."""
        return crc32(self.name.encode()) % 3 == 0


_CASES = {
    "tpu-v5e": [
        ("GPT b8", "found"), ("GPT b8", "DP + Megatron"), ("GPT b32", "FSDP"),
        ("GPT b16, logits sliced", "found"), ("GPT 4 scanned layers", "FSDP"),
        ("GPT 4 layers, remat", "FSDP + Megatron"), ("Llama, 8 scanned layers", "found"),
        ("Llama, 16 scanned layers, b32", "found"), ("MoE, one-hot", "found"),
        ("U-Net", "found"), ("recommender", "found"), ("ViT, 4 layers", "DP + Megatron"),
        ("Llama decode, 8 layers", "found"), ("GPT, 4 microbatches", "FSDP"),
        ("ResNet, 6 blocks", "DP"), ("MLP gradient", "found"),
    ],
    "tpu-v5p": [
        ("GPT b32", "found"), ("GPT 4 scanned layers", "Megatron + sequence"),
        ("Gemma, 2 layers", "FSDP"), ("Mixtral, 1 layer", "found"), ("DiT, 4 layers", "FSDP"),
        ("Mamba, 1 layer", "DP"), ("recommender", "found"), ("GNN, 2 rounds", "found"),
    ],
    "tpu-v6e": [
        ("GPT b16, logits sliced", "FSDP"), ("Llama, 4 narrow scanned layers", "found"),
        ("Llama decode, 8 scanned layers", "DP + Megatron"), ("U-Net forward", "DP"),
        ("encoder-decoder", "FSDP + Megatron"), ("two towers", "found"),
        ("pair stack, 1 layer", "DP"), ("GPT b8", "ZeRO-1 + Megatron"), ("GPT prefill", "found"),
    ],
    "h100": [
        ("GPT b8", "found"), ("GPT b32", "FSDP"), ("GPT b16, logits sliced", "DP + Megatron"),
        ("GPT 4 scanned layers", "FSDP"), ("GPT 4 layers, remat", "FSDP + Megatron"),
        ("Llama, 8 scanned layers", "FSDP"), ("Llama, 4 narrow scanned layers", "found"),
        ("MoE, one-hot", "found"), ("MoE, one-hot", "FSDP + experts"), ("U-Net", "found"),
        ("recommender", "found"), ("Gemma, 2 layers", "FSDP"), ("ViT, 4 layers", "found"),
        ("two towers", "DP"), ("Llama decode, 8 layers", "DP + Megatron"),
        ("GPT, 4 microbatches", "FSDP"), ("attention gradient", "found"),
    ],
}  # fmt: skip
CASES = [Case(device, *pair) for device, pairs in _CASES.items() for pair in pairs]
