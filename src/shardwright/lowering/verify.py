"""verify: what was predicted against what a real compiler does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.extend
import numpy as np

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.lowering.apply import apply_steps
from shardwright.lowering.compiled import involuntary_remats, totals
from shardwright.lowering.jit import flat_jit, jax_mesh, sharding
from shardwright.lowering.steps import Steps
from shardwright.lowering.targets import Compiled, compile_for, parse_target, run_for
from shardwright.program.tracing import trace_jaxpr
from shardwright.program.types import Program

if TYPE_CHECKING:
    from shardwright.plan import Bound, Plan

Totals = Mapping[tuple[str, tuple[str, ...] | None], tuple[float, float]]

# What may lie between predicted and compiled for a plan to be called verified.
LINK_TOLERANCE = 0.10
MEMORY_TOLERANCE = 0.15
RELATIVE, ABSOLUTE = 2e-3, 1e-4  # of results: sums in another order
# Where the program computes with few digits: so many units in the last place, up to this part.
ROUNDINGS, COARSEST = 4, 0.05


@dataclass(frozen=True, slots=True)
class Verification:
    """Predicted against compiled; true when they agree."""

    target: str
    predicted: Totals  # {(kind, axes): (count, bytes per step)}
    compiled: Totals
    predicted_peak_bytes: int
    compiled_peak_bytes: int
    rematerialisations: int  # involuntary full ones
    largest_error: float | None  # of the results, relative; None when not run
    numbers_agree: bool | None
    cycles: int | None
    checks_memory: bool  # a CPU's figure says nothing about an accelerator's

    @property
    def predicted_bytes(self) -> float:
        return sum(b for _, b in self.predicted.values())

    @property
    def compiled_bytes(self) -> float:
        return sum(b for _, b in self.compiled.values())

    @property
    def link_error(self) -> float:
        """|compiled - predicted| bytes, relative to the larger."""
        top = max(self.predicted_bytes, self.compiled_bytes)
        return abs(self.compiled_bytes - self.predicted_bytes) / top if top else 0.0

    @property
    def memory_error(self) -> float:
        top = max(self.predicted_peak_bytes, self.compiled_peak_bytes, 1)
        return abs(self.compiled_peak_bytes - self.predicted_peak_bytes) / top

    @property
    def ok(self) -> bool:
        return (
            self.link_error <= LINK_TOLERANCE
            and (not self.checks_memory or self.memory_error <= MEMORY_TOLERANCE)
            and self.rematerialisations == 0
            and self.numbers_agree is not False
        )

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        from shardwright.report.verification import format_verification

        return format_verification(self)


def verify_plan(
    plan: Plan, target: str | None = None, *, run: bool = False, seed: int = 0
) -> Verification:
    """Compiles the plan's program for a target and compares; `run` also compares results."""
    with _jax.no_mesh_set():  # the target has its own
        return _verify(plan, target, run, seed)


def _verify(plan: Plan, target: str | None, run: bool, seed: int) -> Verification:
    if not run:
        return judge(plan, compile_plan(plan, target), None, None)
    bound = plan._require("verify()")
    signature, inputs = bound.program.signature, random_inputs(_input_types(bound), seed)
    closed = trace_jaxpr(bound.fn, signature, inputs)
    unsharded = jax.jit(_unsharded(closed, bound.steps), **_devices_for(bound.program, plan))
    wanted = [_host(x) for x in unsharded(*inputs)]
    inputs = random_inputs(_input_types(bound), seed)  # anew: the planned step may consume them
    results, compiled = run_for(
        parse_target(target), _builder(plan), tuple(inputs), mesh=plan.mesh.shape
    )
    return judge(plan, compiled, *compare(results, wanted, _relative(bound)))


def _unsharded(closed: Any, steps: Steps) -> Callable[..., list[Any]]:
    """The function on one device; types that name axes of a mesh are left out."""
    if not _jax.has_explicit_types(closed):
        return jax.extend.core.jaxpr_as_fun(closed)
    nowhere = replace(
        steps, by_serial={}, inputs=((),) * len(steps.inputs), outputs=((),) * len(steps.outputs)
    )
    return lambda *arrays: apply_steps(closed, nowhere, None, arrays)


