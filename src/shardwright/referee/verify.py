"""verify: what was predicted against what a real compiler does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from shardwright import _jax
from shardwright.cost.devices import Device, device
from shardwright.cost.links import Network
from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.lowering.actions import Actions, ClampStarts, Compute
from shardwright.lowering.apply import apply_steps
from shardwright.lowering.jit import flat_jit, jax_mesh, sharding
from shardwright.lowering.steps import Steps
from shardwright.program.interpret import Key
from shardwright.program.tracing import trace_jaxpr
from shardwright.program.types import Program
from shardwright.referee.agreement import compare, relative_tolerance
from shardwright.referee.compiled import CompiledCollective, involuntary_remats, totals
from shardwright.referee.draws import Draw, draws, fresh, with_noise
from shardwright.referee.estimates import cycles, roofline
from shardwright.referee.host_arrays import to_host
from shardwright.referee.integers import integer_uses
from shardwright.referee.replay import Seconds, replay
from shardwright.referee.targets import Compiled, Target, compile_for, parse_target, run_each
from shardwright.referee.verification import Ran, Verification

if TYPE_CHECKING:
    from shardwright.binding import Bound
    from shardwright.plan import Plan

REPORT_EVERY_S = 5.0  # between two lines about a compilation that takes long
GIVEN = "your arguments"  # what a run on them is called


@contextmanager
def reporting(progress: Callable[[str], None] | None, what: str) -> Iterator[None]:
    """Tells every few seconds how long something has been running."""
    if progress is None:
        yield
        return
    start, over = time.monotonic(), threading.Event()

    def report() -> None:
        while not over.wait(REPORT_EVERY_S):
            progress(f"{what}: {time.monotonic() - start:.0f} s")

    progress(what)
    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()


def verify_plan(
    plan: Plan,
    target: str | None = None,
    *,
    run: bool = False,
    seed: int = 0,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> Verification:
    """Compiles the plan's program for a target and compares; `run` also compares results.

    It runs on random arguments, or on `args` and `kwargs` when given.
    """
    if args is not None and not isinstance(args, tuple | list):
        raise ShardwrightError(
            f"args must be the arguments of a call, got {type(args).__name__}", try_="args=(x,)"
        )
    no_mesh = jax.sharding.AbstractMesh((), ())
    with jax.sharding.use_abstract_mesh(no_mesh):  # the target has its own
        if not run and args is None and kwargs is None:
            return judge(plan, compile_plan(plan, target, timeout=timeout))
        bound = plan._require("verify()")
        leaves = None
        if args is not None or kwargs is not None:
            leaves = _given(plan, bound, tuple(args or ()), dict(kwargs or {}))
        return _run(plan, bound, parse_target(target), seed, leaves, timeout)


def _given(plan: Plan, bound: Bound, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The user's arguments as flat arrays, checked against the plan."""
    leaves = bound.program.signature.leaves(args, kwargs)
    plan.bind(bound.fn, *args, **kwargs)  # says what differs
    shapes = [x for x in leaves if isinstance(x, jax.ShapeDtypeStruct)]
    if shapes:
        raise ShardwrightError(
            f"args must be arrays to run on, got {shapes[0]}", try_="run=True without args"
        )
    return fresh(leaves)


def _run(
    plan: Plan,
    bound: Bound,
    target: Target,
    seed: int,
    given: list[Any] | None,
    timeout: float | None,
) -> Verification:
    """The verification with every draw run twice: planned, and unsharded on one device."""
    types = _input_types(bound)
    closed = trace_jaxpr(bound.fn, bound.program.signature, types)
    uses = integer_uses(closed)
    drawn = draws(types, uses, seed) if given is None else [Draw(GIVEN, given)]
    unsharded = jax.jit(_unsharded(closed, bound.steps), **_devices_for(bound.program, plan))
    wanted = [[to_host(x) for x in unsharded(*draw.inputs)] for draw in drawn]
    results, compiled = run_each(
        target, _builder(plan), [tuple(fresh(draw.inputs)) for draw in drawn],
        mesh=plan.mesh, timeout=timeout,
    )  # fmt: skip
    relative = relative_tolerance([v.dtype for v in bound.program.values])
    promise = next((use.promised for use in uses if use.promised), "")

    def noisy(draw: Draw) -> list[Any]:
        return [unsharded(*inputs) for inputs in with_noise(draw.inputs, seed)]

    ran = [
        Ran(
            draw.name, compare(got, want, relative, partial(noisy, draw)), draw.counts,
            "" if draw.counts else f"{promise} promises that its indices are in range",
        )
        for draw, got, want in zip(drawn, results, wanted, strict=True)
    ]  # fmt: skip
    return judge(plan, compiled, tuple(ran))


