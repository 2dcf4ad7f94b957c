"""Where a program is compiled for: devices that are here, or devices that are not.

None               the devices of this process
"cpu:8"            eight host CPU devices
"tpu:v5e:4x4"      a TPU topology, without a TPU (needs libtpu)
"cuda:h100:2x8"    nodes x GPUs, without a GPU (needs the CUDA plugin)
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardwright.errors import ShardwrightError
from shardwright.lowering.device_order import device_order
from shardwright.mesh import Mesh
from shardwright.referee.compiled import captured_stderr
from shardwright.referee.gpu_targets import GPUS, target_config

# Our name (and libtpu's) -> options of its topology. v2, v3 and tpu7x show two devices per chip.
TPUS: dict[str, dict[str, str]] = {
    "v2": {},
    "v3": {},
    "v4": {"chip_config_name": "megacore"},  # one device per chip, as users see it
    "v5e": {},
    "v5p": {},
    "v6e": {},
    "tpu7x": {},
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where to compile for: a platform, a chip and how many of them."""

    platform: str  # "current", "cpu", "tpu" or "cuda"
    chip: str = ""
    shape: tuple[int, ...] = ()  # cpu: (devices,); tpu: topology; cuda: (nodes, GPUs per node)

    def __str__(self) -> str:
        parts = [self.platform, self.chip, "x".join(map(str, self.shape))]
        return ":".join(part for part in parts if part)

    @property
    def can_run(self) -> bool:
        """Whether programs can be executed there, not only compiled."""
        return self.platform in ("current", "cpu")


def parse_target(text: str | None) -> Target:
    """The Target that a string names; None means this process's devices.

    >>> parse_target("cuda:h100:2x8")
    Target(platform='cuda', chip='h100', shape=(2, 8))
    """
    if text is None:
        return Target("current")
    platform, *rest = str(text).lower().strip().split(":")
    sizes = re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", rest[-1]) if rest else None
    shape = tuple(map(int, rest[-1].split("x"))) if sizes else ()
    if platform == "cpu" and len(rest) == 1 and len(shape) == 1:
        return Target("cpu", "", shape)
    if platform in ("tpu", "cuda") and len(rest) == 2 and shape:
        chips = TPUS if platform == "tpu" else GPUS
        if rest[0] not in chips:
            raise ShardwrightError(
                f"unknown {platform} chip {rest[0]!r} in target {text!r}", try_=", ".join(chips)
            )
        if platform == "tpu":
            return Target("tpu", rest[0], shape)
        if len(shape) <= 2:
            return Target("cuda", rest[0], (1, *shape)[-2:])
    raise ShardwrightError(
        f"cannot read target {text!r}",
        try_="cpu:8, tpu:v5e:4x4 or cuda:h100:2x8; None for the current devices",
    )


def devices_of(target: Target, mesh: Mesh) -> np.ndarray:
    """The target's devices as an array of the mesh's shape, for `jax.sharding.Mesh`."""
    devices, needed = all_devices(target), mesh.size
    where, way = str(target), f"a mesh of {len(devices)} devices or a larger target"
    if target.platform == "current":
        where = "this process"
        way = f"target cpu:{needed} to compile on host devices in a child process"
    check_room(mesh, len(devices), where, try_=way)
    if target.platform == "tpu" and needed == len(devices):
        return device_order(mesh, devices)
    array = np.empty(needed, dtype=object)
    array[:] = devices[:needed]
    return array.reshape(mesh.sizes)


def check_room(mesh: Mesh, count: int, where: str, *, try_: str) -> None:
    """Raises unless so many devices are enough for a mesh."""
    if mesh.size > count:
        shape = "x".join(map(str, mesh.sizes))
        raise ShardwrightError(
            f"a {shape} mesh needs {mesh.size} devices, {where} has {count}", try_=try_
        )


def all_devices(target: Target) -> list[Any]:
    """The devices of a target, in its own order."""
    if target.platform == "current":
        return list(jax.devices())
    if target.platform == "cpu":
        return list(jax.devices("cpu"))[: target.shape[0]]
    return _tpu_devices(target) if target.platform == "tpu" else _cuda_devices(target)


def _tpu_devices(target: Target) -> list[Any]:
    if importlib.util.find_spec("libtpu") is None:
        raise ShardwrightError(
            f"compiling for {target} needs libtpu", try_="pip install shardwright[tpu]"
        )
    # Read once, when libtpu loads: do not ask a metadata server, do not lock a device.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")
    shape = "x".join(map(str, target.shape))
    return _topology(target, f"{target.chip}:{shape}", TPUS[target.chip])


def _cuda_devices(target: Target) -> list[Any]:
    if not any(importlib.util.find_spec(f"jax_cuda{major}_plugin") for major in (12, 13)):
        raise ShardwrightError(
            f"compiling for {target} needs the CUDA plugin of JAX",
            try_="pip install shardwright[cuda]",
        )
    nodes, gpus = target.shape
    config = target_config(GPUS[target.chip])
    return _topology(target, "", {"target_config": config, "topology": f"1x{nodes}x{gpus}"})


def _topology(target: Target, name: str, options: Mapping[str, str]) -> list[Any]:
    """The devices of a topology that is not here; ShardwrightError where there is no such."""
    from jax.experimental import topologies

    try:
        with captured_stderr():  # loading prints about hardware that is not there
            described = topologies.get_topology_desc(
                platform=target.platform, topology_name=name, **options
            )
    except (RuntimeError, NotImplementedError) as error:
        raise ShardwrightError(
            f"no topology {target}", said=str(error).splitlines()[0] if str(error) else None
        ) from error
    return list(described.devices)
