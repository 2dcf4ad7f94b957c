"""Experts whose weights must stay split: a plan sends rows to them, as one does by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.rules.grouped import GROUPED_DOTS
from tests.plans.expert_programs import gated, route, scattered

AXIS = "expert"
WEIGHTS = ("w1", "w3", "w2")


class Layer(NamedTuple):
    experts: int
    width: int
    hidden: int
    top_k: int
    devices: int


DEEPSEEK, MIXTRAL = Layer(64, 2048, 1408, 6, 32), Layer(8, 4096, 14_336, 2, 8)


def arguments(layer: Layer, tokens: int) -> tuple[Any, Any]:
    """Weights and x, of so many tokens on each device."""
    e, d, f = layer.experts, layer.width, layer.hidden
    shapes = {"router": (d, e), "w1": (e, d, f), "w3": (e, d, f), "w2": (e, f, d)}
    w = {name: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for name, shape in shapes.items()}
    return w, jax.ShapeDtypeStruct((tokens * layer.devices, d), jnp.bfloat16)


def by_hand(w: Any, x: Any, top_k: int) -> Any:
    """Rows travel once, before all three dots, and back; buffers have room for all of them."""

    def body(w: Any, x: Any) -> Any:
        devices, mine, here = lax.axis_size(AXIS), lax.axis_index(AXIS), len(w["w1"])
        gates, choices = route(w, x, top_k)
        order = jnp.argsort(choices.reshape(-1))
        counts = jnp.bincount(choices.reshape(-1), length=devices * here)
        every = lax.all_gather(counts.astype(jnp.int32).reshape(devices, here), AXIS)
        rows = every.sum(-1)  # [from, to]
        arrive, leave = jnp.cumsum(rows, 0) - rows, jnp.cumsum(rows, 1) - rows
        there = leave[mine], rows[mine], arrive[mine], rows[:, mine]
        back = arrive[:, mine], rows[:, mine], leave[:, mine], rows[mine]
        room = jnp.zeros((devices * len(x) * min(top_k, here), x.shape[1]), x.dtype)
        came = lax.ragged_all_to_all(x[order // top_k], room, *there, axis_name=AXIS)
        of = every[:, mine]  # [from, expert]
        numbers = jnp.tile(jnp.arange(here), devices)
        ids = jnp.repeat(numbers, of.reshape(-1), total_repeat_length=len(room))
        sort = jnp.argsort(jnp.where(jnp.arange(len(room)) < of.sum(), ids, here))
        done = jnp.zeros_like(room).at[sort].set(gated(w, came[sort], of.sum(0)))
        home = jnp.zeros((len(order), x.shape[1]), x.dtype)
        home = lax.ragged_all_to_all(done, home, *back, axis_name=AXIS)[jnp.argsort(order)]
        return jnp.einsum("tkd,tk->td", home.reshape(*gates.shape, -1), gates)

    specs = {"router": P(), **dict.fromkeys(WEIGHTS, P(AXIS))}
    return jax.shard_map(body, in_specs=(specs, P(AXIS)), out_specs=P(AXIS), check_vma=False)(w, x)


def planned(fn: Any, layer: Layer, tokens: int) -> sw.Plan:
    pins = [*[sw.Pin(f"w[{name!r}]", 0, AXIS) for name in WEIGHTS], sw.Pin("x", 0, AXIS)]

    def experts(w: Any, x: Any) -> Any:
        return fn(w, x, layer.top_k)

    return sw.partition(
        experts, *arguments(layer, tokens), mesh={AXIS: layer.devices}, device="tpu-v5p",
        tactics=pins if fn is by_hand else [*pins, sw.ExpertParallel(AXIS)], seconds=0.5,
    )  # fmt: skip


@pytest.mark.parametrize(
    "layer, tokens, ms", [(DEEPSEEK, 128, 0.54), (DEEPSEEK, 1024, 3.33), (MIXTRAL, 1024, 3.30)]
)
def test_rows_travel_where_weights_cannot(layer: Layer, tokens: int, ms: float) -> None:
    """At most 1.5 times as long as by hand, where they travel once for all dots of a layer."""
    plan, hand = planned(scattered, layer, tokens), planned(by_hand, layer, tokens)
    print(f"{1e3 * plan.cost.step_s:.2f} ms, by hand {1e3 * hand.cost.step_s:.2f} ms")
    dots = [row for row in plan.ir().rows if row.name in GROUPED_DOTS]
    assert len(dots) == 3 and all(dict(row.claims)[AXIS].endswith(" to k") for row in dots)
    assert 1e3 * plan.cost.step_s == pytest.approx(ms, rel=0.02)  # docs/kernels.md
    assert plan.cost.step_s <= 1.5 * hand.cost.step_s


def test_only_the_tactic_sends_rows() -> None:
    """Experts by name, tokens where they are not at an expert; without it rows are gathered."""

    def experts(w: Any, x: Any) -> Any:
        return scattered(w, x, DEEPSEEK.top_k)

    def plan_with(*tactics: Any) -> sw.Plan:
        return sw.partition(
            experts, *arguments(DEEPSEEK, 512), mesh={AXIS: DEEPSEEK.devices}, device="tpu-v5p",
            tactics=tactics,
        )  # fmt: skip

    plan = plan_with(sw.ExpertParallel(AXIS))
    other = plan_with(*(sw.Pin(f"w[{name!r}]", 0, AXIS) for name in WEIGHTS))
    assert "ragged-all-to-all" not in {c.kind for c in other.collectives}
    assert [plan.specs()[f"w[{name!r}]"][0] for name in WEIGHTS] == [AXIS] * 3
    assert "ragged-all-to-all" in {c.kind for c in plan.collectives}
    assert "rows go to the devices that need them" in " ".join(plan.explain().split())


def test_weights_travel_where_there_are_many_rows() -> None:
    plan, hand = planned(scattered, DEEPSEEK, 4096), planned(by_hand, DEEPSEEK, 4096)
    print(f"{1e3 * plan.cost.step_s:.2f} ms, by hand {1e3 * hand.cost.step_s:.2f} ms")
    assert {c.kind for c in plan.collectives} == {"all-gather"}
    assert plan.cost.step_s <= hand.cost.step_s
