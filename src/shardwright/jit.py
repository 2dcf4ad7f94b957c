"""jit(): a function that is planned, placed and compiled when it is first called."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import jax

from shardwright.api import plan_call
from shardwright.errors import ShardwrightError
from shardwright.lowering.jit import PlannedFunction
from shardwright.options import Options, read_options
from shardwright.plan import Plan

BY_NAME = ("static_argnames", "donate_argnames")  # that jax.jit takes and partition() does not


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`fn`, planned on its first call: @sw.jit(mesh={"data": 8}, device="h100").

    Takes what partition() takes, and `static_argnames` and `donate_argnames` as jax.jit does.
    `.plan(*args)` gives the plan without running it.
    """
    known = [option.name for option in fields(Options) if option.name != "default_device"]
    unknown = [name for name in options if name not in (*known, "jax_mesh", *BY_NAME)]
    if unknown:
        raise ShardwrightError(f"sw.jit has no option {unknown[0]!r}", try_=", ".join(known))
    if "mesh" not in options:
        raise ShardwrightError(
            "sw.jit needs a mesh", try_='@sw.jit(mesh={"data": 8}), or sw.jit(fn, mesh=jax_mesh)'
        )
    if fn is None:
        return functools.partial(jit, **options)
    by_name = {name: options.pop(name) for name in BY_NAME if name in options}
    jax_mesh = options.pop("jax_mesh", None)
    return PlannedOnCall(
        jax.jit(fn, **by_name) if by_name else fn, read_options(**options), jax_mesh
    )


class PlannedOnCall:
    """A function that is planned, placed and compiled when it is first called."""

    def __init__(self, fn: Callable[..., Any], options: Options, jax_mesh: Any) -> None:
        self.fn, self._options, self._jax_mesh = fn, options, jax_mesh
        self._ready: list[tuple[Plan, PlannedFunction]] = []
        functools.update_wrapper(self, fn, updated=())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method of the class it is defined in, as functions are."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<{getattr(self.fn, '__name__', self.fn)}, planned when called>"

    def plan(self, /, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments."""
        return self._for(args, kwargs)[0]

    def _for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Plan, PlannedFunction]:
        for plan, planned in self._ready:
            if plan.fits(args, kwargs):
                return plan, planned
        plan = plan_call(self.fn, args, kwargs, self._options)
        planned = plan.jit(self.fn, mesh=self._jax_mesh)
        self._ready.append((plan, planned))
        return plan, planned

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._for(args, kwargs)[1](*args, **kwargs)

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """As jax.jit(fn).lower."""
        return self._for(args, kwargs)[1].lower(*args, **kwargs)

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """As jax.jit(fn).trace."""
        return self._for(args, kwargs)[1].trace(*args, **kwargs)
