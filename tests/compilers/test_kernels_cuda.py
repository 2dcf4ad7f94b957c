"""The GPU compiler, without a GPU: cuDNN attention on shards compiles and moves nothing."""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright.referee.targets import compile_for, parse_target
from tests.plans.expert_programs import scattered
from tests.plans.test_experts import AXIS, DEEPSEEK, WEIGHTS, arguments
from tests.plans.test_shard_map import MESH as EXCHANGE_MESH
from tests.plans.test_shard_map import TO, exchanged_and_multiplied

pytestmark = pytest.mark.skipif(
    not any(importlib.util.find_spec(f"jax_cuda{major}_plugin") for major in (12, 13)),
    reason="needs the CUDA plugin",
)

B, S, H, KV, D = 64, 4096, 16, 4, 128


def loss(q: Any, k: Any, v: Any) -> Any:
    out = jax.nn.dot_product_attention(q, k, v, implementation="cudnn", is_causal=True)
    return jnp.sum(out.astype(jnp.float32) ** 2)


def test_cudnn_attention_and_its_gradient_move_nothing() -> None:
    """No gather of q, k or v, nor of their gradients: only the loss is summed."""
    q, k = (jax.ShapeDtypeStruct((B, S, n, D), jnp.bfloat16) for n in (H, KV))
    pins = [sw.Pin("q", 0, "data"), sw.Pin("q", 2, "model")]
    step = jax.value_and_grad(loss, (0, 1, 2))
    mesh = {"data": 2, "model": 4}
    plan = sw.partition(step, q, k, k, mesh=mesh, device="h100", tactics=pins)
    found = plan.verify("cuda:h100:1x8")
    print(found)
    assert {row.kind: row.compiled[1] for row in found.traffic.rows} == {"all-reduce": 4}
    assert found.memory_error <= 0.15


def test_queries_of_causal_cudnn_attention_split_over_devices() -> None:
    """Keys and values are gathered, their gradients summed where they came from; as predicted."""
    q, k = (jax.ShapeDtypeStruct((8, S, n, D), jnp.bfloat16) for n in (H, KV))
    pins = [sw.Pin("q", 0, "data"), *(sw.Pin(name, 1, "model") for name in "qkv")]
    step = jax.value_and_grad(loss, (0, 1, 2))
    mesh = {"data": 2, "model": 4}
    plan = sw.partition(step, q, k, k, mesh=mesh, device="h100", tactics=pins)
    rows = [row for row in plan.ir().rows if row.name.startswith("dot_product_attention")]
    assert all(dict(row.claims).keys() == {"data", "model"} for row in rows) and len(rows) == 2
    found = plan.verify("cuda:h100:1x8")
    print(found)
    assert found.link_error <= 0.10


@pytest.mark.parametrize("written", ["dot_product_attention", "einsum"])
def test_attention_in_plain_jax_is_not_made_a_fused_kernel(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even with the flag that the former rewriter had: so it is priced as it is written."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_cudnn_fmha=true --xla_gpu_autotune_level=0")

    def attend(q: Any, k: Any, v: Any) -> Any:
        if written == "dot_product_attention":
            return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")
        scores = jnp.einsum("bthd,bshd->bhts", q, k)
        return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)

    x = jax.ShapeDtypeStruct((4, 1024, 8, 64), jnp.bfloat16)
    target = parse_target("cuda:h100:1x8")
    compiled = compile_for(target, lambda mesh: jax.jit(attend), (x, x, x), mesh={"data": 8})
    assert "fmha" not in compiled.hlo and "fusion" in compiled.hlo


def test_a_ragged_all_to_all_sends_what_is_predicted() -> None:
    """Rows to the devices of their experts, and a grouped dot of what came."""
    x, w = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((65_536, 1024), (4, 1024, 2048)))
    args = x, TO, w, jax.ShapeDtypeStruct((4,), jnp.int32)
    plan = sw.partition(exchanged_and_multiplied, *args, mesh=EXCHANGE_MESH, device="h100")
    found = plan.verify("cuda:h100:1x8")
    print(found)
    assert found.link_error <= 0.10
    kinds = {row.kind: row.compiled[1] for row in found.traffic.rows}
    assert kinds["ragged-all-to-all"] == 2 * 65_536 // 4 * 1024


@pytest.mark.parametrize("differentiated", [False, True])
def test_rows_that_a_plan_sends_to_their_experts(differentiated: bool) -> None:
    """Each row there and back, as predicted; as scheduled faster than rows that are gathered."""
    layer = DEEPSEEK._replace(devices=8)

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any, x: Any) -> Any:
            return scattered(w, x, layer.top_k).astype(jnp.float32).sum()

        return jax.grad(loss, (0, 1))(w, x) if differentiated else scattered(w, x, layer.top_k)

    def verified(*tactics: Any) -> tuple[sw.Plan, Any]:
        pins = [*[sw.Pin(f"w[{name!r}]", 0, AXIS) for name in WEIGHTS], sw.Pin("x", 0, AXIS)]
        plan = sw.partition(
            step, *arguments(layer, 128), mesh={AXIS: 8}, device="h100",
            tactics=[*pins, *tactics], seconds=0.5,
        )  # fmt: skip
        found = plan.verify("cuda:h100:1x8")
        print(found)
        return plan, found

    (sent, found), (gathered, other) = verified(sw.ExpertParallel(AXIS)), verified()
    assert found.link_error <= 0.10
    kinds = [{c.kind for c in plan.collectives} for plan in (sent, gathered)]
    assert ["ragged-all-to-all" in of for of in kinds] == [True, False]
    assert sent.cost.step_s < gathered.cost.step_s
    assert found.seconds.step_s < other.seconds.step_s
