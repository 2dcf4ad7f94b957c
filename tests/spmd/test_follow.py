"""Ops follow: each op is computed in the cheapest way that the stored values suggest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardwright.analysis.analysis import Analysis, analyze_program
from shardwright.cost.devices import Device
from shardwright.cost.model import CostModel, model_ir
from shardwright.mesh import Mesh
from shardwright.program.tracing import trace
from shardwright.spmd.decisions import Decisions, empty
from shardwright.spmd.ir import Ir
from tests.arrays import f32
from tests.spmd.lists import decided


def toy(link: float) -> Device:
    """1 FLOP/s, free memory; `link` bytes/s between devices, no latency."""
    return Device(
        name="toy", flops_per_s={"f32": 1.0}, vector_flops_per_s=1e30, memory_bytes=1 << 40,
        memory_bytes_per_s=1e30, link_bytes_per_s=link, devices_per_node=64,
    )  # fmt: skip


WORK, WIRE = toy(1e6), toy(1e-6)  # work is all that counts; what moves is all that counts


def dot(x: Any, w: Any) -> Any:
    return x @ w


DOT = {"M": "x[0]", "K": "x[1]", "N": "w[1]"}


def analysis_of(fn: Any, args: list[Any], labels: dict[str, str]) -> Analysis:
    return analyze_program(trace(fn, *args), labels)


def ir_of(analysis: Analysis, mesh: dict[str, int], on: Device, *lists: str) -> Ir:
    return model_ir(CostModel(analysis, Mesh(mesh), on), decided(analysis, *lists))


def told(ir: Ir, name: str) -> str:
    """Claims and collectives of the first op of that name: "a:i; all-reduce a 512"."""
    row = next(row for row in ir.rows if row.name == name)
    moves = [f"{c.kind} {'+'.join(c.axes)} {c.bytes}" for c in row.collectives]
    return "; ".join([" ".join(f"{axis}:{factor}" for axis, factor in row.claims), *moves])


@pytest.mark.parametrize(
    "m, k, n, mesh, lists, on, expected",
    [
        # Rule of a dot: [i,j],[j,k]->[i,k]; j is contracted.
        (64, 64, 64, {"a": 4}, ["M"], WORK, "a:i"),
        (64, 64, 64, {"a": 4}, ["N"], WORK, "a:k"),
        (64, 64, 64, {"a": 4}, ["K"], WORK, f"a:j; all-reduce a {64 * 64 * 4}"),
        # FSDP, when work counts or the weight is small: the weight is gathered.
        (64, 64, 64, {"a": 4}, ["M K"], WORK, f"a:i; all-gather a {64 * 64 * 4}"),
        (4096, 64, 64, {"a": 4}, ["M K"], WIRE, f"a:i; all-gather a {64 * 64 * 4}"),
        # Few rows, a large weight, slow links: the rows move to where the weight is ...
        (4, 4096, 4096, {"a": 4}, ["M K"], WIRE,
         f"a:j; all-to-all a {4 * 4096}; reduce-scatter a {4 * 4096 * 4}"),
        # Only slow links count, and nothing is smaller than the operands: gathered, not reduced.
        (64, 4, 64, {"a": 4}, ["K"], WIRE,
         f"; all-gather a {64 * 4 * 4}; all-gather a {4 * 64 * 4}"),
        # Two axes, each on its own.
        (64, 64, 64, {"a": 4, "b": 2}, ["M", "N"], WORK, "a:i b:k"),
        (64, 64, 64, {"a": 4, "b": 2}, ["M", "K"], WORK, f"a:i b:j; all-reduce b {16 * 64 * 4}"),
        # Two axes on the contracted dim: one all-reduce over both.
        (64, 64, 64, {"a": 4, "b": 2}, ["K", "K"], WORK, f"a:j b:j; all-reduce a+b {64 * 64 * 4}"),
        # Four axes.
        (64, 64, 64, {"a": 2, "b": 2, "c": 2, "d": 2}, ["M", "N", "K", "K"], WORK,
         f"a:i b:k c:j d:j; all-reduce c+d {32 * 32 * 4}"),
    ],
)  # fmt: skip
def test_dot(
    m: int, k: int, n: int, mesh: dict[str, int], lists: list[str], on: Device, expected: str
) -> None:
    analysis = analysis_of(dot, [f32(m, k), f32(k, n)], DOT)
    assert told(ir_of(analysis, mesh, on, *lists), "dot_general") == expected


def test_a_reduction_is_scattered_where_its_result_is_split() -> None:
    """M of the result claims the axis, K of the operands: partial sums are scattered to M."""

    def fn(x: Any, w: Any, z: Any) -> Any:
        return x @ w + z

    analysis = analysis_of(
        fn, [f32(64, 4096), f32(4096, 64), f32(64, 64)], {"M": "z[0]", "K": "x[1]"}
    )
    ir = ir_of(analysis, {"a": 4}, WORK, "K M")
    assert told(ir, "dot_general") == f"a:j; reduce-scatter a {64 * 64 * 4}"


def test_a_value_moved_alike_for_several_uses_moves_once() -> None:
    def fn(x: Any, w1: Any, w2: Any) -> Any:
        return (x @ w1) * (x @ w2), x @ w1.T

    analysis = analysis_of(fn, [f32(64, 64), f32(64, 64), f32(64, 64)], {"N": "w1[1]", "M": "x[0]"})
    ir = ir_of(analysis, {"a": 4}, WORK, "N M")
    gathers = [c for c in ir.collectives if c.kind == "all-gather" and c.cause.value == "x"]
    assert len(gathers) == 1, gathers


def test_partial_sums_that_are_added_are_reduced_once() -> None:
    def two(x: Any, y: Any, v: Any, w: Any) -> Any:
        return x @ v + y @ w

    def nonlinear(x: Any, y: Any, v: Any, w: Any) -> Any:
        return jnp.tanh(x @ v) + y @ w

    args = [f32(64, 64), f32(64, 32), f32(64, 64), f32(32, 64)]
    for fn, count in ((two, 1), (nonlinear, 2)):
        analysis = analysis_of(fn, args, {"K": "x[1]", "J": "y[1]"})
        ir = ir_of(analysis, {"a": 4}, WORK, "K J")
        found = [(c.kind, c.bytes) for c in ir.collectives]
        assert found == [("all-reduce", 64 * 64 * 4)] * count
        # Split over different axes they cannot be added first.
        apart = ir_of(analysis, {"a": 4, "b": 4}, WORK, "K", "J")
        assert [c.axes for c in apart.collectives] == [("a",), ("b",)]


def test_bodies_of_loops_count_as_often_as_they_run() -> None:
    def fn(x: Any, ws: Any) -> Any:
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w[0]) @ w[1], None), x, ws)[0]

    analysis = analysis_of(fn, [f32(64, 64), f32(7, 2, 64, 64)], {"M": "x[0]", "F": "ws[2]"})
    for lists, kind in ((["M"], None), (["F"], "all-reduce")):
        ir = ir_of(analysis, {"a": 4}, WORK, *lists)
        counts = {c.count for c in ir.collectives}
        assert counts == ({7.0} if kind else set())
        assert {row.count for row in ir.rows if row.name == "dot_general"} == {7.0}


def test_of_a_branch_only_the_heaviest_counts() -> None:
    def fn(p: Any, x: Any, w: Any) -> Any:
        return jax.lax.cond(p > 0, lambda: jnp.tanh(x @ w) @ w, lambda: x @ w)

    args = [jax.ShapeDtypeStruct((), jnp.float32), f32(64, 64), f32(64, 64)]
    analysis = analysis_of(fn, args, {"M": "x[0]"})
    ir = ir_of(analysis, {"a": 4}, WORK, "M")
    assert sorted(row.count for row in ir.rows if row.name == "dot_general") == [0.0, 1.0, 1.0]
    model = CostModel(analysis, Mesh({"a": 4}), WORK)
    assert model.cost(Decisions(empty(1))).compute_s == pytest.approx(2 * 2 * 64**3)
    assert model.cost(decided(analysis, "M")).compute_s == pytest.approx(2 * 2 * 64**3 / 4)


def test_an_opaque_op_gathers_and_is_never_free() -> None:
    """A callback needs its operand whole, on every device."""

    def fn(x: Any) -> Any:
        y = jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((64, 64), jnp.float32), x * 2.0)
        return y + x

    program = trace(fn, f32(64, 64))
    assert sum(program.opaque.values()) == 1
    analysis = analyze_program(program, {"M": "x[0]"})
    device = Device.like("h100", name="h")
    model = CostModel(analysis, Mesh({"a": 4}), device)
    ir = model_ir(model, decided(analysis, "M"))
    name = next(iter(program.opaque))
    assert told(ir, name) == f"; all-gather a {64 * 64 * 4}"
    assert next(row for row in ir.rows if row.name == name).compute_s > 0
    assert model.cost(decided(analysis, "M")).link_s > 0


def test_a_dim_that_cannot_be_split_is_gathered() -> None:
    analysis = analysis_of(
        lambda x: jnp.sort(x, axis=0) * 2.0, [f32(64, 8)], {"M": "x[0]", "N": "x[1]"}
    )
    assert told(ir_of(analysis, {"a": 4}, WORK, "M"), "sort") == f"; all-gather a {64 * 8 * 4}"
    assert told(ir_of(analysis, {"a": 4}, WORK, "N"), "sort").startswith("a:")


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.concatenate([x * 2.0, x], 0),
        lambda x: jax.lax.slice_in_dim(x * 2.0, 4, 36),
        lambda x: jnp.pad(x * 2.0, ((4, 4), (0, 0))),
        lambda x: jax.lax.rev(x * 2.0, (0,)),
    ],
)
def test_a_dim_that_is_cut_or_joined_gives_its_axis_to_another(fn: Any) -> None:
    """Parts change places before and after; where no other dim divides, all is gathered."""
    for columns, kind in ((8, "all-to-all"), (3, "all-gather")):
        analysis = analysis_of(fn, [f32(64, columns)], {"M": "x[0]"})
        ir = ir_of(analysis, {"a": 4}, WORK, "M")
        assert {c.kind for c in ir.collectives} == {kind}


def test_windows_exchange_the_rows_they_reach_over() -> None:
    """[2, 64/4, 16, 8] image, 3x3 windows: one row from each side; with stride 2, from one."""
    for stride, rows in ((1, 2), (2, 1)):

        def fn(x: Any, w: Any, stride: int = stride) -> Any:
            numbers = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(
                x, w, (stride, stride), "SAME", dimension_numbers=numbers
            )

        analysis = analysis_of(fn, [f32(2, 64, 16, 8), f32(3, 3, 8, 8)], {"Y": "x[1]"})
        ir = ir_of(analysis, {"a": 4}, WORK, "Y")
        moved = [(c.kind, c.bytes) for c in ir.collectives]
        assert moved == [("collective-permute", 2 * 16 * 8 * 4)] * rows


def test_list_order_decides_which_dim_is_computed_apart() -> None:
    analysis = analysis_of(
        lambda x, y: x * y, [f32(64, 64), f32(64, 64)], {"M": "x[0]", "N": "x[1]"}
    )
    assert told(ir_of(analysis, {"a": 4}, WORK, "M N"), "mul") == "a:i"
    assert told(ir_of(analysis, {"a": 4}, WORK, "N M"), "mul") == "a:j"