def _unsharded(closed: Any, steps: Steps) -> Callable[..., list[Any]]:
    """The function on one device; types that name axes of a mesh are left out.

    XLA merges starts of slices without a mesh as well, so they are clamped here too.
    """
    clamped: dict[Key, Actions] = {
        key: (ClampStarts(), Compute()) for key, actions in steps.actions.items()
        if ClampStarts() in actions
    }  # fmt: skip
    if not clamped and not _jax.has_explicit_types(closed):
        return jax.extend.core.jaxpr_as_fun(closed)
    nowhere = replace(
        steps, actions=clamped, inputs=((),) * len(steps.inputs),
        outputs=((),) * len(steps.outputs),
    )  # fmt: skip
    return lambda *arrays: apply_steps(closed, nowhere, None, arrays)


def _devices_for(program: Program, plan: Plan) -> dict[str, Any]:
    """Where the function runs on its own: a shard_map that names no mesh needs one's devices."""
    for op in program.ops:
        if op.name == "shard_map" and isinstance(op.eqn.params["mesh"], jax.sharding.AbstractMesh):
            return {"in_shardings": sharding(jax_mesh(plan.mesh), ())}
    return {}


def compile_plan(
    plan: Plan, target: str | None = None, *, timeout: float | None = None
) -> Compiled:
    """What the target's compiler makes of the planned function."""
    leaves = _input_types(plan._require("verify()"))
    return compile_for(
        parse_target(target), _builder(plan), tuple(leaves), mesh=plan.mesh, timeout=timeout
    )


def _builder(plan: Plan) -> Callable[[Any], Any]:
    """mesh -> the planned function on flat lists of arrays."""
    bound = plan._require("verify()")
    return lambda mesh: flat_jit(bound.fn, bound.program.signature, bound.steps, mesh)


def _input_types(bound: Bound) -> list[Any]:
    types = [bound.program.values[v].type for v in bound.program.inputs]
    return [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]


def judge(plan: Plan, compiled: Compiled, runs: tuple[Ran, ...] = ()) -> Verification:
    """The comparison of one compilation, and of runs, with a plan."""
    rows, network = compiled.collectives, Network(plan.mesh, plan.device)
    platform = compiled.target.platform
    if platform == "current":
        platform = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    return Verification(
        target=str(compiled.target), platform=platform, mesh=plan.mesh.shape,
        predicted=totals(plan.collectives), compiled=totals(rows),
        predicted_seconds=Seconds(
            compute_s=plan.cost.compute_s, link_s=plan.cost.link_s, exposed_s=plan.cost.exposed_s
        ),
        compiled_link_s=sum(row.count * link_s(row, network) for row in rows),
        seconds=replayed(compiled, plan.device, network),
        predicted_peak_bytes=peak_bytes(plan, platform),
        compiled_peak_bytes=compiled.memory.peak_bytes,
        rematerialisations=involuntary_remats(compiled.stderr), runs=runs,
        narrow_floats=any(_is_narrow(v.dtype) for v in plan._require("verify()").program.values),
    )  # fmt: skip


def _is_narrow(dtype: Any) -> bool:
    """Whether elements are floats of less than four bytes."""
    return bool(jax.dtypes.issubdtype(dtype, np.floating)) and jnp.dtype(dtype).itemsize < 4


def replayed(compiled: Compiled, planned: Device, network: Network) -> Seconds | None:
    """The seconds of a schedule for accelerators on the planned device; None for a host's."""
    if compiled.target.platform == "tpu" and planned.clock_hz:
        compute_s = cycles(planned.clock_hz)
    elif compiled.target.platform == "cuda":
        compute_s = roofline(planned)
    else:
        return None
    return replay(compiled.hlo, compiled.mesh, lambda row: link_s(row, network), compute_s)


def peak_bytes(plan: Plan, platform: str) -> int:
    """The peak that a platform's compiler is expected to assign to a plan.

    The plan's own, for the device it was made for; a host has other buffers (docs/cost.md).
    """
    if platform != "cpu":
        return plan.cost.peak_bytes
    bound = plan._require("verify()")
    model, host = bound.model, bound.model.device.with_memory_of(device("cpu"))
    on_host = CostModel(model.analysis, model.mesh, host, pinned=model.pinned)
    return on_host.cost(bound.decisions).peak_bytes


def link_s(row: CompiledCollective, network: Network) -> float:
    """Seconds of one compiled collective; over groups that are no axes as over the whole mesh."""
    axes = network.mesh.names if row.axes is None else row.axes
    return network.seconds(row.kind, tuple(axes), row.bytes)
