"""One op of an example, alone: its shapes for its rule, and what computes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shardwright.rules.examples import Example
from shardwright.rules.rule import OpShape, TensorShape

_DTYPES = {
    "f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16, "c64": jnp.complex64,
    "i32": jnp.int32, "u32": jnp.uint32, "u8": jnp.uint8, "i8": jnp.int8, "bool": jnp.bool_,
}  # fmt: skip


class Isolated(NamedTuple):
    """One equation taken out of the jaxpr of an example."""

    op: OpShape
    bind: Callable[..., list[Any]]  # operands -> results
    literals: dict[int, Any]  # operand -> its value, where the jaxpr spells it


def shapes_of(args: str) -> list[jax.ShapeDtypeStruct]:
    """The arguments that a text like "f32[4,8] i32[3]" spells."""
    out = []
    for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", args):
        shape = tuple(int(d) for d in dims.split(",") if d)
        kind = jax.eval_shape(lambda: jax.random.key(0)).dtype if dtype == "key" else _DTYPES[dtype]
        out.append(jax.ShapeDtypeStruct(shape, kind))
    return out


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation, those of nested jaxprs after the one that holds them."""
    for eqn in jaxpr.eqns:
        yield eqn
        for param in eqn.params.values():
            for nested in param if isinstance(param, (tuple, list)) else (param,):
                nested = getattr(nested, "jaxpr", nested)
                if hasattr(nested, "eqns"):
                    yield from _equations(nested)


def isolate(example: Example) -> Isolated:
    """The first equation of the example's primitive, alone."""
    jaxpr = jax.make_jaxpr(example.fn)(*shapes_of(example.args)).jaxpr
    names = []
    for eqn in _equations(jaxpr):
        names.append(eqn.primitive.name)
        if names[-1] == example.primitive:
            break
    else:
        raise LookupError(f"{example.title}: no {example.primitive!r} among {names}")

    def bind(*operands: Any) -> list[Any]:
        out = eqn.primitive.bind(*operands, **eqn.params)
        return list(out) if eqn.primitive.multiple_results else [out]

    def tensors(variables: Sequence[Any]) -> tuple[TensorShape, ...]:
        return tuple(TensorShape(tuple(v.aval.shape), v.aval.dtype) for v in variables)

    op = OpShape(example.primitive, tensors(eqn.invars), tensors(eqn.outvars), eqn.params)
    literals = {n: v.val for n, v in enumerate(eqn.invars) if hasattr(v, "val")}
    return Isolated(op, bind, literals)
