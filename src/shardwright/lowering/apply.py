"""A plan as runnable JAX: the function is traced again and every step is pinned.

The walk goes over the jaxpr in the order of program/tracing.py and counts ops as it does, so
that the n-th op here is the n-th op there. Calls with derivatives of their own, remat bodies,
loops and branches are rebuilt with constrained bodies; everything else is evaluated as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.lowering.convolution import convolve
from shardwright.lowering.partial import add_up, in_first_part, over_leading, split_dims
from shardwright.lowering.parts import on_parts
from shardwright.lowering.steps import Exit, Partial, Spec, Step, Steps, partition_spec
from shardwright.lowering.workarounds import IN_PARTS, clamped_starts, sliced
from shardwright.program.fingerprint import argument_types, first_change
from shardwright.program.tracing import CALLS, CUSTOM, REMATS
from shardwright.program.types import Program

# Calls that carry derivative rules or metadata (or hide their body from the optimiser): kept.
KEPT_CALLS = (*CUSTOM, *REMATS, "xla_metadata_call")


class Slot(NamedTuple):
    """An array in the walk, and whether the program text has it as a number."""

    array: Any
    literal: bool = False
    partial: Partial | None = None  # leading dims that still have to be summed
    recipe: Recipe | None = None  # of what is made of numbers alone
    invariant: bool = False  # the same in every round of the loop around it


class Recipe(NamedTuple):
    """How to make an array of numbers again: any device can make any part of it."""

    eqn: Any
    operands: list[Slot]
    dims: tuple[tuple[int | None, ...], ...]  # per operand and dim, the dim of the result


class Entry(NamedTuple):
    """How a body takes one of its operands."""

    ways: tuple[tuple[Spec, ...], ...]  # per result of the tie: placements on the way; or none
    carry: Partial | None = None  # it is still to be summed


def apply_steps(closed: Any, steps: Steps, mesh: Any, arrays: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr on these arrays, with every placement pinned.

    The jaxpr is that of the program the steps are for: see `check_unchanged`.
    """
    walk = _Walk(steps, mesh)
    inputs = [Slot(walk.pin(a, (spec,))) for a, spec in zip(arrays, steps.inputs, strict=True)]
    outputs = walk.jaxpr(closed.jaxpr, [*map(Slot, closed.consts), *inputs])
    results = []
    for out, spec in zip(outputs, steps.outputs, strict=True):
        if out.literal:
            results.append(out.array)
            continue
        step = walk.next_step()
        array = walk.moved(out, step, 0) if step else out.array
        results.append(walk.pin(array, step.makes[0] if step else (spec,)))
    if walk.serial != steps.count:  # we are wrong, not the user; better no numbers than wrong ones
        raise ShardwrightError(
            f"the walk over the jaxpr met {walk.serial} ops, the program has {steps.count}",
            try_="report this program to Shardwright",
        )
    return results


def check_unchanged(steps: Steps, now: Program) -> None:
    """Raises unless a program that was traced again is the one that the steps are for."""
    check_types(steps.types, list(argument_types(now).values()))
    change = first_change(steps.program, now)
    if change is not None:
        raise ShardwrightError(
            f"{now.name} has changed since it was planned",
            was=change.was, now=change.now, at=change.at,
            try_="plan again: the function must compute the same whenever it is traced; what may"
            " change it is an argument, static if it is no array",
        )  # fmt: skip


def check_types(planned: Mapping[str, str], now: Sequence[str]) -> None:
    """Raises unless the leaves of a call have the planned types, {path: type}."""
    rows = zip(planned.items(), now, strict=True)
    changes = [f"{path}: was {was}, is {is_}" for (path, was), is_ in rows if was != is_]
    if changes:
        more = f"\n... and {len(changes) - 8} more" if len(changes) > 8 else ""
        raise ShardwrightError(
            "the arguments have other types than this plan was made for",
            changed="\n".join(changes[:8]) + more,
            try_="plan again for these arguments",
        )


