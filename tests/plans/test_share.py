"""Functions over the same parameters: placed alike, and what each pays for that."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shardwright as sw
from shardwright.several.share import same_arrays
from tests.plans.runs import DEVICES

OPTIONS: dict[str, Any] = {
    "mesh": {"data": 4, "model": 2}, "device": DEVICES["balanced"], "seconds": 0.1,
}  # fmt: skip
KEY, BATCH, PROMPT = jax.random.key(0), jnp.ones((256, 32)), jnp.ones((8, 32))
OPTIMIZER = optax.adam(1e-2)


def forward(params: Any, x: jax.Array) -> jax.Array:
    for layer in params["layers"]:
        x = x + jax.nn.relu(x @ layer["up"]) @ layer["down"]
    return x


def init(key: jax.Array) -> tuple[Any, Any]:
    def matrix(n: int, shape: tuple[int, int]) -> jax.Array:
        return jax.random.normal(jax.random.fold_in(key, n), shape) / 16

    params = {"layers": [{"up": matrix(0, (32, 128)), "down": matrix(1, (128, 32))}]}
    return params, OPTIMIZER.init(params)


def train(params: Any, opt_state: Any, batch: jax.Array) -> tuple[Any, Any, jax.Array]:
    loss, grads = jax.value_and_grad(lambda p: jnp.mean(forward(p, batch) ** 2))(params)
    updates, opt_state = OPTIMIZER.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def evaluate(weights: Any, batch: jax.Array) -> jax.Array:
    return jnp.mean(forward(weights, batch) ** 2)


def generate(params: Any, prompt: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 8, lambda _, x: forward(params, x) / 2, prompt)


@functools.cache
def state() -> tuple[Any, Any]:
    return init(KEY)


@functools.cache
def trained() -> sw.Plan:
    tactics = [sw.FSDP("data"), sw.Megatron("model")]
    return sw.partition(
        train, *state(), BATCH, donate_argnums=(0, 1), **OPTIONS | {"tactics": tactics}
    )


OTHERS: dict[str, tuple[Any, Any]] = {
    "evaluate": (evaluate, lambda: (state()[0], BATCH)),
    "generate": (generate, lambda: (state()[0], PROMPT)),
    "init": (init, lambda: (KEY,)),
}


@functools.cache
def shared(name: str) -> sw.Plan:
    fn, args = OTHERS[name]
    return sw.partition(fn, *args(), share=trained(), **OPTIONS)


@pytest.mark.parametrize("name", ["evaluate", "generate"])
def test_parameters_are_where_the_other_plan_has_them(name: str) -> None:
    plan, theirs = shared(name), list(trained().specs().values())[:2]
    assert list(plan.specs().values())[:2] == theirs and any(theirs)
    (note,) = plan.record.notes
    assert note.startswith("2 arrays are placed as in the plan of train: ") and " alone (+" in note
    assert plan.verify().ok
    fn, args = OTHERS[name]
    placed, *_ = trained().place(*state(), BATCH)  # as a train step leaves them
    got = plan.jit(fn)(placed, *args()[1:])
    np.testing.assert_allclose(got, fn(*args()), rtol=1e-4)


def test_an_init_makes_the_state_where_it_is_trained() -> None:
    results, theirs = shared("init").result_specs(), trained().specs()
    assert list(results.values()) == list(theirs.values())[: len(results)]
    params, opt_state = shared("init").jit(init)(KEY)
    step = trained().jit(train)
    for _ in range(3):
        params, opt_state, _ = step(params, opt_state, BATCH)
    want = state()
    for _ in range(3):
        *want, _ = jax.jit(train)(*want, BATCH)
    for a, b in zip(jax.tree.leaves((params, opt_state)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_what_an_argument_says_of_itself_and_is_not_followed_is_told() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    where = jax.sharding.NamedSharding(mesh, jax.P("model"))
    weights = jax.tree.map(lambda x: jax.device_put(x, where), state()[0])
    plan = sw.partition(evaluate, weights, BATCH, share=trained(), **OPTIONS)
    assert plan.specs() == shared("evaluate").specs()
    told = [note for note in plan.record.notes if note.startswith("not followed: sharding(")]
    assert len(told) == 2 and told[0].endswith("at weights['layers'][0]['down'], which is shared")


def test_a_plan_from_a_file_is_shared_and_a_shared_plan_is_saved(tmp_path: Path) -> None:
    trained().save(tmp_path / "train.json")
    again = sw.partition(
        evaluate, state()[0], BATCH, share=sw.load(tmp_path / "train.json"), **OPTIONS
    )
    assert not again.diff(shared("evaluate"))
    again.save(tmp_path / "evaluate.json")
    run = sw.load(tmp_path / "evaluate.json").jit(evaluate)
    np.testing.assert_allclose(run(state()[0], BATCH), evaluate(state()[0], BATCH), rtol=1e-5)


@functools.cache
def alone(name: str) -> sw.Plan:
    fn, args = {**OTHERS, "train": (train, lambda: (*state(), BATCH))}[name]
    return sw.partition(fn, *args(), **OPTIONS)


@pytest.mark.parametrize(("weight", "favoured"), [(1e-3, "train"), (1e3, "generate")])
def test_calls_with_weights_are_planned_for_together(weight: float, favoured: str) -> None:
    call = sw.Call(generate, state()[0], PROMPT, weight=weight)
    both = sw.partition(train, *state(), BATCH, share=call, **OPTIONS)
    note = both.record.notes[0]
    assert "for 2 functions: train x 1 " in note and f"; generate x {weight:g} " in note
    paths = [path for path in both.specs() if path.startswith("params")]
    assert [both.specs()[p] for p in paths] == [alone(favoured).specs()[p] for p in paths]
    assert alone("train").specs() != alone("generate").specs()  # they would not agree by chance
    # no worse than where either of them would have the parameters
    mine = both.cost.step_s + weight * seconds("generate", both)
    assert mine <= seconds("train", alone("generate")) + weight * alone("generate").cost.step_s
    assert mine <= alone("train").cost.step_s + weight * seconds("generate", alone("train"))


def seconds(name: str, plan: sw.Plan) -> float:
    """Predicted seconds of a function that shares the parameters of a plan."""
    fn, args = {**OTHERS, "train": (train, lambda: (*state(), BATCH))}[name]
    return sw.partition(fn, *args(), share=plan, **OPTIONS).cost.step_s * (1 - 1e-9)


@pytest.mark.parametrize(
    ("mine", "theirs", "same"),
    [
        ({"p['w']": "f32[4,8]"}, {"s.params['w']": "f32[4,8]"}, {"p['w']": "s.params['w']"}),
        # another dtype is the same array, another shape is not
        ({"p['w']": "bf16[4,8]"}, {"p['w']": "f32[4,8]"}, {"p['w']": "p['w']"}),
        ({"p['w']": "f32[8,4]"}, {"p['w']": "f32[4,8]"}, {}),
        # moments are called like their parameters, in a longer path
        ({"p['w']": "f32[4]"}, {"o.mu['w']": "f32[4]", "q['w']": "f32[4]"}, {"p['w']": "q['w']"}),
        (
            {"s.params['w']": "f32[4]", "s.opt[0].mu['w']": "f32[4]"}, {"params['w']": "f32[4]"},
            {"s.params['w']": "params['w']"},
        ),
        # an attribute and a key
        ({"model.up.kernel": "f32[4]"}, {"p['up']['kernel']": "f32[4]"},
         {"model.up.kernel": "p['up']['kernel']"}),
        ({"a['layers'][0]['w']": "f32[4]"}, {"b['layers'][1]['w']": "f32[4]"},
         {"a['layers'][0]['w']": "b['layers'][1]['w']"}),
        ({"x": "f32[4]"}, {"y": "f32[4]"}, {}),
    ],
)  # fmt: skip
def test_which_arrays_are_the_same(
    mine: dict[str, str], theirs: dict[str, str], same: dict[str, str]
) -> None:
    assert same_arrays(mine, theirs) == same


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no plan": (
        evaluate, {"share": "train"},
        "share= takes plans and sw.Calls, one or a list, got 'train'\n"
        "  try     share=plan, or share=[sw.Call(evaluate, params, batch, weight=0.1)]",
    ),
    "another mesh": (
        evaluate, {"mesh": {"data": 8}},
        "share= has a plan of train for a mesh data=4 x model=2, and one for data=8\n"
        "  try     one mesh for all functions that share parameters: mesh=plan.mesh",
    ),
    "nothing in common": (
        lambda weights, batch: batch @ weights["layers"][0]["up"][:, :8], {"rename": True},
        "<lambda> has no array in common with train\n"
        "  mine    weights['other']\n"
        "  theirs  params['layers'][0]['down'], params['layers'][0]['up'],",
    ),
    "contradiction": (
        evaluate, {"tactics": [sw.Pin("*['up']", 0, "data")]},
        "contradictory pins on weights['layers'][0]['up']: it is shared with another plan\n"
        "  one     dim 1 over data and model\n"
        "  other   Pin(\"*['up']\", 0, 'data')\n"
        "  try     the same Pin for the plan that is shared, or no Pin here",
    ),
    "plans and calls": (
        evaluate, {"both": True},
        "share= has plans, whose parameters have their place, and calls to find one for\n"
        "  try     plan the calls first, and share that plan",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    fn, given, text = BAD[name]
    weights, more = state()[0], dict(given)
    if more.pop("rename", False):
        weights = {"other": jnp.ones((32, 64))}
        fn = lambda weights, batch: batch @ weights["other"]  # noqa: E731
    if more.pop("both", False):
        more["share"] = [trained(), sw.Call(generate, state()[0], PROMPT)]
    with pytest.raises(sw.ShardwrightError) as error:
        sw.partition(fn, weights, BATCH, **OPTIONS | {"share": trained()} | more)
    assert str(error.value).startswith(text)


def test_a_shared_plan_that_does_not_fit_is_told() -> None:
    split = sw.partition(generate, state()[0], PROMPT, **OPTIONS)
    whole = sw.partition(train, *state(), BATCH, **OPTIONS | {"tactics": sw.DataParallel("data")})
    memory = (split.cost.peak_bytes + sum(x.nbytes for x in jax.tree.leaves(state()[0]))) // 2
    with pytest.raises(sw.ShardwrightError) as error:
        sw.partition(generate, state()[0], PROMPT, share=whole, memory=memory, **OPTIONS)
    first, *lines = str(error.value).splitlines()
    assert first.endswith(
        "per device for generate with 2 arrays placed as in the plan of train"
    ) and first.startswith("no plan fits ")
    assert any(line.startswith("  at peak params['layers']") for line in lines)
    assert any(line.startswith("  alone   ") for line in lines)
    assert lines[-1].startswith("  try     share=[sw.Call(generate, ...)] where train is planned")


def test_a_weight_is_a_positive_number() -> None:
    with pytest.raises(sw.ShardwrightError, match="weight must be a positive number, got 0"):
        sw.Call(evaluate, weight=0)
