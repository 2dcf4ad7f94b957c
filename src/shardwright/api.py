"""analyze() and partition().

partition() traces a call and plans the program; plan_program() is the stages that make a plan, in
order. Around it plan_once() looks for one that was made before, and plan_call() lets all processes
of a job have the plan of one of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from shardwright import cache as plan_cache
from shardwright._jax import jobs
from shardwright.analysis.analysis import Analysis, analyze_program, check_labels
from shardwright.cost.devices import Device
from shardwright.cost.placing import placed
from shardwright.errors import ShardwrightError
from shardwright.job import Proposal, take_plan
from shardwright.mesh import Mesh
from shardwright.notebook import cell_progress
from shardwright.options import Options, read_options
from shardwright.plan import Plan, plan_of
from shardwright.program.calls import asks_which
from shardwright.program.fingerprint import content
from shardwright.program.pins import argument_pins
from shardwright.program.tracing import trace_call
from shardwright.program.types import Program
from shardwright.search import Tactic
from shardwright.search.meshes import Shape, candidate_meshes, search_meshes
from shardwright.search.requests import constrained_model
from shardwright.search.unshare import unshare_where_it_pays
from shardwright.several.share import Call, common_mesh
from shardwright.several.together import Task, search_shared


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
    """The plan of a call; of several processes of a job one makes it, and all take that plan."""
    together = jobs.job()
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

    return take_plan(together, propose)


def _traced(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> tuple[Program, list[Mesh]]:
    """(the program of a call, the meshes it may be planned for)."""
    meshes = candidate_meshes(options.mesh, options.device, options.devices)
    if options.share:
        mesh = common_mesh(options.share, meshes)
        meshes = [placed(mesh, options.device)[0]]  # all functions lie alike
    widest = max(meshes, key=lambda mesh: len(mesh.axes))  # the code may name any axis
    return trace_as_asked(fn, args, kwargs, options, widest), meshes


def trace_as_asked(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options,
    mesh: Mesh | None,
) -> Program:  # fmt: skip
    """The program of a call on a mesh, and what the shardings of its arguments say."""
    program = trace_call(  # ops, values, source lines, argument paths
        fn, args, kwargs, options.static_argnums, options.donate_argnums, mesh, options.tie
    )
    program.pins += argument_pins(program.inputs, program.signature.leaves(args, kwargs))
    return program


def plan_once(
    fn: Callable[..., Any], program: Program, meshes: Sequence[Mesh], options: Options
) -> Plan:
    """The plan of a traced program: looked up where it was made before."""
    key = None
    if plan_cache.wanted(options):
        key = plan_cache.key_of(plan_cache.deciding(program, meshes, options))
        known = plan_cache.find(key)
        if known is not None:
            with suppress(ShardwrightError):  # a file that somebody has changed is planned anew
                return Plan(known, cached=True).bind_program(fn, program)
    plan = plan_program(fn, analyze_program(program, options.labels), meshes, options)
    if key is not None:
        plan.record = plan_cache.keep(key, plan.record)
    return plan


def plan_program(
    fn: Callable[..., Any], analysis: Analysis, meshes: Sequence[Mesh], options: Options
) -> Plan:
    """The plan of an analyzed program on the best of these meshes: the stages in order."""
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
            meshes, cost_model, options.device, memory=options.memory, tactics=options.tactics,
            seconds=options.seconds, timeout=options.timeout, seed=options.seed,
            progress=options.progress or cell_progress(),
        )  # fmt: skip
    unshared: list[tuple[int, int]] = []
    if options.unshare and not found.timed_out:
        model, found, unshared = unshare_where_it_pays(model, found, options.memory)
    return plan_of(fn, model, found, asked=options.asked(), shapes=shapes, unshared=unshared)
