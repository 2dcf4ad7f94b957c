"""What a compiler did to a sharded program: collectives, memory, cycles, complaints.

Everything is read from the compiler's own output (`compiled.as_text()`, `memory_analysis()` and
what it printed), for CPU, GPU and TPU alike.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shardwright.cost.links import KINDS, PRICED_AS
from shardwright.referee.groups import axes_of
from shardwright.referee.hlo import Computation, Instruction, Module, elements, parse, size_bytes
from shardwright.referee.loops import Run, runs

# The combiner of a reduction by the opcode at its heart.
_REDUCTIONS = {
    "add": "add", "maximum": "max", "minimum": "min", "multiply": "mul", "and": "and", "or": "or",
    "xor": "xor",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCollective:
    """One collective of the compiled program, as one device sees it."""

    kind: str  # as XLA spells it
    axes: tuple[str, ...] | None  # mesh axes in mesh order; None when the groups fit no axes
    bytes: int  # the larger side: operand of a reduction, result of a gather
    count: int  # times per step
    reduction: str | None = None  # "add", "max", ... for all-reduce and reduce-scatter
    source: str = ""  # "train.py:88", the line that asked for the value
    op_name: str = ""  # "jit(step)/transpose(jvp())/dot_general"
    name: str = ""  # the instruction in the HLO text
    count_known: bool = True  # False inside a while loop of unknown length (an estimate)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledMemory:
    """Bytes on one device, as the compiler assigned them."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int  # outputs that reuse donated arguments
    temp_bytes: int

    @property
    def peak_bytes(self) -> int:
        """All of them at once."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes


def read_collectives(hlo_text: str, mesh: Mapping[str, int]) -> list[CompiledCollective]:
    """The collectives of optimised HLO text, with how often each runs in one step."""
    module = parse(hlo_text)
    found = _without_async_repeats(runs(module, lambda _, row: is_collective(row)))
    return [read_collective(module, run, mesh) for run in found]


Key = tuple[str, tuple[str, ...] | None]  # kind, axes (None: groups that are no set of axes)


def totals(collectives: Iterable[Any]) -> dict[Key, tuple[int, int]]:
    """(count, bytes) per step for each (kind, axes) of rows with those fields."""
    sums: dict[Key, tuple[int, int]] = {}
    for row in collectives:
        count, size = sums.get((row.kind, row.axes), (0, 0))
        sums[row.kind, row.axes] = (count + row.count, size + row.count * row.bytes)
    return sums


def read_memory(compiled: Any) -> CompiledMemory:
    """The compiler's memory assignment for one device, of a jax.stages.Compiled or the like."""
    stats = compiled.memory_analysis()
    return CompiledMemory(
        argument_bytes=stats.argument_size_in_bytes, output_bytes=stats.output_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes, temp_bytes=stats.temp_size_in_bytes,
    )  # fmt: skip


def involuntary_remats(stderr_text: str) -> int:
    """How often XLA said that it gathers a whole array because it knows no better route."""
    return stderr_text.count("Involuntary full rematerialization")


class Captured:
    """What was written to the process's standard error; `text` is complete after the block."""

    text: str = ""


@contextmanager
def captured_stderr() -> Iterator[Captured]:
    """Standard error of the whole process, C++ included, for as long as the block lasts.

    >>> with captured_stderr() as err:
    ...     _ = os.write(2, b"from C++")
    >>> err.text
    'from C++'
    """
    captured = Captured()
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield captured
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            captured.text = file.read().decode(errors="replace")


def _kind(row: Instruction) -> str | None:
    kind = row.opcode.removesuffix("-start")
    return kind if kind in (*KINDS, *PRICED_AS) else None


