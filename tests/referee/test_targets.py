"""Targets that need nothing installed: this process, and host devices in a child process."""

from __future__ import annotations

import functools
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardwright._jax.compiling import Portable
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.referee import process
from shardwright.referee.compiled import (
    involuntary_remats,
    read_collectives,
    read_memory,
    totals,
)
from shardwright.referee.messages import Request
from shardwright.referee.process import _environment, ask
from shardwright.referee.targets import (
    Target,
    compile_for,
    devices_of,
    parse_target,
    run_each,
)

pytestmark = pytest.mark.slow  # in all: it starts processes

MESH = {"data": 4, "model": 2}
WIDE = {"data": 4, "model": 4}  # more devices than this process has: a child must do it
B, D, F, LENGTH = 16, 32, 64, 3
F32 = 4


class State(NamedTuple):
    """A pytree node of the test's own, as a user's train state is."""

    up: Any
    down: Any


def run_for(target: Target, build: Any, args: tuple[Any, ...], *, mesh: Any) -> Any:
    """(results as host arrays, Compiled) of one run."""
    (results,), compiled = run_each(target, build, [args], mesh=mesh)
    return results, compiled


def build(mesh: Any) -> Any:
    """A train step of a scanned MLP, batch on data, hidden on model, weights donated."""

    def on(*spec: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    state = State(on(None, None, "model"), on(None, "model", None))
    constrain = jax.lax.with_sharding_constraint

    def loss(state: State, x: jax.Array) -> jax.Array:
        def layer(h, w):
            h = constrain(h, on("data", None))
            u = constrain(jax.nn.relu(h @ w.up), on("data", "model"))
            return constrain(h + constrain(u @ w.down, on("data", None)), on("data", None)), None

        return jnp.mean(jnp.square(jax.lax.scan(layer, x, state)[0]))

    def step(state: State, x: jax.Array, unused: jax.Array) -> tuple[State, jax.Array]:
        value, grads = jax.value_and_grad(loss)(state, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value

    return jax.jit(
        step,
        in_shardings=(state, on("data", None), on()),
        out_shardings=(state, on()),
        donate_argnums=0,
    )


SHAPES = (State((LENGTH, D, F), (LENGTH, F, D)), (B, D), (7,))


def shapes() -> tuple:
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        SHAPES,
        is_leaf=lambda x: isinstance(x, tuple) and isinstance(x[0], int),
    )


def values() -> tuple:
    random = np.random.default_rng(0)
    return jax.tree.map(lambda s: random.normal(size=s.shape).astype(s.dtype) * 0.1, shapes())


@pytest.mark.parametrize(
    "text, target",
    [
        (None, Target("current")),
        ("cpu:8", Target("cpu", "", (8,))),
        ("tpu:v5e:4x4", Target("tpu", "v5e", (4, 4))),
        ("TPU:v4:2x2x4", Target("tpu", "v4", (2, 2, 4))),
        ("tpu:tpu7x:2x2x1", Target("tpu", "tpu7x", (2, 2, 1))),
        ("cuda:h100:2x8", Target("cuda", "h100", (2, 8))),
        ("cuda:a100:8", Target("cuda", "a100", (1, 8))),
    ],
)
def test_targets_are_read_and_printed(text: str | None, target: Target) -> None:
    assert parse_target(text) == target
    assert text is None or parse_target(str(target)) == target


@pytest.mark.parametrize(
    "text, says",
    [
        ("gpu", "cannot read target 'gpu'"),
        ("cpu", "cannot read target 'cpu'"),
        ("cpu:0", "cannot read target 'cpu:0'"),
        ("cpu:2x4", "cannot read target 'cpu:2x4'"),
        ("tpu:v5e", "cannot read target 'tpu:v5e'"),
        ("cuda:h100:1x2x8", "cannot read target 'cuda:h100:1x2x8'"),
        ("tpu:v9:4x4", "unknown tpu chip 'v9'"),
        ("cuda:k80:8", "unknown cuda chip 'k80'"),
    ],
)
def test_a_bad_target_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ShardwrightError, match=says) as error:
        parse_target(text)
    assert "try" in error.value.facts


