"""XLA still needs every row of lowering/workarounds.py.

Each program is plain JAX with shardings on its values, and shows what XLA does with it: wrong
numbers, a refusal, a gather, an abort. A test that fails here says that its workaround can go.
What only the TPU compiler does, tests/compilers/test_plans_tpu.py shows.
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

from shardwright.lowering.workarounds import WORKAROUNDS

Constrain = Callable[..., Any]  # (array, *spec) -> the array, split so
SHOWN: set[str] = set()  # rows that a test below shows


def gone(name: str) -> str:
    """What a test says when XLA does something no longer."""
    return f"seen in {WORKAROUNDS[name].seen_in}, and no longer: {WORKAROUNDS[name].instead} can go"


def shows(name: str) -> str:
    """The name of the row that a test shows."""
    SHOWN.add(name)
    return name


MERGED, CONVOLUTIONS = shows("merged starts"), shows("convolutions")
IN_PLACE = shows("gathers what is in place")


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


def compiled(fn: Any, *args: Any, **axes: int) -> str:
    """What XLA makes of a program on two devices, or on a mesh of these axes."""
    put = on(**(axes or {"a": 2}))
    return jax.jit(lambda *args: fn(put, *args)).lower(*args).compile().as_text()


def in_loops(text: str, opcode: str) -> list[bool]:
    """Of each op with this code, whether it stands outside the main computation."""
    found, main = [], False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            main = line.startswith("ENTRY")
        elif f" {opcode}(" in line:
            found.append(not main)
    return found


def sliced_beyond(put: Constrain, x: Any, i: Any) -> Any:
    return put(lax.dynamic_slice(x, (i,), (16,)), "a")


def updated_beyond(put: Constrain, x: Any, i: Any) -> Any:
    x = put(jnp.sin(x), "a")
    return jnp.tanh(put(lax.dynamic_update_slice(x, jnp.ones(1), (i,)), "a"))


def gathered_beyond(put: Constrain, x: Any, i: Any) -> Any:
    """One slice on each device, of a part of a dim, which its result is split along."""
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0, 1))
    parts = lax.gather(put(x), put(i, "a"), numbers, (1, 16), mode="clip")
    return put(put(parts, "a"), "a", "b")


def rows_and_channels(put: Constrain, x: Any, w: Any) -> Any:
    x, w = put(x, None, "a"), put(w, None, None, None, "b")
    return put(conv(x, w), None, "a", None, "b")


def positions_and_channels(put: Constrain, x: Any, w: Any) -> Any:
    x, w = put(x, None, "a", "b"), put(w, None, None, None, "c")
    return put(conv(x, w), None, "a", "b", "c")


IMAGE, KERNEL = f32(4, 16, 16, 8), f32(3, 3, 8, 8)


@pytest.mark.parametrize("name, fn, args, mesh", [
    (MERGED, sliced_beyond, (f32(32), np.int32(20)), {"a": 2}),
    (MERGED, updated_beyond, (f32(30), np.int32(31)), {"a": 4}),  # the last part is padded
    (MERGED, gathered_beyond, (f32(4, 32), np.array([[1, 20], [3, 40]], np.int32)),
     {"a": 2, "b": 2}),
    (CONVOLUTIONS, rows_and_channels, (IMAGE, KERNEL), {"a": 2, "b": 2, "c": 2}),
    (CONVOLUTIONS, positions_and_channels, (IMAGE, KERNEL), {"a": 2, "b": 2, "c": 2}),
])  # fmt: skip
def test_wrong_numbers(name: str, fn: Any, args: tuple[Any, ...], mesh: dict[str, int]) -> None:
    put = on(**mesh)
    got = jax.jit(lambda *args: fn(put, *args))(*args)
    want = jax.jit(lambda *args: fn(nowhere, *args))(*args)
    assert not np.allclose(got, want, 1e-3, 1e-3), gone(name)


def assert_refused(name: str, fn: Any, array: Any, shape: str) -> None:
    """XLA's verifier expects this shape somewhere in the program that XLA has made."""
    lowered = jax.jit(fn).lower(array)
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        assert f"Expected instruction to have shape equal to {shape}" in str(error)
    else:
        pytest.fail(gone(name))


ALONE = shows("entry held alone")


@pytest.mark.parametrize("n", [2, 8])
def test_an_entry_held_alone_is_refused(n: int) -> None:
    """Each device holds one entry; one is sliced, all are gathered for another use."""
    put = on(a=n)

    def fn(x: Any) -> Any:
        x = put(jnp.sin(x), "a")
        return jnp.tanh(put(x[:1])), put(jnp.flip(put(x)), "a")

    assert_refused(ALONE, fn, f32(n), "f32[1]")


SENT = shows("entry of another device")


def test_an_entry_of_another_device_is_sent_before_it_is_summed() -> None:
    """The last of 16 rows, eight on each device."""
    text = compiled(lambda put, x: put(put(jnp.sin(x), "a")[-1]), f32(16, 8))
    assert " collective-permute(" in text and " all-reduce(" in text, gone(SENT)


STRIDE = shows("stride of one entry")


