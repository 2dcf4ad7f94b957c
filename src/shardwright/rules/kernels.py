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

Share = Callable[[OpShape, KernelGrid], float]


class Kernel(NamedTuple):
    """A row of the table."""

    title: str
    # Grid dims, as the author numbers them, whose steps need nothing of each other, whatever the
    # grid declares; results without them are scratch memory that no one reads.
    independent: tuple[int, ...]
    share: Share  # of the steps that compute; the others are masked out and fetch nothing
    splits: str  # for the docs
    # The grid dim, as the author numbers it, whose steps each read one row (dim 1) of the arrays
    # that are prefetched, and nothing else that says where they are.
    rows: int | None = None
    adds: bool = False  # results are sums over those rows, written in the last step
    whole: str = ""  # why a dim that could be split is not, where the kernel asks for its place


def _causal_blocks(op: OpShape, grid: KernelGrid) -> float:
    """The blocks on or below the diagonal, of a flash attention whose block indices skip others."""
    if not grid.decides:
        return 1.0
    (_, _, rows, _), (_, _, columns, _) = (t.shape for t in op.operands[:2])
    size_q, size_k = (grid.blocks[n][2].size for n in range(2))
    row, column = np.arange(rows // size_q)[:, None], np.arange(columns // size_k)
    return float(np.mean((row + 1) * size_q - 1 > column * size_k))


def _unmasked_blocks(op: OpShape, grid: KernelGrid) -> float:
    """The blocks that a splash attention's mask leaves, if the mask is known while tracing."""
    block_mask = op.constants.get(1)  # data_next, block_mask, mask_next come first
    return 1.0 if block_mask is None else float(np.mean(np.asarray(block_mask) != 0))


_FLASH = "flash attention"  # jax.experimental.pallas.ops.tpu.flash_attention
_SPLASH = "splash attention"  # jax.experimental.pallas.ops.tpu.splash_attention
_HEADS = "batch, heads"
_CAUSAL = (
    "with a mask the kernel counts queries and keys from its own first block, so that both stay"
    " whole; splash attention (make_splash_mha) splits its queries"
)
_GROUPED = "batch (of `vmap`), key/value heads with all their query heads"
_SHARED = "batch and heads of `vmap`; query heads that share one mask"


def _flash(title: str) -> Kernel:
    return Kernel(title, (), _causal_blocks, _HEADS, whole=_CAUSAL)


# By the beginning of the kernel's name; the first that fits.
KERNELS: dict[str, Kernel] = {
    "_flash_attention_kernel": _flash(_FLASH),
    "_flash_attention_dkv_kernel": _flash(f"{_FLASH}, dk dv"),
    "_flash_attention_dq_kernel": _flash(f"{_FLASH}, dq"),
    "splash_mha_fwd": Kernel(_SPLASH, (0,), _unmasked_blocks, _GROUPED, 1),
    "splash_mha_dkv": Kernel(f"{_SPLASH}, dk dv", (1,), _unmasked_blocks, _GROUPED, 2, True),
    "splash_mha_dq": Kernel(f"{_SPLASH}, dq", (0,), _unmasked_blocks, _GROUPED, 1),
    "splash_mqa_fwd": Kernel(f"{_SPLASH}, one k/v head", (0,), _unmasked_blocks, _SHARED, 1),
    "splash_mqa_dkv": Kernel(
        f"{_SPLASH}, one k/v head, dk dv", (), _unmasked_blocks, _SHARED, 2, True
    ),
    "splash_mqa_dq": Kernel(f"{_SPLASH}, one k/v head, dq", (0,), _unmasked_blocks, _SHARED, 1),
}


# Grid dims of these kernels, as their authors number them, by the beginning of their names. Others
# of the same name, as tokamax has them, are read from their grids alone.
_GRID_DIMS = {"_flash": 4, "splash": 3}


def known_kernel(name: Any, grid_dims: int) -> Kernel | None:
    """The row of a kernel with this name and grid; None for one that no library we know has."""
    text = name or ""
    found = next((row for start, row in KERNELS.items() if text.startswith(start)), None)
    return found if _GRID_DIMS.get(text[:6]) == grid_dims else None