@pytest.mark.parametrize(
    "text, mesh, says",
    [
        (None, WIDE, "a 4x4 mesh needs 16 devices, this process has 8"),
        ("cpu:4", MESH, "a 4x2 mesh needs 8 devices, cpu:4 has 4"),
        ("cpu:12", WIDE, "a 4x4 mesh needs 16 devices, cpu:12 has 12"),
    ],
)
def test_too_few_devices_state_both_numbers(text: str | None, mesh: dict, says: str) -> None:
    with pytest.raises(ShardwrightError, match=says):
        compile_for(parse_target(text), build, shapes(), mesh=mesh)


@pytest.mark.parametrize(
    "text, extra, modules",
    [
        ("tpu:v5e:2x4", "[tpu]", ["libtpu"]),
        ("cuda:h100:8", "[cuda]", ["jax_cuda12_plugin", "jax_cuda13_plugin"]),
    ],
)
def test_a_missing_extra_is_named(
    text: str, extra: str, modules: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in modules else found(name)
    )
    with pytest.raises(ShardwrightError) as error:
        devices_of(parse_target(text), Mesh({"x": 8}))
    assert error.value.facts["try"] == f"pip install shardwright{extra}"


def here(build: Any, args: tuple) -> Any:
    """(results, what was compiled) as plain JAX has them in this process."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(*MESH.values()), tuple(MESH))
    jitted = build(mesh)
    compiled = jitted.lower(*args).compile()
    shaped = any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(args))
    return None if shaped else jitted(*args), compiled


def there(build: Any, args: tuple, target: str | None = None) -> Any:
    """(results, what was compiled) of a target, in a child of this process."""
    mesh = WIDE if target == "cpu:16" else MESH
    (results,), compiled = run_each(parse_target(target), build, [args], mesh=mesh)
    return results, compiled


@pytest.mark.parametrize("target", [None, "cpu:8"])
def test_this_process_and_a_child_compile_the_same_program(target: str | None) -> None:
    _, alone = here(build, shapes())
    child = compile_for(parse_target(target), build, shapes(), mesh=MESH)
    assert child.memory == read_memory(alone)
    assert totals(child.collectives) == totals(read_collectives(alone.as_text(), MESH))


def test_a_child_compiles_for_more_devices_than_this_process_has() -> None:
    compiled = compile_for(parse_target("cpu:16"), build, shapes(), mesh=WIDE)
    weights = 2 * LENGTH * D * F // 4 * F32
    assert compiled.memory.alias_bytes == weights  # donation survives
    assert compiled.memory.argument_bytes == weights + B * D // 4 * F32  # without the unused one
    found = totals(compiled.collectives)
    # Forward and backward of each layer: one all-reduce over model of the local rows ...
    assert found["all-reduce", ("model",)][0] in (2 * LENGTH - 1, 2 * LENGTH)
    # ... and over data the gradients of this device's weights, and the loss.
    assert found["all-reduce", ("data",)][1] == weights + F32
    assert any(row.source.startswith(__file__) for row in compiled.collectives)
    assert involuntary_remats(compiled.stderr) == 0


def test_a_child_runs_and_equals_this_process() -> None:
    expected, _ = here(build, values())
    results, compiled = there(build, values(), "cpu:16")
    assert isinstance(results[0], State)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), results, expected)
    assert compiled.memory.alias_bytes


def test_warnings_come_back_from_a_child() -> None:
    @functools.cache
    def reshards(mesh: Any) -> Any:
        rows, columns = (NamedSharding(mesh, P(*s)) for s in [("data", None), (None, "model")])

        def fn(x):
            constrain = jax.lax.with_sharding_constraint
            return constrain(constrain(jnp.sin(x), rows) * 2, columns)

        return jax.jit(fn, in_shardings=rows, out_shardings=columns)

    args = (jax.ShapeDtypeStruct((16, 16), jnp.float32),)
    for _ in range(2):  # the second does not come from a cache
        child = compile_for(parse_target("cpu:8"), reshards, args, mesh=MESH)
        assert involuntary_remats(child.stderr) == 1


def test_a_child_takes_keys_static_arguments_and_narrow_types() -> None:
    def noisy(mesh: Any) -> Any:
        rows = NamedSharding(mesh, P("data"))

        def fn(key, scale, x):
            noise = jax.random.normal(key, x.shape, jnp.bfloat16)
            return jax.random.split(key)[0], (x + scale * noise).astype(jnp.bfloat16)

        return jax.jit(
            fn,
            static_argnums=1,
            in_shardings=(NamedSharding(mesh, P()), rows),
            out_shardings=(NamedSharding(mesh, P()), rows),
        )

    args = (jax.random.key(0), 2, np.ones((16, 8), jnp.bfloat16))
    (key, array), _ = here(noisy, args)
    results, _ = there(noisy, args, "cpu:16")
    assert results[1].dtype == jnp.bfloat16
    np.testing.assert_array_equal(results[0], jax.random.key_data(key))
    np.testing.assert_array_equal(results[1], array)


def test_shardings_left_open_are_the_compilers_choice_in_a_child_too() -> None:
    def open_result(mesh: Any) -> Any:
        rows = NamedSharding(mesh, P("data", None))
        return jax.jit(lambda x: jnp.sin(x) * 2, in_shardings=rows)

    args = (np.ones((16, 8), np.float32),)
    alone, compiled = here(open_result, args)
    result, child = there(open_result, args, "cpu:16")
    np.testing.assert_array_equal(result, alone)
    assert read_memory(compiled).output_bytes == child.memory.output_bytes == 16 * 8 // 4 * F32
    assert child.collectives == []


SILENT = Request(Portable(b"no program", ([], []), {}), "cpu:8", list(range(8)))

# {a compiler that fails: (the code of its process, what is said)}
BROKEN = {
    "hangs": (
        "import sys, time; print('pass 7 of 9'); sys.stdout.flush(); time.sleep(60)",
        "the compiler for cpu:8 was not done after 2 s and was ended\n"
        "  said    pass 7 of 9\n"
        "  try     timeout= for more seconds, or a smaller program: fewer layers or devices",
    ),
    "hangs in an assembler": (
        "import subprocess; subprocess.run(['sleep', '60'])",
        "the compiler for cpu:8 was not done after 2 s and was ended\n"
        "  try     timeout= for more seconds, or a smaller program: fewer layers or devices",
    ),
    "aborts": (
        "import os, sys; print('Check failed: n > 0', file=sys.stderr, flush=True); os.abort()",
        "the process that compiles for cpu:8 was ended by SIGABRT\n"
        "  said    Check failed: n > 0",
    ),
    "gives up": (
        "import sys; sys.exit('no licence')",
        "the process that compiles for cpu:8 failed: 1\n  said    no licence",
    ),
    "says nothing": ("pass", "the process that compiles for cpu:8 failed: 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_compiler_that_hangs_or_dies_is_reported(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, says = BROKEN[case]
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", code))
    started = time.monotonic()
    with pytest.raises(ShardwrightError) as error:
        ask(SILENT, 2)
    assert str(error.value) == says
    assert time.monotonic() - started < 30


def test_a_program_that_is_none_is_reported_with_the_end_of_the_traceback() -> None:
    with pytest.raises(ShardwrightError, match="that compiles for cpu:8 failed: 1") as died:
        ask(SILENT)
    assert "Error" in died.value.facts["said"]


def test_a_limit_is_kept_by_targets_that_this_process_could_compile_for_too() -> None:
    with pytest.raises(ShardwrightError, match=r"cpu:8 was not done after 0\.001 s"):
        compile_for(parse_target("cpu:8"), build, shapes(), mesh=MESH, timeout=0.001)
    with pytest.raises(ShardwrightError, match=r"for cpu:8 was not done after 0\.001 s"):
        compile_for(parse_target(None), build, shapes(), mesh=MESH, timeout=0.001)


def test_accelerators_of_this_process_have_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their programs are compiled here, and nothing here can be ended."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(ShardwrightError, match="compiled in it") as error:
        compile_for(parse_target(None), build, shapes(), mesh=MESH, timeout=60)
    assert error.value.facts["try"].startswith("target cpu:8")


def test_one_child_answers_until_it_is_ended() -> None:
    """A child that dies takes one request with it; the next is another's."""
    process._end_idle()
    compile_for(parse_target(None), build, shapes(), mesh=MESH)
    (child,) = process._IDLE.values()
    compile_for(parse_target(None), build, shapes(), mesh=MESH)
    assert child in process._IDLE.values()
    with pytest.raises(ShardwrightError, match="failed: 1"):
        ask(SILENT)
    assert child not in process._IDLE.values() and child.process.returncode is not None
    compile_for(parse_target(None), build, shapes(), mesh=MESH)