class _Walk:
    def __init__(self, steps: Steps, mesh: Any) -> None:
        self.steps = steps
        self.mesh = mesh
        self.serial = 0
        self.backward = False
        self.round: Any = None  # something that differs between the rounds of the loop around
        self._shardings: dict[Spec, NamedSharding] = {}
        self._copies: dict[tuple[int, tuple[Spec, ...], bool], tuple[Any, Any]] = {}

    def next_step(self) -> Step | None:
        step = self.steps.by_serial.get(self.serial)
        self.serial += 1
        return step

    def next_exits(self) -> Mapping[int, Exit]:
        """The exits of the loop or branch that is met next."""
        exits = self.steps.exits.get(self.serial, {})
        self.serial += 1
        return exits

    def pin(self, array: Any, specs: Sequence[Spec]) -> Any:
        """The array led through these placements."""
        for spec in specs:
            if not spec:
                continue
            if spec not in self._shardings:
                self._shardings[spec] = NamedSharding(self.mesh, partition_spec(spec))
            array = jax.lax.with_sharding_constraint(array, self._shardings[spec])
        return array

    def moved(self, slot: Slot, step: Step, operand: int) -> Any:
        """An operand as the op needs it; one copy serves all uses in the same place.

        What is moved for the forward pass is moved again for the backward pass: the barrier keeps
        the compiler from holding the first copy in between.
        """
        array, way = slot.array, step.needs[operand]
        if not way:
            return array
        key = (id(array), way, self.backward)
        if key not in self._copies:
            held = self.made(slot, way[-1], {})
            if step.travels[operand]:
                held = self.here(held, slot)
            self._copies[key] = (array, self.pin(held, way))  # keeps `array`, and so its id
        return self._copies[key][1]

    def here(self, held: Any, slot: Slot) -> Any:
        """What is about to be sent, from here: a compiler does not send it earlier.

        It would keep a copy from the forward to the backward pass, or (XLA:CPU, where others do
        not) for all rounds of a loop.
        """
        if slot.invariant and self.round is not None:
            return jax.lax.optimization_barrier((held, self.round))[0]
        return jax.lax.optimization_barrier(held) if self.backward else held

    def made(self, slot: Slot, spec: Spec, known: dict[tuple[int, Spec], Any]) -> Any:
        """An array of numbers made anew, placed like this all the way; others as they are."""
        if slot.recipe is None:
            return slot.array
        key = (id(slot.array), spec)
        if key not in known:
            eqn, operands, dims = slot.recipe
            specs = [tuple(() if d is None else spec[d] for d in row) for row in dims]
            args = [self.made(s, one, known) for s, one in zip(operands, specs, strict=True)]
            known[key] = self.pin(_jax.bind(eqn, args)[0], (spec,))
        return known[key]

    def jaxpr(self, jaxpr: Any, inputs: Sequence[Slot]) -> list[Slot]:
        env: dict[Any, Slot] = dict(zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True))

        def read(v: Any) -> Slot:
            return Slot(v.val, True) if type(v) is _jax.Literal else env[v]

        for eqn in jaxpr.eqns:
            operands = [read(v) for v in eqn.invars]
            name = eqn.primitive.name
            saved = self.backward
            self.backward = saved or _jax.is_transposed(eqn.source_info)
            if name in CALLS and CALLS[name] in eqn.params:
                results = self.call(eqn, name, operands)
            elif (inner := _jax.opened(eqn)) is not None:
                results = self.jaxpr(inner.jaxpr, [*map(Slot, inner.consts), *operands])
            elif name in _REGIONS:
                results = [Slot(a) for a in _REGIONS[name](self, eqn, operands)]
            elif name == "custom_linear_solve":
                results = self.linear_solve(eqn, operands)
            else:
                results = self.op(eqn, operands)
            self.backward = saved
            if all(s.invariant or s.literal for s in operands):
                results = [s._replace(invariant=True) for s in results]
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def op(self, eqn: Any, operands: list[Slot]) -> list[Slot]:
        step = self.next_step()
        if step is None:  # nothing needs it, or nothing is known of it
            return [Slot(a) for a in _jax.bind(eqn, [s.array for s in operands])]
        if step.numbers is not None:
            (array,) = _jax.bind(eqn, [s.array for s in operands])
            return [Slot(array, recipe=Recipe(eqn, operands, step.numbers))]
        args = [
            s.array if s.literal or s.partial else self.moved(s, step, i)
            for i, s in enumerate(operands)
        ]
        args = clamped_starts(eqn, args)
        carried = next((s.partial for s in operands if s.partial), None)
        if carried and step.order:
            carried = carried.in_order(step.order)
        partial = step.partial or carried
        if partial is None:
            if step.convolution:
                results = [convolve(eqn, args, step.convolution, self.mesh)]
            elif eqn.primitive.name in IN_PARTS:
                results = self.in_parts(eqn, args, step)
            elif eqn.primitive.name == "slice":
                results = sliced(eqn, args[0], step.reads[0], self.mesh)
            else:
                results = _jax.bind(eqn, args)
            return [Slot(self.pin(a, way)) for a, way in zip(results, step.makes, strict=True)]
        if step.partial:
            args = [
                split_dims(a, step.partial.sizes, dims, self.pin_leading(step.partial, dims))
                for a, dims in zip(args, step.partial.dims, strict=True)
            ]
            leading = [[d is not None for d in dims] for dims in step.partial.dims]
            if step.partial.onto:
                args[0] = in_first_part(args[0], partial.sizes)
                leading[0] = [True] * len(partial.axes)
        else:
            leading = [[s.partial is not None] * len(partial.axes) for s in operands]
        (array,) = over_leading(lambda *xs: _jax.bind(eqn, list(xs)), leading, args)
        array = self.pin(array, (partial.spec,))
        if step.defer:
            return [Slot(array, partial=partial)]
        return [Slot(self.summed(array, partial, step))]

    def summed(self, array: Any, partial: Partial, step: Step) -> Any:
        """Partial sums reduced, and brought to where the result is kept."""
        merged = array.reshape(-1, *array.shape[len(partial.axes) :])
        merged = self.pin(merged, ((partial.axes, *partial.way[0]),))
        way = tuple(dict.fromkeys((*partial.way, step.makes[0][-1])))
        if partial.scatter:
            return self.pin(self.scatter(merged, partial), way[1:])
        return self.pin(add_up(merged), way)

    def scatter(self, merged: Any, partial: Partial) -> Any:
        """The sum over the leading dim, each device keeping its part of other dims.

        The dim that is cut leads: cut elsewhere into parts that are no multiple of 256, the TPU
        compiler reduces the whole.
        """
        produced = partial.way[0]
        made = list(produced)
        for axes, dim in partial.scatter:
            made[dim] += axes
        others = tuple(a for a in partial.axes if all(a not in axes for axes, _ in partial.scatter))

        def local(part: Any) -> Any:
            part = part[0]
            for axes, dim in partial.scatter:
                leading = jnp.moveaxis(part, dim, 0)
                cut = jax.lax.psum_scatter(leading, axes, scatter_dimension=0, tiled=True)
                part = jnp.moveaxis(cut, 0, dim)
            return jax.lax.psum(part, others) if others else part

        return on_parts(local, self.mesh, [(partial.axes, *produced)], tuple(made))(merged)

    def in_parts(self, eqn: Any, args: list[Any], step: Step) -> list[Any]:
        """A stubborn op computed on each device's part, by hand."""
        made = [way[0] for way in step.makes]
        return on_parts(lambda *xs: _jax.bind(eqn, list(xs)), self.mesh, step.reads, made)(*args)

    def pin_leading(self, partial: Partial, dims: Sequence[int | None]) -> Any:
        """Pins the leading dims of a split operand to their axes, and leaves the rest open."""
        axes = [a for a, d in zip(partial.axes, dims, strict=True) if d is not None]

        def pin(array: Any) -> Any:
            open_dims = [PartitionSpec.UNCONSTRAINED] * (array.ndim - len(axes))
            sharding = NamedSharding(self.mesh, PartitionSpec(*axes, *open_dims))
            return jax.lax.with_sharding_constraint(array, sharding)

        return pin

    def call(self, eqn: Any, name: str, operands: list[Slot]) -> list[Slot]:
        inner, consts = _jax.open_jaxpr(eqn.params[CALLS[name]])
        if name not in KEPT_CALLS:
            with _jax.name_scope(str(eqn.params.get("name", name))):
                return self.jaxpr(inner, [*map(Slot, consts), *operands])
        about: list[tuple[bool, Partial | None]] = []  # the results

        def body(*arrays: Any) -> list[Any]:
            given = [s._replace(array=a) for s, a in zip(operands, arrays, strict=True)]
            outside, self.round = self.round, None  # of another trace
            out = self.jaxpr(inner, [*map(Slot, consts), *given])
            self.round = outside
            about.extend((s.literal, s.partial) for s in out)
            return [s.array for s in out]

        partial = [s.partial for s in operands]
        closed = _jax.retrace(body, _with_parts([v.aval for v in inner.invars], partial))
        args = [s.array for s in operands]
        if isinstance(eqn.params[CALLS[name]], _jax.ClosedJaxpr):
            results = _jax.bind(eqn, args, **{CALLS[name]: closed})
        else:  # an open jaxpr has no constants of its own
            opened, extra = _jax.without_consts(closed)
            results = _jax.bind(eqn, [*extra, *args], **{CALLS[name]: opened})
        return [Slot(a, *of) for a, of in zip(results, about, strict=True)]

    def linear_solve(self, eqn: Any, operands: list[Slot]) -> list[Slot]:
        lengths = eqn.params["const_lengths"]
        solve, consts = _jax.open_jaxpr(eqn.params["jaxprs"].solve)
        start = lengths.matvec + lengths.vecmat
        right = operands[start + lengths.solve + lengths.transpose_solve :]
        own = operands[start : start + lengths.solve]
        return self.jaxpr(solve, [*map(Slot, consts), *own, *right])

    def enter(self, outer: Slot, *, before: bool) -> tuple[Any, Entry]:
        """(operand as the region gets it, how the body takes it) for one entry tie.

        With `before` it is moved to where the body has it once, before the loop.
        """
        step = None if outer.literal else self.next_step()
        if step is None:
            return outer.array, Entry(())
        array = self.moved(outer, step, 0)
        if step.carry:  # one device starts from it
            array = self.pin(in_first_part(array, step.carry.sizes), (step.carry.spec,))
            return array, Entry((), step.carry)
        if not before:
            return array, Entry(step.makes)
        return self.pin(array, step.makes[-1]), Entry(tuple(way[-1:] for way in step.makes))

    def body(
        self, jaxpr: Any, entries: Sequence[tuple[Entry, int]],
        exits: Mapping[int, Exit] | None = None, number: int = 0, consts: int | None = None,
    ) -> tuple[Any, list[bool]]:  # fmt: skip
        """(constrained body, which outputs are literals); entries: (tie, its result) per input.

        `exits` are those of the loop or branch whose body with this number it is; the first
        `consts` inputs of a loop's body are the same in every round.
        """
        inner, closed_over = _jax.open_jaxpr(jaxpr)
        literal: list[bool] = []

        def run(*arrays: Any) -> list[Any]:
            given = [self.inside(a, *tie) for a, tie in zip(arrays, entries, strict=True)]
            outside, self.round = self.round, None  # of another trace
            if consts is not None:
                given[:consts] = [s._replace(invariant=True) for s in given[:consts]]
                self.round = next((s.array for s in given[consts:]), None)
            out = self.jaxpr(inner, [*map(Slot, closed_over), *given])
            self.round = outside
            literal.extend(s.literal for s in out)
            return [
                jax.lax.convert_element_type(s.array, v.aval.dtype) if s.literal
                else self.outgoing(s, (exits or {}).get(i), number)
                for i, (s, v) in enumerate(zip(out, inner.outvars, strict=True))
            ]  # fmt: skip

        carries = [entry.carry for entry, _ in entries]
        avals = _with_parts([v.aval for v in inner.invars], carries)
        return _jax.retrace(run, avals), literal

    def inside(self, array: Any, entry: Entry, result: int) -> Slot:
        """What a body gets through a tie."""
        if entry.carry:
            return Slot(self.pin(array, (entry.carry.spec,)), partial=entry.carry)
        return Slot(self.pin(array, entry.ways[result]) if entry.ways else array)

    def outgoing(self, out: Slot, leaves: Exit | None, body: int) -> Any:
        """What a body gives back, moved to where its loop or branch hands it on."""
        slot = None if leaves is None else leaves.slots[body]
        if leaves is None or slot is None or out.partial:
            return out.array
        return self.moved(out, leaves.step, slot)

    def leave(self, array: Any, has_tie: bool) -> Any:
        """A loop's result where it is stored, after its exit tie."""
        step = self.next_step() if has_tie else None
        if step and step.carry:
            return self.summed(array, step.carry, step)
        return self.pin(array, step.makes[0]) if step else array


