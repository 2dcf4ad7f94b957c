"""Seconds of one compiled instruction, collectives left out: the compiler's estimate or a roofline.

The TPU compiler writes `estimated_cycles` beside each instruction. The GPU compiler writes nothing:
there an instruction takes as long as its dots, or as its operands and results take through memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import prod

from shardwright.cost.devices import Device
from shardwright.cost.roofline import dot_s, stream_s
from shardwright.referee.hlo import Computation, Instruction, Module, size_bytes

Estimate = Callable[[Module, Computation, Instruction], float]

_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_SHAPE = re.compile(r"^([a-z]\w*)\[([\d,]*)\]")
# Instructions that nothing runs for.
_FREE = ("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all")


def cycles(clock_hz: float) -> Estimate:
    """The TPU compiler's own estimate."""

    def seconds(module: Module, computation: Computation, row: Instruction) -> float:
        if found := _CYCLES.search(row.attributes):
            return int(found[1]) / clock_hz
        return sum(seconds(module, inside, inner) for inside, inner in _directly_in(module, row))

    return seconds


def roofline(device: Device) -> Estimate:
    """The dots of an instruction on the matrix unit, or its bytes through memory."""

    def seconds(module: Module, computation: Computation, row: Instruction) -> float:
        if row.opcode in _FREE or row.opcode.endswith(("-start", "-done")):
            return 0.0
        rows = [computation.instructions.get(name) for name in row.operands]
        read = sum(size_bytes(source.type) for source in rows if source is not None)
        dots = sum(_dot_s(device, inside, one) for inside, one in everything_in(module, row))
        dots += _dot_s(device, computation, row)
        return device.op_overhead_s + max(dots, stream_s(device, read + size_bytes(row.type)))

    return seconds


def everything_in(module: Module, row: Instruction) -> Iterator[tuple[Computation, Instruction]]:
    """All that a fusion computes, what is in its own fusions too."""
    for inside, inner in _directly_in(module, row):
        yield inside, inner
        yield from everything_in(module, inner)


def _directly_in(module: Module, row: Instruction) -> Iterator[tuple[Computation, Instruction]]:
    for name in (*row.callees("calls"), *row.callees("called_computations")):
        inside = module.computations.get(name, Computation(name))
        yield from ((inside, inner) for inner in inside.instructions.values())


def _dot_s(device: Device, computation: Computation, row: Instruction) -> float:
    """Seconds of a dot; 0 for anything else."""
    left = computation.instructions.get(row.operands[0]) if row.opcode == "dot" else None
    shape, result = _SHAPE.match(left.type) if left else None, _SHAPE.match(row.type)
    if shape is None or result is None:
        return 0.0
    sizes = [int(n) for n in shape[2].split(",") if n]
    k = prod(sizes[d] for d in _dims(row, "lhs_contracting_dims"))
    batch = prod(sizes[d] for d in _dims(row, "lhs_batch_dims"))
    m = prod(sizes) // max(1, k * batch)
    n = prod(int(n) for n in result[2].split(",") if n) // max(1, m * batch)
    return dot_s(device, shape[1], batch=batch, m=m, n=n, k=k)


def _dims(row: Instruction, name: str) -> list[int]:
    return [int(d) for d in re.findall(r"\d+", row.attribute(name) or "")]
