"""GPUs that XLA can compile for without one: the figures its compiler asks about a device.

What the planner knows too is read from its Device, so that both sides mean the same GPU; what only
the compiler asks is in gpus.toml. To add one, add a table there and in cost/devices.toml.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from shardwright.cost.devices import Device, device


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """What the GPU compiler needs to know about one device."""

    device: Device  # what the planner knows about it
    name: str
    capability: int  # CUDA compute capability, major
    accelerated: bool  # compiles the architecture-specific set (sm_90a, sm_100a)
    fpus_per_core: int
    clock_ghz: float
    l2_bytes: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int  # the most one block may opt in to
    nvlink_bytes_per_s: float  # of one link


def _read() -> dict[str, GpuTarget]:
    text = Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text).items()
    return {name: GpuTarget(device=device(name), **table) for name, table in tables}


GPUS = _read()

_PROTO = """\
platform_name: "CUDA"
device_description_str: "{gpu.name}"
dnn_version_info {{ major: 9 minor: 10 }}
gpu_device_info {{
  name: "{gpu.name}"
  cuda_compute_capability {{ major: {gpu.capability} feature_extension: {extension} }}
  core_count: {gpu.device.matrix_units}
  fpus_per_core: {gpu.fpus_per_core}
  clock_rate_ghz: {gpu.clock_ghz}
  device_memory_size: {gpu.device.memory_bytes}
  memory_bandwidth: {gpu.device.memory_bytes_per_s:.0f}
  l2_cache_size: {gpu.l2_bytes}
  shared_memory_per_core: {gpu.shared_bytes_per_core}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {gpu.shared_bytes_per_block}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
  device_interconnect_info {{ active_links: {nvlinks} }}
}}
"""


def target_config(gpu: GpuTarget) -> str:
    """The text proto (stream_executor.GpuTargetConfigProto) that XLA takes for a device."""
    extension = "ACCELERATED_FEATURES" if gpu.accelerated else "NONE"
    nvlinks = round(gpu.device.link_bytes_per_s / gpu.nvlink_bytes_per_s)
    return _PROTO.format(gpu=gpu, extension=extension, nvlinks=nvlinks)