def _with_parts(avals: Sequence[Any], partial: Sequence[Partial | None]) -> list[Any]:
    """Abstract types, with the leading dims of those that are partial sums."""
    structs = [_jax.struct(aval) for aval in avals]
    return [
        s.update(shape=(*p.sizes, *s.shape)) if p else s
        for s, p in zip(structs, partial, strict=True)
    ]


def _scan(walk: _Walk, eqn: Any, operands: list[Slot]) -> list[Any]:
    exits = walk.next_exits()
    stacks = eqn.params["num_consts"] + eqn.params["num_carry"]
    entered = [walk.enter(s, before=i < stacks) for i, s in enumerate(operands)]
    closed, literal = walk.body(
        eqn.params["jaxpr"], [(tie, 0) for _, tie in entered], exits,
        consts=eqn.params["num_consts"],
    )  # fmt: skip
    results = _jax.bind(eqn, [a for a, _ in entered], jaxpr=closed)
    carries = eqn.params["num_carry"]
    return [walk.leave(a, i < carries or not literal[i]) for i, a in enumerate(results)]


def _while(walk: _Walk, eqn: Any, operands: list[Slot]) -> list[Any]:
    exits = walk.next_exits()
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    args, ties = zip(*(walk.enter(s, before=True) for s in operands), strict=True)
    carried = list(ties[n_cond + n_body :])
    cond, _ = walk.body(
        eqn.params["cond_jaxpr"],
        [*((t, 0) for t in ties[:n_cond]), *((t, 0) for t in carried)],
    )
    body, _ = walk.body(
        eqn.params["body_jaxpr"],
        [*((t, 0) for t in ties[n_cond : n_cond + n_body]), *((t, 1) for t in carried)],
        exits, consts=n_body,
    )  # fmt: skip
    results = _jax.bind(eqn, list(args), cond_jaxpr=cond, body_jaxpr=body)
    return [walk.leave(a, True) for a in results]


def _cond(walk: _Walk, eqn: Any, operands: list[Slot]) -> list[Any]:
    exits = walk.next_exits()
    branches = eqn.params["branches"]
    entered = [walk.enter(s, before=False) for s in operands[1:]]
    bodies, literals = [], []
    for n, branch in enumerate(branches):
        closed, literal = walk.body(branch, [(tie, n) for _, tie in entered], exits, n)
        bodies.append(closed)
        literals.append(literal)
    args = [operands[0].array, *(a for a, _ in entered)]
    results = _jax.bind(eqn, args, branches=tuple(bodies))
    return [
        walk.leave(a, not all(lit))
        for a, lit in zip(results, zip(*literals, strict=True), strict=True)
    ]


_REGIONS = {"scan": _scan, "while": _while, "cond": _cond}
