"""GPUs that XLA can compile for without one: the figures its compiler asks about a device.

To add one, add a row; every figure is what `cudaGetDeviceProperties` says on that device.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """What the GPU compiler needs to know about one device."""

    name: str
    capability: int  # CUDA compute capability, major
    accelerated: bool = False  # compiles the architecture-specific set (sm_90a, sm_100a)
    cores: int  # streaming multiprocessors
    fpus_per_core: int
    clock_ghz: float
    memory_bytes: int
    memory_bytes_per_s: int
    l2_bytes: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int  # the most one block may opt in to
    nvlinks: int


# Source: NVIDIA data sheets and the CUDA programming guide's table of capabilities; memory size
# and clocks as the driver reports them, published with OpenXLA's own target configurations.
GPUS = {
    "p100": GpuTarget(
        name="Tesla P100-SXM2-16GB",
        capability=6,
        cores=56,
        fpus_per_core=64,
        clock_ghz=1.4805,
        memory_bytes=17_066_885_120,
        memory_bytes_per_s=732_160_000_000,
        l2_bytes=4 << 20,
        shared_bytes_per_core=64 << 10,
        shared_bytes_per_block=48 << 10,
        nvlinks=4,
    ),
    "v100": GpuTarget(
        name="Tesla V100-SXM2-32GB",
        capability=7,
        cores=80,
        fpus_per_core=64,
        clock_ghz=1.53,
        memory_bytes=32 << 30,
        memory_bytes_per_s=898_048_000_000,
        l2_bytes=6 << 20,
        shared_bytes_per_core=96 << 10,
        shared_bytes_per_block=96 << 10,
        nvlinks=6,
    ),
    "a100": GpuTarget(
        name="NVIDIA A100-SXM4-80GB",
        capability=8,
        cores=108,
        fpus_per_core=64,
        clock_ghz=1.41,
        memory_bytes=85_100_068_864,
        memory_bytes_per_s=2_039_040_000_000,
        l2_bytes=40 << 20,
        shared_bytes_per_core=164 << 10,
        shared_bytes_per_block=163 << 10,
        nvlinks=12,
    ),
    "h100": GpuTarget(
        name="NVIDIA H100 80GB HBM3",
        capability=9,
        accelerated=True,
        cores=132,
        fpus_per_core=128,
        clock_ghz=1.98,
        memory_bytes=84_942_979_072,
        memory_bytes_per_s=3_352_320_000_000,
        l2_bytes=50 << 20,
        shared_bytes_per_core=228 << 10,
        shared_bytes_per_block=227 << 10,
        nvlinks=18,
    ),
    "h200": GpuTarget(
        name="NVIDIA H200 141GB HBM3e",
        capability=9,
        accelerated=True,
        cores=132,
        fpus_per_core=128,
        clock_ghz=1.98,
        memory_bytes=151_397_597_184,
        memory_bytes_per_s=4_800_000_000_000,
        l2_bytes=50 << 20,
        shared_bytes_per_core=228 << 10,
        shared_bytes_per_block=227 << 10,
        nvlinks=18,
    ),
    "b200": GpuTarget(
        name="NVIDIA B200",
        capability=10,
        accelerated=True,
        cores=148,
        fpus_per_core=128,
        clock_ghz=1.965,
        memory_bytes=191_514_411_008,
        memory_bytes_per_s=7_672_320_000_000,
        l2_bytes=132_644_864,
        shared_bytes_per_core=228 << 10,
        shared_bytes_per_block=227 << 10,
        nvlinks=18,
    ),
    "gb200": GpuTarget(
        name="NVIDIA GB200",
        capability=10,
        accelerated=True,
        cores=152,
        fpus_per_core=128,
        clock_ghz=2.062,
        memory_bytes=197_897_748_480,
        memory_bytes_per_s=7_928_064_000_000,
        l2_bytes=135_528_448,
        shared_bytes_per_core=228 << 10,
        shared_bytes_per_block=227 << 10,
        nvlinks=18,
    ),
}

_PROTO = """\
platform_name: "CUDA"
device_description_str: "{gpu.name}"
dnn_version_info {{ major: 9 minor: 10 }}
gpu_device_info {{
  name: "{gpu.name}"
  cuda_compute_capability {{ major: {gpu.capability} feature_extension: {extension} }}
  core_count: {gpu.cores}
  fpus_per_core: {gpu.fpus_per_core}
  clock_rate_ghz: {gpu.clock_ghz}
  device_memory_size: {gpu.memory_bytes}
  memory_bandwidth: {gpu.memory_bytes_per_s}
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
  device_interconnect_info {{ active_links: {gpu.nvlinks} }}
}}
"""


def target_config(gpu: GpuTarget) -> str:
    """The text proto (stream_executor.GpuTargetConfigProto) that XLA takes for a device."""
    return _PROTO.format(gpu=gpu, extension="ACCELERATED_FEATURES" if gpu.accelerated else "NONE")
