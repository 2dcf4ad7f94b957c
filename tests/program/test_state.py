"""Which results of a step are its arguments of the next one: stored alike unless tie=False."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright.program.tracing import trace_call

W = jax.ShapeDtypeStruct((16, 16), "float32")
PARAMS, X = {"a": W, "b": W}, jax.ShapeDtypeStruct((32, 16), "float32")


class State(NamedTuple):
    params: Any
    step: Any


STATE = State(PARAMS, jax.ShapeDtypeStruct((), "int32"))


def moved(params: Any, x: Any) -> Any:
    return jax.tree.map(lambda w: w - x.mean(), params)


@pytest.mark.parametrize(
    "fn, args, expected",
    [
        (moved, (PARAMS, X), {"result['a']": "params['a']", "result['b']": "params['b']"}),
        # Items of tuples, lists and dicts are looked through; other results are left alone.
        (lambda p, x: {"loss": x.mean(), "p": [moved(p, x)]}, (PARAMS, X),
         {"result['p'][0]['a']": "p['a']", "result['p'][0]['b']": "p['b']"}),
        (lambda s, x: (State(moved(s.params, x), s.step + 1), x.mean()), (STATE, X),
         {"result[0].params['a']": "s.params['a']", "result[0].params['b']": "s.params['b']",
          "result[0].step": "s.step"}),
        # Two of one structure, in order; a third has the first.
        (lambda p, q, x: (moved(p, x), moved(q, x), moved(q, x)), ({"w": W}, {"w": W}, X),
         {"result[0]['w']": "p['w']", "result[1]['w']": "q['w']", "result[2]['w']": "p['w']"}),
        # Another dtype, another structure, or a bare array, which has none.
        (lambda p, x: jax.tree.map(lambda w: w.astype("bfloat16"), p), (PARAMS, X), {}),
        (lambda p, x: {"a": p["a"] * 2}, (PARAMS, X), {}),
        (lambda x: x * 2, (X,), {}),
    ],
    ids=["tree", "items", "named tuple", "in order", "dtype", "structure", "bare"],
)  # fmt: skip
def test_updates(fn: Any, args: Any, expected: dict[str, str]) -> None:
    program = trace_call(fn, args, {}, tie=True)
    found = {program.output_paths[i]: program.values[v].path for i, v in program.updates.items()}
    assert found == expected
    assert not trace_call(fn, args, {}).updates  # the program alone, as it is written


def test_results_are_stored_like_the_arguments_they_become() -> None:
    def step(params: Any, x: Any) -> Any:
        return {k: x.T @ (x @ w) for k, w in params.items()}

    options: dict[str, Any] = {"mesh": {"d": 8}, "seconds": 0.05, "tactics": [sw.Pin("x", 1, "d")]}
    tied, free = (sw.partition(step, PARAMS, X, tie=tie, **options) for tie in (True, False))
    for name in PARAMS:
        assert tied.result_specs()[f"result['{name}']"] == tied.specs()[f"params['{name}']"]
    assert tied.cost.step_s >= free.cost.step_s  # bringing them back is priced
    notes = tied.record.notes
    assert notes[0] == (
        "results are stored like the arguments they become in the next step: params (tie=False"
        " lets them differ)"
    )
    assert "donate_argnums=(0) saves that" in notes[1] and not free.record.notes
    assert not sw.partition(step, PARAMS, X, donate_argnums=0, **options).record.notes


def test_a_saved_plan_stays_tied(tmp_path: Any) -> None:
    params = jax.tree.map(lambda s: jnp.ones(s.shape), PARAMS)
    plan = sw.partition(moved, params, jnp.ones(X.shape), mesh={"d": 8}, seconds=0.05)
    plan.save(tmp_path / "plan.json")
    loaded = sw.load(tmp_path / "plan.json")
    assert loaded.record.asked.tie
    assert loaded.bind(moved, params, jnp.ones(X.shape)).result_specs() == plan.result_specs()
