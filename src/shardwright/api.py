"""The public functions; plan_call() is the whole pipeline on one page."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shardwright.analysis.analysis import Analysis, analyze_program, check_labels
from shardwright.cost.devices import Device
from shardwright.cost.devices import device as find_device
from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.lowering.jit import PlannedFunction
from shardwright.mesh import Mesh
from shardwright.plan import Bound, Plan
from shardwright.program.arguments import asks_which
from shardwright.program.tracing import trace_call
from shardwright.record import build_record
from shardwright.search import Found, Tactic
from shardwright.search.meshes import candidate_meshes, search_meshes
from shardwright.search.unshare import unshare_where_it_pays


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
    program = trace_call(fn, args, kwargs, static_argnums, donate_argnums, axes)
    analysis = analyze_program(program, labels, axis_sizes=axes.sizes if axes else ())
    check_labels(analysis, labels or {})
    return analysis


@asks_which
def partition(
    fn: Callable[..., Any],
    /,
    *args: Any,
    mesh: Any,
    device: str | Device = "tpu-v5e",
    memory: int | float | None = None,
    tactics: Sequence[Tactic] | Tactic | None = None,
    seconds: float | None = None,
    seed: int = 0,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    progress: Callable[[Any], None] | None = None,
    labels: Mapping[str, str] | None = None,
    devices: int | None = None,
    unshare: bool = False,
    overlap: float = 0.0,
    **kwargs: Any,
) -> Plan:
    """The plan for one step of `fn` on a mesh of devices.

    - `mesh`: {"data": 4, "model": 2}, a Mesh, a JAX mesh, or only a number of devices; with
      {"data": None, "model": 4} and `devices=16` the free sizes are searched;
    - `memory`: bytes per device (all that the device has when None);
    - `tactics`: what you already know, e.g. [DataParallel("data"), Search(axes=["model"])];
    - `seconds`: roughly how long to search; the same `seed` gives the same plan;
    - `unshare`: let single layers differ from their like where that pays;
    - `overlap`: the part of the shorter of compute and links that hides behind the longer.
    """
    return plan_call(
        fn, args, kwargs, mesh=mesh, device=device, memory=memory, tactics=tactics,
        seconds=seconds, seed=seed, donate_argnums=donate_argnums, static_argnums=static_argnums,
        progress=progress, labels=labels, devices=devices, unshare=unshare, overlap=overlap,
    )  # fmt: skip


def plan_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    mesh: Any,
    device: str | Device,
    memory: int | float | None,
    tactics: Sequence[Tactic] | Tactic | None,
    seconds: float | None,
    seed: int,
    donate_argnums: int | Sequence[int],
    static_argnums: int | Sequence[int],
    progress: Callable[[Any], None] | None,
    labels: Mapping[str, str] | None,
    devices: int | None,
    unshare: bool,
    overlap: float,
) -> Plan:
    """The whole pipeline: partition() of one call, whatever its arguments are called."""
    tactics = [tactics] if isinstance(tactics, Tactic) else tactics
    _check_options(memory, seconds, seed, overlap, labels, tactics, progress)
    seed, overlap = int(seed), float(overlap)  # a plan file holds no numbers of NumPy's
    chip = find_device(device)
    shapes = candidate_meshes(mesh, chip, devices)
    program = trace_call(                               # ops, values, source lines, argument paths
        fn, args, kwargs, static_argnums, donate_argnums, max(shapes, key=lambda m: len(m.axes))
    )  # fmt: skip
    analysis = analyze_program(program, labels)  # what may be decided
    check_labels(analysis, labels or {})
    model, found, meshes = _search(                     # the best decisions, and how good they are
        analysis, shapes, chip, memory=_bytes(memory), tactics=tactics, seconds=seconds,
        seed=seed, progress=progress, overlap=overlap,
    )  # fmt: skip
    apart: list[tuple[int, int]] = []
    if unshare:
        model, found, apart = unshare_where_it_pays(model, found, _bytes(memory))
    record = build_record(
        program.name, model, found.decisions,
        found=describe(found, meshes, memory),
        options={
            "static_argnums": numbers(static_argnums), "donate_argnums": numbers(donate_argnums),
            "labels": dict(labels or {}), "seed": seed, "unshared": [list(p) for p in apart],
            "tactics": [str(t) for t in tactics or ()], "pinned": pinned_record(model),
        },
    )  # fmt: skip
    return Plan(record, Bound(fn, program, model, found.decisions))


def _search(
    analysis: Analysis, meshes: Sequence[Mesh], device: Device, **options: Any
) -> tuple[CostModel, Found, list[dict[str, Any]]]:
    """(model, decisions, table of mesh shapes) for one mesh, or for the best of many."""
    model, found, shapes = search_meshes(analysis, meshes, device, **options)
    rows = [
        {
            "mesh": dict(row.mesh.shape), "searched": row.searched, "why": row.why,
            "step_s": row.cost.step_s if row.cost else None,
            "peak_bytes": row.cost.peak_bytes if row.cost else None,
        }
        for row in shapes
    ]  # fmt: skip
    return model, found, rows


def describe(found: Found, meshes: list[dict[str, Any]], memory: float | None) -> dict[str, Any]:
    """What the search says about itself, as plain data."""
    proof = found.certificate
    return {
        "certificate": {
            "kind": proof.kind, "lower_bound_s": _finite(proof.lower_bound_s),
            "gap": _finite(proof.gap), "evaluated": proof.evaluated,
            "covered": _finite(proof.covered),
        },
        "baselines": {
            name: row if isinstance(row, str) else {
                "compute_s": row.compute_s, "link_s": row.link_s, "peak_bytes": row.peak_bytes,
                "overlap": row.overlap,
            }
            for name, row in found.baselines.items()
        },
        "search": {
            "evaluations": found.evaluations, "how": list(found.how),
            "interrupted": found.interrupted,
            "memory": None if memory is None else int(memory),
            "pins_in_code": found.pins_in_code,
        },
        "meshes": meshes,
        "notes": list(found.notes),
    }  # fmt: skip


def pinned_record(model: CostModel) -> dict[str, list[list[int]]]:
    """{value: axes per dim} of what is kept somewhere whatever the lists say."""
    return {str(value): [list(on) for on in dims] for value, dims in model.pinned.items()}


def _finite(number: float) -> float | None:
    """A number that JSON can hold."""
    return number if number != float("inf") else None


def numbers(argnums: int | Sequence[int]) -> list[int]:
    """Positions of arguments as plain integers; they have been checked."""
    return [int(n) for n in np.atleast_1d(np.asarray(argnums, np.int64))]


def _bytes(memory: int | float | None) -> int | None:
    if memory is None:
        return None
    _check_number("memory", memory, "a positive number of bytes", "16e9", least=1)
    return int(memory)


def _check_number(
    name: str, given: Any, what: str, example: str, *, least: float = 0, most: float = 1e30
) -> None:
    """Raises unless the option is a number in its range."""
    is_number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
    if not is_number or not least <= given <= most:
        raise ShardwrightError(
            f"{name} must be {what}, got {given!r:.60}", try_=f"{name}={example}"
        )


def _check_options(
    memory: Any, seconds: Any, seed: Any, overlap: Any, labels: Any, tactics: Any, progress: Any
) -> None:
    """Raises for an option that would only fail, or mislead, after the program is traced."""
    _bytes(memory)
    if seconds is not None:
        _check_number("seconds", seconds, "a number of seconds", "10")
    _check_number("overlap", overlap, "a part of 1", "0.5", most=1)
    if not isinstance(seed, int | np.integer):
        raise ShardwrightError(f"seed must be an integer, got {seed!r:.60}", try_="seed=0")
    _check_number("seed", seed, "an integer from 0 on", "0")
    texts = isinstance(labels, Mapping) and all(
        isinstance(text, str) for row in labels.items() for text in row
    )
    if labels is not None and not texts:
        raise ShardwrightError(
            f"labels must map a label to a dim, got {labels!r:.60}",
            try_="""{"d_ff": "state.params['layers'][*]['w1'][1]"}""",
        )
    if progress is not None and not callable(progress):
        raise ShardwrightError(
            f"progress must be a function, got {progress!r:.60}", try_="progress=print"
        )
    if isinstance(tactics, str) or (tactics is not None and not isinstance(tactics, Iterable)):
        raise ShardwrightError(
            f"not a tactic: {tactics!r:.60}", try_='DataParallel("data"), Search(axes=["model"])'
        )


# {option of partition(): its default}
PARTITION_OPTIONS: dict[str, Any] = {
    p.name: p.default
    for p in inspect.signature(partition).parameters.values()
    if p.kind is p.KEYWORD_ONLY
}

BY_NAME = ("static_argnames", "donate_argnames")


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`fn`, planned on its first call: @sw.jit(mesh={"data": 8}, device="h100").

    Takes what partition() takes, and `static_argnames` and `donate_argnames` as jax.jit does.
    `.plan(*args)` gives the plan without running it.
    """
    known = (*PARTITION_OPTIONS, "jax_mesh", *BY_NAME)
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ShardwrightError(
            f"sw.jit has no option {unknown[0]!r}", try_=", ".join(PARTITION_OPTIONS)
        )
    if "mesh" not in options:
        raise ShardwrightError(
            "sw.jit needs a mesh", try_='@sw.jit(mesh={"data": 8}), or sw.jit(fn, mesh=jax_mesh)'
        )
    if fn is None:
        return functools.partial(jit, **options)
    by_name = {name: options.pop(name) for name in BY_NAME if name in options}
    return PlannedOnCall(jax.jit(fn, **by_name) if by_name else fn, options)


class PlannedOnCall:
    """A function that is planned, placed and compiled when it is first called."""

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        self.fn = fn
        given = {**PARTITION_OPTIONS, **options}
        self._jax_mesh = given.pop("jax_mesh", None)
        self._options = given
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
        plan = plan_call(self.fn, args, kwargs, **self._options)
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
