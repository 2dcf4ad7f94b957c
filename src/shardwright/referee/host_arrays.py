"""Arrays on the host, whatever device they were on; random keys as the words behind them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from shardwright import _jax


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of random keys."""
    return isinstance(leaf, jax.Array) and _jax.is_extended(leaf.dtype)


def to_host(leaf: Any, dtype: Any = None) -> np.ndarray:
    """A host array of an array or scalar; of the data of a random key."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf, dtype)
