"""Who plans: ours, the peers, the experts, and what users write.

An expert is a schedule of tactics through our lowering, which constrains every value. "Specs" are
the same expert's shardings of arguments and results alone, given to plain `jax.jit`: what users
write, with XLA's propagation deciding the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwright.search.tactics import Tactic

OURS = "Shardwright"
AUTO = "XLA auto_sharding"
AUTO_SPECS = "XLA auto_sharding, its specs today"
PARALLAX = "google-parallax"
SPECS = " specs on arguments only"
NONE = "no sharding"

# By kind of program, the experts whose layouts people use for it.
EXPERTS_OF = {
    "train": ("DP", "FSDP", "FSDP + TP", "Megatron + SP", "MaxText rules"),
    "experts": ("DP", "FSDP", "FSDP + TP", "GShard", "FSDP + EP"),
    "images": ("DP", "FSDP"),
    "pairs": ("DP", "FSDP", "FSDP + TP"),
    "tables": ("DP", "FSDP", "DP + tables split"),
    "decode": ("DP + TP", "TP on both axes", "weight-stationary"),
}
USERS_OF = {
    "train": ("FSDP", "FSDP + TP"),
    "experts": ("FSDP", "FSDP + EP"),
    "images": ("FSDP",),
    "pairs": ("FSDP",),
    "tables": ("DP + tables split",),
    "decode": ("DP + TP", "weight-stationary"),
}


def tactics_of(expert: str) -> list[Tactic]:
    """An expert's schedule over the axes data and model."""
    import shardwright as sw
    from shardwright.search.tactics import WeightStationary

    data, model = "data", "model"
    schedules: dict[str, list[Tactic]] = {
        "DP": [sw.DataParallel(data), sw.DataParallel(model)],
        "FSDP": [sw.FSDP(data), sw.FSDP(model)],
        "FSDP + TP": [sw.FSDP(data), sw.Megatron(model)],
        # Megatron-LM with its distributed optimiser
        "Megatron + SP": [sw.ZeRO(1, data), sw.Megatron(model), sw.SequenceParallel(model)],
        # MaxText's logical axis rules with fsdp=4, tensor=4: embed -> fsdp; heads, mlp and vocab
        # -> tensor; of activations batch -> fsdp and embed -> tensor
        "MaxText rules": [sw.FSDP(data), sw.Megatron(model), WeightStationary(model)],
        "GShard": [sw.DataParallel(data), sw.ExpertParallel(model)],
        "FSDP + EP": [sw.FSDP(data), sw.ExpertParallel(model), sw.FSDP(model)],
        "DP + tables split": [sw.DataParallel(data), sw.FSDP(model)],
        "DP + TP": [sw.DataParallel(data), sw.Megatron(model)],
        "TP on both axes": [sw.Megatron(data), sw.Megatron(model)],
        "weight-stationary": [WeightStationary(data), sw.Megatron(model)],
    }
    return schedules[expert]


def ways(kind: str, platform: str) -> list[str]:
    """All ways of a case in the order they are run; XLA's auto_sharding is run for TPUs only."""
    auto = [AUTO, AUTO_SPECS] if platform == "tpu" else []
    users = [expert + SPECS for expert in USERS_OF[kind]]
    return [OURS, *auto, *EXPERTS_OF[kind], *users, PARALLAX, NONE]
