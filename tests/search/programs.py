"""Programs, meshes and models that the tests of the search share; traced once per session."""

from __future__ import annotations

import functools
from dataclasses import replace

from shardwright.analysis import analyze_program
from shardwright.analysis.analysis import Analysis
from shardwright.cost.devices import Device, device
from shardwright.cost.model import CostModel
from shardwright.mesh import Mesh
from shardwright.program import trace
from shardwright.zoo import decode, gnn, moe, transformer, unet, vit
from tests import tiny

GPT = transformer.PRESETS["gpt_2l"]  # D=2048, F=8192, H=16, V=32768, batch 32 x 2048
MOE = moe.PRESETS["moe_8x"]
LLAMA = replace(transformer.PRESETS["llama_8b"], layers=2)  # grouped queries, untied, gated
VIT = replace(vit.PRESETS["vit_l16"], layers=2)


@functools.cache
def analysis_of(name: str) -> Analysis:
    """A tiny program of the zoo, or one of the regimes below."""
    if name not in REGIMES:
        return tiny.analysis_of(name)
    example = REGIMES[name]()
    return analyze_program(trace(example.fn, *example.args, donate_argnums=example.donate_argnums))


# Every collective with slack hides, and work takes about as long as it.
HIDES_ALL = Device.like(
    "tpu-v5e", name="hides all", op_overhead_s=2e-7, flops_per_s={"f32": 2e12, "bf16": 2e12},
    hides={"all-gather": 1.0, "all-reduce": 1.0, "reduce-scatter": 1.0, "all-to-all": 0.5},
    combines={"all-gather": 1e4, "all-reduce": 1e4, "reduce-scatter": 1e4},
)  # fmt: skip


def model_of(
    name: str, mesh: dict[str, int], on: str | Device = "tpu-v5e", overlap: float | None = None
) -> CostModel:
    return CostModel(analysis_of(name), Mesh(mesh), device(on), overlap=overlap)


REGIMES = {
    # 4 examples cannot be split over 8 devices.
    "small_batch": lambda: transformer.train(replace(GPT, batch=4, seq=512), "small_batch"),
    # 64 x 1024 tokens and 0.54 billion parameters: plain data parallelism needs 13 GB.
    "large_batch": lambda: transformer.train(
        replace(GPT, batch=64, seq=1024, d_model=4096, d_ff=16_384, heads=32), "large_batch"
    ),
    # 2 billion parameters (32 GB of state) and a batch that one axis of 8 uses up.
    "large_model": lambda: transformer.train(
        replace(GPT, batch=8, seq=1024, d_model=8192, d_ff=32_768, heads=64), "large_model"
    ),
    # The same with twice the tokens: the best plans use two axes as one.
    "large_model_2k": lambda: transformer.train(
        replace(GPT, batch=8, seq=2048, d_model=8192, d_ff=32_768, heads=64), "large_model_2k"
    ),
    # The same with four times the tokens.
    "large_model_and_batch": lambda: transformer.train(
        replace(GPT, batch=16, seq=2048, d_model=8192, d_ff=32_768, heads=64),
        "large_model_and_batch",
    ),
    # One sequence.
    "long_sequence": lambda: transformer.train(replace(GPT, batch=1, seq=16_384), "long_sequence"),
    "experts": lambda: moe.train(replace(MOE, layers=2), "experts"),
    "gpt": lambda: transformer.train(GPT, "gpt"),
    "gpt_b8": lambda: transformer.train(replace(GPT, batch=8), "gpt_b8"),
    # Written down before the tree search was tuned: see tree_cases.py.
    "llama_b16": lambda: transformer.train(replace(LLAMA, batch=16, seq=4096), "llama_b16"),
    "llama_b64": lambda: transformer.train(replace(LLAMA, batch=64, seq=2048), "llama_b64"),
    "llama_scan_b32": lambda: transformer.train(
        replace(LLAMA, layers=8, batch=32, seq=2048, scan=True), "llama_scan_b32"
    ),
    "llama_decode_b64": lambda: decode.decode(
        replace(decode.PRESETS["llama_8b"], layers=2, batch=64, seq=4096), "llama_decode_b64"
    ),
    "llama_prefill_b4": lambda: decode.prefill(
        replace(decode.PRESETS["llama_8b"], layers=2, batch=4, seq=8192), "llama_prefill_b4"
    ),
    "gpt_b2": lambda: transformer.train(replace(GPT, batch=2, seq=4096), "gpt_b2"),
    "gpt_b128": lambda: transformer.train(replace(GPT, batch=128, seq=512), "gpt_b128"),
    "gpt_remat": lambda: transformer.train(replace(GPT, batch=16, remat=True), "gpt_remat"),
    "gpt_untied": lambda: transformer.train(
        replace(GPT, batch=16, tied=False, vocab=131_072), "gpt_untied"
    ),
    "vit_b512": lambda: vit.train(replace(VIT, batch=512), "vit_b512"),
    "vit_wide": lambda: vit.train(
        replace(VIT, batch=64, d_model=4096, d_ff=16_384, heads=32), "vit_wide"
    ),
    "moe_1l": lambda: moe.train(replace(MOE, layers=1, batch=32), "moe_1l"),
    "moe_forward_2l": lambda: moe.infer(replace(MOE, layers=2, batch=16), "moe_forward_2l"),
    "gnn_2r": lambda: gnn.train(replace(gnn.PRESETS["graphcast"], rounds=2), "gnn_2r"),
    "unet_forward_b64": lambda: unet.infer(
        replace(unet.PRESETS["latent"], batch=64), "unet_forward_b64"
    ),
}
