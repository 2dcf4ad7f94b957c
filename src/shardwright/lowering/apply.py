"""A plan as runnable JAX: the handlers of the walk over the jaxpr that compute.

The function is traced again, and the actions of each op are found by its key. Calls with
derivatives of their own, remat bodies, loops and branches are rebuilt with constrained bodies;
everything else is evaluated as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.lowering.actions import (
    AS_IT_IS,
    ON_RESULTS,
    Actions,
    Constrain,
    RaggedDot,
    StayInLoop,
    Store,
    Unreduced,
)
from shardwright.lowering.movement import Mover
from shardwright.lowering.perform import Site, perform
from shardwright.lowering.slots import Slot, all_invariant
from shardwright.lowering.steps import Steps
from shardwright.program.interpret import CUSTOM, OUTSIDE, REMAT, RETYPED, Key, Place, enter
from shardwright.program.regions import Body, Borders, Port
from shardwright.program.ties import Tie
from shardwright.rules.registry import CALLS

# Calls that carry derivative rules or metadata (or hide their body from the optimiser): kept.
KEPT_CALLS = (*CUSTOM, REMAT, "xla_metadata_call")


def apply_steps(closed: Any, steps: Steps, mesh: Any, arrays: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr on these arrays, with every sharding constrained.

    The jaxpr is that of the program the steps are for: see `check_unchanged`.
    """
    lowering = Lowering(steps, mesh)
    lead = lowering.mover.lead
    rows = zip(arrays, steps.inputs, strict=True)
    inputs = [Slot(lead(a, (spec,)), stored=spec) for a, spec in rows]
    outputs = enter(lowering, closed, inputs, OUTSIDE)
    results = []
    for i, (out, spec) in enumerate(zip(outputs, steps.outputs, strict=True)):
        tie = lowering.take(OUTSIDE.tie(Tie.RETURN, i))
        if tie:
            array = lowering.operand(tie, 0, out, OUTSIDE)
            results.append(lowering.result(tie, Slot(array)).array)
        else:  # a literal; without any steps whatever is returned
            results.append(out.array if out.literal else lead(out.array, (spec,)))
    missed = steps.actions.keys() - lowering.met
    if missed:  # we are wrong, not the user; better no numbers than wrong ones
        raise ShardwrightError(
            f"{len(missed)} planned ops were not met, one of them at {min(missed, key=str)}",
            try_="report this program to Shardwright",
        )
    return results


class Inlet(NamedTuple):
    """How a body gets one of its inputs."""

    tie: Actions
    number: int  # which result of the tie it is
    unreduced: Unreduced | None


class Outlet(NamedTuple):
    """How one of its outputs leaves a body."""

    tie: Actions
    number: int  # which operand of the tie it is
    left: list[Unreduced]  # how it has left, if it is unreduced: known when the body is traced


