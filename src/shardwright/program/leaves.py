"""Leaves of arguments and results: what is data, and what is closed over."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

NO_DATA = tuple("OSUMm")  # kinds of NumPy arrays that JAX has none of: objects, words, dates


def is_array(leaf: Any) -> bool:
    """Whether a leaf is data: an array, its shape, or a Python number."""
    if isinstance(leaf, bool | int | float | complex):
        return True
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype") or callable(leaf):
        return False
    return getattr(leaf.dtype, "kind", "") not in NO_DATA


def is_weak(leaf: Any) -> bool:
    """Whether a leaf takes the dtype of what it meets: a Python number."""
    return bool(getattr(leaf if hasattr(leaf, "dtype") else jax.typeof(leaf), "weak_type", False))


def same(a: Any, b: Any) -> bool:
    """Whether two things that are no data are equal, whatever they take equality for."""
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(np.all(a == b))
    except Exception:  # their own __eq__ may raise anything; then they are not known to be equal
        return False


def type_of(array: Any) -> tuple[tuple[int, ...], Any]:
    """(shape, dtype)"""
    aval = jax.typeof(array)
    return aval.shape, aval.dtype
