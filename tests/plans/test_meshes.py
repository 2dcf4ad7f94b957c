"""Meshes that users have: automatic and explicit axes, abstract ones, other orders, too small."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.errors import ShardwrightError
from tests.plans.runs import DEVICES

AXES = {"data": 4, "model": 2}
AUTO, EXPLICIT = (AxisType.Auto,) * 2, (AxisType.Explicit,) * 2
X, W = jnp.arange(128.0).reshape(16, 8) / 128, jnp.ones((8, 32)) / 8


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def make(mesh: Any) -> sw.Plan:
    return sw.partition(
        layer, X, W, mesh=mesh, device=DEVICES["balanced"],
        tactics=[sw.Pin("x", 0, "data"), sw.Pin("w", 1, "model")],
    )  # fmt: skip


GIVEN: dict[str, Callable[[], Any]] = {
    "dict": lambda: AXES,
    "sw.Mesh": lambda: sw.Mesh(AXES),
    "make_mesh, automatic": lambda: jax.make_mesh((4, 2), ("data", "model"), axis_types=AUTO),
    "make_mesh, explicit": lambda: jax.make_mesh((4, 2), ("data", "model"), axis_types=EXPLICIT),
    "Mesh": lambda: jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model")),
    "AbstractMesh": lambda: AbstractMesh((4, 2), ("data", "model")),
}


@pytest.mark.parametrize("given", GIVEN)
def test_plan_for(given: str) -> None:
    plan = make(GIVEN[given]())
    assert plan.mesh.shape == AXES
    assert plan.specs() == {"x": P("data"), "w": P(None, "model")}
    np.testing.assert_allclose(plan.jit(layer)(X, W), layer(X, W), rtol=1e-6)


@pytest.mark.parametrize("given", [k for k in GIVEN if "esh" in k and k != "sw.Mesh"])
def test_run_on(given: str) -> None:
    mesh, plan = GIVEN[given](), make(AXES)
    shardings = plan.in_shardings(mesh)
    assert [s.spec for s in shardings] == [P("data"), P(None, "model")]
    run = plan.jit(layer, mesh=mesh)
    if given == "AbstractMesh":
        assert run.trace(X, W).lower(lowering_platforms=("cpu",)).as_text()
        return
    args = plan.place(X, W, mesh=mesh)
    out = run(*args)
    np.testing.assert_allclose(out, layer(X, W), rtol=1e-6)
    assert out.sharding.is_equivalent_to(plan.out_shardings(mesh), out.ndim)


def test_arguments_on_an_explicit_mesh() -> None:
    """Arrays whose type carries a sharding go in as they are, with and without a mesh set."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=EXPLICIT)
    specs = (P("data"), P(None, "model"))
    args = [
        jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip((X, W), specs, strict=True)
    ]
    plan, want = make(mesh), np.asarray(layer(X, W))
    np.testing.assert_allclose(plan.jit(layer, mesh=mesh)(*args), want, rtol=1e-6)
    with jax.set_mesh(mesh):
        found = sw.partition(layer, *args, mesh=mesh, device=DEVICES["balanced"])
        outs = [
            plan.jit(layer, mesh=mesh)(*args),
            found.jit(layer)(*found.place(*args)),
            found.jit(layer).lower(*args).compile()(*found.place(*args)),
        ]
    for out in outs:
        np.testing.assert_allclose(out, want, rtol=1e-6)