def _collective_bytes(computation: Computation, row: Instruction) -> int:
    """The larger side of a collective on one device.

    Of a ragged all-to-all the smaller: the other is a buffer with room for the worst case.
    """
    kind = _kind(row)
    rows = [computation.instructions.get(name) for name in row.operands]
    sizes = [size_bytes(source.type) for source in rows if source is not None]
    if kind == "ragged-all-to-all":  # rows, buffer, offsets and sizes
        return max(min(sizes[:2]), 1)
    operand = sum(sizes)
    result = row.type
    if row.opcode.endswith("-start") and kind != "all-reduce":
        members = elements(row.type)  # (operands, results, context...)
        result = members[1] if len(members) > 1 else row.type
    # A zero-sized collective still runs: keep it in the list.
    return max(operand, size_bytes(result), 1)


def _without_async_repeats(found: list[Run]) -> list[Run]:
    """The runs without the echoes of the TPU's asynchronous collective fusions.

    Such a collective is printed in the fusion that starts it, in each fusion that overlaps it and
    in the one that ends it, always with the same channel.
    """
    started = {fused_channel(run.instruction) for run in found if _starts(run)}
    kept: list[Run] = []
    for run in found:
        channel = fused_channel(run.instruction)
        if channel is None or _starts(run):
            kept.append(run)
        elif channel not in started:
            started.add(channel)
            kept.append(run)
    return kept


def fused_channel(row: Instruction) -> str | None:
    """What all mentions of a collective in asynchronous fusions share; None for any other."""
    if "async_collective_fusion_config" not in row.attributes:
        return None
    return row.attribute("channel_id") or row.name


def _starts(run: Run) -> bool:
    return any(
        "AsyncCollectiveStart" in row.attributes for row in run.computation.instructions.values()
    )


def is_collective(row: Instruction) -> bool:
    """Whether an instruction is a collective, or starts one."""
    return _kind(row) is not None


def read_collective(module: Module, run: Run, mesh: Mapping[str, int]) -> CompiledCollective:
    """One collective as the compiler wrote it, with its axes, bytes and the user's line."""
    row = run.instruction
    kind = _kind(row) or row.opcode
    if kind == "all-reduce" and _is_scatter_fusion(run.computation, row):
        kind = "reduce-scatter"
    op_name, source = _metadata(module, run.computation, row)
    if not (op_name or source) and run.caller is not None:
        op_name, source = _metadata(module, run.computation, run.caller)
    return CompiledCollective(
        kind=kind, axes=axes_of(row.attributes, mesh),
        bytes=_collective_bytes(run.computation, row), count=run.times,
        reduction=_reduction(module, row), source=source, op_name=op_name, name=row.name,
        count_known=run.known,
    )  # fmt: skip


def _is_scatter_fusion(computation: Computation, row: Instruction) -> bool:
    """Whether a TPU fusion keeps only this device's slice of an all-reduce: a reduce-scatter."""
    if computation.name.startswith("all-reduce-scatter"):
        return True
    root = computation.root
    return (
        root.opcode == "dynamic-slice"
        and root.operands[:1] == (row.name,)
        and computation.name.startswith("fused")
    )


def _reduction(module: Module, row: Instruction) -> str | None:
    for callee in row.callees("to_apply"):
        body = module.computations.get(callee)
        opcodes = [each.opcode for each in body.instructions.values()] if body else []
        return next((_REDUCTIONS[op] for op in opcodes if op in _REDUCTIONS), "other")
    return None


def _metadata(module: Module, computation: Computation, row: Instruction) -> tuple[str, str]:
    """(op_name, source line), from the operand when combining has dropped them."""
    for _ in range(4):
        text = row.attribute("metadata") or ""
        op_name = re.search(r'op_name="([^"]*)"', text)
        frame = re.search(r"stack_frame_id=(\d+)", text)
        file = re.search(r'source_file="([^"]*)" source_line=(\d+)', text)
        source = module.frames.get(int(frame[1]), "") if frame else ""
        if op_name or source or file:
            return op_name[1] if op_name else "", f"{file[1]}:{file[2]}" if file else source
        above = computation.instructions.get(row.operands[0]) if row.operands else None
        if above is None:
            break
        row = above
    return "", ""
