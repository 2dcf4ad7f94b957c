"""shard_maps: specs split what enters and leaves, bodies are priced on shards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardwright as sw
from tests.program.invariants import check

MESH = {"data": 4, "model": 2}
B, D, F, F32 = 256, 64, 128, 4
AR, AG, RS, A2A, CP = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
)  # fmt: skip
DATA, MODEL, BOTH = ("data",), ("model",), ("data", "model")
ROWS, GRID = P("data"), P("data", "model")
SHIFT = [(i, (i + 1) % 4) for i in range(4)]


def mapped(body: Callable[..., Any], in_specs: Any, out_specs: Any, **more: Any) -> Any:
    """A shard_map that gets the mesh of the plan."""
    return lambda *xs: jax.shard_map(body, in_specs=in_specs, out_specs=out_specs, **more)(*xs)


def partial_manual(x: jax.Array, w: jax.Array) -> jax.Array:
    """data stays automatic, and splits the batch inside."""

    def body(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.psum(jnp.tanh(x) @ w, "model")

    specs = P(None, "model"), P("model", None)
    return mapped(body, specs, P(), axis_names={"model"})(x, w)


def partly_trained(x: jax.Array, w: jax.Array) -> jax.Array:
    """The sum over the batch in the backward pass is over data, which stays automatic."""
    return w - jax.grad(lambda w: jnp.sum(partial_manual(x, w) ** 2))(w)


def partial_scan(x: jax.Array, w: jax.Array) -> jax.Array:
    def body(x: jax.Array, w: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> Any:
            return lax.psum_scatter(jnp.tanh(x) @ w, "model", scatter_dimension=1, tiled=True), None

        return lax.scan(step, x, None, length=3)[0]

    specs = P(None, "model"), P("model", None)
    return mapped(body, specs, P(None, "model"), axis_names={"model"})(x, w)


def nested(x: jax.Array, w: jax.Array) -> jax.Array:
    def inner(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.psum(x @ w, "model")

    def outer(x: jax.Array, w: jax.Array) -> jax.Array:
        specs = P(None, "model"), P("model", None)
        y = mapped(inner, specs, P(), axis_names={"model"})(x, w)
        return lax.ppermute(y, "data", SHIFT)

    return mapped(outer, (ROWS, P()), ROWS, axis_names={"data"})(x, w)


def ring(q: jax.Array, k: jax.Array) -> jax.Array:
    def body(q: jax.Array, k: jax.Array) -> jax.Array:
        def step(carry: Any, _: None) -> Any:
            total, k = carry
            return (total + jnp.tanh(q @ k.T) @ k, lax.ppermute(k, "data", SHIFT)), None

        (total, _), _ = lax.scan(step, (jnp.zeros_like(q), k), None, length=4)
        return total

    return mapped(body, (ROWS, ROWS), ROWS)(q, k)


def trained(x: jax.Array, w: jax.Array) -> jax.Array:
    """The forward pass sums over model, the backward pass over data."""

    def body(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(lax.psum(x @ w, "model"))

    def loss(w: jax.Array) -> jax.Array:
        return jnp.sum(mapped(body, (GRID, P("model")), ROWS)(x, w) ** 2)

    return w - 0.1 * jax.grad(loss)(w)


def cut_elsewhere(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A dim of 16 is 2 x 8 elsewhere: no placement is a quarter of it."""
    y = mapped(lambda x: x * 2, ROWS, ROWS)(x)
    return x.reshape(2, 8, D).sum(0), y.reshape(2, 8, D) + 1


X, W = (B, D), (D, F)
LOCAL = B // 4 * D * F32  # of x over data