def test_a_loop_under_an_explicit_mesh() -> None:
    """jax.set_mesh(jax.make_mesh(...)), as JAX has it by default: results meet other arrays."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))

    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, grad = jax.value_and_grad(lambda w: layer(x, w).mean())(w)
        return w - grad, loss

    pins = [sw.Pin("x", 0, "data"), sw.Pin("w", 1, "model")]
    options: dict[str, Any] = {"mesh": mesh, "device": DEVICES["balanced"], "tactics": pins}
    plan = sw.partition(step, W, X, donate_argnums=0, **options)
    run, want = plan.jit(step), W
    for _ in range(3):
        want, want_loss = step(want, X)
    with jax.set_mesh(mesh):
        w, x = first, _ = plan.place(np.asarray(W), X)
        assert jax.typeof(2 * w).sharding.spec == plan.specs()["w"]
        for _ in range(3):
            w, loss = run(w, x)
        assert first.is_deleted()
        np.testing.assert_allclose(2 * w, 2 * want, rtol=1e-6)
        np.testing.assert_allclose(loss + 1, want_loss + 1, rtol=1e-6)
        forward = make(mesh).jit(layer)
        both = jax.jit(lambda x, w: 2 * forward(x, w))(x, w)
        np.testing.assert_allclose(both, 2 * layer(X, want), rtol=1e-6)
        grad = jax.grad(lambda w: jnp.sum(2 * forward(x, w)))(w)
        assert jax.typeof(w - grad).sharding.spec == plan.specs()["w"]
        many = jax.vmap(lambda x: forward(x, w))(jnp.stack([X, -X]))
        np.testing.assert_allclose(many[0], layer(X, want), rtol=1e-6)
        np.testing.assert_allclose(  # from anywhere
            run(np.asarray(W), jax.device_put(X, jax.devices()[3]))[1], step(W, X)[1], rtol=1e-5
        )
        assert plan.verify(run=True)


EXPLICIT_PROGRAMS: dict[str, Callable[..., jax.Array]] = {
    "dot": lambda x, w: jnp.tanh(jnp.dot(x, w, out_sharding=P("data", "model"))),
    "einsum": lambda x, w: jnp.tanh(jnp.einsum("ij,jk->ik", x, w, out_sharding=P("data", "model"))),
    "reshape": lambda x, w: jnp.reshape(
        layer(x, w).reshape(-1), (16, 32), out_sharding=P("data", "model")
    ),
    "broadcast": lambda x, w: layer(x, w) + jnp.zeros((16, 32), out_sharding=P("data", "model")),
    "auto_axes": lambda x, w: jax.sharding.auto_axes(layer, out_sharding=P("data", "model"))(
        jax.sharding.reshard(x, P("data")), w
    ),
    "explicit_axes": jax.sharding.explicit_axes(layer, in_sharding=(P("data"), P(None, "model"))),
    "reshard": lambda x, w: jax.sharding.reshard(layer(x, w), P("data", "model")),
    "constraint": lambda x, w: jax.lax.with_sharding_constraint(layer(x, w), P("data", "model")),
}


@pytest.mark.parametrize("name", EXPLICIT_PROGRAMS)
@pytest.mark.parametrize("is_set", [True, False], ids=["mesh set", "mesh given"])
def test_programs_for_an_explicit_mesh(name: str, is_set: bool) -> None:
    """jax.make_mesh gives explicit axes: what a program asks for under them is a pin."""
    fn, mesh = EXPLICIT_PROGRAMS[name], jax.make_mesh((4, 2), ("data", "model"))
    with jax.set_mesh(mesh) if is_set else nullcontext():
        plan = sw.partition(fn, X, W, mesh=mesh, device=DEVICES["balanced"], seconds=0.2)
        np.testing.assert_allclose(plan.jit(fn)(X, W), layer(X, W), rtol=1e-6)
    assert plan.result_specs()["result"] == P("data", "model")
    assert not plan.record.notes
    assert plan.verify(run=True)


def test_what_cannot_be_followed_is_said() -> None:
    """One axis on two dims of one array, one after the other: the first is followed."""

    def there_and_back(x: jax.Array) -> jax.Array:
        y = jnp.sin(jax.sharding.reshard(x, P("data", None)))
        return jnp.cos(jax.sharding.reshard(y, P(None, "data")))

    plan = sw.partition(there_and_back, X, mesh=AXES, device=DEVICES["balanced"], seconds=0.2)
    assert plan.specs()["x"][0] in ("data", ("data", "model"))
    (note,) = plan.record.notes
    assert note.startswith("not followed: reshard(P(None, 'data')) at test_meshes.py:")
    assert note in " ".join(str(plan).split())
    assert plan.verify(run=True)


def test_constraints_that_need_an_order() -> None:
    """The residual stream split by position, the hidden layer by feature: Megatron's layout."""

    def block(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        pin = jax.lax.with_sharding_constraint
        x = pin(jnp.sin(x), P("data", "model", None))
        h = pin(x @ w1, P("data", P.UNCONSTRAINED, "model"))
        return pin(jnp.tanh(h) @ w2, P("data", "model"))

    args = jnp.ones((4, 16, 8)), jnp.ones((8, 32)), jnp.ones((32, 8))
    plan = sw.partition(block, *args, mesh=AXES, device=DEVICES["balanced"], seconds=0.2)
    assert plan.specs() == {
        "x": P("data", "model"), "w1": P(None, "model"), "w2": P("model"),
    }  # fmt: skip
    assert plan.verify(run=True)


WHERE: dict[str, Callable[[], Any]] = {
    "one device": lambda: jax.devices()[3],
    "another mesh": lambda: NamedSharding(jax.make_mesh((8,), ("z",)), P("z")),
    "some devices": lambda: NamedSharding(
        jax.make_mesh((2,), ("z",), devices=jax.devices()[:2]), P("z")
    ),
}


@pytest.mark.parametrize("where", WHERE)
def test_arguments_that_are_elsewhere_are_moved(where: str) -> None:
    x = jax.device_put(X, WHERE[where]())
    for run in (make(AXES).jit(layer), sw.jit(layer, mesh=AXES, device=DEVICES["balanced"])):
        np.testing.assert_allclose(run(x, W), layer(X, W), rtol=1e-6)


def test_axes_in_another_order() -> None:
    mesh = jax.make_mesh((2, 4), ("model", "data"), axis_types=AUTO)
    plan = make(AXES)
    out = plan.jit(layer, mesh=mesh)(*plan.place(X, W, mesh=mesh))
    np.testing.assert_allclose(out, layer(X, W), rtol=1e-6)


def test_some_of_the_devices() -> None:
    plan = make({"data": 2, "model": 2})
    out = plan.jit(layer)(X, W)
    assert len(out.sharding.device_set) == 4


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "too few devices": (
        lambda: make({"data": 8, "model": 4}).jit(layer),
        r"the plan needs 32 devices \(data=8 x model=4\), this process has 8",
    ),
    "too few devices to place on": (
        lambda: make({"data": 8, "model": 4}).place(X, W), "the plan needs 32 devices",
    ),
    "other sizes": (
        lambda: make(AXES).jit(layer, mesh=jax.make_mesh((2, 4), ("data", "model"))),
        "the plan is for a mesh .*'data': 4.*, got one of .*'data': 2",
    ),
    "other names": (
        lambda: make(AXES).jit(layer, mesh=jax.make_mesh((4, 2), ("a", "b"))),
        "the plan is for a mesh",
    ),
    "not a mesh": (lambda: make(AXES).jit(layer, mesh="data=4"), "not a JAX mesh: 'data=4'"),
    "too few to verify on": (
        lambda: make({"data": 8, "model": 4}).verify(), "a 8x4 mesh needs 32 devices",
    ),
    "unknown target": (lambda: make(AXES).verify("abacus:3"), "cannot read target"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_meshes(case: str) -> None:
    act, says = BAD[case]
    with pytest.raises(ShardwrightError, match=says):
        act()


@pytest.mark.parametrize(
    "target, module, extra",
    [("tpu:v5e:4x2", "libtpu", "tpu"), ("cuda:h100:1x8", "jax_cuda", "cuda")],
)
def test_missing_extra(
    target: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec",
        lambda name, *a: None if name.startswith(module) else real(name, *a),
    )  # fmt: skip
    with pytest.raises(ShardwrightError, match=rf"pip install shardwright\[{extra}\]"):
        make(AXES).verify(target)


# sw.jit ---------------------------------------------------------------------------------------


def test_decorator() -> None:
    @sw.jit(mesh=AXES, device=DEVICES["balanced"], seconds=0.2)
    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        """Documented."""
        return jnp.tanh(x @ w)

    np.testing.assert_allclose(f(X, W), layer(X, W), rtol=1e-6)
    assert f.__name__ == "f" and f.__doc__ == "Documented."
    assert f.plan(X, W) is f.plan(X + 1, W)  # planned once
    np.testing.assert_allclose(f(X[:8], W), layer(X[:8], W), rtol=1e-6)  # other shapes: again
    assert f.plan(X, W).specs().keys() == {"x", "w"}
    assert f.lower(X, W).compile() is not None


def test_function_form() -> None:
    f = sw.jit(layer, mesh=AXES, device=DEVICES["balanced"], seconds=0.2)
    np.testing.assert_allclose(f(X, W), layer(X, W), rtol=1e-6)
    grad = jax.grad(lambda w: f(X, w).sum())(W)
    np.testing.assert_allclose(grad, jax.grad(lambda w: layer(X, w).sum())(W), rtol=1e-5)


def test_sw_jit_with_static_and_donated_arguments() -> None:
    f = sw.jit(
        lambda x, n: x * n, mesh=AXES, device=DEVICES["balanced"], seconds=0.2,
        static_argnums=1, donate_argnums=0,
    )  # fmt: skip
    x = f.plan(X, 3).place(np.asarray(X), 3)[0]
    np.testing.assert_allclose(f(x, 3), X * 3)
    assert x.is_deleted()
    np.testing.assert_allclose(f(X + 0, 5), X * 5)


# A PartitionSpec alone, with no mesh set around the function -----------------------------------


def bare(x: jax.Array, w: jax.Array) -> jax.Array:
    y = jax.lax.with_sharding_constraint(layer(x, w), P("data", None))
    return (2 * y).sum(0)


@pytest.mark.parametrize("given", GIVEN)
def test_a_bare_spec_is_a_pin(given: str) -> None:
    """The mesh of the plan says what its axes are; what the plan splits more stays split."""
    options = {"mesh": GIVEN[given](), "device": DEVICES["balanced"], "seconds": 0.2}
    plan = sw.partition(bare, X, W, tactics=[sw.Pin("w", 1, "model")], **options)
    assert plan.specs()["x"] == P("data")
    assert plan.verify(run=True)
    run = plan.jit(bare)
    np.testing.assert_allclose(run(X, W), (2 * layer(X, W)).sum(0), rtol=1e-5)
    assert run.eval_shape(X, W).shape == (32,)
    assert jax.grad(lambda w: run(X, w).sum())(W).shape == W.shape


def test_a_bare_spec_everywhere(tmp_path: Path) -> None:
    options: dict[str, Any] = {"mesh": AXES, "device": DEVICES["balanced"]}
    want = (2 * layer(X, W)).sum(0)
    np.testing.assert_allclose(sw.jit(bare, seconds=0.2, **options)(X, W), want, rtol=1e-5)
    assert sw.analyze(bare, X, W, mesh=AXES).program.pins
    found = sw.check(bare, X, W, in_shardings=(P("data"), P()), seconds=0.2, **options)
    np.testing.assert_allclose(found.plan.jit()(X, W), want, rtol=1e-5)
    plan = sw.partition(bare, X, W, seconds=0.2, **options)
    plan.save(tmp_path / "plan.json")
    loaded = sw.load(tmp_path / "plan.json")
    np.testing.assert_allclose(loaded.jit(bare)(X, W), want, rtol=1e-5)
    assert sw.partition(bare, X, W, **options | {"mesh": 8}, seconds=0.2).verify(run=True)


def test_a_bare_spec_that_nothing_explains() -> None:
    with pytest.raises(ShardwrightError, match="requires a non-empty mesh") as error:
        sw.trace(bare, X, W)
    assert error.value.facts["try"] == (
        "give the mesh whose axes it names: under jax.set_mesh(mesh), or with mesh=... of"
        " partition(), check() or analyze()"
    )
    plan = sw.partition(
        lambda x: jax.lax.with_sharding_constraint(x, P("datum")), X, mesh=AXES, seconds=0.2
    )
    (note,) = plan.record.notes
    assert note.startswith("not followed: the mesh has no axis 'datum'")


def test_a_shard_map_without_a_mesh() -> None:
    def mapped(x: jax.Array, w: jax.Array) -> jax.Array:
        specs = (P("data"), P(None, "model"))
        return jax.shard_map(layer, in_specs=specs, out_specs=P("data", "model"))(x, w)

    plan = sw.partition(mapped, X, W, mesh=AXES, device=DEVICES["balanced"], seconds=0.2)
    assert plan.record.opaque == {}
    assert plan.specs() == {"x": P("data"), "w": P(None, "model")}
    np.testing.assert_allclose(plan.jit(mapped)(X, W), layer(X, W), rtol=1e-6)
    assert plan.verify(run=True).numbers_agree


def test_the_users_own_mesh_comes_first() -> None:
    """Under a mesh that is set, a function sees that mesh and no other."""
    seen = []

    def look(x: jax.Array) -> jax.Array:
        seen.append(jax.sharding.get_abstract_mesh().axis_names)
        return x * 2

    sw.partition(look, X, mesh=AXES, seconds=0.2)
    with jax.set_mesh(jax.make_mesh((8,), ("z",))):
        sw.partition(look, X, mesh=AXES, seconds=0.2)
    assert seen == [(), ("z",)]
