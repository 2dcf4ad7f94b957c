"""Kernels of known libraries: what their authors know beyond grid and code.

A kernel is known by the name of its pallas_call. Its rule and its price are read from its grid
(pallas.py) with what its row here adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shardwright.rules.grid import KernelGrid
from shardwright.rules.rule import OpShape

# [steps along a grid dim] the share of their blocks that the mask leaves; None: all of them, or
# which ones is not known.
Computes = Callable[[OpShape, KernelGrid], np.ndarray | None]


class Kernel(NamedTuple):
    """A row of the table."""

    title: str
    # Grid dims, as the author numbers them, whose steps need nothing of each other, whatever the
    # grid declares; results without them are scratch memory that no one reads.
    independent: tuple[int, ...]
    # The share of blocks that compute, step by step along a grid dim, as the author numbers it; the
    # others are masked out and fetch nothing.
    computes: Computes
    along: int
    splits: str  # for the docs
    # The grid dim, as the author numbers it, whose steps each read one row (dim 1) of the arrays
    # that are prefetched, and nothing else that says where they are.
    rows: int | None = None
    adds: bool = False  # results are sums over those rows, written in the last step


def _causal(queries: bool) -> Computes:
    """Blocks on or below the diagonal of a flash attention whose block indices skip others."""

    def computes(op: OpShape, grid: KernelGrid) -> np.ndarray | None:
        """[blocks of queries, or of keys] the share of them that is below the diagonal."""
        if grid.own[3] not in grid.computed:
            return None
        (_, _, rows, _), (_, _, columns, _) = (t.shape for t in op.operands[:2])
        size_q, size_k = (grid.blocks[n][2].size for n in range(2))
        row, column = np.arange(rows // size_q)[:, None], np.arange(columns // size_k)
        below = (row + 1) * size_q - 1 > column * size_k
        return np.asarray(np.mean(below, axis=1 if queries else 0))

    return computes


def _unmasked(op: OpShape, grid: KernelGrid) -> np.ndarray | None:
    """The blocks that a splash attention's mask leaves, if the mask is known while tracing."""
    block_mask = op.constants.get(1)  # data_next, block_mask, mask_next come first
    if block_mask is None:
        return None
    mask = np.asarray(block_mask) != 0
    return np.asarray(np.mean(mask, axis=(0, 2))) if mask.ndim == 3 else mask.mean(keepdims=True)


_FLASH = "flash attention"  # jax.experimental.pallas.ops.tpu.flash_attention
_SPLASH = "splash attention"  # jax.experimental.pallas.ops.tpu.splash_attention
_QUERIES, _KEYS = "batch, heads, blocks of queries", "batch, heads, blocks of keys"
_GROUPED = "batch (of `vmap`), key/value heads with all their query heads"
_SHARED = "batch and heads of `vmap`; query heads that share one mask"


# By the beginning of the kernel's name; the first that fits.
KERNELS: dict[str, Kernel] = {
    "_flash_attention_kernel": Kernel(_FLASH, (), _causal(True), 2, _QUERIES),
    "_flash_attention_dkv_kernel": Kernel(f"{_FLASH}, dk dv", (), _causal(False), 2, _KEYS),
    "_flash_attention_dq_kernel": Kernel(f"{_FLASH}, dq", (), _causal(True), 2, _QUERIES),
    "splash_mha_fwd": Kernel(_SPLASH, (0,), _unmasked, 1, _GROUPED, 1),
    "splash_mha_dkv": Kernel(f"{_SPLASH}, dk dv", (1,), _unmasked, 2, _GROUPED, 2, True),
    "splash_mha_dq": Kernel(f"{_SPLASH}, dq", (0,), _unmasked, 1, _GROUPED, 1),
    "splash_mqa_fwd": Kernel(f"{_SPLASH}, one k/v head", (0,), _unmasked, 1, _SHARED, 1),
    "splash_mqa_dkv": Kernel(f"{_SPLASH}, one k/v head, dk dv", (), _unmasked, 2, _SHARED, 2, True),
    "splash_mqa_dq": Kernel(f"{_SPLASH}, one k/v head, dq", (0,), _unmasked, 1, _SHARED, 1),
}


# Grid dims of these kernels, as their authors number them, by the beginning of their names. Others
# of the same name, as tokamax has them, are read from their grids alone.
_GRID_DIMS = {"_flash": 4, "splash": 3}


def known_kernel(name: Any, grid_dims: int) -> Kernel | None:
    """The row of a kernel with this name and grid; None for one that no library we know has."""
    text = name or ""
    found = next((row for start, row in KERNELS.items() if text.startswith(start)), None)
    return found if _GRID_DIMS.get(text[:6]) == grid_dims else None
