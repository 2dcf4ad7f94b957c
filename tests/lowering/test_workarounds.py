"""XLA still needs what lowering/workarounds.py and lowering/convolution.py do for it.

Each program is plain JAX with shardings on its values, and shows what XLA does with it: wrong
numbers, a refusal, a gather, an abort. All were seen in jaxlib 0.10.2. A test that fails here says
that its workaround can go.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

GONE = "seen in jaxlib 0.10.2, and no longer: the workaround can go"
Constrain = Callable[..., Any]  # (array, *spec) -> the array, split so


def on(**axes: int) -> Constrain:
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    return lambda x, *spec: lax.with_sharding_constraint(
        x, NamedSharding(mesh, PartitionSpec(*spec))
    )


def nowhere(x: Any, *spec: Any) -> Any:
    return x


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def conv(x: Any, w: Any, groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", feature_group_count=groups,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip


def sliced_beyond(put: Constrain, x: Any, i: Any) -> Any:
    return put(lax.dynamic_slice(x, (i,), (16,)), "a")


def updated_beyond(put: Constrain, x: Any, i: Any) -> Any:
    x = put(jnp.sin(x), "a")
    return jnp.tanh(put(lax.dynamic_update_slice(x, jnp.ones(1), (i,)), "a"))


def rows_and_channels(put: Constrain, x: Any, w: Any) -> Any:
    x, w = put(x, None, "a"), put(w, None, None, None, "b")
    return put(conv(x, w), None, "a", None, "b")


def positions_and_channels(put: Constrain, x: Any, w: Any) -> Any:
    x, w = put(x, None, "a", "b"), put(w, None, None, None, "c")
    return put(conv(x, w), None, "a", "b", "c")


IMAGE, KERNEL = f32(4, 16, 16, 8), f32(3, 3, 8, 8)


@pytest.mark.parametrize("fn, args, mesh", [
    # clamped_starts: a slice merged with the one that takes a part of it; the last part is padded.
    (sliced_beyond, (f32(32), np.int32(20)), {"a": 2}),
    (updated_beyond, (f32(30), np.int32(31)), {"a": 4}),
    # convolve: positions and output channels are both split.
    (rows_and_channels, (IMAGE, KERNEL), {"a": 2, "b": 2, "c": 2}),
    (positions_and_channels, (IMAGE, KERNEL), {"a": 2, "b": 2, "c": 2}),
])  # fmt: skip
def test_wrong_numbers(fn: Any, args: tuple[Any, ...], mesh: dict[str, int]) -> None:
    put = on(**mesh)
    got = jax.jit(lambda *args: fn(put, *args))(*args)
    want = jax.jit(lambda *args: fn(nowhere, *args))(*args)
    assert not np.allclose(got, want, 1e-3, 1e-3), GONE


@pytest.mark.parametrize("n", [2, 8])
def test_an_entry_held_alone_is_refused(n: int) -> None:
    """`sliced`: each device holds one entry; one is sliced, all are gathered for another use."""
    put = on(a=n)

    def fn(x: Any) -> Any:
        x = put(jnp.sin(x), "a")
        return jnp.tanh(put(x[:1])), put(jnp.flip(put(x)), "a")

    lowered = jax.jit(fn).lower(f32(n))
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        assert "Expected instruction to have shape equal to f32[1]" in str(error)
    else:
        pytest.fail(GONE)


def columns(put: Constrain, triangle: Any, x: Any) -> Any:
    x = put(x, None, "a")
    solved = lax.linalg.triangular_solve(put(triangle), x, left_side=True, lower=True)
    return put(solved, None, "a")


def channel_groups(groups: int) -> Any:
    def fn(put: Constrain, x: Any, w: Any) -> Any:
        split = (None, None, None, "a")
        return put(conv(put(x, *split), put(w, *split), groups), *split)

    return fn


@pytest.mark.parametrize("fn, args", [
    # IN_PARTS: every part can be computed where it is.
    (lambda put, x: put(jnp.fft.fft(put(x, "a")), "a"), (f32(8, 16),)),
    (lambda put, x: put(lax.top_k(put(x, "a"), 3)[0], "a"), (f32(8, 16),)),
    (columns, (np.eye(6, dtype=np.float32), f32(6, 16))),  # split batches stay where they are
    # convolve: groups of channels, several of them or less than all of one on each device.
    (channel_groups(2), (IMAGE, f32(3, 3, 4, 16))),
    (channel_groups(4), (IMAGE, f32(3, 3, 2, 16))),
], ids=["fft", "top_k", "triangular_solve", "2 groups", "4 groups"])  # fmt: skip
def test_gathers_what_is_in_place(fn: Any, args: tuple[Any, ...]) -> None:
    put = on(a=2)
    text = jax.jit(lambda *args: fn(put, *args)).lower(*args).compile().as_text()
    assert " all-gather(" in text, GONE


ABORTS = """
import jax, jax.numpy as jnp
from tests.lowering.test_workarounds import f32, on
put = on(a=4)
def loss(x):
    rows = put(jnp.tanh(x), "a")
    return jnp.sin(put(jnp.sort(rows, axis=1), "a")).sum()
jax.jit(lambda x: put(jax.grad(loss)(x))).lower(f32(10, 24)).compile()
"""


def test_entries_along_an_uneven_batch_abort() -> None:
    """`even` in the rules of gathers and scatters: 10 rows on 4 devices end the process."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", ABORTS], cwd=root, capture_output=True)
    assert b"Check failed" in done.stderr and done.returncode < 0, GONE  # ended by a signal
