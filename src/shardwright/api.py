"""The public functions; plan_call() is the whole pipeline on one page."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

import jax

from shardwright import _jax
from shardwright import cache as plan_cache
from shardwright.agreement import Proposal, take_plan
from shardwright.analysis.analysis import Analysis, analyze_program, check_labels
from shardwright.binding import Bound
from shardwright.cost.devices import Device
from shardwright.errors import ShardwrightError
from shardwright.lowering.jit import PlannedFunction
from shardwright.mesh import Mesh
from shardwright.notebook import cell_progress
from shardwright.options import Options, read_options
from shardwright.plan import Plan
from shardwright.program.arguments import asks_which
from shardwright.program.fingerprint import content
from shardwright.program.pins import argument_pins
from shardwright.program.tracing import trace_call
from shardwright.program.types import Program
from shardwright.record.build import build_record
from shardwright.search import Tactic
from shardwright.search.meshes import Shape, candidate_meshes, search_meshes
from shardwright.search.unshare import unshare_where_it_pays
from shardwright.search.wishes import constrained_model
from shardwright.share import Call, common_mesh
from shardwright.together import Task, search_shared

BY_NAME = ("static_argnames", "donate_argnames")  # that jax.jit takes and partition() does not


@asks_which
def analyze(
    fn: Callable[..., Any],
    /,
    *args: Any,
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
    labels: Mapping[str, str] | None = None,
    mesh: Any = None,
    **kwargs: Any,
) -> Analysis:
    """What can be decided about `fn`: its groups of dims that are split alike.

    `labels` gives groups names of your own: {"d_ff": "state.params['layers'][*]['w1'][1]"}.
    With a `mesh`, groups that none of its axes divides are set aside.
    """
    axes = None if mesh is None else Mesh.of(mesh)
    program = trace_call(fn, args, kwargs, static_argnums, donate_argnums, axes, tie=True)
    analysis = analyze_program(program, labels, axis_sizes=axes.sizes if axes else ())
    check_labels(analysis, labels or {})
    return analysis


@asks_which
def partition(
    fn: Callable[..., Any],
    /,
    *args: Any,
    mesh: Any,
    device: str | Device | None = None,
    memory: int | float | None = None,
    tactics: Sequence[Tactic] | Tactic | None = None,
    seconds: float | None = None,
    timeout: float | None = None,
    seed: int = 0,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    progress: Callable[[Any], None] | None = None,
    labels: Mapping[str, str] | None = None,
    devices: int | None = None,
    unshare: bool = False,
    overlap: float | None = None,
    tie: bool = True,
    share: Plan | Call | Sequence[Plan | Call] | None = None,
    cache: bool = True,
    **kwargs: Any,
) -> Plan:
    """The plan for one step of `fn` on a mesh of devices.

    Arguments that have a sharding, be they arrays or only shapes, keep it where that is possible.

    - `mesh`: {"data": 4, "model": 2}, a Mesh, a JAX mesh, or only a number of devices; with
      {"data": None, "model": 4} and `devices=16` the free sizes are searched;
    - `device`: what to plan for: by default what a JAX mesh is made of, else a TPU v5e;
    - `memory`: bytes per device (all that the device has when None);
    - `tactics`: what you already know, e.g. [DataParallel("data"), Search(axes=["model"])];
    - `seconds`: roughly how much to search, counted in work: the same `seed` gives the same plan
      on every machine;
    - `timeout`: ends the search after that many seconds of wall-clock time; a plan that it ended
      may be another one on another machine, and says so;
    - `unshare`: let single layers differ from their like where that pays;
    - `tie`: a result with the structure of an argument is stored as that argument is, ready for
      the next step; False lets them differ;
    - `share`: the plan of another function, or several: arrays that both functions have are placed
      as there. Or `sw.Call`s of other functions: the parameters are placed for all of them
      together, and each can then be planned with `share=` this plan. A note says what it costs;
    - `overlap`: of the shorter of compute and links the part that hides behind the longer; when
      None, what hides follows from the program and the device (docs/cost.md);
    - `cache`: look the same plan up that was made before, and keep this one; False does neither.
    """
    options = read_options(
        mesh=mesh, device=device, memory=memory, tactics=tactics, seconds=seconds,
        timeout=timeout, seed=seed, donate_argnums=donate_argnums, static_argnums=static_argnums,
        progress=progress, labels=labels, devices=devices, unshare=unshare, overlap=overlap,
        tie=tie, share=share, cache=cache,
    )  # fmt: skip
    return plan_call(fn, args, kwargs, options)


def plan_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> Plan:
    """The whole pipeline: partition() of one call, whatever its arguments are called."""
    together = _jax.job()
    if together is None:
        return plan_once(fn, *_traced(fn, args, kwargs, options), options)

    def propose() -> Proposal:
        program, meshes = _traced(fn, args, kwargs, options)
        decides = plan_cache.deciding(program, meshes, options)
        return Proposal(
            decides | {"program": content(program, lines=False)},
            lambda: plan_once(fn, program, meshes, options),
            lambda record: Plan(record).bind_program(fn, program),
        )

    return take_plan(together, propose)  # one process plans, all take that plan


def _traced(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> tuple[Program, list[Mesh]]:
    """(the program of a call, the meshes it may be planned for)."""
    meshes = candidate_meshes(options.mesh, options.device, options.devices)
    if options.share:
        meshes = [common_mesh(options.share, meshes)]
    widest = max(meshes, key=lambda mesh: len(mesh.axes))  # the code may name any axis
    program = trace_call(  # ops, values, source lines, argument paths
        fn, args, kwargs, options.static_argnums, options.donate_argnums, widest, options.tie
    )
    program.pins += argument_pins(program.inputs, program.signature.leaves(args, kwargs))
    return program, meshes


def plan_once(
    fn: Callable[..., Any], program: Program, meshes: Sequence[Mesh], options: Options
) -> Plan:
    """The plan of a traced program: looked up where it was made before."""
    if not plan_cache.wanted(options):
        return plan_program(fn, analyze_program(program, options.labels), meshes, options)
    key = plan_cache.key_of(plan_cache.deciding(program, meshes, options))
    known = plan_cache.find(key)
    if known is not None:
        with suppress(ShardwrightError):  # a file that somebody has changed is planned anew
            return Plan(known, cached=True).bind_program(fn, program)
    plan = plan_program(fn, analyze_program(program, options.labels), meshes, options)
    note = plan_cache.keep(key, plan.record)
    return plan if note is None else plan.with_note(note)


def plan_program(
    fn: Callable[..., Any], analysis: Analysis, meshes: Sequence[Mesh], options: Options
) -> Plan:
    """The plan of an analyzed program on the best of these meshes."""
    check_labels(analysis, options.labels or {})
    cost_model = functools.partial(  # of a mesh: what any decisions cost
        constrained_model, analysis, device=options.device, tactics=options.tactics,
        overlap=options.overlap,
    )  # fmt: skip
    shapes: list[Shape] = []
    if options.share:
        model, found = search_shared(Task(analysis, meshes[0], options))
    else:
        model, found, shapes = search_meshes(  # the best decisions, and how good they are
            meshes, cost_model, memory=options.memory, tactics=options.tactics,
            seconds=options.seconds, timeout=options.timeout, seed=options.seed,
            progress=options.progress or cell_progress(),
        )  # fmt: skip
    unshared: list[tuple[int, int]] = []
    if options.unshare and not found.timed_out:
        model, found, unshared = unshare_where_it_pays(model, found, options.memory)
    record = build_record(model, found, asked=options.asked(), shapes=shapes, unshared=unshared)
    return Plan(record, Bound(fn, analysis.program, model, found.decisions))


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`fn`, planned on its first call: @sw.jit(mesh={"data": 8}, device="h100").

    Takes what partition() takes, and `static_argnames` and `donate_argnames` as jax.jit does.
    `.plan(*args)` gives the plan without running it.
    """
    known = [option.name for option in fields(Options) if option.name != "default_device"]
    unknown = [name for name in options if name not in (*known, "jax_mesh", *BY_NAME)]
    if unknown:
        raise ShardwrightError(f"sw.jit has no option {unknown[0]!r}", try_=", ".join(known))
    if "mesh" not in options:
        raise ShardwrightError(
            "sw.jit needs a mesh", try_='@sw.jit(mesh={"data": 8}), or sw.jit(fn, mesh=jax_mesh)'
        )
    if fn is None:
        return functools.partial(jit, **options)
    by_name = {name: options.pop(name) for name in BY_NAME if name in options}
    jax_mesh = options.pop("jax_mesh", None)
    return PlannedOnCall(
        jax.jit(fn, **by_name) if by_name else fn, read_options(**options), jax_mesh
    )


class PlannedOnCall:
    """A function that is planned, placed and compiled when it is first called."""

    def __init__(self, fn: Callable[..., Any], options: Options, jax_mesh: Any) -> None:
        self.fn, self._options, self._jax_mesh = fn, options, jax_mesh
        self._ready: list[tuple[Plan, PlannedFunction]] = []
        functools.update_wrapper(self, fn, updated=())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method of the class it is defined in, as functions are."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<{getattr(self.fn, '__name__', self.fn)}, planned when called>"

    def plan(self, /, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments."""
        return self._for(args, kwargs)[0]

    def _for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Plan, PlannedFunction]:
        for plan, planned in self._ready:
            if plan.fits(args, kwargs):
                return plan, planned
        plan = plan_call(self.fn, args, kwargs, self._options)
        planned = plan.jit(self.fn, mesh=self._jax_mesh)
        self._ready.append((plan, planned))
        return plan, planned

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._for(args, kwargs)[1](*args, **kwargs)

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """As jax.jit(fn).lower."""
        return self._for(args, kwargs)[1].lower(*args, **kwargs)

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """As jax.jit(fn).trace."""
        return self._for(args, kwargs)[1].trace(*args, **kwargs)
