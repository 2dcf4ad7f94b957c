"""The GPU compiler without a GPU reads the same collectives as the shardings ask for."""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardwright.referee.compiled import totals
from shardwright.referee.gpu_targets import GPUS
from shardwright.referee.hlo import parse
from shardwright.referee.targets import compile_for, parse_target
from tests.compilers.plans import build_update

pytestmark = pytest.mark.skipif(
    not any(importlib.util.find_spec(f"jax_cuda{major}_plugin") for major in (12, 13)),
    reason="needs the CUDA plugin of JAX",
)

MESH = {"data": 8, "model": 2}
B, D, F, LENGTH, BF16 = 1024, 512, 2048, 3, 2


def build(mesh: Any) -> Any:
    """The gradient of a scan of layers, weights split over data (FSDP) and model (Megatron)."""

    def on(*spec: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    weights = (on(None, "data", "model"), on(None, "model", "data"))
    constrain = jax.lax.with_sharding_constraint

    def loss(ws, x):
        def layer(h, w):
            up, down = constrain(w[0], on(None, "model")), constrain(w[1], on("model", None))
            u = constrain(jax.nn.relu(h @ up), on("data", "model"))
            return constrain(h + constrain(u @ down, on("data", None)), on("data", None)), None

        return jnp.mean(jnp.square(jax.lax.scan(layer, x, ws)[0].astype(jnp.float32)))

    def step(ws, x):
        grads = jax.grad(loss)(ws, x)
        grads = jax.tree.map(constrain, grads, weights)
        return jax.tree.map(lambda w, g: w - g, ws, grads)

    return jax.jit(
        step,
        in_shardings=(weights, on("data", None)),
        out_shardings=weights,
        donate_argnums=0,
    )


def shapes() -> tuple:
    def bf16(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    return (bf16(LENGTH, D, F), bf16(LENGTH, F, D)), bf16(B, D)


@pytest.mark.parametrize("chip", GPUS)
def test_fsdp_and_megatron_move_the_known_bytes(chip: str) -> None:
    compiled = compile_for(parse_target(f"cuda:{chip}:2x8"), build, shapes(), mesh=MESH)
    found = {key: size for key, (_, size) in totals(compiled.collectives).items()}
    weights = 2 * LENGTH * D * F // 2 * BF16  # both matrices of each layer, split over model
    rows = LENGTH * B // 8 * D * BF16
    assert found["all-gather", ("data",)] in (weights, 2 * weights)  # once, or again backward
    assert found["reduce-scatter", ("data",)] == weights  # the gradients
    assert found["all-reduce", ("model",)] == 2 * rows  # forward and backward
    assert compiled.memory.alias_bytes == weights // 8
    assert compiled.memory.argument_bytes == weights // 8 + B // 8 * D * BF16


def test_an_update_is_one_loop() -> None:
    """As it is priced (tests/cost/test_fusion.py): every array is read or written once."""

    arrays = (jax.ShapeDtypeStruct((D, F), jnp.float32),) * 4
    main = parse(compile_for(parse_target("cuda:h100:2x8"), build_update, arrays, mesh=MESH).hlo)
    (loop,) = [
        row for row in main.computations[main.entry].instructions.values()
        if row.opcode == "fusion"
    ]  # fmt: skip
    assert len(loop.operands) == 4 and loop.type.count("f32[") == 3
