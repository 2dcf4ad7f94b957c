"""Peak memory as formulas in the sizes of small programs, and against the host compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import shardwright as sw
from shardwright.analysis.analysis import analyze_program
from shardwright.cost.devices import device
from shardwright.cost.model import CostModel
from shardwright.mesh import Mesh
from shardwright.program.tracing import trace
from shardwright.spmd.decisions import Decisions, empty
from tests.arrays import f32
from tests.spmd.lists import decided

B, D, F, O, L = 256, 64, 512, 32, 6
N = 4  # devices
V6E = device("tpu-v6e")
# Without the habits of its compiler, which tests/cost/test_accelerator_memory.py has.
V5E = replace(device("tpu-v5e"), early_updates=False, rounds_dots=False, keeps_exponentials=False)


def forward(x: Any, w1: Any, w2: Any) -> Any:
    return jnp.tanh(x @ w1) @ w2


def train(weights: Any, moments: Any, x: Any, y: Any) -> Any:
    grads = jax.grad(lambda w: jnp.mean((forward(x, *w) - y) ** 2))(weights)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda w, m: w - 0.1 * m, weights, moments), moments


def deep(weights: Any, x: Any) -> Any:
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.sum(x * x)


def deep_remat(weights: Any, x: Any) -> Any:
    """The same, in blocks of two layers that are computed again."""
    pair = jax.checkpoint(lambda x, a, b: jnp.tanh(jnp.tanh(x @ a) @ b))
    for a, b in zip(weights[::2], weights[1::2], strict=True):
        x = pair(x, a, b)
    return jnp.sum(x * x)


def deep_scan(weights: Any, x: Any) -> Any:
    return jnp.sum(jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, weights)[0] ** 2)


WEIGHTS = [f32(D, F), f32(F, O)]
PROGRAMS: dict[str, tuple[Any, list[Any], tuple[int, ...]]] = {
    "forward": (forward, [f32(B, D), *WEIGHTS], ()),
    "train": (train, [WEIGHTS, WEIGHTS, f32(B, D), f32(B, O)], ()),
    "train, donated": (train, [WEIGHTS, WEIGHTS, f32(B, D), f32(B, O)], (0, 1)),
    "deep": (jax.grad(deep), [[f32(D, D)] * L, f32(B, D)], ()),
    "deep, remat": (jax.grad(deep_remat), [[f32(D, D)] * L, f32(B, D)], ()),
    "scan, forward": (deep_scan, [f32(L, D, D), f32(B, D)], ()),
    "scan": (jax.grad(deep_scan), [f32(L, D, D), f32(B, D)], ()),
}
LABELS = {"B": "x[0]", "D": "w1[0]", "F": "w1[1]"}
TRAIN_LABELS = {"B": "x[0]", "D": "weights[0][0]", "F": "weights[0][1]"}


def model_of(name: str, labels: dict[str, str] | None = None) -> CostModel:
    fn, args, donated = PROGRAMS[name]
    analysis = analyze_program(trace(fn, *args, donate_argnums=donated), labels)
    return CostModel(analysis, Mesh({"a": N}), V5E)


def peak(name: str, *lists: str, labels: dict[str, str] | None = None) -> float:
    """Peak in numbers of 4 bytes."""
    model = model_of(name, labels)
    chosen = decided(model.analysis, *lists) if lists else Decisions(empty(1))
    return model.cost(chosen).peak_bytes / 4


WEIGHT = D * F + F * O
SMALLEST = V5E.buffer_bytes // 4  # what a single number takes
ARGUMENTS = 2 * WEIGHT + B * D + B * O  # weights, moments, data


@pytest.mark.parametrize(
    "name, numbers",
    [
        # Arguments and the result, and the hidden layer: tanh writes over what it reads.
        ("forward", B * D + WEIGHT + B * O + B * F),
        # At the gradient of the hidden layer: that and the hidden layer itself, the gradient of
        # w2, the gradient of the result that both come from.
        ("train, donated", ARGUMENTS + 2 * B * F + F * O + B * O),
        # Without donation the new weights and moments need a place of their own.
        ("train", ARGUMENTS + 2 * WEIGHT + 2 * B * F + F * O + B * O),
        # The activations of all layers but the last, then its gradient on its way down, and the
        # gradient of one weight in another order than the result's.
        ("deep", L * D * D + B * D + L * D * D + 7 * B * D + D * D),
        # The carry, and the step's own product, and one slice of the weights; and one number.
        ("scan, forward", L * D * D + B * D + 2 * B * D + D * D + SMALLEST),
    ],
)
def test_peak(name: str, numbers: int) -> None:
    assert peak(name) == numbers


def test_donation_removes_the_double() -> None:
    """What is saved is a second copy of weights and moments."""
    assert peak("train") - peak("train, donated") == 2 * WEIGHT


def test_recomputing_lowers_the_peak() -> None:
    """Of two layers only one activation is kept, the other lives while its pair is done again."""
    saved = peak("deep") - peak("deep, remat")
    assert B * D <= saved <= (L // 2) * B * D


def test_stacks_of_a_loop_are_counted() -> None:
    """What the backward pass needs of each step is a stack of L; the forward pass keeps none."""
    stack = L * B * D
    assert peak("scan") >= peak("scan, forward") + stack


@pytest.mark.parametrize(
    "lists, part",
    [
        # Data parallel: activations and data are split, weights are not.
        ("B", B * D // N + WEIGHT + B * O // N + B * F // N),
        # Megatron: the hidden layer and both weights, but not the data nor the result.
        ("F", B * D + WEIGHT // N + B * O + B * F // N),
    ],
)
def test_split_arguments_and_activations(lists: str, part: int) -> None:
    assert peak("forward", lists, labels=LABELS) == pytest.approx(part, rel=0.25)
    assert peak("forward", lists, labels=LABELS) >= part


def test_a_gathered_weight_is_a_temporary() -> None:
    """FSDP stores a quarter of w1 and gathers it for the dot: it counts there and only there."""
    kept = B * D // N + D * F // N + F * O + B * O // N
    at_the_dot = kept + B * F // N + D * F
    assert peak("forward", "B D", labels=LABELS) == at_the_dot


def test_zero_splits_moments_only() -> None:
    """Weights whole, moments split: a quarter of the moments is what is left of them."""
    data = peak("train, donated", "B", labels=TRAIN_LABELS)
    zero = peak("train, donated", "B D! F!", labels=TRAIN_LABELS)
    moments = WEIGHT - WEIGHT // N
    assert data - zero <= moments + WEIGHT  # moments, and gradients that are scattered at once
    assert data - zero >= 0.5 * moments


def test_rows_of_neighbours_are_held() -> None:
    """Windows over a split dim: a row from either side, and the image with both around it."""
    rows, columns = 8 * N, 16

    def blur(x: Any, k: Any) -> Any:
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")

    x, k = f32(1, 1, rows, columns), f32(1, 1, 3, 3)
    analysis = analyze_program(trace(blur, x, k), {"H": "x[2]"})
    slow = replace(device("tpu-v5e"), buffer_bytes=4, flops_per_s={"f32": 1e6})  # splitting pays
    model = CostModel(analysis, Mesh({"a": N}), slow)
    numbers = model.cost(decided(analysis, "H")).peak_bytes / 4
    part, row = rows * columns // N, columns
    assert numbers == part + 9 + part + (row + row) + (part + 2 * row)


def test_tangents_of_integers_are_bools() -> None:
    """float0 has no bytes in JAX; XLA returns a pred of the same shape."""

    def tangent(i: Any) -> Any:
        return jax.jvp(lambda i: i * 2, (i,), (np.zeros(B, jax.dtypes.float0),))[1]

    numbers = jax.ShapeDtypeStruct((B,), jnp.int32)
    model = CostModel(analyze_program(trace(tangent, numbers)), Mesh({"a": N}), device("cpu"))
    assert model.cost(Decisions(empty(1))).peak_bytes == 4 * B + B


def test_bits_of_rbg_keys_are_drawn_whole() -> None:
    """XLA splits Threefry, not its own generator: every device draws all and keeps its part."""
    for impl, drawn in (("threefry2x32", B * D // N), ("rbg", B * D)):

        def noise(x: Any, impl: str = impl) -> Any:
            return x * jax.random.uniform(jax.random.key(0, impl=impl), (B, D))

        analysis = analyze_program(trace(noise, f32(B, D)), {"B": "x[0]"})
        model = CostModel(analysis, Mesh({"a": N}), V5E)
        held = model.cost(decided(analysis, "B")).peak_bytes / 4 - 2 * B * D // N
        assert drawn <= held <= drawn + B * D // N + SMALLEST


# Host compiler: arguments + results - donated + temporaries, on one device.
@pytest.mark.parametrize(
    "name, off",
    [
        ("forward", 0.01),
        ("train", 0.08),
        ("train, donated", 0.01),
        ("deep", 0.05),
        ("scan, forward", 0.01),
        ("scan", 0.10),
    ],
)
def test_against_the_host_compiler(name: str, off: float) -> None:
    fn, args, donated = PROGRAMS[name]
    sizes = jax.jit(fn, donate_argnums=donated).lower(*args).compile().memory_analysis()
    compiled = (
        sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
        + sizes.temp_size_in_bytes
    )  # fmt: skip
    assert 4 * peak(name) == pytest.approx(compiled, rel=off)


def offloading(policy: Any) -> Any:
    """The gradient of L scanned layers, each keeping what the policy says."""

    def loss(weights: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            return jnp.sin(checkpoint_name(jnp.tanh(x @ w), "hidden") @ w.T), None

        return jnp.sum(jax.lax.scan(jax.checkpoint(layer, policy=policy), x, weights)[0])

    return jax.grad(loss)


SAVED = jax.checkpoint_policies.save_only_these_names("hidden")
OFFLOADED = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["hidden"],
    offload_src="device", offload_dst="pinned_host",
)  # fmt: skip


def test_offloaded_residuals_take_no_memory_of_the_device() -> None:
    """A stack on the host leaves the peak but for the entry at work; its copies take their time."""
    args = (f32(L, D, F), f32(B, D))
    costs = []
    for policy in (SAVED, OFFLOADED):
        analysis = analyze_program(trace(offloading(policy), *args), {"B": "x[0]"})
        model = CostModel(analysis, Mesh.of({"x": N}), V6E)
        costs.append(model.cost(decided(analysis, "B")))
    entry = B // N * F * 4
    saved, offloaded = costs
    assert saved.host_s == 0.0
    assert offloaded.host_s == pytest.approx(2 * L * entry / V6E.host_bytes_per_s)
    assert offloaded.step_s == max(offloaded.compute_s + offloaded.exposed_s, offloaded.host_s)
    assert L * entry * 0.5 < saved.peak_bytes - offloaded.peak_bytes <= L * entry


def test_offloading_survives_the_plan() -> None:
    """The planned function still sends residuals to the host, and computes the same."""
    rng = np.random.default_rng(0)
    args = tuple(rng.normal(size=s.shape).astype(np.float32) for s in (f32(L, D, F), f32(B, D)))
    fn = offloading(OFFLOADED)
    plan = sw.partition(fn, *args, mesh={"x": N}, device="tpu-v6e")
    traced = plan.jit(fn).trace(*plan.place(*args))
    sent = traced.lower(lowering_platforms=("tpu",)).as_text().count('"pinned_host"')
    plain = jax.jit(fn).trace(*args).lower(lowering_platforms=("tpu",)).as_text()
    assert sent == plain.count('"pinned_host"') == 1
    assert plan.verify(run=True).ok


def test_results_on_the_host_are_named() -> None:
    """What the plan brings back to the devices is said."""

    def step(m: Any, x: Any) -> Any:
        return jax.device_put(m + x, jax.memory.Space.Host)

    plan = sw.partition(step, f32(64, 64), f32(64, 64), mesh={"x": N}, device="tpu-v6e")
    assert any(note.startswith("result: in the host's memory") for note in plan.record.notes)


def peak_on_one(fn: Any, *args: Any, donated: tuple[int, ...] = ()) -> int:
    """The peak of a function on one device."""
    analysis = analyze_program(trace(fn, *args, donate_argnums=donated))
    return CostModel(analysis, Mesh({"x": 1}), V6E).cost(Decisions(empty(1))).peak_bytes


def test_a_cache_that_a_loop_gives_back_is_there_twice() -> None:
    """It enters as a stack and leaves as another, which is copied to the donated one at the end."""

    def decode(cache: Any, x: Any) -> Any:
        def layer(x: Any, entry: Any) -> Any:
            entry = jax.lax.dynamic_update_slice(entry, x, (0, 0))
            return x + entry.sum(), entry

        return jax.lax.scan(layer, x, cache)[::-1]

    assert peak_on_one(decode, f32(L, B, D), f32(1, D), donated=(0,)) >= 2 * 4 * L * B * D
