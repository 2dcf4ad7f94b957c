"""Values claim in list order, first wins: a table of how arguments are stored."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.analysis.analysis import Analysis, analyze_program
from shardwright.cost.devices import device
from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.program.manual import ShardMaps
from shardwright.program.tracing import trace
from shardwright.spmd.decisions import EVERYTHING, UPDATES, Decisions, Entry
from shardwright.spmd.division import can_divide, local_size
from shardwright.spmd.ir import local_shape
from shardwright.spmd.layouts import Layouts, find_updates
from tests.arrays import f32
from tests.cost.walk import Walk
from tests.spmd.lists import decided


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return jnp.tanh(x @ w1) @ w2


def grouped(x: Any, q: Any, k: Any) -> Any:
    """Grouped queries: the heads of q are (2 key heads, 8 queries each)."""
    heads = (x @ q).reshape(64, 2, 8, 4)
    return jnp.einsum("bngk,bnk->bng", heads, (x @ k).reshape(64, 2, 4))


def merged(x: Any, w: Any) -> Any:
    """[B, S] merged into one dim and split again."""
    return (x.reshape(8 * 16, 32) @ w).reshape(8, 16, 24)


def scores(x: Any, w: Any) -> Any:
    """[S, S]: a conflict."""
    return jax.nn.softmax((x @ w) @ x.T)


def update(weights: Any, moments: Any, x: Any) -> Any:
    grads = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(weights)
    moments = 0.9 * moments + grads
    return weights - 0.1 * moments, moments


PROGRAMS: dict[str, tuple[Any, list[Any], dict[str, str], tuple[int, ...]]] = {
    "mlp": (
        mlp, [f32(64, 32), f32(32, 128), f32(128, 32)],
        {"B": "x[0]", "D": "x[1]", "F": "w1[1]", "O": "w2[1]"}, (),
    ),
    "odd": (
        mlp, [f32(6, 32), f32(32, 10), f32(10, 32)],
        {"B": "x[0]", "D": "x[1]", "F": "w1[1]", "O": "w2[1]"}, (),
    ),
    "grouped": (
        grouped, [f32(64, 32), f32(32, 64), f32(32, 8)], {"B": "x[0]", "D": "x[1]", "K": "k[1]"},
        (),
    ),
    "merged": (merged, [f32(8, 16, 32), f32(32, 24)], {"B": "x[0]", "S": "x[1]", "D": "x[2]"}, ()),
    "scores": (scores, [f32(16, 8), f32(8, 8)], {"S": "x[0]"}, ()),
    "update": (
        update, [f32(32, 64), f32(32, 64), f32(16, 32)],
        {"D": "weights[0]", "F": "weights[1]", "B": "x[0]"}, (0, 1),
    ),
}  # fmt: skip


def analysis_of(name: str) -> Analysis:
    fn, args, labels, donated = PROGRAMS[name]
    return analyze_program(trace(fn, *args, donate_argnums=donated), labels)


def stored(name: str, mesh: dict[str, int], *lists: str) -> dict[str, str]:
    """{argument or result: local shape}; a result is named by its number."""
    analysis = analysis_of(name)
    model, program = CostModel(analysis, Mesh(mesh), device("tpu-v5e")), analysis.program
    placements = model.stored(decided(analysis, *lists))
    out = {}
    for at, v in [*enumerate(program.outputs), *((None, v) for v in program.inputs)]:
        n = int(model.layouts.of_value[v])
        shape = local_shape(program, v, model.layouts.table[n], placements[n], model.mesh.sizes)
        out[program.values[v].path or f"result{at}"] = shape[3:]
    return out


@pytest.mark.parametrize(
    "name, mesh, lists, expected",
    [
        # Nothing listed, nothing split.
        ("mlp", {"a": 4}, [""], {"x": "[64,32]", "w1": "[32,128]", "w2": "[128,32]"}),
        # First listed wins: x holds both B and D.
        ("mlp", {"a": 4}, ["B D"], {"x": "[64/4,32]", "w1": "[32/4,128]", "w2": "[128,32]"}),
        ("mlp", {"a": 4}, ["D B"], {"x": "[64,32/4]", "w1": "[32/4,128]", "result0": "[64/4,32]"}),
        # Two axes: on two dims, or both on one dim, in mesh order.
        ("mlp", {"a": 4, "b": 2}, ["B", "D F"],
         {"x": "[64/4,32/2]", "w1": "[32/2,128]", "w2": "[128/2,32]", "result0": "[64/4,32]"}),
        ("mlp", {"a": 4, "b": 2}, ["B", "B"], {"x": "[64/8,32]", "w1": "[32,128]"}),
        # What does not divide is left to the next in the list, or whole.
        ("odd", {"a": 4}, ["B D"], {"x": "[6,32/4]", "w1": "[32/4,10]"}),
        ("odd", {"a": 4}, ["F"], {"w1": "[32,10]", "w2": "[10,32]"}),
        ("odd", {"a": 2, "b": 3}, ["B", "B"], {"x": "[6/6,32]"}),
        ("odd", {"a": 2, "b": 2}, ["B D", "B D"], {"x": "[6/2,32/2]"}),
        # Three and four axes.
        ("mlp", {"a": 2, "b": 2, "c": 2}, ["B", "D", "F"],
         {"x": "[64/2,32/2]", "w1": "[32/2,128/2]", "w2": "[128/2,32]"}),
        ("mlp", {"a": 2, "b": 2, "c": 2, "d": 2}, ["B", "B", "D", "D F"],
         {"x": "[64/4,32/4]", "w1": "[32/4,128]", "w2": "[128/2,32]"}),
        # An axis of one device splits nothing that shows.
        ("mlp", {"a": 1}, ["B"], {"x": "[64,32]"}),
        # A compound dim is split from its major side on: (2 key heads, 8 queries, 4 wide).
        ("grouped", {"a": 2}, ["K"], {"q": "[32,64/2]", "k": "[32,8/2]"}),
        ("grouped", {"a": 4}, ["K"], {"q": "[32,64]", "k": "[32,8]"}),
        ("merged", {"a": 8}, ["B"], {"x": "[8/8,16,32]"}),
        ("merged", {"a": 8, "b": 2}, ["B", "S"],
         {"x": "[8/8,16/2,32]", "result0": "[8/8,16/2,24]"}),
        ("merged", {"a": 8}, ["S"], {"x": "[8,16/8,32]"}),
    ],
)  # fmt: skip
def test_stored(
    name: str, mesh: dict[str, int], lists: list[str], expected: dict[str, str]
) -> None:
    found = stored(name, mesh, *lists)
    assert {path: found[path] for path in expected} == expected


def test_the_resolution_picks_a_side() -> None:
    """Of two dims of one color the bit decides; values without a conflict do not mind."""
    one, other = stored("scores", {"a": 4}, "S"), stored("scores", {"a": 4}, "S'")
    assert {one["result0"], other["result0"]} == {"[16/4,16]", "[16,16/4]"}
    assert one["x"] == other["x"] == "[16/4,8]"


def test_a_merged_dim_is_split_by_both_parts() -> None:
    """S alone cannot split [B*S]: it is not the major side; with B used up it can."""
    analysis = analysis_of("merged")
    model = CostModel(analysis, Mesh({"a": 8, "b": 2}), device("tpu-v5e"))
    flat = next(v for v in analysis.program.values if v.shape == (128, 32))
    n = int(model.layouts.of_value[flat.index])

    def shape(*lists: str) -> str:
        placement = model.stored(decided(analysis, *lists))[n]
        return local_shape(analysis.program, flat.index, model.layouts.table[n], placement, (8, 2))

    assert shape("B", "") == "f32[128/8,32]"
    assert shape("", "S") == "f32[128,32]"
    assert shape("B", "S") == "f32[128/16,32]"


def test_scope_updates() -> None:
    """Moments and what they become are split; the weights stay whole, coming and going."""
    found = stored("update", {"a": 4}, "D!")
    assert found["weights"] == found["result0"] == "[32,64]"
    assert found["moments"] == found["result1"] == "[32/4,64]"
    assert found["x"] == "[16,32]"
    everything = stored("update", {"a": 4}, "D")
    assert everything["weights"] == everything["moments"] == "[32/4,64]"


def test_updates_never_feed_a_contraction() -> None:
    program = analysis_of("update").program
    update_of = dict(zip((v.index for v in program.values), find_updates(program), strict=True))
    paths = {program.values[v].path: update_of[v] for v in program.inputs}
    assert paths == {"weights": False, "moments": True, "x": False}
    assert [update_of[v] for v in program.outputs] == [False, True]  # as the donated arguments


def test_a_loop_hands_on_what_it_stores_alike() -> None:
    """The carry is multiplied in the next round: no round may store it as an update."""

    def fn(x: jax.Array, ws: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, w: (c @ w, None), x, ws)[0]

    f32 = jnp.float32
    args = (jax.ShapeDtypeStruct((8, 8), f32), jax.ShapeDtypeStruct((3, 8, 8), f32))
    program = trace(fn, *args)
    updates = find_updates(program)
    (carry,) = [op for op in program.ops if op.name == "scan.carry"]
    assert [updates[v] for v in carry.operands] == [False, False]


def test_state_comes_back_as_it_went_in() -> None:
    """A result that takes a donated argument's buffer is stored like it, whatever is listed."""
    for lists in ("D", "F", "D!", "F!", "B D", "F D!"):
        found = stored("update", {"a": 4}, lists)
        assert found["result0"] == found["weights"] and found["result1"] == found["moments"], lists


