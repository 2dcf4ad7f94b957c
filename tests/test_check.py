"""sw.check judges a hand-written sharding: cost, memory, movements, warnings, a better plan."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw

B, D, F = 4096, 1024, 8192
MESH = {"data": 4, "model": 2}


def mlp(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["up"]) @ params["down"]


def arguments(width: int = F) -> tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
    f32 = jnp.float32
    params = {
        "up": jax.ShapeDtypeStruct((D, width), f32),
        "down": jax.ShapeDtypeStruct((width, D), f32),
    }
    return params, jax.ShapeDtypeStruct((B, D), f32)


def test_megatron_by_hand_is_one_all_reduce() -> None:
    specs = ({"up": P(None, "model"), "down": P("model")}, P("data"))
    judged = sw.check(mlp, *arguments(), mesh=MESH, in_shardings=specs, device="h100")
    assert judged.warnings == [] and judged.ok
    (move,) = judged.collectives
    # The result may be kept split over model: then the sum is scattered.
    assert move.kind in ("all-reduce", "reduce-scatter") and move.axes == ("model",)
    assert move.bytes == 4 * (B // 4) * D
    assert {path: str(s) for path, s in judged.plan.specs().items()} == {
        "params['down']": str(P("model")), "params['up']": str(P(None, "model")),
        "x": str(P("data")),
    }  # fmt: skip
    assert str(judged).startswith("step ")


def test_replicated_weights_are_named_and_a_better_plan_is_shown() -> None:
    judged = sw.check(mlp, *arguments(), mesh=MESH, in_shardings=(None, None), device="h100")
    assert judged.warnings == [
        "params['down'] (33.6 MB) is replicated on every device",
        "params['up'] (33.6 MB) is replicated on every device",
        "x (16.8 MB) is replicated on every device",
    ]
    assert judged.better is not None
    assert judged.better.cost.step_s < judged.cost.step_s and 0 < judged.saves < 1
    assert "a better plan takes" in str(judged)


def test_a_dim_that_does_not_divide_is_named() -> None:
    specs = ({"up": P(None, "data"), "down": None}, None)
    judged = sw.check(
        mlp, *arguments(width=8190), mesh=MESH, in_shardings=specs, device="h100", compare=False
    )
    assert judged.warnings[0] == (
        "params['up'] dim 1 of size 8190 does not divide by 4 (data): JAX will refuse it;"
        " counted as replicated"
    )


def test_over_memory_is_said() -> None:
    judged = sw.check(
        mlp, *arguments(), mesh=MESH, in_shardings=(None, None), device="h100", memory=2e8,
        compare=False,
    )  # fmt: skip
    assert judged.warnings[0].endswith(" per device of 200.0 MB")
    assert "over memory" in str(judged.plan)


def test_where_nothing_fits_the_sharding_is_judged_all_the_same() -> None:
    judged = sw.check(
        mlp, *arguments(), mesh=MESH, in_shardings=(None, None), device="h100", memory=1e6
    )
    assert judged.better is None
    assert judged.warnings[0].startswith("does not fit: ")


def test_saved_plans_of_a_check_know_static_and_donated_arguments(tmp_path: Path) -> None:
    def step(w: jax.Array, times: int, x: jax.Array) -> jax.Array:
        return w - times * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

    weights, x = jax.ShapeDtypeStruct((D, D), jnp.float32), arguments()[1]
    judged = sw.check(
        step, weights, 3, x, mesh=MESH, in_shardings=(None, None), device="h100",
        static_argnums=1, donate_argnums=0,
    )  # fmt: skip
    assert judged.better is not None
    for plan in (judged.plan, judged.better):
        plan.save(tmp_path / "plan.json")
        again = sw.load(tmp_path / "plan.json").bind(step, weights, 3, x)
        assert str(again.ir()) == str(plan.ir())


def test_bad_memory() -> None:
    with pytest.raises(sw.ShardwrightError, match="memory must be a positive number of bytes"):
        sw.check(mlp, *arguments(), mesh=MESH, in_shardings=(None, None), memory="16GB")


@pytest.mark.parametrize(
    "specs, text",
    [
        ((None,), "in_shardings has 1 entries for 2 arguments"),
        ((None, P("rows")), "x is to be split over 'rows', which the mesh does not have"),
        ((None, P("data", None, "model")), "x has 2 dims, its PartitionSpec 3"),
        ((None, P("data", "data")), "x is to be split over 'data' twice"),
        ((None, P(P.UNCONSTRAINED)), "x: cannot judge what is left to the compiler"),
        ((None, 3), "x: cannot judge a int"),
        (({"up": P()}, None), "the in_shardings of 'params' have another structure"),
    ],
)
def test_bad_shardings(specs: tuple[object, ...], text: str) -> None:
    with pytest.raises(sw.ShardwrightError, match=text):
        sw.check(mlp, *arguments(), mesh=MESH, in_shardings=specs, device="h100")


def test_what_was_given_by_hand_survives_a_file(tmp_path: Path) -> None:
    """Two arguments of one form, split otherwise: a search would not tell them apart."""

    def add(a: jax.Array, n: int, b: jax.Array) -> jax.Array:
        return jnp.tanh(a) * n + b

    x = jnp.arange(128.0).reshape(16, 8)
    judged = sw.check(
        add, x, 3, x, mesh=MESH, in_shardings=(P("data"), P("model")), static_argnums=1, seconds=0.2
    )
    judged.plan.save(tmp_path / "plan.json")
    loaded = sw.load(tmp_path / "plan.json").bind(add, x, 3, x)
    assert [s.spec for s in loaded.in_shardings()] == [P("data"), P("model")]
    assert str(loaded.ir()) == str(judged.plan.ir())
    assert judged.better is not None
    judged.better.save(tmp_path / "plan.json")
    run = sw.load(tmp_path / "plan.json").jit(add)
    np.testing.assert_allclose(run(x, 3, x), add(x, 3, x), rtol=1e-6)
