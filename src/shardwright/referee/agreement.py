"""Whether results are those of the unsharded function, up to rounding that it shows itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardwright.errors import ShardwrightError
from shardwright.referee.host_arrays import to_host

RELATIVE, ABSOLUTE = 2e-3, 1e-4  # of results: sums in another order
# Where the program computes with few digits: so many units in the last place, up to this fraction.
ROUNDINGS, COARSEST = 4, 0.05
# A chaotic function: sums in another order round in many places, one ulp of noise in the arguments
# in one; errors of independent roundings add up as their root, so this covers a hundred of them.
NOISES = 10.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Results against those of the unsharded function; true when they agree."""

    worst: float  # largest error relative to its array's scale; inf for NaN where there was none
    close: bool
    noise: float | None = None  # what one ulp does to that array, relative; None: not needed

    def __bool__(self) -> bool:
        return self.close


def relative_tolerance(dtypes: Sequence[Any]) -> float:
    """The error that the narrowest float type among these excuses, relative to the scale."""
    floats = [d for d in dtypes if jax.dtypes.issubdtype(d, np.floating)]
    eps = max((float(jax.numpy.finfo(d).eps) for d in floats), default=0.0)
    return max(RELATIVE, min(ROUNDINGS * eps, COARSEST))


def compare(
    results: Any,
    wanted: Any,
    relative: float = RELATIVE,
    noisy: Callable[[], Sequence[Any]] = lambda: (),
) -> Agreement:
    """Whether all results are close to what is wanted.

    Integers and booleans must be equal. `noisy` gives results of the unsharded function on
    arguments that are one ulp off; it is asked only when something is not close, and what moves
    about as much by itself agrees.
    """
    got, want = _arrays(results), _arrays(wanted)
    rows = [_errors(g, w, relative) for g, w in zip(got, want, strict=True)]
    worst = max((off / scale for off, scale, _ in rows), default=0.0)
    apart = [i for i, (off, _, allowed) in enumerate(rows) if not off <= allowed]
    if not apart:
        return Agreement(worst, True)
    noise = [0.0] * len(want)
    for other in noisy():
        moved = [_errors(o, w, relative)[0] for o, w in zip(_arrays(other), want, strict=True)]
        noise = [max(a, b) for a, b in zip(noise, moved, strict=True)]
    most = max(apart, key=lambda i: rows[i][0] / rows[i][1])
    close = all(rows[i][0] <= NOISES * noise[i] < np.inf for i in apart)
    return Agreement(worst, close, noise[most] / rows[most][1])


def _errors(got: np.ndarray, want: np.ndarray, relative: float) -> tuple[float, float, float]:
    """(largest difference, scale, largest difference that rounding explains) of one array."""
    if got.shape != want.shape:
        raise ShardwrightError(f"a result has shape {got.shape} instead of {want.shape}")
    exact = want.dtype.kind in "biu"
    if exact:
        apart = np.abs(got.astype(np.float64) - want.astype(np.float64))
        off = np.where(got == want, 0.0, np.maximum(apart, 1.0))  # wide ones round to equal floats
    else:
        got, want = _plain(got), _plain(want)
        with np.errstate(invalid="ignore"):  # inf - inf
            off = np.abs(got - want)
        off = np.where(np.isnan(got) & np.isnan(want) | (got == want), 0.0, off)
        off = np.where(np.isnan(off), np.inf, off)
    size = np.abs(_plain(want))
    scale = float(np.max(size, where=np.isfinite(size), initial=0.0)) + ABSOLUTE
    return float(np.max(off, initial=0.0)), scale, 0.0 if exact else relative * scale + ABSOLUTE


def _arrays(tree: Any) -> list[np.ndarray]:
    return [to_host(leaf) for leaf in jax.tree.leaves(tree)]


def _plain(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind == "c" else array.astype(np.float64)
