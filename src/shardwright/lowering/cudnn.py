"""cuDNN's attention on shards: what its mask says of some of the queries, as a bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from shardwright import _jax
from shardwright.lowering.specs import Spec

CUDNN_ATTENTION = ("dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper")
_HEADS_FIRST = 1  # AttentionLayout.BNTH
_BIAS = 3  # the operand


def attention_on_shards(eqn: Any, shards: Sequence[Any], specs: Sequence[Spec]) -> list[Any]:
    """The results of one device. Where it has a part of the queries, cuDNN gets no mask of its own.

    It would count queries from the first one here.
    """
    params, at = eqn.params, 2 if eqn.params["layout"] == _HEADS_FIRST else 1
    queries, keys = shards[0].shape[at], shards[1].shape[at]
    window = params["sliding_window_length"]
    mask, no_mask = params["mask_type"], _jax.no_cudnn_mask(params["mask_type"])
    if not specs[0][at] or (mask is no_mask and not window):
        return _jax.bind(eqn, list(shards))
    row = jax.lax.axis_index(specs[0][at]) * queries + jnp.arange(queries)[:, None]
    column = jnp.arange(keys)
    seen = row >= column  # a window reaches to the left
    if window:
        seen &= row - column < window
    has_bias, has_gradient = params["variadic_args"]
    bias = _jax.masked_bias(shards[_BIAS] if has_bias else None, seen, shards[0].dtype)
    given = [*shards[:_BIAS], bias, *shards[_BIAS + 1 :]]
    return _jax.bind(
        eqn, given, mask_type=no_mask, sliding_window_length=None,
        variadic_args=(True, has_gradient),
    )  # fmt: skip
