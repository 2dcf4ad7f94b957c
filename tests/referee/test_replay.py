"""Schedules played by hand: what waits, what runs beside what."""

from __future__ import annotations

import pytest

from shardwright.cost.devices import Device
from shardwright.referee.compiled import CompiledCollective
from shardwright.referee.estimates import cycles, roofline
from shardwright.referee.hlo import parse
from shardwright.referee.replay import replay

MESH = {"x": 2, "y": 2}
_X, _Y = "replica_groups={{0,2},{1,3}}", "replica_groups={{0,1},{2,3}}"


def _work(name: str, seconds: int, operand: str = "%p", calls: str = "%add") -> str:
    cycles = f'backend_config={{"window_config":{{"estimated_cycles":"{seconds}"}}}}'
    return f"  %{name} = f32[4]{{0}} fusion({operand}), kind=kLoop, calls={calls}, {cycles}"


def _reduce(name: str, groups: str, operand: str = "%p") -> str:
    return (
        f"  %{name} = f32[4]{{0}} all-reduce({operand}), channel_id=9, {groups},"
        " use_global_device_ids=true, to_apply=%add"
    )


def _pair(name: str, groups: str) -> tuple[str, str]:
    start = (
        f"  %{name}-start = (f32[4]{{0}}, f32[8]{{0}}) all-gather-start(%p), channel_id=3,"
        f" {groups}, dimensions={{0}}, use_global_device_ids=true"
    )
    return start, f"  %{name} = f32[8]{{0}} all-gather-done(%{name}-start)"


# The TPU compiler names an asynchronous gather in every fusion that runs beside it.
_ASYNC = 'backend_config={"async_collective_fusion_config":{}}'
BESIDE = f"""
%beside (q: f32[4]) -> f32[8] {{
  %q = f32[4]{{0}} parameter(0)
  ROOT %g = f32[8]{{0}} all-gather(%q), channel_id=7, {_X}, dimensions={{0}}, {_ASYNC}
}}
"""


def _module(lines: list[str], more: str = "") -> str:
    body = "\n".join(["  %p = f32[4]{0} parameter(0)", *lines])
    head = f"HloModule m, is_scheduled=true\n{more}"
    return f"{head}\nENTRY %main (p: f32[4]) -> f32[4] {{\n{body}\n}}\n"


START, DONE = _pair("a", _X)
START_2, DONE_2 = _pair("b", _X)
START_Y, DONE_Y = _pair("c", _Y)

# (instructions, compute, links, exposed); every collective takes 10 s.
CASES = {
    "nothing runs beside it": ([_work("f", 5), _reduce("r", _X), _work("g", 5)], 10, 10, 10),
    "hidden": ([START, _work("f", 15), DONE], 15, 10, 0),
    "partly hidden": ([START, _work("f", 4), DONE, _work("g", 9)], 13, 10, 6),
    "one after the other on one axis": ([START, START_2, _work("f", 15), DONE, DONE_2], 15, 20, 5),
    "both at once on two axes": ([START, START_Y, _work("f", 15), DONE, DONE_Y], 15, 20, 0),
    "links are taken": ([START, _work("f", 4), _reduce("r", _X), DONE], 4, 20, 16),
    "from the first to the last mention": (
        [_work("f", 3, calls="%beside"), _work("g", 4), _work("h", 1, calls="%beside"),
         _work("i", 9)], 17, 10, 2,
    ),
    "mentioned once": ([_work("f", 3, calls="%beside"), _work("g", 9)], 12, 10, 7),
}  # fmt: skip


@pytest.mark.parametrize("lines, compute, links, exposed", CASES.values(), ids=CASES)
def test_schedules(lines: list[str], compute: int, links: int, exposed: int) -> None:
    text = _module(lines, BESIDE)
    found = replay(text, MESH, lambda collective: 10.0, cycles(1.0))
    assert (found.compute_s, found.link_s, found.exposed_s) == (compute, links, exposed)
    assert found.step_s == compute + exposed


def test_a_loop_runs_its_trips_and_nothing_beside_it() -> None:
    body = f"""
%body (t: f32[4]) -> f32[4] {{
  %t = f32[4]{{0}} parameter(0)
{START.replace("%p", "%t")}
{_work("f", 4, "%t")}
{DONE}
}}
"""
    loop = (
        "  %w = f32[4]{0} while(%p), condition=%c, body=%body,"
        ' backend_config={"known_trip_count":{"n":"3"}}'
    )
    outside, done = _pair("o", _Y)
    text = _module([outside, loop, done, _work("g", 2)], body)
    found = replay(text, MESH, lambda collective: 10.0, cycles(1.0))
    assert (found.compute_s, found.link_s) == (3 * 4 + 2, 3 * 10 + 10)
    assert found.exposed_s == 10 + 3 * 6


