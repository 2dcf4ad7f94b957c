"""What we read from a compiled program against what the program must do.

The referee is XLA on eight host devices: each row is a sharded function whose communication is
known by hand. To add a row: shapes, shardings, and the collectives as formulas (f32 is 4 bytes).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardwright.program.regions import ESTIMATED_TRIPS
from shardwright.referee.compiled import (
    captured_stderr,
    involuntary_remats,
    read_collectives,
    read_memory,
    totals,
)
from shardwright.referee.estimates import cycles
from shardwright.referee.groups import axes_of
from shardwright.referee.hlo import elements, parse, size_bytes
from shardwright.referee.loops import runs
from shardwright.referee.replay import replay

B, D, F = 32, 64, 16
MESH = {"data": 4, "model": 2}
CUBE = {"a": 2, "b": 2, "c": 2}
F32 = 4


def jax_mesh(mesh: dict[str, int]) -> jax.sharding.Mesh:
    devices = np.array(jax.devices()[: int(np.prod(list(mesh.values())))])
    return jax.sharding.Mesh(devices.reshape(tuple(mesh.values())), tuple(mesh))


def compile_(
    fn: Callable[..., Any], shapes: list, specs: list, out: P, mesh: dict[str, int], **jit: Any
) -> Any:
    on = jax_mesh(mesh)
    jitted = jax.jit(
        fn,
        in_shardings=tuple(NamedSharding(on, spec) for spec in specs),
        out_shardings=NamedSharding(on, out),
        **jit,
    )
    return jitted.lower(*[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]).compile()


def estimated_cycles(text: str) -> float:
    """The compiler's estimate of one step, loops multiplied."""
    return replay(text, MESH, lambda row: 0.0, cycles(clock_hz=1.0)).compute_s


def as_(x: jax.Array, *spec: Any) -> jax.Array:
    """x constrained on the 4x2 mesh."""
    return jax.lax.with_sharding_constraint(x, NamedSharding(jax_mesh(MESH), P(*spec)))


def matmul(x, w):
    return x @ w


def square_layer(x, w):
    """x @ w with w's rows on model: one all-reduce of x's local rows."""
    x = as_(as_(x, "data", None), "data", "model")  # the carry of a loop keeps whole rows
    return as_(jnp.tanh(as_(x @ w, "data", None)), "data", None)


def scanned(x, w):
    return jax.lax.scan(lambda h, _: (square_layer(h, w), None), x, None, length=5)[0]


def scanned_twice(x, w):
    return jax.lax.scan(lambda h, _: (scanned(h, w), None), x, None, length=3)[0]


def counted_while(x, w):
    def body(carry):
        i, h = carry
        return i + 2, square_layer(h, w)

    return jax.lax.while_loop(lambda carry: carry[0] < 7, body, (1, x))[1]


def one_branch(x, w):
    return jax.lax.cond(x[0, 0] > 0, lambda h: square_layer(h, w), lambda h: h * 2, x)


def both_branches(x, w):
    """Once in one branch, twice in the other."""
    return jax.lax.cond(
        x[0, 0] > 0,
        lambda h: square_layer(h, w),
        lambda h: square_layer(square_layer(h, w), w),
        x,
    )


def shift(x):
    def local(block):
        return jax.lax.ppermute(block, "model", [(0, 1), (1, 0)])

    spec = P("data", "model")
    return jax.shard_map(local, mesh=jax_mesh(MESH), in_specs=spec, out_specs=spec)(x)


AR, AG, A2A = "all-reduce", "all-gather", "all-to-all"
DATA, MODEL, BOTH = ("data",), ("model",), ("data", "model")
SQUARE = [(B, D), (D, D)]
ROWS = [P("data", None), P("model", None)]
LAYER = B // 4 * D * F32  # what square_layer reduces