def _devices_for(program: Program, plan: Plan) -> dict[str, Any]:
    """Where the function runs on its own: a shard_map that names no mesh needs one's devices."""
    for op in program.ops:
        if op.name == "shard_map" and isinstance(op.eqn.params["mesh"], jax.sharding.AbstractMesh):
            return {"in_shardings": sharding(jax_mesh(plan.mesh), ())}
    return {}


def compile_plan(plan: Plan, target: str | None = None) -> Compiled:
    """What the target's compiler makes of the planned function."""
    types = _input_types(plan._require("verify()"))
    leaves = tuple(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types)
    return compile_for(parse_target(target), _builder(plan), leaves, mesh=plan.mesh.shape)


def _builder(plan: Plan) -> Callable[[Any], Any]:
    """mesh -> the planned function on flat lists of arrays."""
    signature, steps = plan._ready()
    fn = plan._require("verify()").fn
    return lambda mesh: flat_jit(fn, signature, steps, mesh)


def _input_types(bound: Bound) -> list[Any]:
    return [bound.program.values[v].type for v in bound.program.inputs]


def judge(plan: Plan, compiled: Compiled, error: float | None, agree: bool | None) -> Verification:
    """The comparison of one compilation with its plan."""
    predicted: dict[tuple[str, tuple[str, ...] | None], tuple[float, float]] = {}
    for c in plan.collectives:
        n, b = predicted.get((c.kind, c.axes), (0.0, 0.0))
        predicted[c.kind, c.axes] = (n + c.count, b + c.count * c.bytes)
    return Verification(
        str(compiled.target) or "current devices", predicted, totals(compiled.collectives),
        plan.cost.peak_bytes, compiled.memory.peak_bytes, involuntary_remats(compiled.stderr),
        error, agree, compiled.cycles, compiled.target.platform in ("tpu", "cuda"),
    )  # fmt: skip


def random_inputs(types: list[Any], seed: int) -> list[Any]:
    """Arrays of these types: small normal floats, integers that are safe as indices, keys."""
    rng = np.random.default_rng(seed)
    out: list[Any] = []
    for t in types:
        if jax.dtypes.issubdtype(t.dtype, jax.dtypes.prng_key):
            key = jax.random.key(seed, impl=_impl(t.dtype))
            out.append(jax.random.split(key, t.shape) if t.shape else key)
        elif jax.dtypes.issubdtype(t.dtype, np.inexact):
            small = 0.1 * np.abs(rng.standard_normal(t.shape)) + 0.01
            out.append(np.asarray(small).astype(t.dtype))
        elif t.dtype == np.bool_:
            out.append(rng.integers(0, 2, t.shape).astype(bool))
        else:
            out.append(np.asarray(rng.integers(0, 2, t.shape)).astype(t.dtype))
    return out


def _impl(dtype: Any) -> str:
    return str(dtype).removeprefix("key<").rstrip(">").replace("fry", "threefry2x32")


def _relative(bound: Bound) -> float:
    """The error that the narrowest float type in the program excuses, relative to the scale."""
    dtypes = {v.dtype for v in bound.program.values}
    floats = [d for d in dtypes if jax.dtypes.issubdtype(d, np.floating)]
    eps = max((float(jax.numpy.finfo(d).eps) for d in floats), default=0.0)
    return max(RELATIVE, min(ROUNDINGS * eps, COARSEST))


def _host(leaf: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def compare(results: Any, wanted: Any, relative: float = RELATIVE) -> tuple[float, bool]:
    """(largest error relative to each array's scale, whether all are close)."""
    worst, close = 0.0, True
    for got, want in zip(jax.tree.leaves(results), jax.tree.leaves(wanted), strict=True):
        got, want = np.asarray(_plain(got)), np.asarray(_plain(want))
        if got.shape != want.shape:
            raise ShardwrightError(f"a result has shape {got.shape} instead of {want.shape}")
        if not want.size:
            continue
        scale = float(np.max(np.abs(want))) + ABSOLUTE
        off = np.abs(got - want)
        both_nan = np.isnan(got) & np.isnan(want)
        off = np.where(both_nan | (got == want), 0.0, off)
        worst = max(worst, float(np.max(off)) / scale)
        close &= bool(np.max(off) <= relative * scale + ABSOLUTE)
    return worst, close


def _plain(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    return array if array.dtype.kind == "c" else array.astype(np.float64)
