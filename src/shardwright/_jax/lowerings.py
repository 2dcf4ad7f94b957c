"""JAX's lowering tables: the primitives that it has, and what it opens when it lowers a program."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
from jax._src.interpreters import mlir
from jax.extend.core import jaxpr_as_fun

from shardwright._jax import retrace


def primitives() -> dict[str, Any]:
    """Every primitive that JAX can lower, by name, from its lowering tables.

    Modules that are not imported have not registered theirs: import them first.
    """
    tables = [mlir._lowerings, *mlir._platform_specific_lowerings.values()]
    return {primitive.name: primitive for table in tables for primitive in table}


def opened(eqn: Any) -> Any:
    """The jaxpr that JAX lowers an equation to, where that is not the equation itself.

    Of sparse primitives, run_state, loops under vmap, and primitives of other libraries that are
    lowered as JAX functions; None for others.
    """
    name = eqn.primitive.name
    if name == "while":
        return _plain_while(eqn)
    if name == "run_state":  # its references as plain values
        compute = eqn.primitive.impl
    elif name.startswith(("bcoo_", "bcsr_")):
        module = importlib.import_module(f"jax.experimental.sparse.{name[:4]}")
        compute = getattr(module, f"_{name}_impl", None)
    else:
        compute = _lowered_as(eqn.primitive)
    if compute is None:
        return None

    def call(*arrays: Any) -> list[Any]:
        out = compute(*arrays, **eqn.params)
        return list(out) if eqn.primitive.multiple_results else [out]

    try:
        with eqn.ctx.manager:  # the same ops wherever it is opened
            return retrace(call, [v.aval for v in eqn.invars])
    except NotImplementedError:  # references to what only a kernel has
        return None


@lru_cache(maxsize=1024)
def _lowered_as(primitive: Any) -> Callable[..., Any] | None:
    """The JAX function that a library's primitive is lowered as on every platform, if it is one.

    None for JAX's own primitives, which have rules, and for kernels.
    """
    entry = mlir._lowerings.get(primitive)
    kernels = mlir._platform_specific_lowerings.values()
    if entry is None or any(primitive in table for table in kernels):
        return None
    if getattr(entry.rule, "__qualname__", "") != "lower_fun.<locals>.f_lowered":
        return None
    function = inspect.getclosurevars(entry.rule).nonlocals["fun"]
    own = (getattr(function, "__module__", None) or "").partition(".")[0] == "jax"
    return None if own else function


def _plain_while(eqn: Any) -> Any:
    """A loop whose examples stop one by one, with what JAX adds to it only when it lowers it.

    It goes on as long as any of them does, and those that have stopped keep what they have.
    None for a loop with one condition for all.
    """
    condition, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    (goes_on,) = condition.out_avals
    if not goes_on.shape:
        return None
    first, count = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    holds, run = jaxpr_as_fun(condition), jaxpr_as_fun(body)

    def loop(*args: Any) -> list[Any]:
        """A while loop whose batched predicate goes on as long as some entry's holds."""
        cond_consts, body_consts = args[:first], args[first : first + count]

        def some_go_on(carry: list[Any]) -> Any:
            (pred,) = holds(*cond_consts, *carry)
            return pred.any()

        def one_round(carry: list[Any]) -> list[Any]:
            (pred,) = holds(*cond_consts, *carry)
            pairs = zip(run(*body_consts, *carry), carry, strict=True)
            return [jax.lax.select(_spread(pred, new.shape), new, old) for new, old in pairs]

        return jax.lax.while_loop(some_go_on, one_round, list(args[first + count :]))

    return retrace(loop, [v.aval for v in eqn.invars])


def _spread(pred: Any, shape: tuple[int, ...]) -> Any:
    """A condition per example, for all their elements."""
    return jax.lax.broadcast_in_dim(pred, shape, range(pred.ndim))
