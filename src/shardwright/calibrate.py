"""sw.calibrate: the current devices, measured, as a device table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax

from shardwright.cost.devices import Device, device
from shardwright.errors import ShardwrightError
from shardwright.lowering.jit import jax_mesh
from shardwright.mesh import Mesh
from shardwright.options import device_of
from shardwright.referee.calibrate import measured_device


def calibrate(
    mesh: Any, *, like: str | Device | None = None, name: str = "calibrated",
    path: str | Path | None = None,
) -> Device:  # fmt: skip
    """A Device with the rates and latencies that the current devices have as this mesh.

    Links over each axis, dots, memory and vector work are measured, all devices at once; what
    cannot be measured (memory, topology, tiles) is as in `like`, by default the known device that
    these are, or a host's. With `path` it is written as a table that `device="path.toml"` reads.

    >>> sw.calibrate({"data": 4, "model": 2}, path="mine.toml").name
    'calibrated'
    """
    own = jax_mesh(Mesh.of(mesh), mesh if isinstance(mesh, jax.sharding.Mesh) else None)
    kind = own.devices.flat[0].device_kind
    found = like or device_of(own) or ("cpu" if own.devices.flat[0].platform == "cpu" else None)
    if found is None:
        raise ShardwrightError(
            f"{kind} is no device that Shardwright knows", try_='like="h100", the nearest one'
        )
    result = measured_device(mesh, device(found), name=name)
    if path is not None:
        Path(path).write_text(device_table(result), encoding="utf-8")
    return result


def device_table(of: Device) -> str:
    """A device as a TOML table that `load_devices` reads."""
    lines = [f"[{_text(of.name)}]"]
    lines += [f"{f.name} = {_text(getattr(of, f.name))}" for f in fields(of) if f.name != "name"]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    """A value as TOML spells it."""
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)  # as JSON does
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_text(k)} = {_text(v)}" for k, v in value.items()) + " }"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return repr(value)
