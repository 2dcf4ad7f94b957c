"""Results of a plan against those of one device, as far as rounding lets them be compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core.primitives import gather_p, slice_p

from shardwright.referee.agreement import ABSOLUTE, COARSEST, RELATIVE, ROUNDINGS
from shardwright.zoo.example import QUICK
from tests.fuzz.generator import Case

# A sum of many narrow floats is rounded at each addition, in another order on each device.
ADDITIONS = 8
LOOKUPS = (gather_p, slice_p)
PERTURBED = 4  # runs with other inputs where results differ


def wrong_numbers(case: Case, fn: Any, results: list[np.ndarray]) -> list[tuple[str, str]]:
    """(kind, text) of each result that one device has otherwise; "numbers" is what no one excuses.

    Where results differ, so may those of one device for inputs that are one ulp away: of sorts,
    comparisons and steps. What such inputs change makes a result "sensitive", not wrong. And XLA
    may be wrong on one device (it merges two dynamic slices and loses a clamp): a result that is
    the same when JAX computes op by op is right ("one device"), and with it what only the sign of
    a zero decides. Where XLA fails on one device, op by op is the judge.
    """
    try:
        alone: Callable[..., Any] = jax.jit(fn).lower(*case.types()).compile(QUICK)
        wanted = [np.asarray(x) for x in jax.tree.leaves(alone(*case.inputs()))]
        findings = []
    except jax.errors.JaxRuntimeError as failure:
        alone = partial(op_by_op, fn)
        wanted = alone(*case.inputs())
        findings = [("one device", f"plain jax.jit fails: {failure}")]
    shapes = [[(x.shape, x.dtype) for x in xs] for xs in (results, wanted)]
    if shapes[0] != shapes[1]:
        return [*findings, ("numbers", f"types {shapes[0]} instead of {shapes[1]}")]
    share = tolerance(fn, case)
    off = [error(got, want) for got, want in zip(results, wanted, strict=True)]
    allowed = [share * scale(want) + ABSOLUTE for want in wanted]
    if all(o <= a for o, a in zip(off, allowed, strict=True)):
        return findings
    changes = [0.0] * len(wanted)
    for trial in range(PERTURBED):
        rng = np.random.default_rng(trial)
        nearby = [np.asarray(x) for x in jax.tree.leaves(alone(*map(_nudge(rng), case.inputs())))]
        for n, (got, want) in enumerate(zip(nearby, wanted, strict=True)):
            changes[n] = max(changes[n], 4 * error(got, want))
    excused = [(changes[n] >= off[n], "sensitive") for n in range(len(wanted))]
    if any(o > max(a, c) for o, a, c in zip(off, allowed, changes, strict=True)):
        with no_sign_of_zero():
            unsigned = op_by_op(fn, *case.inputs())
        for meant, kind in (
            (op_by_op(fn, *case.inputs()), "one device"),
            (unsigned, "sign of zero"),
        ):
            for n, (got, m) in enumerate(zip(results, meant, strict=True)):
                if not excused[n][0]:
                    excused[n] = (error(got, m) <= share * scale(m) + ABSOLUTE, kind)
    return findings + [
        (
            excused[n][1] if excused[n][0] else "numbers",
            f"result {n} {want.dtype}{list(want.shape)} is off by {off[n]:.3g}, one ulp by"
            f" {changes[n] / 4:.3g}, largest {scale(want):.3g}, wrong entries"
            f" {int(np.sum(~_same(results[n], want, allowed[n])))} of {want.size}",
        )
        for n, want in enumerate(wanted)
        if off[n] > allowed[n]
    ]


def op_by_op(fn: Any, *inputs: np.ndarray) -> list[np.ndarray]:
    """The results when every op is compiled alone: what the program means."""
    with jax.disable_jit():
        return [np.asarray(x) for x in jax.tree.leaves(fn(*map(jnp.asarray, inputs)))]


@contextmanager
def no_sign_of_zero() -> Iterator[None]:
    """Where ops are computed one by one, what is looked up is 0.0 where it would be -0.0.

    So it is in shards: an all-reduce brings it to all devices, and XLA:CPU's starts from 0.0.
    """
    impls = [primitive.impl for primitive in LOOKUPS]
    for primitive, impl in zip(LOOKUPS, impls, strict=True):
        primitive.impl = partial(_without_sign, impl)
    yield
    for primitive, impl in zip(LOOKUPS, impls, strict=True):
        primitive.impl = impl


def _without_sign(impl: Callable[..., Any], *args: Any, **params: Any) -> Any:
    read = impl(*args, **params)
    return read + 0 if jax.dtypes.issubdtype(read.dtype, np.inexact) else read


def fails_alone(fn: Any, case: Case, failure: str) -> bool:
    """Whether plain jax.jit fails on one device as a plan did."""
    try:
        jax.block_until_ready(jax.jit(fn).lower(*case.types()).compile(QUICK)(*case.inputs()))
    except jax.errors.JaxRuntimeError as error:
        return _complaint(str(error)) == _complaint(failure)
    return False


def jax_refuses(fn: Any, case: Case) -> str:
    """What plain JAX says where it does not run a program at all; nothing where it does.

    Derivatives of a `custom_jvp` by what its rule closes over can be traced, and not run.
    """
    try:
        jax.block_until_ready(jax.jit(fn)(*case.inputs()))
    except jax.errors.JaxRuntimeError:
        return ""  # XLA fails, on a program
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.300}"
    return ""


def _complaint(text: str) -> Any:
    """What XLA complains of: lines of its own code, or its words up to an instruction's name."""
    lines = re.findall(r"\w+\.cc:\d+", text)
    return lines or text[text.find("INVALID_ARGUMENT") :].partition("%")[0]


def tolerance(fn: Any, case: Case) -> float:
    """What the narrowest float of the program excuses, relative to an array's scale."""
    jaxpr = str(jax.make_jaxpr(fn)(*case.types()))
    narrow = [n for n in ("bf16", "f16", "f8_e4m3fn", "f8_e5m2") if n + "[" in jaxpr]
    types = {"bf16": jnp.bfloat16, "f16": jnp.float16}
    eps = max((float(jnp.finfo(types.get(n, jnp.float8_e5m2)).eps) for n in narrow), default=0.0)
    return max(RELATIVE, min(ADDITIONS * ROUNDINGS * eps, COARSEST))


def _wide(x: np.ndarray) -> np.ndarray:
    if x.dtype == jax.dtypes.float0:  # the tangent of an integer holds nothing
        return np.zeros(x.shape)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _same(got: np.ndarray, want: np.ndarray, allowed: float) -> np.ndarray:
    got, want = _wide(got), _wide(want)
    both = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        return both | (np.abs(got - want) <= allowed)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference; what is finite on one side only is infinitely off."""
    got, want = _wide(got), _wide(want)
    both = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        off = np.where(both, 0.0, np.abs(got - want))
    return float(np.max(np.where(np.isnan(off), np.inf, off), initial=0.0))


def scale(want: np.ndarray) -> float:
    magnitude = np.abs(_wide(want))
    return float(np.max(magnitude, initial=0.0, where=np.isfinite(magnitude)))


def _nudge(rng: np.random.Generator) -> Any:
    """One unit in the last place up or down, or none, for every float."""

    def nudge(x: np.ndarray) -> np.ndarray:
        if not jax.dtypes.issubdtype(x.dtype, np.floating):
            return x
        eps = float(jnp.finfo(x.dtype).eps)
        return (x * (1 + 2 * eps * rng.integers(-1, 2, x.shape))).astype(x.dtype)

    return nudge
