"""The plan: what was decided, what it costs, how to run it. A value that prints, saves, diffs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import PartitionSpec

from shardwright import arrays
from shardwright.binding import Bound, bind_record, call_types, check_arguments, sign_as_asked
from shardwright.cost.breakdown import Breakdown
from shardwright.cost.cost import Cost
from shardwright.cost.devices import Device
from shardwright.cost.model import CostModel, model_ir
from shardwright.errors import ShardwrightError
from shardwright.job import leaving_word, meet
from shardwright.lowering.jit import PlannedFunction, as_set, jax_mesh, sharding
from shardwright.lowering.specs import partition_spec
from shardwright.lowering.steps import Steps
from shardwright.mesh import Mesh
from shardwright.options import number
from shardwright.program.arguments import Signature
from shardwright.program.build import build
from shardwright.program.calls import check_callable
from shardwright.program.fingerprint import content
from shardwright.program.tracing import trace_jaxpr
from shardwright.program.types import Program, format_type
from shardwright.record.build import build_record, call_of, over_time
from shardwright.record.files import read_record, write_record
from shardwright.record.types import Claim, PlanRecord
from shardwright.search import Found
from shardwright.search.exact import Certificate
from shardwright.spmd.ir import Collective, Ir

if TYPE_CHECKING:
    from shardwright.report.picture import Picture

SOONEST_S = 1e-3  # after which a compiler may be ended


class Plan:
    """How every argument, result and intermediate of one program is split over a mesh.

    `record` is the plan as a value (what is saved and what reports are made from); the rest is
    derived from it and, for running, from the user's function.
    """

    def __init__(
        self, record: PlanRecord, bound: Bound | None = None, *, cached: bool = False
    ) -> None:
        self.record = record
        self.cached = cached  # looked up, not searched for
        self._bound = bound
        self._met = False  # whether all processes of a job have said that they have this plan

    def __reduce__(self) -> Any:
        """A pickle holds the decisions, as a file does: a function may not go into one."""
        return Plan, (self.record,)

    def __copy__(self) -> Plan:
        return Plan(self.record, self._bound)

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        """A plan of its own for the same function: what it is bound to is never changed."""
        return Plan(copy.deepcopy(self.record, memo), self._bound)

    # What was decided -----------------------------------------------------------------------

    @property
    def mesh(self) -> Mesh:
        """The mesh that it is for."""
        return self.record.mesh

    @property
    def device(self) -> Device:
        """The device that it is for, with its figures."""
        return self.record.device

    @property
    def cost(self) -> Cost:
        """Predicted seconds and bytes per device: .step_s .compute_s .link_s .peak_bytes"""
        return self.record.cost

    @property
    def collectives(self) -> list[Collective]:
        """Rows .kind .axes .bytes .count .source .cause, most seconds first."""
        return list(self.record.collectives)

    @property
    def certificate(self) -> Certificate:
        """How good the decisions provably are: optimal, or the proven gap."""
        return self.record.certificate

    @property
    def baselines(self) -> dict[str, Cost | str]:
        """{tactic: its cost, or why it does not apply}"""
        return self.record.baselines

    @property
    def decisions(self) -> dict[str, tuple[Claim, ...]]:
        """{axis: rows .group .bits .scope} in order of claim."""
        return self.record.decisions

    @property
    def memory(self) -> Breakdown:
        """The peak: .peak_bytes .at .by_kind, and its largest .buffers."""
        return self.record.memory

    def specs(self) -> dict[str, PartitionSpec]:
        """{argument path: PartitionSpec}"""
        return {path: partition_spec(spec) for path, spec in self.record.specs.items()}

    def result_specs(self) -> dict[str, PartitionSpec]:
        """{result path: PartitionSpec}"""
        return {path: partition_spec(spec) for path, spec in self.record.result_specs.items()}

    def __str__(self) -> str:
        from shardwright.report.text import format_plan

        return format_plan(self.record)

    def __repr__(self) -> str:
        from shardwright.report.words import human_bytes, human_seconds

        step, peak = human_seconds(self.cost.step_s), human_bytes(self.cost.peak_bytes)
        return f"<Plan of {self.record.program} on {self.mesh}: {step}, {peak} per device>"

    def _repr_html_(self) -> str:
        """The page's first screen, which a notebook shows."""
        from shardwright.report.html import first_screen, in_a_frame

        return in_a_frame(first_screen(self.record), 460 + 32 * len(self.mesh.names))

    def visualize(self, path: str) -> Picture:
        """Which device has which part of an argument, result or intermediate ("params.w1").

        A drawing in a notebook; print() shows lines.
        """
        from shardwright.report.picture import Picture
        from shardwright.report.questions import find_array

        find_array(self.record, path)  # or an error that names others
        return Picture(self.record, path)

    def ir(self) -> Ir:
        """The partitioning IR: one row per op, with local shapes, claims and collectives."""
        bound = self._require("ir()")
        return model_ir(bound.model, bound.decisions)

    def explain(self) -> str:
        """Why it is split like this, in words."""
        from shardwright.report.explain import explain

        return explain(self.record)

    def advice(
        self, *, seconds: float = 1.0, processes: int | None = None, progress: Any = None
    ) -> Any:
        """What would save memory or time, with its price: residuals, batch, mesh, devices.

        Prints; has `.residuals`, `.instead`, `.to_html()` and `.to_dict()`. Other batches and
        meshes are planned for that: `seconds`, `processes` and `progress` as for compare().
        """
        from shardwright.notebook import cell_progress
        from shardwright.several.advice import advise

        return advise(
            self, self._require("advice()"), seconds=seconds, processes=processes,
            progress=progress or cell_progress(),
        )  # fmt: skip

    # Running --------------------------------------------------------------------------------

    def jit(self, fn: Callable[..., Any] | None = None, *, mesh: Any = None) -> PlannedFunction:
        """`fn` as a jitted function that runs as planned, on the current devices or `mesh`."""
        fn = fn if fn is not None else self._require("jit() without a function").fn
        check_callable(fn)

        on = jax_mesh(self.mesh, mesh)

        def prepare(
            args: tuple[Any, ...], kwargs: dict[str, Any], to_run: bool
        ) -> tuple[Signature, Steps]:
            """The signature and steps of a call; to run it all processes must have the same."""
            with leaving_word() if to_run else nullcontext():
                mine = self._bound
                same = mine is not None and mine.fn is fn and self.fits(args, kwargs)
                # Whether the function is what it was is seen as it is run.
                bound = (self if same else self.bind(fn, *args, **kwargs))._require("running")
            if to_run:
                meet(on, self.record, lambda: content(bound.program, lines=False))
            return bound.program.signature, bound.steps

        return PlannedFunction(fn, on, prepare)

    def bind(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Plan:
        """The plan tied to a function and arguments; says what changed when they do not match."""
        signature = sign_as_asked(self.record, fn, args, kwargs)
        leaves = signature.leaves(args, kwargs)
        check_arguments(self.record, signature.name, call_types(signature, leaves))
        program = build(trace_jaxpr(fn, signature, leaves), signature)
        return self.bind_program(fn, program)

    def bind_program(self, fn: Callable[..., Any], program: Program) -> Plan:
        """The plan tied to a function that has been traced; raises when it is another program."""
        bound = bind_record(self.record, fn, program)
        return Plan(replace(self.record, call=call_of(program)), bound, cached=self.cached)

    def fits(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether these arguments have the structure, shapes and dtypes the plan was made for."""
        if self._bound is None:
            return False
        leaves = self._bound.program.signature.match(args, kwargs)
        if leaves is None:
            return False
        got = [format_type(jax.typeof(x)) for x in leaves]
        return got == list(self._bound.steps.types.values())

    def _meet(self, mesh: Any) -> None:
        """Raises unless all processes that hold devices of a mesh are about to use this plan."""
        if not self._met:
            meet(mesh, self.record, lambda: self.record.fingerprint)
            self._met = True

    def _require(self, what: str) -> Bound:
        if self._bound is None:
            raise ShardwrightError(
                f"{what} needs the program this plan was made for",
                try_="plan.bind(fn, *args) first: a loaded plan holds decisions, not code",
            )
        return self._bound

    def in_shardings(self, mesh: Any = None) -> Any:
        """A tree of NamedSharding like the arguments, usable with jax.jit alone."""
        bound = self._require("in_shardings()")
        on = jax_mesh(self.mesh, mesh)
        args, _ = bound.program.signature.call([sharding(on, s) for s in bound.steps.inputs])
        static = bound.program.signature.static_argnums
        return tuple(a for i, a in enumerate(args) if i not in static)

    def out_shardings(self, mesh: Any = None) -> Any:
        """A tree of NamedSharding like the results."""
        bound = self._require("out_shardings()")
        steps, on = bound.steps, jax_mesh(self.mesh, mesh)
        inputs, outputs = ([sharding(on, s) for s in x] for x in (steps.inputs, steps.outputs))
        return bound.program.signature.output.build(outputs, inputs)

    def place(self, /, *args: Any, mesh: Any = None, **kwargs: Any) -> Any:
        """The arguments on the devices, split as planned; one argument gives one value back.

        Your own arrays stay whatever is donated later: what comes back shares no buffers with
        them, unless it is that array, in its place already and not donated by the function. A
        jax.ShapeDtypeStruct gets its sharding, to restore a checkpoint into, say.
        """
        on = as_set(jax_mesh(self.mesh, mesh))
        self._meet(on)
        return arrays.place(self.record, self._bound, on, args, kwargs)

    def init(self, fn: Callable[..., Any], *args: Any, argnum: int = 0, mesh: Any = None) -> Any:
        """`fn(*args)`, the argument at `argnum`, created on the devices already split."""
        argument = self._argument("init()", argnum, mesh)
        argument.check_made(fn, args)
        self._meet(jax_mesh(self.mesh, mesh))
        return jax.jit(fn, out_shardings=argument.shardings)(*args)

    def local_part(self, *, argnum: int = -1, mesh: Any = None) -> Any:
        """Which part of an argument this process holds: a tuple of slices for each array.

        By default of the last argument, the batch of most steps.
        """
        return self._argument("local_part()", argnum, mesh).local_part()

    def local_batch(self, batch: Any, *, argnum: int = -1, mesh: Any = None) -> Any:
        """The argument at `argnum` as global arrays, of which each process has loaded its part.

        In a job of one process that is all of it; `local_part()` says what it is.
        """
        return self._argument("local_batch()", argnum, mesh).from_local(batch)

    def _argument(self, what: str, argnum: int, mesh: Any) -> arrays.Argument:
        bound = self._require(what)
        return arrays.argument(self.record, bound, argnum, as_set(jax_mesh(self.mesh, mesh)))

    def verify(
        self,
        target: str | None = None,
        run: bool = False,
        *,
        seed: int = 0,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        progress: Callable[[str], None] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Predicted against compiled, for the current devices or a target without hardware.

        `run` also compares results with the unsharded function's: on random arguments, with
        indices in and out of range, or on your own, `args=(params, batch)`, as in a call.
        `progress=print` is told every few seconds how long the compiler has been at it. Compilers
        run in a child process, all but those for accelerators of this process, and are ended after
        `timeout` seconds, by default an hour.
        """
        from shardwright.referee.verify import reporting, verify_plan

        seed, timeout = number("seed", seed), number("timeout", timeout, least=SOONEST_S)
        with reporting(progress, f"compiling for {target or 'the current devices'}"):
            return verify_plan(
                self, target, run=run, seed=seed, args=args, kwargs=kwargs, timeout=timeout
            )

    # Files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Writes the plan as JSON: readable, in program order, safe to diff in review."""
        write_record(self.record, path)

    def diff(self, other: Plan) -> str:
        """What another plan does differently, as text; empty when nothing."""
        from shardwright.report.diff import diff_plans

        if not isinstance(other, Plan):
            raise ShardwrightError(
                f"a plan differs from plans, not from {other!r:.60}", try_="sw.load(path)"
            )
        return diff_plans(self.record, other.record)

    def to_python(self) -> str:
        """A snippet that places the arguments as planned and needs no Shardwright."""
        from shardwright.report.eject import to_python

        return to_python(self.record)

    def trace(self, path: str | Path, *, against: str | Path | None = None) -> None:
        """Writes the predicted step in Chrome trace format, for Perfetto; *.gz is compressed.

        `against` is a profile of jax.profiler.trace, or its folder, to be laid beside it.
        """
        from shardwright.report.trace import write_trace

        write_trace(self.to_trace(against=against), path)

    def to_trace(self, *, against: str | Path | None = None) -> dict[str, Any]:
        """What `trace` writes, as plain data."""
        from shardwright.referee.profile import read_profile
        from shardwright.report.against import measured_events
        from shardwright.report.trace import SPANS, chrome_trace

        record, bound = self.record, self._bound
        if bound is not None:  # the file has fewer spans
            collectives, timeline = over_time(bound.model, bound.decisions, SPANS)
            record = replace(record, collectives=collectives, timeline=timeline)
        trace = chrome_trace(record)
        if against is not None:
            trace["traceEvents"] += measured_events(read_profile(against))
        return trace

    def to_html(self, beside: Plan | None = None) -> str:
        """The plan as one self-contained page; with another plan, both side by side."""
        from shardwright.report.html import side_by_side, to_html

        return to_html(self.record) if beside is None else side_by_side(self.record, beside.record)


def plan_of(fn: Callable[..., Any], model: CostModel, found: Found, **about: Any) -> Plan:
    """The plan of a function, of what was found for it; `about` as build_record takes it."""
    bound = Bound(fn, model.analysis.program, model, found.decisions)
    return Plan(build_record(model, found, **about), bound)


def load(path: str | Path) -> Plan:
    """The plan saved at `path`; bind() or jit() check that the program still matches."""
    return Plan(read_record(path))