def test_a_stride_of_one_entry_is_refused() -> None:
    put = on(a=3)

    def fn(x: Any) -> Any:
        x = put(jnp.sin(x), "a")
        return put(x[10:11:3]), jnp.flip(put(x))

    assert_refused(STRIDE, fn, f32(12), "f32[4]")


def columns(put: Constrain, triangle: Any, x: Any) -> Any:
    x = put(x, None, "a")
    solved = lax.linalg.triangular_solve(put(triangle), x, left_side=True, lower=True)
    return put(solved, None, "a")


def channel_groups(groups: int) -> Any:
    def fn(put: Constrain, x: Any, w: Any) -> Any:
        split = (None, None, None, "a")
        return put(conv(put(x, *split), put(w, *split), groups), *split)

    return fn


GATHERS = {
    "fft": (IN_PLACE, lambda put, x: put(jnp.fft.fft(put(x, "a")), "a"), (f32(8, 16),)),
    "top_k": (IN_PLACE, lambda put, x: put(lax.top_k(put(x, "a"), 3)[0], "a"), (f32(8, 16),)),
    # Split batches stay where they are.
    "triangular_solve": (IN_PLACE, columns, (np.eye(6, dtype=np.float32), f32(6, 16))),
    # Groups of channels, several of them or less than all of one on each device.
    "2 groups": (CONVOLUTIONS, channel_groups(2), (IMAGE, f32(3, 3, 4, 16))),
    "4 groups": (CONVOLUTIONS, channel_groups(4), (IMAGE, f32(3, 3, 2, 16))),
}  # fmt: skip


@pytest.mark.parametrize("op", GATHERS)
def test_gathers_what_is_in_place(op: str) -> None:
    name, fn, args = GATHERS[op]
    assert " all-gather(" in compiled(fn, *args), gone(name)


def test_every_op_computed_on_shards_has_a_program() -> None:
    assert set(WORKAROUNDS[IN_PLACE].primitives) <= GATHERS.keys()


ABORTS = """
import jax, jax.numpy as jnp
from tests.lowering.test_workarounds import f32, on
put = on(a=4)
def loss(x):
    rows = put(jnp.tanh(x), "a")
    return jnp.sin(put(jnp.sort(rows, axis=1), "a")).sum()
jax.jit(lambda x: put(jax.grad(loss)(x))).lower(f32(10, 24)).compile()
"""


ABORT = shows("uneven entries")


def test_entries_along_an_uneven_batch_abort() -> None:
    """10 rows on 4 devices end the process."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", ABORTS], cwd=root, capture_output=True)
    assert b"Check failed" in done.stderr and done.returncode < 0, gone(ABORT)  # a signal


BY_AXIS = shows("reduces axis by axis")


def test_two_axes_are_reduced_one_after_the_other() -> None:
    def fn(put: Constrain, x: Any, w: Any) -> Any:
        x, w = put(x, None, "a", "b"), put(w, "a", "b")
        return put(jnp.einsum("ijk,jkl->il", x, w))

    text = compiled(fn, f32(8, 4, 4), f32(4, 4, 16), a=2, b=2)
    assert text.count(" all-reduce(") == 2, gone(BY_AXIS)


BY_TRIP = shows("reduces in every trip")


def test_what_a_loop_adds_up_is_reduced_in_every_round() -> None:
    def fn(put: Constrain, xs: Any, ws: Any) -> Any:
        xs, ws, start = put(xs, None, None, "a"), put(ws, None, "a"), jnp.zeros((8, 32))
        return put(lax.scan(lambda c, xw: (put(c + xw[0] @ xw[1]), None), start, (xs, ws))[0])

    text = compiled(fn, f32(4, 8, 16), f32(4, 16, 32))
    assert in_loops(text, "all-reduce") == [True], gone(BY_TRIP)


ONE_COPY = shows("one gather for both passes")


@pytest.mark.parametrize("again, count", [(lambda w: w, 1), (lax.optimization_barrier, 2)])
def test_two_gathers_of_one_value_become_one(again: Any, count: int) -> None:
    """Unless there is a barrier before the second."""

    def fn(put: Constrain, x: Any, w: Any) -> Any:
        w = put(w, "a")
        y = jnp.tanh(put(x, "a") @ put(w))
        return put(jnp.sin(y) @ put(again(w)).T, "a")

    text = compiled(fn, f32(16, 32), f32(32, 32))
    assert text.count(" all-gather(") == count, gone(ONE_COPY)


HOISTED = shows("gathers before the loop")


@pytest.mark.parametrize("with_round", [False, True])
def test_what_every_round_needs_is_gathered_before_the_loop(with_round: bool) -> None:
    """Unless there is a barrier that the round is part of."""

    def fn(put: Constrain, x: Any, w: Any) -> Any:
        w = put(w, "a")

        def body(c: Any, _: Any) -> Any:
            here = lax.optimization_barrier((w, c))[0] if with_round else w
            return put(jnp.tanh(c @ put(here)), "a"), None

        return lax.scan(body, put(x, "a"), None, length=5)[0]

    text = compiled(fn, f32(16, 32), f32(32, 32))
    assert in_loops(text, "all-gather") == [with_round], gone(HOISTED)


def test_every_workaround_has_a_test() -> None:
    assert WORKAROUNDS.keys() - {"scattered dim must lead"} == SHOWN  # of the TPU compiler
