"""What a plan says of kernels that not all devices can share, and of axes that are not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.extend import core
from jax.sharding import PartitionSpec as P

import shardwright as sw

MESH = {"data": 4, "model": 2}


def notes(fn: Callable[..., Any], *shapes: tuple[int, ...], device: str = "tpu-v5e") -> list[str]:
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    plan = sw.partition(fn, *args, mesh=MESH, device=device, seconds=0.1)
    return [note for note in plan.record.notes if "test_kernel_notes.py" in note]


def doubled(rows: int) -> Callable[[jax.Array], jax.Array]:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]

    def fn(x: jax.Array) -> jax.Array:
        block = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
        return pl.pallas_call(
            kernel, out_shape=x, grid=(x.shape[0] // rows,), in_specs=[block], out_specs=block,
            name="doubled",
        )(x)  # fmt: skip

    return fn


def test_blocks_that_no_axis_divides() -> None:
    (note,) = notes(doubled(128), (384, 128))
    assert note.startswith("doubled at ") and "is computed in full on every device" in note
    assert "do not divide its 3 blocks of 128" in note
    assert note.endswith("blocks of 192 could be")
    assert notes(doubled(48), (384, 128)) == []


def test_blocks_that_the_axis_of_a_pin_does_not_divide() -> None:
    with pytest.raises(sw.ShardwrightError) as error:
        pins = [sw.Pin("x", 0, "data")]
        sw.partition(doubled(128), jnp.ones((384, 128)), mesh=MESH, tactics=pins)
    cause = error.value.facts["cause"]
    assert cause.startswith("the blocks of the kernel at test_kernel_notes.py")
    assert cause.endswith("make the dim 3 x 128, and the first of these is split first")


def test_blocks_that_some_axes_divide() -> None:
    (note,) = notes(doubled(64), (384, 128))
    assert "is shared by 2 of 8: the axes of data=4 x model=2 do not divide its 6 blocks" in note


def test_one_block() -> None:
    (note,) = notes(doubled(512), (512, 128))
    assert "its grid has one step, and blocks are never cut; smaller blocks could be split" in note
    assert 'sw.rule("doubled", "a b -> c d")' in note


def test_no_grid() -> None:
    """As kernels with a pipeline inside have it: no rule can give each device a part."""

    def fn(x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = 2 * x_ref[...]

        return pl.pallas_call(kernel, out_shape=x, name="doubled")(x)

    (note,) = notes(fn, (512, 128))
    assert "it has no grid that devices could share" in note
    assert "call it in a jax.shard_map, where it is called for one device's arrays" in note


@pytest.mark.parametrize("axes", [{"data", "model"}, {"data"}], ids=["manual", "partial-manual"])
def test_in_a_shard_map_only_the_axes_that_are_left_count(axes: set[str]) -> None:
    """Three blocks on each device: nothing to say, or of the axis of two that is left."""

    def fn(x: jax.Array) -> jax.Array:
        rows = P(("data", "model") if "model" in axes else "data")
        return jax.shard_map(
            doubled(64), in_specs=rows, out_specs=rows, axis_names=axes, check_vma=False
        )(x)

    found = notes(fn, (1536, 128) if "model" in axes else (768, 128))
    said = "the axes of model=2 do not divide its 3 blocks of 64"
    assert [said in note for note in found] == [True] * ("model" not in axes)


def flashed(causal: bool) -> Callable[..., Any]:
    return lambda q, k, v: flash.flash_attention(q, k, v, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_has_queries_for_all_devices(causal: bool) -> None:
    """Of one sequence and two heads: nothing is left to say."""
    assert notes(flashed(causal), *[(1, 2, 4096, 128)] * 3) == []


@pytest.mark.parametrize("options", [{"is_causal": True}, {"query_seq_lengths": 100}], ids=str)
def test_cudnn_attention_says_why_queries_stay_whole(options: dict[str, Any]) -> None:
    """A mask goes along with them; lengths are counted from the first one."""
    lengths = {k: jnp.full((1,), n, jnp.int32) for k, n in options.items() if "lengths" in k}

    def fn(q: Any, k: Any, v: Any) -> Any:
        given = {**options, **lengths}
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **given)

    loss = jax.grad(lambda *args: jnp.sum(fn(*args).astype(jnp.float32)), (0, 1, 2))
    found = notes(loss, *[(1, 4096, 2, 128)] * 3, device="h100")
    assert ["cuDNN counts lengths" in note for note in found] == [True] * len(lengths)


def test_a_grouped_dot_that_no_axis_divides() -> None:
    """Whole tokens are said why: nothing is padded in a shard_map."""

    def fn(x: Any, w: Any) -> Any:
        return jax.lax.ragged_dot(jnp.sin(x), w, jnp.full((7,), 511, jnp.int32))

    (note,) = notes(fn, (4097, 1023), (7, 1023, 2047))
    assert note.startswith("ragged_dot_general at ") and "computed in full on every device" in note
    assert "do not divide its dims of 4097, 2047, 1023, 7" in note
    assert note.endswith("rows in a multiple of 8 would be split")
    assert notes(fn, (4096, 1023), (7, 1023, 2047)) == []


@pytest.mark.parametrize("target", ["te_gemm_ffi", "my_kernel"])
def test_a_custom_call_of_another_library(target: str) -> None:
    """As those of transformer_engine are: where it stands, and the line that would open it."""

    def fn(x: Any, w: Any) -> Any:
        made = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
        return jnp.tanh(jax.ffi.ffi_call(target, made)(x, w))

    (note,) = notes(fn, (4096, 1024), (1024, 2048), device="h100")
    assert note.startswith(f"{target} at ") and "is computed in full on every device" in note
    assert note.endswith(f'sw.rule("{target}", "a b, c d -> e f")')


def test_a_kernel_of_jax_triton() -> None:
    """Its call has fixed the grid: a rule could not split it, a shard_map can."""
    call = core.Primitive("triton_kernel_call")
    call.multiple_results = True
    call.def_abstract_eval(
        lambda *args, out_shapes, **_: [jax.core.ShapedArray(*s) for s in out_shapes]
    )

    def fn(x: Any, y: Any) -> Any:
        (out,) = call.bind(x, y, out_shapes=((x.shape, x.dtype),), name="add", grid=(8,))
        return 2 * out

    (note,) = notes(fn, (4096, 1024), (4096, 1024), device="h100")
    assert note.startswith("add at ") and "call it in a jax.shard_map" in note


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_collective_over_an_axis_that_the_mesh_does_not_have(check_vma: bool) -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jax.shard_map(
            lambda x: jax.lax.psum(x, "expert"), in_specs=P("data"), out_specs=P("data"),
            check_vma=check_vma,
        )(x)  # fmt: skip

    with pytest.raises(sw.ShardwrightError) as error:
        sw.partition(fn, jnp.ones((8, 8)), mesh=MESH)
    assert "test_kernel_notes.py" in str(error.value)
    assert "'expert'" in str(error.value) or "must be of the mesh, 'data', 'model'" in str(
        error.value
    )
