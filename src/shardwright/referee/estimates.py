"""Seconds of one compiled instruction, collectives left out: the compiler's estimate or a roofline.

The TPU compiler writes `estimated_cycles` beside each instruction. The GPU compiler writes nothing:
there an instruction takes as long as its matrix products, or as its operands and results take
through memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from shardwright.cost.devices import Device
from shardwright.cost.roofline import dot_s, stream_s
from shardwright.referee.hlo import Computation, Instruction, Module, size_bytes
from shardwright.referee.products import is_library_call, product_of

Estimate = Callable[[Module, Computation, Instruction], float]

_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
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
    """The products of an instruction on the matrix unit, or its bytes through memory."""

    def seconds(module: Module, computation: Computation, row: Instruction) -> float:
        if row.opcode in _FREE or row.opcode.endswith(("-start", "-done")):
            return 0.0
        moved = _read_bytes(module, computation, row) + _written_bytes(module, computation, row)
        inside = ((computation, row), *everything_in(module, row))
        products = [one for at, inner in inside if (one := product_of(at, inner))]
        dots = sum(dot_s(device, p.dtype, batch=p.batch, m=p.m, n=p.n, k=p.k) for p in products)
        return device.op_overhead_s + max(dots, stream_s(device, moved))

    return seconds


def everything_in(module: Module, row: Instruction) -> Iterator[tuple[Computation, Instruction]]:
    """All that a fusion computes, what is in its own fusions too."""
    for inside, inner in _directly_in(module, row):
        yield inside, inner
        yield from everything_in(module, inner)


def _directly_in(module: Module, row: Instruction) -> Iterator[tuple[Computation, Instruction]]:
    for name in (*row.callees("calls"), *row.callees("called_computations")):
        inside = module.computation(name)
        yield from ((inside, inner) for inner in inside.instructions.values())


def _fused(module: Module, row: Instruction) -> Computation | None:
    """What a fusion computes; None for other instructions."""
    return next((module.computations.get(name) for name in row.callees("calls")), None)


def _read_bytes(module: Module, computation: Computation, row: Instruction) -> int:
    """Bytes that an instruction reads: of what it only slices or looks up, those entries.

    A loop's body slices one layer out of stacked weights and writes one into stacked results; an
    embedding picks some rows of its table.
    """
    inside = _fused(module, row)
    names = {i: name for name, i in inside.parameters.items()} if inside else {}
    total = 0
    for position, operand in enumerate(row.operands):
        source = computation.instructions.get(operand)
        if source is None:
            continue
        if inside is not None and position in names:
            sliced = _sliced_bytes(inside, names[position])
        else:
            sliced = _slice_bytes(computation, row) if position == 0 else None
        total += size_bytes(source.type) if sliced is None else sliced
    return total


def _sliced_bytes(inside: Computation, name: str) -> int | None:
    """Bytes of a value that a fusion slices or looks up; None where something reads it whole."""
    total = 0
    for user in inside.instructions.values():
        if name not in user.operands:
            continue
        if user.opcode == "bitcast":
            part = _sliced_bytes(inside, user.name)
        else:
            part = _slice_bytes(inside, user) if user.operands[0] == name else None
        if part is None:
            return None
        total += part
    return total


def _slice_bytes(computation: Computation, row: Instruction) -> int | None:
    """Bytes that a slice or lookup reads, or an update overwrites; None for anything else."""
    if row.opcode in ("dynamic-slice", "gather"):
        return size_bytes(row.type)
    if row.opcode == "dynamic-update-slice":
        update = computation.instructions.get(row.operands[1])
        return size_bytes(update.type) if update else None
    return None


def _written_bytes(module: Module, computation: Computation, row: Instruction) -> int:
    """Bytes that an instruction writes: what is updated in place, only where it changes."""
    if row.opcode == "dynamic-update-slice":
        return _slice_bytes(computation, row) or 0
    if is_library_call(row):
        return size_bytes(row.type.split("]")[0] + "]")  # not its scratch memory
    inside = _fused(module, row)
    if inside is None:
        return size_bytes(row.type)
    parts = inside.root.operands if inside.root.opcode == "tuple" else (inside.root.name,)
    return sum(_result_bytes(inside, part) for part in parts)


def _result_bytes(inside: Computation, name: str) -> int:
    """Bytes that one result of a fusion writes."""
    row = inside.instructions[name]
    if row.opcode == "bitcast":
        return _result_bytes(inside, row.operands[0])
    if row.opcode == "dynamic-update-slice":
        return _slice_bytes(inside, row) or 0
    return size_bytes(row.type)