# function, shapes, {(kind, axes): (times, bytes of all times)}
CASES: dict[str, tuple[Any, list[tuple[int, ...]], dict[Any, tuple[float, float]]]] = {
    "psum": (
        mapped(lambda x, w: lax.psum(x @ w, "model"), (GRID, P("model")), ROWS), [X, W],
        {(AR, MODEL): (1, B // 4 * F * F32)},
    ),
    "psum over both": (
        mapped(lambda x: lax.psum(x, ("model", "data")), P(BOTH), P()), [X],
        {(AR, BOTH): (1, LOCAL // 2)},
    ),
    "pmax and pmin": (
        mapped(lambda x: x * lax.pmax(x, "data") - lax.pmin(x, "model"), GRID, GRID,
               check_vma=False), [X],
        {(AR, DATA): (1, LOCAL // 2), (AR, MODEL): (1, LOCAL // 2)},
    ),
    "all_gather": (
        mapped(lambda x: lax.all_gather(x, "data", tiled=True)[::4], ROWS, ROWS), [X],
        {(AG, DATA): (1, 4 * LOCAL)},
    ),
    "all_gather untiled": (
        mapped(lambda x: lax.all_gather(x, "data", axis=1).sum(1), ROWS, ROWS), [X],
        {(AG, DATA): (1, 4 * LOCAL)},
    ),
    "psum_scatter": (
        mapped(lambda x: lax.psum_scatter(x, "data", tiled=True), P(), ROWS, check_vma=False),
        [X], {(RS, DATA): (1, 4 * LOCAL)},
    ),
    "all_to_all": (
        mapped(lambda x: lax.all_to_all(x, "data", 1, 0, tiled=True), ROWS, P(None, "data")),
        [X], {(A2A, DATA): (1, LOCAL)},
    ),
    "ppermute": (
        mapped(lambda x: lax.ppermute(x, "data", SHIFT) * lax.axis_index("data"), ROWS, ROWS),
        [X], {(CP, DATA): (1, LOCAL)},
    ),
    "scan": (ring, [X, X], {(CP, DATA): (4, 4 * LOCAL)}),
    "partial manual": (partial_manual, [X, W], {(AR, MODEL): (1, B // 4 * F * F32)}),
    "partial manual, scan": (partial_scan, [X, (D, D)], {(RS, MODEL): (3, 3 * 4 * LOCAL)}),
    "nested": (
        nested, [X, W],
        # What is the same on all of model is sent by halves.
        {(AR, MODEL): (1, B // 4 * F * F32), (CP, DATA): (1, B // 4 * F // 2 * F32)},
    ),
    "gradient": (
        trained, [X, W],
        {(AR, MODEL): (1, B // 4 * F * F32), (AR, DATA): (1, D // 2 * F * F32)},
    ),
    "axes in another order than the mesh's": (
        mapped(lambda x: x + lax.axis_index("model"), P(("model", "data")), P(("model", "data"))),
        [X], {(CP, BOTH): (2, LOCAL)},
    ),
    "a dim that is cut elsewhere": (cut_elsewhere, [(16, D)], {(AG, DATA): (1, 16 * D * F32)}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_compiled_as_predicted(case: Any) -> None:
    fn, shapes, moved = case
    args = [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]
    plan = sw.partition(fn, *args, mesh=MESH, seconds=0.2)
    check(plan._require("check").program)
    assert plan.record.opaque == {}
    totals = plan.ir().totals()
    assert {key: (total.calls, total.bytes) for key, total in totals.items()} == moved
    found = plan.verify(run=True)
    assert found.ok, found
    assert found.numbers_agree


def test_an_automatic_axis_is_reduced_in_a_backward_pass() -> None:
    x, w = jnp.ones(X), jnp.ones(W)
    plan = sw.partition(partly_trained, x, w, mesh=MESH, tactics=[sw.Pin("x", 0, "data")])
    assert plan.ir().totals()[RS, DATA].bytes == D // 2 * F * F32
    found = plan.verify(run=True)
    assert found.ok and found.numbers_agree, found


def test_the_body_is_priced_on_shards() -> None:
    """As the same dot of one device: its FLOPs, and the bytes of the shards that it holds."""
    x, w = jnp.zeros((4096, 1024)), jnp.zeros((1024, 2048))
    dot = mapped(lambda x, w: x @ w, (ROWS, P(None, "model")), GRID)
    plan = sw.partition(dot, x, w, mesh=MESH)
    alone = sw.partition(jnp.matmul, x[:1024], w[:, :1024], mesh={"data": 1})
    assert plan.cost.compute_s == pytest.approx(alone.cost.compute_s)
    assert plan.cost.peak_bytes == alone.cost.peak_bytes
    assert plan.specs() == {"xs[0]": ROWS, "xs[1]": P(None, "model")}


def test_results_and_operands_are_where_the_specs_say() -> None:
    """Nothing moves between shard_maps that agree, and what disagrees is moved between them."""
    agree = mapped(jnp.sin, GRID, GRID)
    across = mapped(jnp.cos, P("model", "data"), P("model", "data"))
    x = jnp.zeros((B, D))
    assert not sw.partition(lambda x: agree(agree(x)), x, mesh=MESH).collectives
    moved = sw.partition(lambda x: across(agree(x)), x, mesh=MESH)
    assert {c.cause.op for c in moved.collectives} == {"shard_map.in"}
    assert moved.verify().ok


def own_mesh(*axes: tuple[str, int]) -> Any:
    names, sizes = zip(*axes, strict=True)
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(axes))


def test_a_mesh_of_its_own() -> None:
    """Axes of one device need not be in the plan's mesh."""
    mesh = own_mesh(("data", 4), ("expert", 1), ("model", 2))
    sums = lambda x: lax.psum(x, ("expert", "model"))  # noqa: E731
    local = mapped(sums, GRID, ROWS, mesh=mesh, check_vma=False)
    plan = sw.partition(local, jnp.ones(X), mesh=MESH)
    assert [(c.kind, c.axes) for c in plan.collectives] == [(AR, MODEL)]
    assert plan.verify(run=True).numbers_agree


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ([("data", 4), ("tp", 2)], "over mesh axis 'tp', the plan's mesh is data=4 x model=2"),
        ([("data", 2), ("model", 4)], "over data=2 x model=4, the plan's mesh is data=4 x model=2"),
        ([("model", 2), ("data", 4)], "over model=2 x data=4, the plan's mesh is data=4 x model=2"),
    ],
)
def test_a_mesh_that_is_not_the_plans(axes: Any, says: str) -> None:
    names = tuple(name for name, _ in axes)
    local = mapped(jnp.sin, P(*names), P(*names), mesh=own_mesh(*axes))
    with pytest.raises(sw.ShardwrightError) as error:
        sw.partition(local, jnp.ones(X), mesh=MESH)
    assert says in str(error.value)
    assert "test_shard_map.py" in error.value.facts["at"]
    assert f"mesh={dict(axes)}" in error.value.facts["try"]


@pytest.mark.parametrize(
    "local",
    [
        mapped(jnp.sin, P("tp"), P("tp")),
        mapped(jnp.sin, P(), P("tp")),
        mapped(jnp.sin, P("data"), P("data"), axis_names={"tp"}),
    ],
    ids=["in_specs", "out_specs", "axis_names"],
)
def test_an_axis_that_the_mesh_does_not_have(local: Any) -> None:
    """A shard_map without a mesh of its own: the axis, the mesh, the line, what to write."""
    with pytest.raises(sw.ShardwrightError) as error:
        sw.partition(local, jnp.ones(X), mesh=MESH)
    assert error.value.what == "a shard_map names the axis 'tp', the mesh is data=4 x model=2"
    assert "test_shard_map.py" in error.value.facts["at"]
    assert error.value.facts["try"] == "partition(..., mesh={..., 'tp': n}), or axes of this mesh"


BAD_SPECS: dict[str, tuple[Any, str, str]] = {
    "an axis twice": (
        mapped(jnp.sin, P("data", "data"), P("data")),
        "a shard_map splits an array twice over 'data': its spec is P('data', 'data')",
        "a spec that names each axis once",
    ),
    "a dim that does not divide": (
        mapped(jnp.sin, P(None, ("data", "model")), P(None, "data")),
        "but 8 does not evenly divide 60", "specs of the shard_map that fit these shapes",
    ),
    "more dims than the array has": (
        mapped(jnp.sin, P("data", None, "model"), P("data")),
        "which has rank 2", "specs of the shard_map that fit these shapes",
    ),
    "a result that differs between devices": (
        mapped(jnp.sin, P("data"), P()),
        "out_specs which require replication", "specs of the shard_map that fit these shapes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD_SPECS)
def test_specs_that_do_not_fit(bad: str) -> None:
    """What is wrong, the line, and what to write."""
    local, said, try_ = BAD_SPECS[bad]
    with pytest.raises(sw.ShardwrightError) as error:
        sw.partition(local, jnp.ones((64, 60)), mesh=MESH)
    assert said in error.value.what and try_ in error.value.facts["try"]
    assert "test_shard_map.py" in str(error.value.facts["at"])


def test_shapes_of_a_mesh_that_a_shard_map_excludes() -> None:
    """Of all shapes of 8 devices, a shard_map with a mesh of its own leaves one."""
    local = mapped(jnp.sin, GRID, GRID, mesh=own_mesh(("data", 4), ("model", 2)))
    plan = sw.partition(local, jnp.ones(X), mesh=8, seconds=0.2)
    assert plan.mesh.axes == (("data", 4), ("model", 2))


def heads(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhk,bthk->bhqt", q, k)
    return jnp.einsum("bhqt,bthk->bqhk", jax.nn.softmax(scores), v)


def gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(fn(q, k, v) ** 2)

    return jax.grad(loss, (0, 1, 2))


@pytest.mark.parametrize("of", [lambda fn: fn, gradients], ids=["forward", "gradients"])
def test_attention_costs_what_it_costs_in_plain_jax(of: Any) -> None:
    """Batch over data and heads over model: no device has the scores of all heads.

    Compilers fuse across the borders: XLA compiles gradients of both to the same temporary memory.
    """
    spec = P("data", None, "model")
    x = jax.ShapeDtypeStruct((32, 512, 16, 64), jnp.float32)
    pins = [sw.Pin(name, dim, axis) for name in "qkv" for dim, axis in ((0, "data"), (2, "model"))]
    plain = sw.partition(of(heads), x, x, x, mesh=MESH, tactics=pins)

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return mapped(heads, (spec,) * 3, spec)(q, k, v)

    manual = sw.partition(of(attention), x, x, x, mesh=MESH, tactics=pins)
    assert not manual.collectives
    assert manual.cost.compute_s == pytest.approx(plain.cost.compute_s, rel=0.02)
    assert manual.cost.peak_bytes == pytest.approx(plain.cost.peak_bytes, rel=0.02)


def send_rows(x: jax.Array, to: jax.Array) -> jax.Array:
    """Rows go to other devices: as many as each says, into buffers with room for all rows."""
    every, me = lax.all_gather(to, "data", tiled=True), lax.axis_index("data")  # [from, to]
    mine, before = every[me], jnp.cumsum(every, 0) - every
    buffer = jnp.zeros((4 * x.shape[0], x.shape[1]), x.dtype)
    return lax.ragged_all_to_all(
        x, buffer, jnp.cumsum(mine) - mine, mine, before[me], every[:, me], axis_name="data"
    )


def exchange(x: jax.Array, to: jax.Array) -> jax.Array:
    return mapped(send_rows, (ROWS, ROWS), ROWS, check_vma=False)(x, to)


def exchanged_and_multiplied(x: jax.Array, to: jax.Array, w: jax.Array, n: jax.Array) -> jax.Array:
    def body(x: jax.Array, to: jax.Array, w: jax.Array, n: jax.Array) -> jax.Array:
        return lax.ragged_dot(jnp.tanh(send_rows(x, to)), w, n)

    return mapped(body, (ROWS, ROWS, P(), P()), ROWS, check_vma=False)(x, to, w, n)


TO = jax.ShapeDtypeStruct((4, 4), jnp.int32)


def test_a_ragged_all_to_all_is_priced_as_what_is_there_to_send() -> None:
    """The TPU and GPU compilers know it (test_kernels_*.py), XLA:CPU does not."""
    plan = sw.partition(exchange, jnp.ones(X), TO, mesh=MESH)
    assert plan.record.opaque == {}
    assert plan.ir().totals()["ragged-all-to-all", DATA].bytes == LOCAL
    words = " ".join(plan.explain().split())
    assert "rows go to the devices that need them" in words


def test_a_grouped_dot_of_a_buffer_multiplies_the_rows_that_came() -> None:
    """A quarter of the buffer is filled where every device gets as many rows as it sends."""
    shapes = [((4, D, F), jnp.float32), ((4,), jnp.int32)]
    w, n = (jax.ShapeDtypeStruct(*shape) for shape in shapes)
    x = jax.ShapeDtypeStruct(X, jnp.float32)
    plan = sw.partition(exchanged_and_multiplied, x, TO, w, n, mesh=MESH)
    ops = plan._require("rules").program.ops
    (dot,) = [op.rule for op in ops if op.name == "ragged_dot_general"]
    assert dot.work * math.prod(dot.sizes) == 2 * (B // 4) * D * F  # of one device


def test_a_broadcast_is_priced() -> None:
    sent = mapped(lambda x: lax.pbroadcast(x, ("data",), 0), ROWS, ROWS, check_vma=False)
    plan = sw.partition(sent, jnp.ones(X), mesh=MESH)
    assert [(c.kind, c.axes, c.bytes) for c in plan.collectives] == [
        ("collective-broadcast", DATA, LOCAL)
    ]
