"""The folded model equals the walk over every op, on the zoo and on random programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright import zoo
from shardwright.analysis.analysis import Analysis, analyze_program
from shardwright.cost.cost import Cost
from shardwright.cost.devices import Device, device
from shardwright.cost.model import CostModel, model_ir
from shardwright.mesh import Mesh
from shardwright.program.tracing import trace
from shardwright.spmd.decisions import EVERYTHING, UPDATES, Decisions, Entry, decide, empty
from shardwright.spmd.layout import REPLICATED
from shardwright.zoo import transformer
from tests.cost.walk import Walk, walk_cost
from tests.spmd.random_programs import MESHES, build, states, steps
from tests.tiny import analysis_of

TINY = zoo.programs("tiny")
# Where work costs most, partial sums and gathers are chosen that latency would forbid.
BUSY = Device.like("tpu-v5e", name="busy", flops_per_s={"f32": 1e6, "bf16": 1e6})
DEVICES = (BUSY, device("h100"), device("tpu-v5e"), device("cpu"))  # a host's order is another


def random_state(analysis: Analysis, axes: int, rng: np.random.Generator) -> Decisions:
    """Up to four groups per axis, tiny and looped ones too, any resolution, any scope."""
    groups = [g.index for g in analysis.all_groups]
    worth = [g.index for g in analysis.groups]

    def one() -> tuple[Entry, ...]:
        pool = worth if rng.random() < 0.8 else groups
        chosen = rng.permutation(pool)[: rng.integers(0, 5)].tolist()
        scopes = [UPDATES if rng.random() < 0.2 else EVERYTHING for _ in chosen]
        return tuple(
            Entry(g, int(rng.integers(0, 4)), s) for g, s in zip(chosen, scopes, strict=True)
        )

    return decide(tuple(one() for _ in range(axes)))


def assert_equal(folded: Cost, walked: Cost) -> None:
    """Seconds up to the order of the sum, bytes exactly."""
    assert folded.compute_s == pytest.approx(walked.compute_s, rel=1e-9, abs=1e-18)
    assert folded.link_s == pytest.approx(walked.link_s, rel=1e-9, abs=1e-18)
    assert folded.hidden_s == pytest.approx(walked.hidden_s, rel=1e-9, abs=1e-18)
    assert folded.peak_bytes == walked.peak_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_zoo(name: str) -> None:
    analysis = analysis_of(name)
    rng = np.random.default_rng(list(TINY).index(name))
    for mesh in MESHES:
        model = CostModel(analysis, Mesh(mesh), DEVICES[(len(mesh) - 1) % 3], overlap=0.5)
        walk = Walk(model)
        batch = [
            decide(empty(len(mesh))),
            *(random_state(analysis, len(mesh), rng) for _ in range(2)),
        ]
        if len(mesh) == 1:
            batch += [decide(((Entry(g.index),),)) for g in analysis.groups[:8]]
        costs = model.evaluate(batch)
        for i, state in enumerate(batch):
            walked = walk.cost(state)
            assert_equal(costs[i], walked)
            assert costs.step_s[i] == pytest.approx(walked.step_s, rel=1e-9)


@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(data=st.data(), steps=steps, train=st.booleans(), mesh=st.sampled_from(MESHES))
def test_random_programs(data: st.DataObject, steps: list, train: bool, mesh: dict) -> None:
    fn, args = build(steps, train=train)
    analysis = analyze_program(trace(fn, *args, donate_argnums=(0,) if train else ()))
    model = CostModel(analysis, Mesh(mesh), DEVICES[len(steps) % 4])
    groups = [g.index for g in analysis.all_groups]
    drawn = data.draw(st.lists(states(groups, len(mesh)), min_size=1, max_size=4))
    batch = [decide(state) for state in drawn]
    costs = model.evaluate(batch)
    for i, state in enumerate(batch):
        assert_equal(costs[i], walk_cost(model, state))


@pytest.mark.parametrize("name", ["transformer_train", "llama_scan_train", "moe_train"])
def test_the_ir_adds_up_to_the_cost(name: str) -> None:
    """Seconds of the IR's collectives, counted, are the links' seconds."""
    analysis = analysis_of(name)
    model = CostModel(analysis, Mesh({"data": 2, "model": 4}), device("tpu-v5e"))
    rng = np.random.default_rng(7)
    for _ in range(6):
        state = random_state(analysis, 2, rng)
        ir = model_ir(model, state)
        seconds = sum(c.count * c.seconds for c in ir.collectives)
        assert seconds == pytest.approx(model.cost(state).link_s, rel=1e-9)
        assert seconds == pytest.approx(sum(s for _, _, s in ir.totals().values()), rel=1e-9)


@pytest.mark.parametrize("name", ["transformer_train", "llama_scan_train", "unet_train"])
def test_a_host_is_walked_too(name: str) -> None:
    """Another order of ops, and copies of operands that wait for their op."""
    analysis = analysis_of(name)
    model = CostModel(analysis, Mesh({"data": 2, "model": 2}), device("cpu"))
    walk, rng = Walk(model), np.random.default_rng(3)
    for _ in range(3):
        state = random_state(analysis, 2, rng)
        assert_equal(model.cost(state), walk.cost(state))


def test_overrides_are_walked_too() -> None:
    """A layout that refinement keeps whole costs what the walk says, and something else."""
    analysis = analysis_of("transformer_train")
    model = CostModel(analysis, Mesh({"data": 8}), device("tpu-v5e"))
    weight = next(
        v for v in analysis.program.inputs if "w1" in (analysis.program.values[v].path or "")
    )
    layout = int(model.layouts.of_value[weight])
    split = decide(((Entry(model.layouts.table[layout].atoms[0].group),),))
    kept = split.override({layout: (REPLICATED,)})
    before, after = model.cost(split), model.cost(kept)
    assert_equal(after, walk_cost(model, kept))
    assert after.peak_bytes > before.peak_bytes


def test_evaluating_twice_changes_nothing() -> None:
    """The memo answers as the first evaluation did, alone or in a batch."""
    analysis = analysis_of("llama_train")
    rng = np.random.default_rng(1)
    batch = [random_state(analysis, 2, rng) for _ in range(8)]
    model = CostModel(analysis, Mesh({"data": 2, "model": 2}), device("h100"))
    first = [model.cost(state) for state in batch]
    again = model.evaluate(batch)
    for i, cost in enumerate(first):
        assert_equal(again[i], cost)


def test_repeated_layers_count_once_each() -> None:
    """Five layers: classes and sums of partial sums that stand for several layers."""
    config = replace(transformer.PRESETS["tiny"], layers=5)
    example = transformer.train(config)
    analysis = analyze_program(trace(example.fn, *example.args, donate_argnums=(0,)))
    model = CostModel(analysis, Mesh({"model": 4}), BUSY)
    assert max(one.weight for one in model.weights.deferred) > 1
    walk = Walk(model)
    for group in analysis.groups:
        state = decide(((Entry(group.index),),))
        assert_equal(model.cost(state), walk.cost(state))
