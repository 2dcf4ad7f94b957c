"""Bounds that hold in every state: what each op costs at least, however it is split."""

from __future__ import annotations

from itertools import product

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.spmd.follow import local_sizes
from shardwright.spmd.layout import REPLICATED
from shardwright.spmd.opclass import NO_ATOM, OpClass

# Above this many ways to split an op its bound is 0.
MOST_WAYS = 512


def least_compute_s(model: CostModel, op: OpClass) -> float:
    """Seconds of one op under the best way to give axes to its atoms, data movement free."""
    sizes = model.mesh.sizes
    options = [k for k, splittable in enumerate(op.splittable) if splittable]
    if (len(options) + 1) ** len(sizes) > MOST_WAYS:
        return 0.0
    ways: dict[tuple[tuple[int, ...], ...], None] = {}  # what is computed, what is held
    for claims in product((REPLICATED, *options), repeat=len(sizes)):
        both = (local_sizes(op, claims, sizes, held=held) for held in (False, True))
        ways[tuple(map(tuple, both))] = None
    return min(model.prices.compute_s(op, local, _slot_bytes(op, held)) for local, held in ways)


def _slot_bytes(op: OpClass, local: tuple[int, ...]) -> list[int]:
    """Bytes of each operand and result when the op's atoms have these local sizes."""
    out = []
    for slot in op.slots:
        size = slot.layout.itemsize * slot.layout.units
        for atom, k in zip(slot.layout.atoms, slot.to_op, strict=True):
            size *= min(atom.size, local[k]) if k != NO_ATOM else atom.size
        out.append(size)
    return out


def least_factor_s(model: CostModel) -> np.ndarray:
    """[factors] seconds that no state can go below: compute alone, all devices sharing traffic."""
    devices, table = float(np.prod(model.mesh.sizes)), model.layouts.table
    weights = model.weights.compute.sum(1)
    return np.array([
        sum(float(weights[op.index]) * least_compute_s(model, op) for op in factor.ops)
        + sum(
            table[i].local_bytes((), ()) / devices * per_byte
            for i, _, per_byte in factor.traffic
        )
        for factor in model.graph.factors
    ])  # fmt: skip
