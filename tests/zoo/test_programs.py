"""Every tiny program of the zoo runs; the train steps learn; the full ones trace."""

import jax
import numpy as np
import pytest

from shardwright import zoo
from shardwright.errors import ShardwrightError
from shardwright.zoo.example import QUICK

TINY = zoo.programs("tiny")
FULL = zoo.programs("full")
TRAINED = [name for name in TINY if name.endswith("_train")]


@pytest.mark.parametrize("name", [name for name in TINY if name not in TRAINED])
def test_runs_and_is_finite(name: str) -> None:
    example = TINY[name]
    args = zoo.materialize(example)
    for leaf in jax.tree.leaves(jax.jit(example.fn, compiler_options=QUICK)(*args)):
        assert np.all(np.isfinite(leaf)), f"{name} returned {leaf.dtype}{leaf.shape} not finite"


@pytest.mark.parametrize("name", TRAINED)
def test_a_donated_state_learns_one_batch(name: str) -> None:
    example = TINY[name]
    state, batch = zoo.materialize(example, seed=1)
    assert jax.tree.map(_shape, (state, batch)) == jax.tree.map(_shape, example.args)
    step = jax.jit(example.fn, donate_argnums=example.donate_argnums, compiler_options=QUICK)
    losses = []
    for _ in range(8):
        before = jax.tree.map(_shape, state)
        state, loss = step(state, batch)
        losses.append(float(loss))
        assert jax.tree.map(_shape, state) == before
    assert int(state.step) == 8
    assert np.all(np.isfinite(losses))
    assert losses[-1] < 0.97 * losses[0], losses


@pytest.mark.parametrize("name", FULL)
def test_full_sizes_trace_without_allocation(name: str) -> None:
    example = FULL[name]
    jaxpr = jax.make_jaxpr(example.fn)(*example.args)
    if name.endswith("_train"):
        arguments = {x.dtype.name for x in jax.tree.leaves(example.args)}
        computed = {v.aval.dtype.name for eqn in jaxpr.eqns for v in eqn.outvars}
        assert "bfloat16" in computed - arguments


@pytest.mark.parametrize(
    "name, parameters",
    [
        # layers x (norms + q, o + k, v + MLP) + embeddings + last norm
        (
            "llama_train",
            32 * (2 * 4096 + 2 * 4096 * 32 * 128 + 2 * 4096 * 8 * 128 + 3 * 4096 * 14336)
            + 2 * 128256 * 4096
            + 4096,
        ),
        (
            "transformer_train",
            2 * (2 * 2048 + 4 * 2048 * 16 * 128 + 2 * 2048 * 8192) + (32768 + 2048) * 2048 + 2048,
        ),
    ],
)
def test_parameter_counts(name: str, parameters: int) -> None:
    assert sum(leaf.size for leaf in jax.tree.leaves(FULL[name].args[0].params)) == parameters


def test_partir_has_290_parameters_nine_in_each_layer() -> None:
    params = FULL["partir_train"].args[0].params
    assert [len(layer) for layer in params["layers"]] == [9] * 32
    assert len(jax.tree.leaves(params)) == 9 * 32 + 2


@pytest.mark.parametrize("name", TINY)
def test_tiny_batches_and_weights_divide_by_eight(name: str) -> None:
    """All but colours, kernel sides, strides of q, k, v and layer counts: what a mesh may split."""
    sides = {1, 2, 3, 4, 6, 22}  # 6 modulations of DiT; 16 + 6 pairs of the recommender
    for path, leaf in jax.tree_util.tree_leaves_with_path(TINY[name].args):
        uneven = [size for size in leaf.shape if size % 8 and size not in sides]
        assert not uneven, f"{jax.tree_util.keystr(path)} is {leaf.shape}"


def test_unknown_size() -> None:
    with pytest.raises(ShardwrightError, match="unknown size 'huge' of the model zoo\n  try     "):
        zoo.programs("huge")


def _shape(leaf: jax.Array) -> tuple[tuple[int, ...], str]:
    return leaf.shape, str(leaf.dtype)
