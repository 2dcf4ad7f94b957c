"""What a function of jax.export computes, as JAX ops: its StableHLO, op by op.

An op that is not known here leaves the whole call as it is: opaque, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardwright import _jax
from shardwright._jax.stablehlo import Module, Op, parse

Arrays = list[Any]


def opened_export(eqn: Any) -> Any:
    """The jaxpr of a call of an exported function; None where its text says more than that."""
    exported = eqn.params["exported"]
    symbolic = not all(isinstance(n, int) for aval in exported.in_avals for n in aval.shape)
    effects = exported.ordered_effects or exported.unordered_effects
    if symbolic or effects or exported.nr_devices != 1 or len(exported.platforms) != 1:
        return None

    def call(*arrays: Any) -> list[Any]:
        kept = [arrays[i] for i in exported.module_kept_var_idx]
        return _call(parse(exported.mlir_module()), "main", kept)

    try:
        return _jax.retrace(call, [v.aval for v in eqn.invars])
    except NotImplementedError:  # an op that has no JAX op
        return None


def _call(module: Module, name: str, arrays: Arrays) -> Arrays:
    return _block(module, module.functions[name], {}, arrays)


def _block(module: Module, block: Any, around: Mapping[Any, Any], arrays: Arrays) -> Arrays:
    """What a block returns, given its arguments and the values defined around it."""
    env: dict[Any, Any] = {**around, **dict(zip(block.arguments, arrays, strict=True))}
    for op in block.operations:
        name = op.operation.name
        operands = [env[v] for v in op.operation.operands]
        if name in ("func.return", "stablehlo.return"):
            return operands
        results = _results(module, op, name, operands, env)
        env.update(zip(op.operation.results, results, strict=True))
    raise NotImplementedError("a block without return")


def _results(module: Module, op: Any, name: str, arrays: Arrays, env: Any) -> Arrays:
    """The results of one op."""
    short = name.removeprefix("stablehlo.")
    if short in _ELEMENTWISE:
        return [_ELEMENTWISE[short](*arrays)]
    if short in _OPS:
        return [_OPS[short](Op(op), *arrays)]
    if name in ("func.call", "call"):
        return _call(module, Op(op).callee(), arrays)
    if short in _REGIONS:
        return _REGIONS[short](module, Op(op), arrays, env)
    raise NotImplementedError(f"{name} of an exported function has no JAX op here")


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: lax.bitwise_or(x, y) if x.dtype == bool else lax.add(x, y),
    "multiply": lambda x, y: lax.bitwise_and(x, y) if x.dtype == bool else lax.mul(x, y),
    "subtract": lax.sub, "divide": lax.div, "remainder": lax.rem, "maximum": lax.max,
    "minimum": lax.min, "power": lax.pow, "atan2": lax.atan2, "and": lax.bitwise_and,
    "or": lax.bitwise_or, "xor": lax.bitwise_xor, "not": lax.bitwise_not,
    "shift_left": lax.shift_left, "shift_right_logical": lax.shift_right_logical,
    "shift_right_arithmetic": lax.shift_right_arithmetic, "popcnt": lax.population_count,
    "negate": lax.neg, "abs": lax.abs, "sign": lax.sign, "floor": lax.floor, "ceil": lax.ceil,
    "exponential": lax.exp, "exponential_minus_one": lax.expm1, "log": lax.log,
    "log_plus_one": lax.log1p, "logistic": lax.logistic, "tanh": lax.tanh, "sine": lax.sin,
    "cosine": lax.cos, "tan": lax.tan, "sqrt": lax.sqrt, "rsqrt": lax.rsqrt, "cbrt": lax.cbrt,
    "is_finite": lax.is_finite, "optimization_barrier": lax.optimization_barrier,
    "select": lambda which, true, false: lax.select(
        jnp.broadcast_to(which, jnp.shape(true)), true, false
    ),
    "clamp": lambda low, x, high: lax.clamp(low, x, high),
}  # fmt: skip
_COMPARE = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}


_PADDING = ("edge_padding_low", "edge_padding_high", "interior_padding")


def _dot_general(op: Op, lhs: Any, rhs: Any) -> Any:
    return lax.dot_general(
        lhs, rhs, op.dot_dimensions(), preferred_element_type=op.result_dtype(),
        precision=op.precision(),
    )  # fmt: skip


def _gather(op: Op, operand: Any, indices: Any) -> Any:
    """JAX writes bounds checks out before it lowers a gather; what is left clips."""
    numbers, index_dim = op.gather_dimensions()
    if index_dim == indices.ndim:
        indices = indices[..., None]
    elif index_dim != indices.ndim - 1:
        raise NotImplementedError("a gather whose indices are not in the last dim")
    return lax.gather(operand, indices, numbers, op.numbers("slice_sizes"), mode="clip")


_OPS: dict[str, Callable[..., Any]] = {
    "constant": lambda op: jnp.asarray(op.constant()),
    "iota": lambda op: lax.broadcasted_iota(
        op.result_dtype(), op.result_shape(), op.number("iota_dimension")
    ),
    "convert": lambda op, x: lax.convert_element_type(x, op.result_dtype()),
    "bitcast_convert": lambda op, x: lax.bitcast_convert_type(x, op.result_dtype()),
    "reshape": lambda op, x: lax.reshape(x, op.result_shape()),
    "broadcast_in_dim": lambda op, x: lax.broadcast_in_dim(
        x, op.result_shape(), op.numbers("broadcast_dimensions")
    ),
    "transpose": lambda op, x: lax.transpose(x, op.numbers("permutation")),
    "reverse": lambda op, x: lax.rev(x, op.numbers("dimensions")),
    "concatenate": lambda op, *xs: lax.concatenate(xs, op.number("dimension")),
    "slice": lambda op, x: lax.slice(
        x, op.numbers("start_indices"), op.numbers("limit_indices"), op.numbers("strides")
    ),
    "dynamic_slice": lambda op, x, *at: lax.dynamic_slice(x, at, op.numbers("slice_sizes")),
    "dynamic_update_slice": lambda op, x, part, *at: lax.dynamic_update_slice(x, part, at),
    "pad": lambda op, x, value: lax.pad(
        x, value,
        [*zip(*map(op.numbers, _PADDING), strict=True)],
    ),
    "compare": lambda op, x, y: _COMPARE[op.direction()](x, y),
    "dot_general": _dot_general,
    "gather": _gather,
}  # fmt: skip

# Reductions that JAX has by name; others are handed over as functions.
_REDUCE: dict[str, Callable[..., Any]] = {
    "stablehlo.add": jnp.sum, "stablehlo.maximum": jnp.max, "stablehlo.minimum": jnp.min,
    "stablehlo.multiply": jnp.prod, "stablehlo.and": jnp.all, "stablehlo.or": jnp.any,
}  # fmt: skip


def _reduce(module: Module, op: Op, arrays: Arrays, env: Any) -> Arrays:
    """The results of a reduction, by name where JAX has that name."""
    half, axes = len(arrays) // 2, op.numbers("dimensions")
    (block,) = op.blocks()
    (inside, *more) = [o.operation.name for o in block.operations]
    values, starts = arrays[:half], arrays[half:]
    logical = inside in ("stablehlo.and", "stablehlo.or")
    if len(more) == 1 and inside in _REDUCE and logical == (values[0].dtype == bool):
        total = _REDUCE[inside](values[0], axis=axes).astype(values[0].dtype)
        return [_ELEMENTWISE[inside.removeprefix("stablehlo.")](total, starts[0])]

    def combine(xs: Any, ys: Any) -> Any:
        return tuple(_block(module, block, env, [*xs, *ys]))

    return list(lax.reduce(tuple(values), tuple(starts), combine, axes))


def _while(module: Module, op: Op, arrays: Arrays, env: Any) -> Arrays:
    condition, body = op.blocks()
    return lax.while_loop(
        lambda carry: _block(module, condition, env, carry)[0],
        lambda carry: _block(module, body, env, carry),
        arrays,
    )


def _case(module: Module, op: Op, arrays: Arrays, env: Any) -> Arrays:
    (which,) = arrays
    branches = [lambda block=block: _block(module, block, env, []) for block in op.blocks()]
    if which.dtype == bool:  # of an `if`: true comes first
        return lax.cond(which, *branches)
    return lax.switch(which, branches)


_REGIONS: dict[str, Callable[..., Arrays]] = {
    "reduce": _reduce, "while": _while, "case": _case, "if": _case,
}  # fmt: skip