def test_links_are_told_kind_axes_and_bytes() -> None:
    seen: list[CompiledCollective] = []

    def link_s(one: CompiledCollective) -> float:
        seen.append(one)
        return 1.0

    replay(_module([START, DONE, _reduce("r", _Y)]), MESH, link_s, cycles(1.0))
    assert [(c.kind, c.axes, c.bytes) for c in seen] == [
        ("all-gather", ("x",), 8 * 4), ("all-reduce", ("y",), 4 * 4),
    ]  # fmt: skip


def test_a_roofline_of_what_has_no_estimate() -> None:
    """A dot by its FLOP, a copy by its bytes, a collective's halves not at all."""
    device = Device(
        name="round", flops_per_s={"f32": 1e3}, vector_flops_per_s=1e3, memory_bytes=10**9,
        memory_bytes_per_s=1e4, link_bytes_per_s=1.0,
    )  # fmt: skip
    text = _module([
        "  %d = f32[4,4]{1,0} dot(%m, %m), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "  %c = f32[4]{0} copy(%p)", START, "  ROOT %m = f32[4,64]{1,0} broadcast(%p)",
    ])  # fmt: skip
    module = parse(text)
    main = module.computations["main"]
    seconds = {n: roofline(device)(module, main, row) for n, row in main.instructions.items()}
    assert seconds["d"] == pytest.approx(2 * 4 * 4 * 64 / 1e3)
    assert seconds["c"] == pytest.approx((4 + 4) * 4 / 1e4)
    assert seconds["a-start"] == seconds["p"] == 0


def test_a_roofline_reads_slices_not_what_they_are_cut_from() -> None:
    """One layer of stacked weights; one written in place, fused or not; rows of a table."""
    device = Device(
        name="round", flops_per_s={"f32": 1e3}, vector_flops_per_s=1e3, memory_bytes=10**9,
        memory_bytes_per_s=1e4, link_bytes_per_s=1.0,
    )  # fmt: skip
    text = """HloModule m, is_scheduled=true

%cut (w: f32[8,4], i: s32[]) -> f32[4] {
  %w = f32[8,4]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %s = f32[1,4]{1,0} dynamic-slice(%w, %i, %i), dynamic_slice_sizes={1,4}
  ROOT %b = f32[4]{0} bitcast(%s)
}

%put (w: f32[8,4], x: f32[4], i: s32[]) -> f32[8,4] {
  %w = f32[8,4]{1,0} parameter(0)
  %x = f32[4]{0} parameter(1)
  %i = s32[] parameter(2)
  %y = f32[1,4]{1,0} bitcast(%x)
  ROOT %u = f32[8,4]{1,0} dynamic-update-slice(%w, %y, %i, %i)
}

%look (w: f32[8,4], j: s32[2,1]) -> f32[2,4] {
  %w = f32[8,4]{1,0} parameter(0)
  %j = s32[2,1]{1,0} parameter(1)
  ROOT %g = f32[2,4]{1,0} gather(%w, %j), offset_dims={1}, slice_sizes={1,4}
}

ENTRY %main (w: f32[8,4], i: s32[], j: s32[2,1]) -> f32[8,4] {
  %w = f32[8,4]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %j = s32[2,1]{1,0} parameter(2)
  %rows = f32[2,4]{1,0} fusion(%w, %j), kind=kLoop, calls=%look
  %plain = f32[1,4]{1,0} dynamic-slice(%w, %i, %i), dynamic_slice_sizes={1,4}
  %fused = f32[4]{0} fusion(%w, %i), kind=kLoop, calls=%cut
  ROOT %put.1 = f32[8,4]{1,0} fusion(%w, %fused, %i), kind=kLoop, calls=%put
}
"""
    module = parse(text)
    main = module.computations["main"]
    seconds = {n: roofline(device)(module, main, row) for n, row in main.instructions.items()}
    row, index = 4 * 4, 4  # bytes
    assert seconds["plain"] == pytest.approx((2 * row + 2 * index) / 1e4)
    assert seconds["fused"] == pytest.approx((2 * row + index) / 1e4)
    assert seconds["put.1"] == pytest.approx((3 * row + index) / 1e4)
    assert seconds["rows"] == pytest.approx((2 * 2 * row + 2 * index) / 1e4)