class Lowering:
    """The steps, the keys of those that were taken, and what moves arrays on the mesh."""

    def __init__(self, steps: Steps, mesh: Any) -> None:
        self.steps = steps
        self.mover = Mover(mesh)
        self.met: set[Key] = set()
        self.sorted: dict[Key, Slot] = {}  # what rows are sorted by, in order
        self.told = [  # grouped dots, and the sort that tells each of its rows' groups
            (key, a.sorted_by) for key, actions in steps.actions.items()
            for a in actions if isinstance(a, RaggedDot) and a.sorted_by is not None
        ]  # fmt: skip

    def take(self, key: Key) -> Actions:
        """The actions of an op; none for one that nothing needs, or a tie of literals."""
        actions = self.steps.actions.get(key)
        if actions is None:
            return ()
        self.met.add(key)
        return actions

    def literal(self, number: Any) -> Slot:
        return Slot(_jax.without_mesh(number), literal=True)

    def constants(self, arrays: Sequence[Any]) -> list[Slot]:
        return [Slot(_jax.without_mesh(a), invariant=True) for a in arrays]

    def op(self, eqn: Any, operands: list[Slot], place: Place) -> list[Slot]:
        """The results of an op."""
        if eqn.primitive.name in RETYPED:
            arrays = _jax.bind(eqn, [s.array for s in operands])
            slots = zip(arrays, operands, strict=True)
            return [Slot(a, unreduced=s.unreduced, invariant=s.invariant) for a, s in slots]
        actions = self.take(place.key) or AS_IT_IS
        site = Site(eqn, place.transposed, list(operands))
        for action in actions:
            if isinstance(action, RaggedDot) and action.sorted_by is not None:
                site.operands[2] = self.sorted[action.sorted_by]
        perform(actions, site, self.mover)
        if eqn.primitive.name == "sort":
            self.sorted[place.key] = site.results[0]
        return _marked(site.results, site.operands)

    def call(self, eqn: Any, called: Any, operands: list[Slot], place: Place) -> list[Slot]:
        """The results of a call: inlined, or rebuilt if it has rules of its own."""
        name = eqn.primitive.name
        if name not in KEPT_CALLS or (name != REMAT and self.tells_across(place.key)):
            with jax.named_scope(str(eqn.params.get("name", name))):
                return enter(self, called, operands, place)
        if self.mover.in_loop and all_invariant(operands) and self.moves_inside(place.key):
            operands = self.mover.kept_in_loop(operands)
        results: list[Slot] = []

        def body(*arrays: Any) -> list[Any]:
            given = [s._replace(array=a) for s, a in zip(operands, arrays, strict=True)]
            if name == REMAT:  # no sharding is seen through the barrier before a remat body
                given = [s._replace(array=self.mover.as_stored(s)) for s in given]
            moving = [s.array for s in given if not s.invariant and not s.literal]
            with self.mover.another_trace(_largest(moving) if self.mover.in_loop else None):
                results.extend(enter(self, called, given, place))
            return [s.array for s in results]

        closed = _retraced(body, called, [s.unreduced for s in operands])
        args = [s.array for s in operands]
        if isinstance(called, _jax.ClosedJaxpr):
            arrays = _jax.bind(eqn, args, **{CALLS[name]: closed})
        else:  # an open jaxpr has no constants of its own
            opened, extra = _jax.without_consts(closed)
            arrays = _jax.bind(eqn, [*extra, *args], **{CALLS[name]: opened})
        rows = zip(arrays, results, strict=True)
        slots = [Slot(a, s.literal, s.unreduced, stored=s.stored) for a, s in rows]
        return _marked(slots, operands)

    def region(self, eqn: Any, borders: Borders, operands: list[Slot], place: Place) -> list[Slot]:
        """The results of a loop or branch, rebuilt with constrained bodies, or of a shard_map."""
        if self.mover.in_loop and all_invariant(operands) and self.moves_inside(place.key):
            operands = self.mover.kept_in_loop(operands)
        args = [s.array for s in operands]
        inlets: dict[Port, Inlet] = {}
        for entry in borders.entries:
            tie = self.take(place.tie(entry.tie, entry.operand))
            site = Site(eqn, place.transposed, [operands[entry.operand]])
            perform([a for a in tie if not isinstance(a, ON_RESULTS)], site, self.mover)
            (outer,) = site.operands
            args[entry.operand] = outer.array
            for n, port in enumerate(entry.inputs):
                inlets[port] = Inlet(tie, n, outer.unreduced)
        exits = [self.take(place.tie(leaves.tie, leaves.result)) for leaves in borders.exits]
        outlets = {
            port: Outlet(tie, n, []) for leaves, tie in zip(borders.exits, exits, strict=True)
            for n, port in enumerate(leaves.outputs)
        }  # fmt: skip
        if borders.bodies[0].partial and self.mover.mesh is not None:
            run = self.runner(0, borders.bodies[0], inlets, outlets, place)
            arrays = _jax.bind_shard_map(eqn, args, self.mover.mesh, run)
        elif borders.bodies[0].mesh:  # no axis is left to split its shards
            arrays = _jax.bind(eqn, args)
        else:
            bodies = [
                self.body(b, body, inlets, outlets, place) for b, body in enumerate(borders.bodies)
            ]
            arrays = _jax.bind(eqn, args, **borders.with_bodies(bodies))
        results = []
        for leaves, tie, array in zip(borders.exits, exits, arrays, strict=True):
            unreduced = next((inlets[port].unreduced for port in leaves.next_trip), None)
            slot = Slot(array, unreduced=unreduced)
            if leaves.tie is Tie.SCAN_YS:
                slot = next((self.stacked(array, u) for u in outlets[leaves.outputs[0]].left), slot)
            results.append(self.result(tie, slot))
        return _marked(results, operands)

    def tells_across(self, key: Key) -> bool:
        """Whether a sort on one side of a call's border tells a grouped dot on the other."""
        n = len(key)
        return any((dot[:n] == key) != (by[:n] == key) for dot, by in self.told)

    def moves_inside(self, key: Key) -> bool:
        """Whether ops of a loop, branch or call move data between devices."""
        return any(
            isinstance(a, StayInLoop) or (isinstance(a, Constrain) and a.sends)
            for inner, actions in self.steps.actions.items() if inner[: len(key)] == key
            for a in actions
        )  # fmt: skip

    def body(
        self, number: int, body: Body, inlets: Mapping[Port, Inlet],
        outlets: Mapping[Port, Outlet], place: Place,
    ) -> Any:  # fmt: skip
        """The closed jaxpr of a constrained body."""
        run = self.runner(number, body, inlets, outlets, place)
        entries = [inlets[Port(number, i)] for i in range(len(body.jaxpr.in_avals))]
        return _retraced(run, body.jaxpr, [inlet.unreduced for inlet in entries])

    def runner(
        self, number: int, body: Body, inlets: Mapping[Port, Inlet],
        outlets: Mapping[Port, Outlet], place: Place,
    ) -> Callable[..., list[Any]]:  # fmt: skip
        """A constrained body as a function of its inputs."""
        jaxpr, _ = _jax.open_jaxpr(body.jaxpr)
        entries = [inlets[Port(number, i)] for i in range(len(jaxpr.invars))]
        exits = [outlets.get(Port(number, i)) for i in range(len(jaxpr.outvars))]

        def run(*arrays: Any) -> list[Any]:
            """The results of the body on these arrays, moved as planned."""
            with self.mover.on_shards() if body.mesh else nullcontext():
                given = [self.input(a, inlet) for a, inlet in zip(arrays, entries, strict=True)]
                changes = None  # a branch makes no trips
                if body.consts is not None:
                    fixed = given[: body.consts]
                    given[: body.consts] = [s._replace(invariant=True) for s in fixed]
                    changes = _largest([s.array for s in given[body.consts :]])
                with self.mover.another_trace(changes):
                    out = enter(self, body.jaxpr, given, place.body(number))
                    for slot, outlet in zip(out, exits, strict=True):
                        if slot.unreduced and outlet:
                            outlet.left[:] = [slot.unreduced]
                    return [
                        _jax.as_type(s.array, v.aval) if s.literal
                        else s.array if outlet is None
                        else self.operand(outlet.tie, outlet.number, s, place)
                        for s, v, outlet in zip(out, jaxpr.outvars, exits, strict=True)
                    ]  # fmt: skip

        return run

    def input(self, array: Any, inlet: Inlet) -> Slot:
        """What a body gets through an entry tie."""
        if inlet.unreduced:
            way = (inlet.unreduced.spec,)
            return Slot(self.mover.lead(array, way), unreduced=inlet.unreduced)
        for action in inlet.tie:
            if isinstance(action, Store) and action.result == inlet.number:
                array = self.mover.lead(array, action.way)
        return Slot(array)

    def operand(self, tie: Actions, number: int, slot: Slot, place: Place) -> Any:
        """What goes into an exit tie, where its op needs it."""
        for action in tie:
            if isinstance(action, Constrain) and action.operand == number:
                return self.mover.constrained(slot, action, transposed=place.transposed)
        return slot.array

    def stacked(self, array: Any, unreduced: Unreduced) -> Slot:
        """The unreduced entries that a scan has stacked: their leading dims come first again."""
        rank = array.ndim - len(unreduced.axes) - 1
        stack = unreduced.in_order((None, *range(rank)))
        moved = jnp.moveaxis(array, 0, len(unreduced.axes))
        return Slot(self.mover.lead(moved, (stack.spec,)), unreduced=stack)

    def result(self, tie: Actions, slot: Slot) -> Slot:
        """What comes out of an exit tie, where it is stored."""
        site = Site(None, False, [], [slot])
        perform([a for a in tie if isinstance(a, ON_RESULTS)], site, self.mover)
        return site.results[0]


def _largest(arrays: Sequence[Any]) -> Any:
    """The largest array, no counter: XLA drops from a barrier what nothing else uses."""
    return max(arrays, key=lambda a: a.size, default=None)


def _marked(results: Sequence[Slot], operands: Sequence[Slot]) -> list[Slot]:
    """The results, marked if they are the same in every trip as all operands are."""
    return [s._replace(invariant=True) for s in results] if all_invariant(operands) else [*results]


def _retraced(run: Callable[..., Any], called: Any, given: Sequence[Unreduced | None]) -> Any:
    """The closed jaxpr of `run` in place of another; unreduced arguments have leading dims."""
    jaxpr, _ = _jax.open_jaxpr(called)
    structs = [_jax.struct(v.aval) for v in jaxpr.invars]
    return _jax.retrace(
        run,
        [
            s.update(shape=(*u.sizes, *s.shape)) if u else s
            for s, u in zip(structs, given, strict=True)
        ],
    )
