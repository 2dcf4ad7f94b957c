"""Random arguments to run a program on: floats, keys, and integers in and out of range.

A sharded lookup is right in the middle and wrong at the ends: each kind of position is drawn in a
run of its own, because a scalar index has only one value in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardwright import _jax
from shardwright.referee.host_arrays import is_key
from shardwright.referee.integers import Use

IN_RANGE, LAST, NEXT = "in range", "at the end", "one beyond"
FAR, NEGATIVE = "far beyond", "below 0"
PROMISED = "beyond what the program promises"
# Trips of a loop whose length an argument decides: 0, 1 and several, and a short wait.
MOST_TRIPS = 4
# An integer that indexes nothing may be compared with positions (one_hot): up to the largest dim.
LEAST_SPAN = 100


@dataclass(frozen=True, slots=True)
class Draw:
    """Arguments for one run, as flat arrays."""

    name: str
    inputs: list[Any]
    counts: bool = True  # whether equal results are required


def draws(types: Sequence[Any], uses: Sequence[Use], seed: int) -> list[Draw]:
    """The runs that a program with arguments of these types and uses deserves."""
    indexed = any(use.limits and not use.counts_trips for use in uses)
    names = (IN_RANGE, LAST, NEXT, FAR, NEGATIVE) if indexed else (IN_RANGE,)
    out = [Draw(name, _inputs(types, uses, seed, name)) for name in names]
    if any(use.promised for use in uses):
        out.append(Draw(PROMISED, _inputs(types, uses, seed, PROMISED), counts=False))
    return out


def _inputs(types: Sequence[Any], uses: Sequence[Use], seed: int, name: str) -> list[Any]:
    """Floats and keys are the same in every draw of one seed, so that only integers differ."""
    rng, integers = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    span = max([LEAST_SPAN, *(size for t in types for size in t.shape)])
    out: list[Any] = []
    for t, use in zip(types, uses, strict=True):
        if _jax.is_extended(t.dtype):
            key = jax.random.key(seed, impl=_jax.key_impl(t.dtype))
            out.append(jax.random.split(key, t.shape) if t.shape else key)
        elif jax.dtypes.issubdtype(t.dtype, np.inexact):
            small = 0.1 * np.abs(rng.standard_normal(t.shape)) + 0.01
            out.append(np.asarray(small).astype(t.dtype))
        elif t.dtype == np.bool_:
            out.append(rng.integers(0, 2, t.shape).astype(bool))
        else:
            drawn = _integers(use, name, t.shape, span, integers)
            info = jax.numpy.iinfo(t.dtype)
            fits = (drawn >= info.min) & (drawn <= info.max)
            out.append(np.where(fits, drawn, 0).astype(t.dtype))
    return out


def _integers(
    use: Use, name: str, shape: tuple[int, ...], span: int, rng: np.random.Generator
) -> np.ndarray:
    """Integers for one argument: where it may be out of range, half of an array is."""
    if use.counts_trips:
        return rng.integers(0, MOST_TRIPS + 1, shape)
    if not use.limits:
        return rng.integers(0, span, shape)
    n = min(use.limits)
    within = rng.integers(0, n, shape)
    if name not in ((LAST, PROMISED) if use.promised else (LAST, NEXT, FAR, NEGATIVE)):
        return within
    at = {
        LAST: [n - 1], NEXT: sorted(use.limits), FAR: [2 * max(use.limits) + 1],
        NEGATIVE: [-1, -n, -n - 1], PROMISED: [max(use.limits)],
    }[name]  # fmt: skip
    if not shape:
        return np.asarray(at[0])
    return np.where(rng.random(shape) < 0.5, within, rng.choice(at, shape))


def fresh(inputs: Sequence[Any]) -> list[Any]:
    """The same arguments in buffers of their own: a planned step may consume its arguments."""
    return [
        jax.random.clone(x)
        if is_key(x) else x if isinstance(x, bool | int | float | complex) else np.array(x)
        for x in inputs
    ]  # fmt: skip


def with_noise(inputs: Sequence[Any], seed: int) -> list[list[Any]]:
    """The arguments with floats one ulp up, one ulp down, and one ulp either way."""
    rng = np.random.default_rng([seed, 2])
    return [[_nudged(x, direction, rng) for x in inputs] for direction in (1.0, -1.0, 0.0)]


def _nudged(x: Any, direction: float, rng: np.random.Generator) -> Any:
    """An array one ulp towards plus or minus infinity; at random where `direction` is 0."""
    if is_key(x) or not jax.dtypes.issubdtype(np.result_type(x), np.inexact):
        return x
    array = np.asarray(x)
    if array.dtype.kind == "c":
        return _nudged(array.real, direction, rng) + 1j * _nudged(array.imag, direction, rng)
    signs = np.full(array.shape, direction) if direction else rng.choice([-1.0, 1.0], array.shape)
    towards = (signs * float(jax.numpy.finfo(array.dtype).max)).astype(array.dtype)
    return np.where(np.isfinite(array), np.nextafter(array, towards), array)