# fn, shapes, in specs, out spec, {(kind, axes): (count, bytes)}
CASES = {
    "contracted": (
        matmul,
        [(B, D), (D, F)],
        [P(None, "model"), P("model", None)],
        P(),
        {(AR, MODEL): (1, B * F * F32)},
    ),
    "contracted, batch split": (
        matmul,
        [(B, D), (D, F)],
        [P("data", "model"), P("model", None)],
        P("data", None),
        {(AR, MODEL): (1, B // 4 * F * F32)},
    ),
    "contracted over two axes": (
        matmul,
        [(B, D), (D, F)],
        [P(None, ("data", "model")), P(("data", "model"), None)],
        P(),
        {(AR, BOTH): (1, B * F * F32)},
    ),
    "weight gathered": (
        lambda x, w: x @ as_(w, None, None),
        [(B, D), (D, F)],
        [P("data", None), P("data", None)],
        P("data", None),
        {(AG, DATA): (1, D * F * F32)},
    ),
    "gathered over two axes": (
        lambda x: as_(x, None, None) * 2,
        [(B, D)],
        [P(("data", "model"), None)],
        P(),
        {(AG, BOTH): (1, B * D * F32)},
    ),
    "transposed split": (
        lambda x: as_(as_(x, "data", None) * 2, None, "data"),
        [(B, D)],
        [P("data", None)],
        P(None, "data"),
        {(A2A, DATA): (1, B * D // 4 * F32)},
    ),
    "neighbours": (
        shift,
        [(B, D)],
        [P("data", "model")],
        P("data", "model"),
        {("collective-permute", MODEL): (1, B * D // 8 * F32)},
    ),
    "no communication": (matmul, SQUARE, [P("data", None), P()], P("data", None), {}),
    "scan": (scanned, SQUARE, ROWS, P("data", None), {(AR, MODEL): (5, 5 * LAYER)}),
    "scan in scan": (scanned_twice, SQUARE, ROWS, P("data", None), {(AR, MODEL): (15, 15 * LAYER)}),
    "while 1, 3, 5": (counted_while, SQUARE, ROWS, P("data", None), {(AR, MODEL): (3, 3 * LAYER)}),
}


@pytest.mark.parametrize("case", CASES)
def test_collectives_are_the_known_ones(case: str) -> None:
    fn, shapes, specs, out, expected = CASES[case]
    rows = read_collectives(compile_(fn, shapes, specs, out, MESH).as_text(), MESH)
    assert totals(rows) == expected
    assert all(row.count_known for row in rows)


@pytest.mark.parametrize("fn, times", [(one_branch, 1), (both_branches, 1 + 2)])
def test_every_branch_of_a_conditional_counts(fn: Callable, times: int) -> None:
    """As in predictions: what moves in a branch that may run is not free."""
    text = compile_(fn, SQUARE, ROWS, P("data", None), MESH).as_text()
    found = totals(read_collectives(text, MESH))
    assert found[AR, MODEL] == (times, times * LAYER)


def test_a_loop_of_unknown_length_is_counted_as_in_costs_and_said() -> None:
    def until_small(x, w):
        return jax.lax.while_loop(lambda h: h.sum() > 1, lambda h: square_layer(h, w), x)

    text = compile_(until_small, SQUARE, ROWS, P("data", None), MESH).as_text()
    (layer,) = [row for row in read_collectives(text, MESH) if row.bytes == LAYER]
    assert (layer.count, layer.count_known) == (ESTIMATED_TRIPS, False)


@pytest.mark.parametrize(
    "axes", [("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")]
)
def test_any_set_of_axes_is_recovered(axes: tuple[str, ...]) -> None:
    compiled = compile_(matmul, [(B, D), (D, F)], [P(None, axes), P(axes, None)], P(), CUBE)
    (row,) = read_collectives(compiled.as_text(), CUBE)
    assert (row.kind, row.axes, row.bytes) == (AR, axes, B * F * F32)


@pytest.mark.parametrize("reduce, name", [(jnp.sum, "add"), (jnp.max, "max"), (jnp.min, "min")])
def test_the_reduction_has_a_name(reduce: Callable, name: str) -> None:
    compiled = compile_(lambda x: reduce(x, axis=0), [(B, D)], [P("data", None)], P(), MESH)
    (row,) = read_collectives(compiled.as_text(), MESH)
    assert (row.reduction, row.axes, row.bytes) == (name, DATA, D * F32)


def test_a_combined_collective_sums_its_elements() -> None:
    on = jax_mesh(MESH)
    compiled = jax.jit(
        lambda x: (x.sum(0), (x * x).sum(0)),
        in_shardings=NamedSharding(on, P("data", None)),
        out_shardings=NamedSharding(on, P()),
    )
    text = compiled.lower(jax.ShapeDtypeStruct((B, D), jnp.float32)).compile().as_text()
    assert totals(read_collectives(text, MESH)) == {(AR, DATA): (1, 2 * D * F32)}


def test_a_collective_knows_the_users_line() -> None:
    compiled = compile_(matmul, [(B, D), (D, F)], [P(None, "model"), P("model", None)], P(), MESH)
    (row,) = read_collectives(compiled.as_text(), MESH)
    line = inspect.getsourcelines(matmul)[1] + 1
    assert row.source == f"{__file__}:{line}"
    assert row.op_name.endswith("dot_general")


def test_memory_is_local_bytes() -> None:
    compiled = compile_(
        lambda x, w: x * 2 + w.sum(),
        [(B, D), (D, F)],
        [P("data", "model"), P("model", None)],
        P("data", "model"),
        MESH,
        donate_argnums=0,
    )
    memory = read_memory(compiled)
    assert memory.argument_bytes == (B * D // 8 + D * F // 2) * F32
    assert memory.output_bytes == memory.alias_bytes == B * D // 8 * F32
    assert memory.peak_bytes == memory.argument_bytes + memory.temp_bytes


@pytest.mark.parametrize("into, count", [((None, "model"), 1), (("data", "model"), 0)])
def test_involuntary_rematerialisations_are_counted(into: tuple, count: int) -> None:
    with captured_stderr() as err:
        compile_(
            lambda x: as_(as_(jnp.sin(x), "data", None) * 2, *into),
            [(8, 8)],
            [P("data", None)],
            P(*into),
            MESH,
        )
    assert involuntary_remats(err.text) == count


def test_captured_stderr_gives_the_stream_back() -> None:
    before = os.fstat(2)
    with pytest.raises(KeyError), captured_stderr() as err:
        os.write(2, b"from C++")
        raise KeyError
    assert err.text == "from C++"
    assert os.path.samestat(before, os.fstat(2))


# Formats that a small CPU program does not print.


@pytest.mark.parametrize(
    "attributes, mesh, axes",
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", MESH, MODEL),
        ("replica_groups={{0,2,4,6},{1,3,5,7}}", MESH, DATA),
        ("replica_groups={{6,4,2,0},{1,3,5,7}}", MESH, DATA),  # order within a group is free
        ("replica_groups={}", MESH, BOTH),
        ("replica_groups={{0,1,2,3,4,5,6,7}}", MESH, BOTH),
        ("replica_groups=[4,2]<=[8]", MESH, MODEL),
        ("replica_groups=[2,4]<=[4,2]T(1,0), use_global_device_ids=true", MESH, DATA),
        ("replica_groups=[1,8]<=[8]", MESH, BOTH),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", CUBE, ("a",)),
        ("replica_groups=[4,2]<=[2,2,2]T(0,2,1)", CUBE, ("b",)),
        ("replica_groups=[2,4]<=[2,2,2]T(1,0,2)", CUBE, ("a", "c")),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}, dimensions={1}", MESH, DATA),
        ("replica_groups=mesh['axis_0'=1,'axis_1'=4,'axis_2'=2] {'axis_1'}", MESH, DATA),
        ("replica_groups=mesh['u'=4,'v'=2] {'u','v'}", MESH, BOTH),
        ("replica_groups=mesh['u'=8] {'u':(4)2}", MESH, MODEL),
        ("replica_groups=mesh['u'=8] {'u':(1)4}", MESH, DATA),
        ("replica_groups=mesh['u'=2,'v'=4], device_ids=([2,2,2]T(0,2,1)) {'v':(2)2}", CUBE, ("b",)),
        ("replica_groups=mesh['u'=4,'v'=2], device_ids=([2,4]T(1,0)) {'v'}", CUBE, ("a",)),
        ("replica_groups=mesh['u'=2,'v'=2], device_ids=(0,2,1,3) {'v'}", {"x": 2, "y": 2}, ("x",)),
        ("source_target_pairs={{0,1},{1,0},{2,3},{3,2}}", MESH, MODEL),
        ("source_target_pairs={{0,2},{2,4},{4,6},{6,0}}", MESH, DATA),
        ("source_target_pairs={{0,3}}", MESH, BOTH),
        ("replica_groups={{0,4},{2,6},{1,5},{3,7}}", MESH, None),  # half of data
        ("replica_groups={{0,3},{1,2},{4,7},{5,6}}", MESH, None),  # no axes at all
        ("replica_groups={{0,1},{2,3}}", MESH, None),  # not everybody
        ("replica_groups=[8,2]<=[16]", MESH, None),  # another mesh
        ("dimensions={0}", MESH, None),
    ],
)
def test_device_groups_become_axes(attributes: str, mesh: dict, axes: tuple | None) -> None:
    assert axes_of(f"channel_id=1, {attributes}", mesh) == axes


@pytest.mark.parametrize(
    "type_, members, size",
    [
        ("f32[]", 1, 4),
        ("bf16[8,128]{1,0:T(8,128)(2,1)S(1)}", 1, 8 * 128 * 2),
        ("pred[3,4]{1,0:T(32,128)(4,1)}", 1, 12),
        ("(f32[4]{0}, /*index=1*/(s8[3], token[]), u32[]{:S(2)})", 3, 16 + 3 + 4),
        ("f8e4m3fn[16]{0}", 1, 16),
        ("s4[3]{0:E(4)}", 1, 2),
        ("f32[<=8,2]{1,0}", 1, 64),
        ("c64[2]", 1, 16),
    ],
)
def test_types_have_members_and_bytes(type_: str, members: int, size: int) -> None:
    assert len(elements(type_)) == members
    assert size_bytes(type_) == size


START = """HloModule m

ENTRY %main (p: f32[8,4]) -> f32[32,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %q = f32[2,4]{1,0} slice(%p), slice={[0:2], [0:4]}
  %op-start = TYPE OPCODE(OPERANDS), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
  ROOT %done = f32[32,4]{1,0} op-done(%op-start)
}
"""


@pytest.mark.parametrize(
    "opcode, type_, operands, kind, size",
    [
        ("all-gather-start", "(f32[8,4]{1,0}, f32[32,4]{1,0})", "%p", AG, 32 * 4 * F32),
        (
            "all-gather-start",
            "((f32[8,4]{1,0}, f32[2,4]{1,0}), (f32[32,4]{1,0}, f32[8,4]{1,0}))",
            "%p, %q",
            AG,
            40 * 4 * F32,
        ),
        ("all-reduce-start", "f32[8,4]{1,0}", "%p", AR, 8 * 4 * F32),
        ("all-reduce-start", "(f32[8,4]{1,0}, f32[2,4]{1,0})", "%p, %q", AR, 10 * 4 * F32),
        ("reduce-scatter-start", "((f32[8,4]), f32[2,4], s32[])", "%p", "reduce-scatter", 128),
        ("all-to-all-start", "((f32[8,4]{1,0}), f32[8,4]{1,0})", "%p", A2A, 128),
        (
            "collective-permute-start",
            "(f32[8,4]{1,0}, f32[8,4]{1,0}, u32[], u32[])",
            "%p",
            "collective-permute",
            128,
        ),
        ("ragged-all-to-all", "f32[2,4]{1,0}", "%p, %q", "ragged-all-to-all", 32),
        ("collective-broadcast", "f32[8,4]{1,0}", "%p", "collective-broadcast", 128),
    ],
)
def test_a_started_collective_counts_its_larger_side_once(
    opcode: str, type_: str, operands: str, kind: str, size: int
) -> None:
    text = START.replace("TYPE", type_).replace("OPCODE", opcode).replace("OPERANDS", operands)
    (row,) = read_collectives(text, MESH)
    assert (row.kind, row.axes, row.bytes, row.count) == (kind, DATA, size, 1)


TPU_SCATTER = """HloModule m

%add (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[]{:T(256)} parameter(0)
  %y = bf16[]{:T(256)} parameter(1)
  ROOT %sum = bf16[]{:T(256)} add(%x, %y)
}

%all-reduce-scatter (input: bf16[512,1024]) -> bf16[128,1024] {
  %input = bf16[512,1024]{1,0:T(8,128)(2,1)} parameter(0)
  %all-reduce = bf16[512,1024]{1,0:T(8,128)(2,1)} all-reduce(%input), channel_id=5, replica_groups={{0,2,4,6},{1,3,5,7}}, use_global_device_ids=true, to_apply=%add
  %zero = s32[]{:T(128)} constant(0)
  ROOT %slice = bf16[128,1024]{1,0:T(8,128)(2,1)S(1)} dynamic-slice(%all-reduce, %zero, %zero), dynamic_slice_sizes={128,1024}
}

%offloaded (p: bf16[512,1024]) -> bf16[512,1024] {
  %p = bf16[512,1024]{1,0} parameter(0)
  ROOT %all-reduce.2 = bf16[512,1024]{1,0} all-reduce(%p), channel_id=6, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=%add
}, execution_thread="sparsecore"

ENTRY %main (p: bf16[512,1024]) -> bf16[128,1024] {
  %p = bf16[512,1024]{1,0:T(8,128)(2,1)} parameter(0)
  %call-start = ((bf16[512,1024]{1,0}), bf16[512,1024]{1,0}) call-start(%p), async_execution_thread="sparsecore", to_apply=%offloaded
  %call-done = bf16[512,1024]{1,0} call-done(%call-start)
  ROOT %fusion = bf16[128,1024]{1,0:T(8,128)(2,1)S(1)} fusion(%call-done), kind=kCustom, calls=%all-reduce-scatter, metadata={op_name="jit(f)/dot" source_file="f.py" source_line=3}, backend_config={"window_config":{"estimated_cycles":"120"}}
}
"""  # noqa: E501


def test_a_tpu_fusion_that_slices_its_all_reduce_is_a_reduce_scatter() -> None:
    size = 512 * 1024 * 2
    rows = read_collectives(TPU_SCATTER, MESH)
    assert totals(rows) == {("reduce-scatter", DATA): (1, size), (AR, MODEL): (1, size)}
    (scatter,) = [row for row in rows if row.kind == "reduce-scatter"]
    assert (scatter.source, scatter.op_name, scatter.reduction) == ("f.py:3", "jit(f)/dot", "add")
    assert estimated_cycles(TPU_SCATTER) == 120


TPU_ASYNC = """HloModule m

%start (p: bf16[8,4]) -> bf16[32,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  %all-gather = bf16[32,4]{1,0} all-gather(%p), channel_id=2, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}, backend_config={"async_collective_fusion_config":{"flag_start":"-1"}}
  ROOT %begin = bf16[32,4]{1,0} custom-call(%all-gather), custom_call_target="AsyncCollectiveStart"
}

%overlap (p: bf16[8,4]) -> bf16[32,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  ROOT %all-gather.1 = bf16[32,4]{1,0} all-gather(%p), channel_id=2, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}, backend_config={"async_collective_fusion_config":{"flag_start":"2"}}
}

%end (p: bf16[8,4]) -> bf16[32,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  %all-gather.2 = bf16[32,4]{1,0} all-gather(%p), channel_id=2, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}, backend_config={"async_collective_fusion_config":{"flag_start":"2"}}
  ROOT %finish = bf16[32,4]{1,0} custom-call(%all-gather.2), custom_call_target="AsyncCollectiveDone"
}

%body (c: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  %c = (s32[], bf16[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %p = bf16[8,4]{1,0} get-tuple-element(%c), index=1
  %f = bf16[32,4]{1,0} fusion(%p), kind=kCustom, calls=%start
  %g = bf16[32,4]{1,0} fusion(%p), kind=kOutput, calls=%overlap, backend_config={"window_config":{"estimated_cycles":"10"}}
  %h = bf16[32,4]{1,0} fusion(%p), kind=kCustom, calls=%end
  ROOT %t = (s32[], bf16[8,4]{1,0}) tuple(%next, %p)
}

%cond (c: (s32[], bf16[8,4])) -> pred[] {
  %c = (s32[], bf16[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %n = s32[]{:T(128)} constant(7)
  ROOT %less = pred[]{:T(512)} compare(%i, %n), direction=LT
}

ENTRY %main (p: bf16[8,4]) -> bf16[8,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  %two = s32[] constant(2)
  %copy = s32[] copy(%two)
  %init = (s32[], bf16[8,4]{1,0}) tuple(%copy, %p)
  %while = (s32[], bf16[8,4]{1,0}) while(%init), condition=%cond, body=%body
  ROOT %out = bf16[8,4]{1,0} get-tuple-element(%while), index=1
}
"""  # noqa: E501


def test_a_tpu_collective_that_overlaps_compute_is_counted_once_per_trip() -> None:
    trips = 7 - 2  # no known_trip_count: counted from the condition
    rows = read_collectives(TPU_ASYNC, MESH)
    assert totals(rows) == {(AG, DATA): (trips, trips * 32 * 4 * 2)}
    assert estimated_cycles(TPU_ASYNC) == trips * 10


@pytest.mark.parametrize(
    "direction, limit, trips", [("LT", 7, 5), ("LE", 7, 6), ("NE", 4, 2), ("LT", 1, 0)]
)
def test_trips_follow_the_comparison(direction: str, limit: int, trips: int) -> None:
    text = TPU_ASYNC.replace("direction=LT", f"direction={direction}").replace(
        "constant(7)", f"constant({limit})"
    )
    assert sum(row.count for row in read_collectives(text, MESH)) == trips


def test_a_step_that_a_loop_computes_leaves_its_trips_unknown() -> None:
    """Speculative decoding goes on by as many tokens as were accepted."""
    computed = "%more = s32[] multiply(%i, %one)\n  %next = s32[] add(%i, %more)"
    text = TPU_ASYNC.replace("%next = s32[] add(%i, %one)", computed)
    assert text != TPU_ASYNC
    assert sum(row.count for row in read_collectives(text, MESH)) == ESTIMATED_TRIPS


def test_a_text_without_collectives_reads_as_none() -> None:
    assert read_collectives("", MESH) == []
    assert runs(parse("HloModule empty"), lambda *_: 1) == []
