"""Shardwright decides how to split a JAX program over a mesh of devices."""

from shardwright._version import __version__
from shardwright.api import analyze, partition
from shardwright.calibrate import calibrate
from shardwright.check import check
from shardwright.cost.devices import Device, devices
from shardwright.errors import ShardwrightError
from shardwright.jit import jit
from shardwright.mesh import Mesh
from shardwright.plan import Plan, load
from shardwright.program import trace
from shardwright.rules.user import rule
from shardwright.search import (
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
    WeightStationary,
    ZeRO,
)
from shardwright.several.compare import Comparison, compare
from shardwright.several.share import Call

__all__ = [
    "FSDP", "Call", "Comparison", "ContextParallel", "DataParallel", "Device", "ExpertParallel",
    "Limit", "Megatron", "Mesh", "Pin", "Plan", "Replicate", "Search", "SequenceParallel",
    "ShardwrightError", "WeightStationary", "ZeRO",
    "__version__", "analyze", "calibrate", "check", "compare", "devices", "jit", "load",
    "partition", "rule", "trace",
]  # fmt: skip
