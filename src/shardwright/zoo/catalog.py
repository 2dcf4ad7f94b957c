"""The table of programs: which model, which preset at which size, what is changed in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from ..errors import ShardwrightError
from .example import Example

SIZES = ("tiny", "full")


@dataclass(frozen=True, slots=True)
class Entry:
    """One program: `make` of `module` on a preset for each size, with `changes` to the preset."""

    module: str
    make: str
    tiny: str | None  # None: no such program at this size
    full: str
    changes: Mapping[str, Any] = field(default_factory=dict)


CATALOG = {
    "mlp_forward": Entry("mlp", "infer", "tiny", "mlp_8k"),
    "mlp_grad": Entry("mlp", "gradient", "tiny", "mlp_8k"),
    "attention_forward": Entry("attention", "infer", "tiny", "attention_32k"),
    "attention_grad": Entry("attention", "gradient", "tiny", "attention_32k"),
    "transformer_forward": Entry("transformer", "infer", "tiny", "gpt_2l"),
    "transformer_train": Entry("transformer", "train", "tiny", "gpt_2l"),
    "transformer_scan_train": Entry("transformer", "train", "tiny", "gpt_2l", {"scan": True}),
    "transformer_remat_train": Entry("transformer", "train", "tiny", "gpt_2l", {"remat": True}),
    "transformer_untied_train": Entry("transformer", "train", "tiny", "gpt_2l", {"tied": False}),
    "transformer_prefill": Entry("decode", "prefill", "tiny", "gpt_2l"),
    "transformer_decode": Entry("decode", "decode", "tiny", "gpt_2l"),
    "transformer_scan_decode": Entry("decode", "decode", "tiny", "gpt_2l", {"scan": True}),
    "llama_train": Entry("transformer", "train", "tiny_llama", "llama_8b"),
    "llama_scan_train": Entry("transformer", "train", "tiny_llama", "llama_8b", {"scan": True}),
    "llama_prefill": Entry("decode", "prefill", "tiny_llama", "llama_8b"),
    "llama_decode": Entry("decode", "decode", "tiny_llama", "llama_8b"),
    "llama_70b_train": Entry("transformer", "train", None, "llama_70b"),
    "llama_70b_scan_train": Entry("transformer", "train", None, "llama_70b", {"scan": True}),
    "llama_405b_scan_train": Entry("transformer", "train", None, "llama_405b", {"scan": True}),
    "gemma_2b_train": Entry("transformer", "train", None, "gemma_2b"),
    "gemma_7b_scan_train": Entry("transformer", "train", None, "gemma_7b", {"scan": True}),
    "partir_train": Entry("transformer", "train", "tiny_partir", "partir_32l"),
    "moe_forward": Entry("moe", "infer", "tiny", "moe_8x"),
    "moe_train": Entry("moe", "train", "tiny", "moe_8x"),
    "mixtral_train": Entry("sorted_moe", "train", "tiny", "mixtral_8x7b"),
    "deepseek_train": Entry("sorted_moe", "train", "tiny_latent", "deepseek_16b"),
    "mamba_train": Entry("mamba", "train", "tiny", "mamba_3b"),
    "encoder_decoder_train": Entry("encoder_decoder", "train", "tiny", "t5_11b"),
    "recommender_train": Entry("recommender", "train", "tiny", "dlrm"),
    "two_tower_train": Entry("two_tower", "train", "tiny", "contrastive_32k"),
    "pair_stack_train": Entry("pair_stack", "train", "tiny", "pair_256"),
    "dit_train": Entry("dit", "train", "tiny", "dit_xl"),
    "unet_forward": Entry("unet", "infer", "tiny", "latent"),
    "unet_train": Entry("unet", "train", "tiny", "latent"),
    "gnn_forward": Entry("gnn", "infer", "tiny", "graphcast"),
    "gnn_train": Entry("gnn", "train", "tiny", "graphcast"),
    "resnet_forward": Entry("resnet", "infer", "tiny", "resnet_50"),
    "resnet_train": Entry("resnet", "train", "tiny", "resnet_50"),
    "vit_forward": Entry("vit", "infer", "tiny", "vit_l16"),
    "vit_train": Entry("vit", "train", "tiny", "vit_l16"),
}


def programs(size: str = "tiny") -> dict[str, Example]:
    """All programs of one size by name; their arguments are shaped only when asked for.

    "tiny" runs on a CPU in milliseconds, in float32, and every dim that matters is divisible by
    8; "full" is realistic, bfloat16 computation on float32 parameters, to trace and to plan.
    """
    if size not in SIZES:
        raise ShardwrightError(f"unknown size {size!r} of the model zoo", try_=", ".join(SIZES))
    presets = {name: getattr(entry, size) for name, entry in CATALOG.items()}
    return {name: _build(name, preset) for name, preset in presets.items() if preset}


def _build(name: str, preset: str) -> Example:
    entry = CATALOG[name]
    module = import_module(f".{entry.module}", __package__)
    return getattr(module, entry.make)(replace(module.PRESETS[preset], **entry.changes), name)
