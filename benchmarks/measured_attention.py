"""Causal flash attention as ops of their own: no score matrix in memory.

A stand-in for the kernels of the published runs (splash attention on TPU, Triton and cuDNN flash
attention on GPU). It is traced and priced, never run.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Primitive

import shardwright as sw
from shardwright.rules import notation

# Dots over all pairs of positions: scores and values forward; scores again, dP, dQ, dK, dV
# backward (Dao 2023). A causal kernel computes half of each.
DOTS = {"flash_forward": 2.0, "flash_backward_q": 2.0, "flash_backward_kv": 3.0}
CAUSAL = 0.5
# The dims of operands and results; the first two operands are those of the dot it is priced as,
# which sums over c besides what the kernel sums over, so its FLOP are divided by c.
RULES = {
    "flash_forward": "b s H c, b t n k, b t n k -> b s H k",
    "flash_backward_q": "b s H c, b t n k, b t n k, b s H k, b s H k -> b s H k",
    "flash_backward_kv": "b t n c, b s H k, b t n k, b s H k, b s H k -> b t n k, b t n k",
}


def _primitive(name: str) -> Primitive:
    """A primitive with a rule and a price: batch and heads may be split."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    results = 2 if name == "flash_backward_kv" else 1
    primitive.def_abstract_eval(lambda x, *_: [jax.core.ShapedArray(x.shape, x.dtype)] * results)

    @sw.rule(name)
    def _(op: Any) -> Any:
        query, key = (1, 0) if name == "flash_backward_kv" else (0, 1)
        grouped = op.operands[query].shape[2] != op.operands[key].shape[2]
        text = RULES[name].replace("H", "(n g)" if grouped else "n")
        return notation.apply(
            notation.parse(text), op, reduce={}, replicate="s t c k", unit="matrix",
            work=2.0 * DOTS[name] * CAUSAL / op.operands[0].shape[3],
        )  # fmt: skip

    return primitive


_forward_p, _backward_q_p, _backward_kv_p = map(_primitive, RULES)


@jax.custom_vjp
def flash_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention of q [B, S, H, K] over k, v [B, T, N, K]: [B, S, H, K]."""
    return _forward_p.bind(q, k, v)[0]


def _forward(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
    out = flash_attention(q, k, v)
    return out, (q, k, v, out)


def _backward(kept: Any, d_out: jax.Array) -> tuple[jax.Array, ...]:
    q, k, v, out = kept
    (dq,) = _backward_q_p.bind(q, k, v, out, d_out)
    dk, dv = _backward_kv_p.bind(k, q, v, out, d_out)
    return dq, dk, dv


flash_attention.defvjp(_forward, _backward)