def test_a_compiler_does_not_outlive_who_asked() -> None:
    """A killed parent cannot end its child: the child sees that it is alone."""
    code = (
        "import os, sys\n"
        "from shardwright.referee import child\n"
        "child.LOOK_S = 0.1\n"
        "child.answer = lambda request: __import__('time').sleep(60)\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "child.main(sys.argv[2], 'unused', '1')\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        pid, request = Path(folder, "pid"), Path(folder, "request")
        request.write_bytes(pickle.dumps(SILENT))
        inner = [sys.executable, "-c", code, str(pid), str(request)]
        parent = subprocess.Popen(
            [sys.executable, "-c", f"import subprocess; subprocess.run({inner!r}, input=b'\\n')"],
            env=_environment("cpu:8"),
        )
        while not pid.exists() or not pid.read_text():
            time.sleep(0.05)
        parent.kill()
        parent.wait()
        child, waited = Path("/proc", pid.read_text()), time.monotonic()
        while child.exists() and time.monotonic() - waited < 30:
            time.sleep(0.05)
        assert not child.exists()


def test_a_program_that_calls_back_compiles_in_a_child_but_does_not_run() -> None:
    def prints(mesh: Any) -> Any:
        rows = NamedSharding(mesh, P("data"))

        def fn(x):
            jax.debug.print("{}", x.sum())
            return x * 2

        return jax.jit(fn, in_shardings=rows, out_shardings=rows)

    args = (np.ones((16,), np.float32),)
    assert compile_for(parse_target("cpu:16"), prints, args, mesh=WIDE).memory.argument_bytes == 16
    with pytest.raises(ShardwrightError, match="calls back into Python"):
        there(prints, args, "cpu:16")
    assert there(prints, args)[0].sum() == 32  # here it does


def test_a_child_finds_lapack() -> None:
    """JAX looks its functions up when it lowers a call, which a child does not."""

    def factorised(mesh: Any) -> Any:
        rows = NamedSharding(mesh, P("data"))
        return jax.jit(jnp.linalg.cholesky, in_shardings=rows, out_shardings=rows)

    result, _ = there(factorised, (np.stack([np.eye(8, dtype=np.float32)] * 8),))
    assert result.sum() == 64


def test_what_only_this_process_knows_is_compiled_in_it() -> None:
    @custom_partitioning
    def double(x):
        return x * 2

    double.def_partition(
        partition=lambda mesh, args, result: (
            mesh, lambda x: x * 2, args[0].sharding, (args[0].sharding,)
        ),
        sharding_rule="i j -> i j",
    )  # fmt: skip

    def doubled(mesh: Any) -> Any:
        rows = NamedSharding(mesh, P("data"))
        return jax.jit(lambda x: double(x), in_shardings=rows, out_shardings=rows)

    args = (np.ones((16, 16), np.float32),)
    assert there(doubled, args)[0].sum() == 512
    assert compile_for(parse_target(None), doubled, args, mesh=MESH).collectives == []
    with pytest.raises(ShardwrightError, match="or a custom_partitioning cannot be"):
        there(doubled, args, "cpu:16")


def test_only_here_and_on_hosts_can_programs_run() -> None:
    with pytest.raises(ShardwrightError, match="can compile but not run"):
        there(build, values(), "cuda:h100:8")


@pytest.mark.parametrize("given, count, threads", [
    ("", 8, max(16, os.cpu_count() or 1)), ("4", 8, 16), ("64", 8, 64), ("nonsense", 512, 1024),
])  # fmt: skip
def test_a_child_has_threads_for_all_devices_and_their_work(
    given: str, count: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPROC", given)
    assert _environment(f"cpu:{count}")["NPROC"] == str(threads)


@pytest.mark.parametrize("target, mesh", [("cpu:8", MESH), ("cpu:16", WIDE)])
def test_compiled_once_and_run_on_each(target: str, mesh: dict[str, int]) -> None:
    def twice(mesh: Any) -> Any:
        rows = NamedSharding(mesh, P("data"))
        return jax.jit(lambda x: 2 * x, in_shardings=rows, donate_argnums=0)

    runs = [(np.full(16, i, np.float32),) for i in range(3)]
    results, _ = run_each(parse_target(target), twice, runs, mesh=mesh)
    for (given,), result in zip(runs, results, strict=True):
        np.testing.assert_array_equal(result, 2 * given)
