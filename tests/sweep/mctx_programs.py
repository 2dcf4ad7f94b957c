"""Tree searches of mctx: a policy for a batch of roots, with a learned model."""

from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np

from tests.frameworks.shapes import Program
from tests.sweep.steps import weight

BATCH, EMBEDDING, ACTIONS, SIMULATIONS = 16, 16, 8, 8


def _search(policy: Any) -> Program:
    params = {"move": weight(EMBEDDING + ACTIONS, EMBEDDING), "head": weight(EMBEDDING, ACTIONS),
              "value": weight(EMBEDDING, 1)}  # fmt: skip

    def recurrent(params: Any, _: Any, action: jax.Array, embedding: jax.Array) -> Any:
        told = jnp.concatenate([embedding, jax.nn.one_hot(action, ACTIONS)], -1)
        following = jnp.tanh(told @ params["move"])
        value = (following @ params["value"])[:, 0]
        output = mctx.RecurrentFnOutput(
            reward=following[:, 0], discount=jnp.full(BATCH, 0.9),
            prior_logits=following @ params["head"], value=value,
        )  # fmt: skip
        return output, following

    def act(params: Any, key: jax.Array, embedding: jax.Array) -> Any:
        root = mctx.RootFnOutput(
            prior_logits=embedding @ params["head"], value=(embedding @ params["value"])[:, 0],
            embedding=embedding,
        )  # fmt: skip
        found = policy(params, key, root, recurrent, num_simulations=SIMULATIONS)
        return found.action, found.action_weights

    start = np.random.default_rng(0).normal(size=(BATCH, EMBEDDING)).astype(np.float32)
    return act, (params, jax.random.key(0), start)


def muzero() -> Program:
    """MuZero's search, with noise at the root."""
    return _search(mctx.muzero_policy)


def gumbel_muzero() -> Program:
    """Sequential halving over sampled actions."""
    return _search(mctx.gumbel_muzero_policy)
