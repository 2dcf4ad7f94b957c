"""The (program, mesh, device) cases that every peer plans.

Programs are models of the zoo, fewer layers so that one compilation takes a minute or so. This
module is also imported under the peers' versions of JAX, where Shardwright itself does not run: the
zoo is plain JAX, so it is imported without the package around it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One program on one mesh of one device."""

    title: str
    module: str  # of shardwright.zoo
    make: str  # its function that returns an Example
    preset: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "train"  # which experts would be asked: train, experts, images, decode, tables
    device: str = "tpu-v5e"
    target: str = "tpu:v5e:4x4"
    mesh: Mapping[str, int] = field(default_factory=lambda: {"data": 4, "model": 4})


def _case(title: str, program: str, changes: Mapping[str, Any] = NOTHING, **more: Any) -> Case:
    module, make, preset = program.split(".")
    return Case(title=title, module=module, make=make, preset=preset, changes=changes, **more)


LLAMA_8 = {"layers": 8, "scan": True, "batch": 16, "seq": 4096}
V5P = {"device": "tpu-v5p", "target": "tpu:v5p:2x2x4"}
V6E = {"device": "tpu-v6e", "target": "tpu:v6e:4x4"}
H100 = {"device": "h100", "target": "cuda:h100:2x8", "mesh": {"data": 2, "model": 8}}

CASES = {
    "gpt_b8": _case("GPT, 2 layers, batch 8 x 2048", "transformer.train.gpt_2l", {"batch": 8}),
    "gpt_b32": _case("GPT, 2 layers, batch 32 x 2048", "transformer.train.gpt_2l"),
    "decode": _case(
        "Llama 8B decode, 8 scanned layers, batch 64", "decode.decode.llama_8b",
        {"layers": 8, "scan": True, "batch": 64}, kind="decode",
    ),
    # Servers keep the cache of each layer by itself and write the layers one after the other.
    "decode_layers": _case(
        "Llama 8B decode, 8 unrolled layers, batch 64", "decode.decode.llama_8b",
        {"layers": 8, "batch": 64}, kind="decode",
    ),
    "recommender": _case(
        "DLRM, 8 tables", "recommender.train.dlrm", {"tables": 8}, kind="tables",
    ),
    "vit": _case(
        "ViT-H-like, 2 layers", "vit.train.vit_l16",
        {"layers": 2, "d_model": 1280, "d_ff": 5120, "batch": 512},
    ),
    "unet": _case(
        "U-Net, 2 levels", "unet.train.latent", {"levels": 2, "batch": 64}, kind="images",
    ),
    "moe": _case(
        "MoE, 1 layer, 8 experts", "moe.train.moe_8x", {"layers": 1, "batch": 32}, kind="experts",
    ),
    "llama_scan": _case(
        "Llama 8B, 8 scanned layers, batch 16 x 4096", "transformer.train.llama_8b", LLAMA_8,
    ),
    "two_tower": _case(
        "Two towers, 32k pairs", "two_tower.train.contrastive_32k", {"layers": 2},
    ),
    "pair_stack": _case(
        "AlphaFold-like pairs, 1 layer", "pair_stack.train.pair_256", {"layers": 1}, kind="pairs",
    ),
    "mamba": _case("Mamba 2.8B, 2 layers", "mamba.train.mamba_3b", {"layers": 2, "batch": 32}),
    "dit": _case("DiT-XL/2, 2 layers", "dit.train.dit_xl", {"layers": 2}),
    "encoder_decoder": _case(
        "T5 XXL, 1 + 1 layers", "encoder_decoder.train.t5_11b", {"layers": 1, "batch": 128},
    ),
    "mixtral": _case(
        "Mixtral 8x7B, 1 layer, sorted tokens", "sorted_moe.train.mixtral_8x7b",
        {"layers": 1, "batch": 32}, kind="experts",
    ),
    "gpt_b8_v6e": _case(
        "GPT, 2 layers, batch 8 x 2048", "transformer.train.gpt_2l", {"batch": 8}, **V6E
    ),
    "gpt_b8_v5p": _case(
        "GPT, 2 layers, batch 8 x 2048", "transformer.train.gpt_2l", {"batch": 8},
        mesh={"data": 4, "model": 4}, **V5P,
    ),
    "gpt_b32_h100": _case("GPT, 2 layers, batch 32 x 2048", "transformer.train.gpt_2l", **H100),
    "llama_scan_h100": _case(
        "Llama 8B, 8 scanned layers, batch 16 x 4096", "transformer.train.llama_8b", LLAMA_8, **H100
    ),
    "moe_h100": _case(
        "MoE, 1 layer, 8 experts", "moe.train.moe_8x", {"layers": 1, "batch": 32}, kind="experts",
        **H100,
    ),
    "vit_h100": _case(
        "ViT-H-like, 2 layers", "vit.train.vit_l16",
        {"layers": 2, "d_model": 1280, "d_ff": 5120, "batch": 512}, **H100,
    ),
    "two_tower_h100": _case(
        "Two towers, 32k pairs", "two_tower.train.contrastive_32k", {"layers": 2}, **H100
    ),
    "mamba_h100": _case(
        "Mamba 2.8B, 2 layers", "mamba.train.mamba_3b", {"layers": 2, "batch": 32}, **H100
    ),
    "pair_stack_h100": _case(
        "AlphaFold-like pairs, 1 layer", "pair_stack.train.pair_256", {"layers": 1},
        kind="pairs", **H100,
    ),
    "encoder_decoder_h100": _case(
        "T5 XXL, 1 + 1 layers", "encoder_decoder.train.t5_11b", {"layers": 1, "batch": 128}, **H100
    ),
    "unet_h100": _case(
        "U-Net, 2 levels", "unet.train.latent", {"levels": 2, "batch": 64}, kind="images", **H100
    ),
    "recommender_h100": _case(
        "DLRM, 8 tables", "recommender.train.dlrm", {"tables": 8}, kind="tables", **H100
    ),
    "decode_h100": _case(
        "Llama 8B decode, 8 scanned layers, batch 64", "decode.decode.llama_8b",
        {"layers": 8, "scan": True, "batch": 64}, kind="decode", **H100,
    ),
    "decode_layers_h100": _case(
        "Llama 8B decode, 8 unrolled layers, batch 64", "decode.decode.llama_8b",
        {"layers": 8, "batch": 64}, kind="decode", **H100,
    ),
    "gpt_b8_h100": _case(
        "GPT, 2 layers, batch 8 x 2048", "transformer.train.gpt_2l", {"batch": 8}, **H100
    ),
}  # fmt: skip


def program(case: Case) -> Any:
    """The zoo's Example of a case."""
    module = import_module(f"shardwright.zoo.{case.module}")
    return getattr(module, case.make)(replace(module.PRESETS[case.preset], **case.changes), "step")


def only_the_zoo() -> None:
    """Makes `shardwright.zoo` importable without the package, which needs a newer JAX."""
    package = ModuleType("shardwright")
    package.__path__ = [str(ROOT / "src" / "shardwright")]
    sys.modules["shardwright"] = package
