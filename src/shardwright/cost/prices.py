"""Prices: seconds of one op on local shapes, seconds of one collective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shardwright.cost.devices import Device
from shardwright.cost.fusion import NOT_REDUCED, rounded
from shardwright.cost.links import Network
from shardwright.cost.roofline import convolution_s, dot_s, stream_s, vector_s
from shardwright.mesh import Mesh
from shardwright.rules.rule import HOST, MATRIX, NOTHING
from shardwright.spmd.moves import ALL_REDUCE, REDUCE_SCATTER, SLICE, Move
from shardwright.spmd.opclass import NO_ATOM, OpClass, Slot
from shardwright.spmd.routes import Routes

# Times that an entry of a stack is read or written when a scan takes it as xs and gives it back as
# ys: sliced out, put back, and the whole stack copied once. Seen in what libtpu and XLA:GPU (JAX
# 0.10.2) compile a scanned decode step to.
STACK_PASSES = 6


class DevicePrices:
    """The prices on one device of one mesh."""

    def __init__(self, mesh: Mesh, device: Device, *, unrolled_bytes: float = 0.0) -> None:
        """`unrolled_bytes` of sums with slack, see hiding.py; 0: they are in loops."""
        self.device = device
        self._unrolled_bytes = unrolled_bytes
        self.network = Network(mesh, device)
        self.axis_names = mesh.names
        self.axis_sizes = mesh.sizes
        self.sends_rows = device.sends_rows
        self._moves: dict[tuple[str, tuple[int, ...], int], float] = {}  # seconds, as they occur
        self._dots: dict[int, tuple[list[int], Any]] = {}  # op class -> roles of atoms, dtype
        # The TPU compiler has no reduce-scatter over several axes: it would reduce the whole. A
        # switched network has one and needs it, for its levels work at the same time.
        self.routes = Routes(
            mesh.sizes, self.move_s, scatters_at_once=device.topology != "torus",
            gathers_major=device.gathers_major,
            across=frozenset(a for a, name in enumerate(mesh.names) if name in mesh.dcn),
        )  # fmt: skip

    def move_s(self, move: Move) -> float:
        """Seconds of one collective; a local slice is free."""
        if move.kind == SLICE:
            return 0.0
        known = self._moves.get(move[:3])
        if known is None:
            names = tuple([self.axis_names[a] for a in move.axes])
            known = self._moves[move[:3]] = self.network.seconds(move.kind, names, move.bytes)
        return known

    def combined_s(self, move: Move) -> float:
        """Seconds of a collective with slack: its part of the one that it is combined into.

        Compilers fill a combined collective up to a threshold of its results. What is larger goes
        alone.
        """
        most = self._combined_bytes(move)
        if not 0 < move.bytes < most:
            return self.move_s(move)
        return move.bytes / most * self.move_s(move._replace(bytes=most))

    def _combined_bytes(self, move: Move) -> int:
        """Bytes up to which a compiler combines collectives of this kind and axes."""
        results = int(self.device.combines.get(move.kind, 0))
        if move.kind == REDUCE_SCATTER:  # its results are parts of what counts as its bytes
            return results * math.prod([self.axis_sizes[a] for a in move.axes])
        return results

    def slack_s(self, moves: Sequence[Move]) -> float:
        """Seconds of these collectives where they may wait for each other, and are combined."""
        return sum(map(self.combined_s, moves))

    def hideable_s(self, moves: Sequence[Move]) -> float:
        """Seconds of the collectives on one route that the device can run beside compute."""
        known = self.device.hides
        hides = [m for m in moves if m.kind in known]
        whole = max([m.bytes for m in hides], default=0)
        return sum([self.hides(m, m.bytes / whole) * self.combined_s(m) for m in hides if whole])

    def hides(self, move: Move, part: float) -> float:
        """The part of a collective with slack that runs beside compute: as the device says.

        Of sums in unrolled layers all but the last combined one, which has nothing left to hide
        behind. `part` of each gradient is left for this move, once others have scattered it.
        """
        most = self._combined_bytes(move)
        if move.kind not in (ALL_REDUCE, REDUCE_SCATTER) or not (most and self._unrolled_bytes):
            return self.device.hides[move.kind]
        return max(0.0, 1.0 - max(most, move.bytes) / (part * self._unrolled_bytes))

    def compute_s(self, op: OpClass, local: Sequence[int], slot_bytes: Sequence[int]) -> float:
        """Seconds of one op whose atoms have these local sizes.

        What is read and written by fused elementwise work is counted once per materialised
        value (see fusion.py), so fusible ops and the inputs of reductions only cost arithmetic.
        """
        rule, device = op.rule, self.device
        points = 1
        for size in local:
            points *= size
        if rule.unit == HOST:  # no work of the device's (Costs.host_s)
            return 0.0
        if rule.fusible:
            return vector_s(device, rule.work * points) if rule.work else 0.0
        if rule.kernel is not None:
            return device.op_overhead_s + self._kernel_s(op, local, points)
        count = len(op.operands)
        if rule.unit == MATRIX and count >= 2:
            return device.op_overhead_s + max(
                self._dot_s(op, local), stream_s(device, sum(slot_bytes))
            )
        results = sum(slot_bytes[count:])
        if rule.unit == NOTHING:
            moved = 2.0 * _moved(op, slot_bytes)
            if op.updates_stack:
                moved += STACK_PASSES * slot_bytes[0] * self._padding(op.operands[0], local)
            return device.op_overhead_s + stream_s(device, moved)
        streamed = results if is_reduction(op) else sum(slot_bytes)
        return device.op_overhead_s + max(
            vector_s(device, rule.work * points), stream_s(device, streamed)
        )

    def _padding(self, slot: Slot, local: Sequence[int]) -> float:
        """How much more memory than its numbers an array takes, in tiles of so many rows."""
        atoms = list(zip(slot.layout.atoms, slot.to_op, strict=True))
        second = max([a.dim for a, _ in atoms], default=0) - 1  # the rows of a tile are this dim
        rows = math.prod([local[k] for a, k in atoms if a.dim == second and k != NO_ATOM])
        tile = self.device.memory_tile_rows
        return -(-rows // tile) * tile / rows

    def buffer_bytes(self, size: int) -> int:
        """Memory that a buffer of this size takes."""
        unit = self.device.buffer_bytes
        return -(-size // unit) * unit

    def moved_bytes(self, op: OpClass, slot: int, size: int) -> int:
        """Memory that a moved operand or result of this size takes, as the op reads it."""
        operand = slot < len(op.operands)
        part = rounded(op.rule, op.operands[slot].dtype, self.device) if operand else 1.0
        return self.buffer_bytes(math.ceil(part * size))

    def scratch_bytes(self, op: OpClass, slot_bytes: Sequence[int]) -> int:
        """Memory that an op needs while it runs, besides operands, results and their copies."""
        reads = sum(slot_bytes[: len(op.operands)]) if op.rule.unit == MATRIX else 0
        words = op.rule.expanded.words if self.device.expands else 0
        return min(self.device.scratch_bytes, reads) + words * self.buffer_bytes(1)

    def copied_bytes(self, op: OpClass, slot_bytes: Sequence[int]) -> list[int]:
        """[slots] memory of the copies that an op makes of its operands and results."""
        copied = [0] * len(slot_bytes)
        for slot, times in op.rule.expanded.copies if self.device.expands else ():
            copied[slot] = self.buffer_bytes(math.ceil(times * slot_bytes[slot]))
        return copied

    def _kernel_s(self, op: OpClass, local: Sequence[int], points: int) -> float:
        """A kernel: its dots, its vector work and what it fetches run at the same time."""
        work, device = op.rule.kernel, self.device
        assert work is not None
        share = points / math.prod(op.sizes)  # of its steps
        if work.uneven is not None:  # all wait for the busiest device
            atoms = zip(op.factors, op.sizes, local, strict=True)
            parts = [size / part for f, size, part in atoms if f == work.uneven.factor]
            share *= work.uneven.heaviest(round(math.prod(parts)))
        dots = sum(
            dot_s(device, d.dtype, batch=math.ceil(d.times * share), m=d.m, n=d.n, k=d.k, kept=True)
            for d in work.dots
        )
        return max(
            dots / device.matrix_sustained, vector_s(device, work.operations * share),
            stream_s(device, work.fetched_bytes * share),
        )  # fmt: skip

    def _dot_s(self, op: OpClass, local: Sequence[int]) -> float:
        """A contraction as a batched [m, k] x [k, n]."""
        known = self._dots.get(op.index)
        if known is None:
            known = self._dots[op.index] = _matrix_roles(op), self._slower(op)
        roles, dtype = known
        sizes = [1, 1, 1, 1, 1]
        for role, size in zip(roles, local, strict=True):
            sizes[role] *= size
        batch, m, n, k, windows = sizes
        exact = op.rule.precision
        if op.rule.maps:
            k *= windows
            seconds = dot_s(self.device, dtype, batch=batch, m=m, n=n, k=k, precision=exact)
        else:
            seconds = convolution_s(
                self.device, dtype, batch=batch, m=m, n=n, k=k, windows=windows, precision=exact
            )
        return op.rule.work / 2.0 * seconds / self.device.matrix_sustained

    def _slower(self, op: OpClass) -> Any:
        """The dtype that a dot of two is computed in: int8 x bf16 runs as bf16."""

        def rate(dtype: Any) -> float:
            return self.device.matrix_flops_per_s(dtype, precision=op.rule.precision)

        return min((slot.dtype for slot in op.operands[:2]), key=rate)


def _matrix_roles(op: OpClass) -> list[int]:
    """For each op atom whether it is batch (0), m (1), n (2), k (3) or a window (4)."""
    left, right = set(op.operands[0].to_op), set(op.operands[1].to_op)
    return [
        (3 if atom in left else 4) if atom not in op.in_results
        else 0 if atom in left and atom in right
        else 1 if atom in left else 2
        for atom in range(len(op.sizes))
    ]  # fmt: skip


def is_reduction(op: OpClass) -> bool:
    """Whether a vector op reduces its operand, and so reads it inside one fusion."""
    return not op.rule.fusible and len(op.operands) <= 2 and any(
        kind not in NOT_REDUCED for kind in op.kinds
    ) and op.rule.unit not in (MATRIX, NOTHING)  # fmt: skip


def _moved(op: OpClass, slot_bytes: Sequence[int]) -> int:
    """Bytes that an op which only moves data really touches.

    An update in place touches what it writes; a lookup what it reads.
    """
    count = len(op.operands)
    result = sum(slot_bytes[count:])
    if not count:
        return result
    base, rest = slot_bytes[0], sum(slot_bytes[1:count])
    in_place = base == result and set(op.operands[0].to_op) == set(op.results[0].to_op)
    return min(rest, result) if in_place and rest else min(result, base + rest)
