"""Random programs, planned, compiled and run; `make fuzz` does many more."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.fuzz import run
from tests.fuzz.generator import Case, generate
from tests.fuzz.judge import bytes_off, holds, judge, moves, peak_low
from tests.fuzz.numbers import fails_alone, jax_refuses, wrong_numbers
from tests.fuzz.run import faults, other_hashes, run_many, table
from tests.fuzz.scope import Argument

CHUNK = 40
CHUNKS = (0, 40, 80, 120, 300_040, 300_080)  # first seeds; the last have all rows of the table
FEW = 1  # of a chunk's programs may move other bytes than predicted
LOW = 2  # may hold more at their peak: of 300000 to 301999, 13 of 1,457 do


@pytest.mark.slow
@pytest.mark.parametrize("first", CHUNKS)
def test_random_programs(first: int) -> None:
    """No wrong number, no crash, no false proof; bytes as predicted but for a few."""
    verdicts = run_many(range(first, first + CHUNK), jobs=1)
    assert len(verdicts) == CHUNK
    assert not faults(verdicts), table(verdicts)
    assert sum(map(bytes_off, verdicts)) <= FEW, table(verdicts)
    assert sum(map(peak_low, verdicts)) <= LOW, table(verdicts)
    assert any(map(moves, verdicts)) and any(map(holds, verdicts))


def test_plans_do_not_depend_on_hashes() -> None:
    assert not other_hashes(range(8))


@pytest.mark.parametrize("seed", [0, 1, 2, 161783])
def test_one_seed_one_program(seed: int) -> None:
    assert str(generate(seed)) == str(generate(seed))


def test_what_plain_jit_fails_at_is_no_fault() -> None:
    """An FFT that XLA:CPU cannot run on one device: the plan is compared op by op."""
    verdict = judge(generate(68241))
    assert verdict.kinds == ["one device"] and not faults([verdict])


def test_what_xla_refuses_on_one_device_too_is_no_fault() -> None:
    """A dot of int4, which XLA:CPU has not: the same words, about another instruction."""
    dot = (
        "def program(x, w):\n"
        "    return lax.dot_general(x.astype(jnp.int4), w.astype(jnp.int4),"
        " (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)\n"
    )
    arguments = tuple(Argument(name, (8, 8), "float32") for name in "xw")
    case = Case(
        seed=0, source=dot, arguments=arguments, mesh={"x": 2}, device="balanced", how="found"
    )
    words = "INVALID_ARGUMENT: during context [hlo verifier]: The XLA CPU/GPU backend does not"
    words += " support custom element sizes on non-sub-byte types: %other = s32[4,8]{1,0:E(4)}"
    assert fails_alone(case.function(), case, f"JaxRuntimeError: {words}")
    assert not fails_alone(case.function(), case, "JaxRuntimeError: INVALID_ARGUMENT: %other")


# A `custom_jvp` by what it closes over: a plan is refused, or made and does not run either.
NOT_RUN = {
    "refused": """
def program(x, w):
    def loss(x, w):
        inner = lambda p: jnp.sin(p * w)
        custom = jax.custom_jvp(inner)
        custom.defjvp(lambda p, t: jax.jvp(inner, p, t))
        return jnp.sum(custom(x))
    return jax.grad(loss, (0, 1))(x, w)
""",
    "planned": """
def program(x, w):
    def loss(x, w):
        def branch(p):
            inner = lambda p: jnp.sin(p * w)
            custom = jax.custom_jvp(inner)
            custom.defjvp(lambda p, t: jax.jvp(inner, p, (2 * t[0],)))
            return p + jnp.mean(custom(x))
        return jnp.sum(lax.switch(jnp.int32(w[0] > 0), [jnp.sin, branch], w))
    return jax.grad(loss, (0, 1))(x, w)
""",
}


@pytest.mark.parametrize("name", NOT_RUN)
def test_what_jax_does_not_run_is_no_program(name: str) -> None:
    """A refusal of what JAX runs stays one."""
    arguments = tuple(Argument(name, (8,), "float32") for name in "xw")
    case = Case(
        seed=0, source=NOT_RUN[name], arguments=arguments, mesh={"x": 2}, device="balanced",
        how="found",
    )  # fmt: skip
    verdict = judge(case)
    assert verdict.kinds == ["no program"] and not faults([verdict])
    assert not jax_refuses(lambda x, w: x + w, case)


def test_a_child_that_waits_for_a_core_does_not_hang() -> None:
    """A limit is on work: on a busy machine a program takes longer, and is no finding."""
    code = "import time, sys; time.sleep(1.5); print('{}', flush=True); time.sleep(60)"
    lines: queue.Queue[str | None] = queue.Queue()
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    threading.Thread(target=run._read, args=(child, lines), daemon=True).start()
    assert run._next_line(child, lines, limit_s=1.0) == "{}\n"
    assert run._next_line(child, lines, limit_s=0.02) == run.HUNG  # it waits for ever
    child.kill()


def test_a_child_that_works_on_one_program_hangs() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    assert run._next_line(child, queue.Queue(), limit_s=0.5) == run.HUNG
    assert run.worked_s(child.pid) > 0.5
    child.kill()


@pytest.mark.parametrize("seed, kinds", [
    (90138, {"sensitive"}),  # sums of f16 that nearly cancel
    (150614, {"sensitive"}),  # 4,608 of bf16, which stop growing at 256 on one device
    (500103, {"sensitive"}),  # the cosine of sums of 49,000 f32
    (500343, {"sign of zero"}),  # arctan2 of a -0.0 that is looked up in a split dim
])  # fmt: skip
def test_how_floats_round_is_no_fault_of_a_plan(seed: int, kinds: set[str]) -> None:
    assert set(judge(generate(seed), proofs=False, files=False).kinds) == kinds


def test_no_copy_begins_before_the_first_op() -> None:
    """Its first op gathers what nothing could gather ahead of it; the walk never gave that back."""
    assert judge(generate(640844), proofs=False).kinds == []


@pytest.mark.parametrize("entry, kind", [(0, "sign of zero"), (1, "numbers")])
def test_only_a_zero_that_is_looked_up_may_have_another_sign(entry: int, kind: str) -> None:
    """The angle is pi for 0.0 and -pi for -0.0; that of 1.0 stays wrong."""
    source = f"def program(i):\n    x = jnp.array([-0.0, 1.0])[{entry}:{entry + 1}]"
    case = Case(
        seed=0, source=f"{source}\n    return jnp.arctan2(x, -1.0) + i",
        arguments=(Argument("i", (1,), "float32", 0, 1),), mesh={"x": 2}, device="h100",
        how="found",
    )  # fmt: skip
    result = case.inputs()[0] + np.float32(np.pi)
    assert [k for k, _ in wrong_numbers(case, case.function(), [result])] == [kind]


def test_widened_programs_have_no_narrow_floats() -> None:
    """The judge of sums of f16 that nearly cancel: the same program in f32, and in f64."""
    case = generate(90138)
    wide, widest = case.widened()
    assert "float16" in {a.dtype for a in case.arguments}
    assert {a.dtype for a in wide.arguments} == {"float32", "int32"}
    assert "float16" not in wide.source and wide.widened() == [widest]
    assert {a.dtype for a in widest.arguments} == {"float64", "int32"} and widest.x64
    assert widest.widened() == []