def test_a_decision_about_an_unknown_group_is_an_error() -> None:
    analysis = analyze_program(trace(lambda x: x + x, jax.ShapeDtypeStruct((8, 8), "float32")))
    layouts = Layouts(analysis, (2,), {}, ShardMaps({}, {}), ())
    with pytest.raises(ShardwrightError, match="a decision names group 7; the program has 2"):
        layouts.place([((Entry(7),),)])


SIZES = st.integers(2, 30)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_divides_is_said_alike(data: st.DataObject) -> None:
    """Dims of any size on axes of any size: all layouts at once, value by value, and in parts."""
    b, s, d, f = data.draw(st.tuples(SIZES, SIZES, SIZES, SIZES), "sizes")

    def fn(x: Any, w: Any, moments: Any) -> Any:
        hidden = jnp.tanh(x.reshape(b * s, d) @ w)
        scores = jax.nn.softmax(hidden @ hidden.T)
        return jnp.sin((scores @ hidden).reshape(b, s, f)), 0.9 * moments + w * jnp.sum(scores)

    analysis = analyze_program(trace(fn, f32(b, s, d), f32(d, f), f32(d, f), donate_argnums=2))
    axes = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3), "axes"))
    group = st.integers(0, len(analysis.all_groups) - 1)
    entry = st.builds(Entry, group, st.integers(0, 3), st.sampled_from([EVERYTHING, UPDATES]))
    listed = st.lists(entry, max_size=4).map(tuple)
    state = data.draw(st.tuples(*[listed] * len(axes)), "lists")
    model = CostModel(analysis, Mesh(dict(zip("abc", axes, strict=False))), device("tpu-v5e"))
    (placements,), (sizes,) = model.layouts.place([state])
    for v, one_by_one in enumerate(Walk(model).stored(Decisions(state))):
        n = int(model.layouts.of_value[v])
        layout, at_once = model.layouts.table[n], tuple(placements[n].tolist())
        assert at_once == one_by_one
        assert layout.can_store(at_once, axes)
        assert int(sizes[n]) == layout.local_bytes(at_once, axes)


@given(SIZES, st.lists(st.integers(2, 5), min_size=1, max_size=3), st.booleans())
def test_parts_cover_a_dim(size: int, axes: list[int], pads: bool) -> None:
    """Axes that may share a dim give every entry to one device, and something to the first."""
    parts = 1
    for n in axes:
        if can_divide(size, parts, n, pads=pads):
            parts *= n
    local = local_size(size, parts)
    starts = range(0, local * parts, local)
    held = [min(local, max(0, size - start)) for start in starts]
    assert sum(held) == size and held[0] == local > 0
    assert pads or set(held) == {local}
