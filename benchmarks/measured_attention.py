"""Causal attention as the published runs compute it: kernels, no score matrix in memory.

On TPU it is JAX's splash attention, as in MaxText. Flash attention of GPUs (Triton, cuDNN) is a
stand-in with a rule: it is traced and priced, never run.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)
from jax.extend.core import Primitive

import shardwright as sw
from shardwright.rules import notation


def splash_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, block: int, fused_backward: bool
) -> jax.Array:
    """Causal attention of q [B, S, H, K] over k, v [B, S, N, K]: [B, S, H, K].

    A step works on `block` queries and keys; the backward pass is one kernel or two.
    """
    kernel = _splash_kernel(q.shape[2], q.shape[1], block, fused_backward)
    heads_first = [x.swapaxes(1, 2) for x in (q, k, v)]
    return jax.vmap(kernel)(*heads_first).swapaxes(1, 2)


def _splash_kernel(heads: int, seq: int, block: int, fused_backward: bool) -> Any:
    mask = splash_attention_mask.MultiHeadMask(
        [splash_attention_mask.CausalMask((seq, seq))] * heads
    )
    names = ("block_q", "block_kv", "block_kv_compute")
    names += ("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute")
    names += () if fused_backward else ("block_q_dq", "block_kv_dq")
    sizes = splash_attention_kernel.BlockSizes(
        **dict.fromkeys(names, block), use_fused_bwd_kernel=fused_backward
    )
    return splash_attention_kernel.make_splash_mha(
        mask, block_sizes=sizes, head_shards=1, q_seq_shards=1
    )


# Dots over all pairs of positions: scores and values forward; scores again, dP, dQ, dK, dV
# backward (Dao 2023). A causal kernel computes half of each.
DOTS = {"flash_forward": 2.0, "flash_backward_q": 2.0, "flash_backward_kv": 3.0}
CAUSAL = 0.5
# Of the rate of large dots: FlashAttention-2 (Dao 2023) reaches 335e12 FLOP/s on H100, where these
# reach 722e12, and 190 to 225e12 on A100, where they reach 262e12.
FLASH_EFFICIENCY = 0.6
# The dims of operands and results. Each is priced as one dot of the first two operands. By their
# names it has c, and backward also v, as dims more than the kernel: its FLOP are divided by them.
RULES = {
    "flash_forward": "b s H c, b t n c, b t n v -> b s H v",
    "flash_backward_q": "b s H c, b t n c, b t n v, b s H v, b s H v -> b s H k",
    "flash_backward_kv": "b t n c, b s H c, b t n v, b s H v, b s H v -> b t n k, b t n v",
}


def _primitive(name: str) -> Primitive:
    """A primitive with a rule and a price: batch, heads and queries may be split.

    Queries are taken to be split so that each part has as much of the causal half, as codebases do.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True
    backward_kv = name == "flash_backward_kv"
    primitive.def_abstract_eval(
        lambda x, *_: [jax.core.ShapedArray(x.shape, x.dtype)] * (2 if backward_kv else 1)
    )

    @sw.rule(name)
    def _(op: Any) -> Any:
        query, key = (1, 0) if backward_kv else (0, 1)
        grouped = op.operands[query].shape[2] != op.operands[key].shape[2]
        text = RULES[name].replace("H", "(n g)" if grouped else "n")
        width = op.operands[0].shape[3]
        return notation.apply(
            notation.parse(text), op, reduce={}, unit="matrix",
            replicate="t c v" if name == "flash_forward" else "t c v k",
            work=2.0 * DOTS[name] * CAUSAL / FLASH_EFFICIENCY
            / (width if name == "flash_forward" else width**2),
        )  # fmt: skip

    return primitive


_forward_p, _backward_q_p, _backward_kv_p = map(_primitive, RULES)


@jax.custom_vjp
def flash_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention of q [B, S, H, K] over k, v [B, S, N, K]: [B, S, H, K]."""
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
