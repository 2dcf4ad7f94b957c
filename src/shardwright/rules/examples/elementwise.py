"""Examples of elementwise ops."""

# One example per line, however long.
# fmt: off
# ruff: noqa: E501
from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwright.rules.examples.example import Example, bind

_UNARY = {
    "abs": lax.abs, "acos": lax.acos, "asin": lax.asin, "asinh": lax.asinh,
    "atan": lax.atan, "atanh": lax.atanh, "bessel_i0e": lax.bessel_i0e,
    "bessel_i1e": lax.bessel_i1e, "cbrt": lax.cbrt, "ceil": lax.ceil, "cos": lax.cos,
    "cosh": lax.cosh, "digamma": lax.digamma, "erf": lax.erf, "erf_inv": lax.erf_inv,
    "erfc": lax.erfc, "exp": lax.exp, "exp2": lax.exp2, "expm1": lax.expm1, "floor": lax.floor,
    "integer_pow": lambda x: x**3, "is_finite": lax.is_finite, "lgamma": lax.lgamma,
    "log": lax.log, "log1p": lax.log1p, "logistic": lax.logistic, "neg": lax.neg,
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 10),
    "round": lax.round, "rsqrt": lax.rsqrt, "sign": lax.sign, "sin": lax.sin, "sinh": lax.sinh,
    "sqrt": lax.sqrt, "square": lax.square, "tan": lax.tan, "tanh": lax.tanh,
}
_BINARY = {
    "add": lax.add, "add_any": bind("add_any"), "atan2": lax.atan2, "complex": lax.complex,
    "div": lax.div, "eq": lax.eq, "eq_to": bind("eq_to"), "ge": lax.ge, "gt": lax.gt,
    "igamma": lax.igamma, "igamma_grad_a": lax.igamma_grad_a, "igammac": lax.igammac,
    "le": lax.le, "le_to": bind("le_to"), "lt": lax.lt, "lt_to": bind("lt_to"), "max": lax.max,
    "min": lax.min, "mul": lax.mul, "ne": lax.ne, "nextafter": lax.nextafter,
    "polygamma": lax.polygamma, "pow": lax.pow, "rem": lax.rem, "sub": lax.sub, "zeta": lax.zeta,
}
_INTEGER_UNARY = {"clz": lax.clz, "not": lax.bitwise_not, "population_count": lax.population_count}
_INTEGER_BINARY = {
    "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor,
    "mulhi": bind("mulhi"), "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical,
}
_ONE = "([i,j])->([i,j]) {i=4,j=8}"
_TWO = "([i,j],[i,j])->([i,j]) {i=4,j=8}"
_THREE = "([i,j],[i,j],[i,j])->([i,j]) {i=4,j=8}"

EXAMPLES = [
    *(Example(name, fn, "f32[4,8]", _ONE) for name, fn in _UNARY.items()),
    *(Example(name, fn, "f32[4,8] f32[4,8]", _TWO) for name, fn in _BINARY.items()),
    *(Example(name, fn, "i32[4,8]", _ONE) for name, fn in _INTEGER_UNARY.items()),
    *(Example(name, fn, "i32[4,8] i32[4,8]", _TWO) for name, fn in _INTEGER_BINARY.items()),
    Example("acosh", lax.acosh, "f32[4,8]", _ONE, prepare=lambda x: [x + 1]),
    *(Example(name, fn, "c64[4,8]", _ONE)
      for name, fn in {"conj": lax.conj, "real": lax.real, "imag": lax.imag}.items()),
    Example("regularized_incomplete_beta", lax.betainc, "f32[4,8] f32[4,8] f32[4,8]", _THREE),
    Example("add", lambda x, y: x + y, "f32[4,8] f32[]", "([i,j],[])->([i,j]) {i=4,j=8}", "scalar"),
    Example("add", lambda x: x + 1, "f32[4,8]", "([i,j],[])->([i,j]) {i=4,j=8}", "literal"),
    Example("mul", bind("mul"), "f32[4,8] f32[4,1]", "([i,j],[i,1])->([i,j]) {i=4,j=8}", "broadcast"),
    Example("exp", lax.exp, "bf16[4,1,8]", "([i,1,j])->([i,1,j]) {i=4,j=8}", "a dim of size 1"),
    Example("clamp", lax.clamp, "f32[] f32[4,8] f32[]", "([],[i,j],[])->([i,j]) {i=4,j=8}"),
    Example("clamp", lax.clamp, "f32[4,8] f32[4,8] f32[4,8]", _THREE),
    Example("select_n", lambda p, x, y: lax.select(p, x, y), "bool[4,8] f32[4,8] f32[4,8]", _THREE),
    Example("select_n", lambda p, x, y: lax.select(p, x, y), "bool[] f32[4,8] f32[4,8]", "([],[i,j],[i,j])->([i,j]) {i=4,j=8}", "scalar predicate"),
    Example("select_n", lambda p, x, y, z: lax.select_n(p, x, y, z), "i32[4,8] f32[4,8] f32[4,8] f32[4,8]", "([i,j],[i,j],[i,j],[i,j])->([i,j]) {i=4,j=8}", "three cases", prepare=lambda p, *x: [jnp.minimum(p, 2), *x]),
    Example("convert_element_type", lambda x: x.astype(jnp.bfloat16), "f32[4,8]", _ONE),
    Example("convert_element_type", lambda x: x.astype(jnp.int32), "f32[4,8]", _ONE, "to integer"),
    Example("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.uint32), "f32[4,8]", _ONE),
    Example("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.uint8), "f32[4,8]", "([i,j])->([i,j,k]) {i=4,j=8,k=4} need_replication={k}", "narrower"),
    Example("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.float32), "u8[8,4]", "([i,j])->([i]) {i=8,j=4} need_replication={j}", "wider", prepare=lambda x: [jnp.ones_like(x) * 60]),
    Example("copy", lambda x: jnp.copy(x), "f32[4,8]", _ONE),
    Example("stop_gradient", bind("stop_gradient"), "f32[4,8]", _ONE),
    Example("name", lambda x: checkpoint_name(x, "x"), "f32[4,8]", _ONE),
]
