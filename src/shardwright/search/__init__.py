"""The decision space -> the best decisions found, and how good they provably are."""

from shardwright.search.exact import Certificate
from shardwright.search.search import Found, search
from shardwright.search.tactics import (
    FSDP,
    ContextParallel,
    DataParallel,
    ExpertParallel,
    Limit,
    Megatron,
    Pin,
    Replicate,
    Search,
    SequenceParallel,
    Tactic,
    WeightStationary,
    ZeRO,
)

__all__ = [
    "FSDP",
    "Certificate",
    "ContextParallel",
    "DataParallel",
    "ExpertParallel",
    "Found",
    "Limit",
    "Megatron",
    "Pin",
    "Replicate",
    "Search",
    "SequenceParallel",
    "Tactic",
    "WeightStationary",
    "ZeRO",
    "search",
]
