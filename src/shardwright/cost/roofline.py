"""Seconds of local work on one device: dots on the matrix unit, streams from memory, vector work.

An op's time is the largest of the three, plus `device.op_overhead_s` once per op: the caller puts
them together, because only the caller knows what is fused.
"""

from __future__ import annotations

import math
from typing import Any

from shardwright.cost.devices import Device, dtype_key

SPLIT_K = 512  # a dot with too few tiles for the device is cut along k into pieces no shorter


def dot_s(
    device: Device,
    dtype: Any,
    *,
    batch: int = 1,
    m: int,
    n: int,
    k: int,
    precision: str = "default",
    kept: bool = False,
) -> float:
    """Seconds of `batch` local dots [m, k] x [k, n] on the matrix unit, memory not included.

    - Sizes are padded to the tile; either operand may be the stationary one, the better is taken
      (the TPU compiler: 4096 x 4096 x 64 and 64 x 4096 x 4096 take the same cycles).
    - Loading a stationary tile costs `matrix_fill_rows` rows.
    - Fewer tiles than `matrix_units` leave part of the device idle.
    - Handing over the results has a rate of its own (`matrix_results_per_s`): short contractions,
      such as attention scores, are limited by it, unless a kernel has `kept` them on the chip.
    """
    if min(batch, m, n, k) <= 0:
        return 0.0
    rate = device.matrix_flops_per_s(dtype_key(dtype), precision=precision)
    flops = 2.0 * batch * min(_padded(device, m, n, k), _padded(device, n, m, k))
    tile_m, tile_n, _ = device.matrix_tile
    tiles = batch * math.ceil(m / tile_m) * math.ceil(n / tile_n) * max(1, k // SPLIT_K)
    idle = max(1.0, device.matrix_units / tiles)
    seconds = flops * idle / (rate * device.matrix_efficiency)
    if device.matrix_results_per_s and not kept:
        seconds = max(seconds, batch * m * n / device.matrix_results_per_s)
    return seconds


def convolution_s(
    device: Device, dtype: Any, *, batch: int, m: int, n: int, k: int, windows: int,
    precision: str = "default",
) -> float:  # fmt: skip
    """Seconds of `batch` local convolutions as dots [m, k] x [k, n] for each of their windows.

    - Input channels are padded to the tile for every window, but not where windows are larger than
      there are channels: the gradient of a kernel sums over positions.
    - Results are handed over with their channels padded (`convolution_results_per_s`), more slowly
      than those of dots: windows of neighbours overlap.
    """
    if windows > k:
        windows, k = 1, k * windows
    rate = device.convolution_results_per_s
    seconds = windows * dot_s(
        device, dtype, batch=batch, m=m, n=n, k=k, precision=precision, kept=rate > 0
    )
    return max(seconds, batch * m * _up(n, device.matrix_tile[1]) / rate) if rate else seconds


def stream_s(device: Device, bytes: float) -> float:
    """Seconds to read or write `bytes` of the device's memory."""
    return bytes / (device.memory_bytes_per_s * device.memory_efficiency)


def vector_s(device: Device, operations: float) -> float:
    """Seconds of `operations` elementwise or reduction operations."""
    return operations / device.vector_flops_per_s


def _padded(device: Device, rows: int, columns: int, k: int) -> float:
    """Multiply-adds of one dot with `rows` streaming past stationary tiles of k x columns."""
    tile_rows, tile_columns, tile_k = device.matrix_tile
    streamed = _up(rows, tile_rows) + device.matrix_fill_rows
    return float(streamed) * _up(columns, tile_columns) * _up(k, tile_k)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
